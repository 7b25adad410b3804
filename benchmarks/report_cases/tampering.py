"""Tampered copies of a published result: eleven that the official checker rejects, six that it accepts, and one that
no checker can tell, because every copy of every figure was changed alike and nothing is signed."""

import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.report.checks.evidence import sha1_of
from wattsmith.report.formats.descriptor import Descriptor, read_descriptor
from wattsmith.report.formats.lines import Unread, written
from wattsmith.report.formats.mllog import LogEvent, log_lines
from wattsmith.report.formats.ptd_log import ptd_line, ptd_lines
from wattsmith.report.formats.spl import SplSample, spl_lines
from wattsmith.report.formats.stamps import stamp_s

WARNINGS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    name: str
    officially: str | None  # "rejected" or "accepted", by the checker of the round; None: that depends on the log
    tamper: Callable[[Path], str | None]  # on a copy; what says why this result has nothing to change
    detectable: bool = True


# ---- how files are changed


def descriptor(folder: Path, side: str) -> Descriptor:
    return read_descriptor(folder / "power" / f"{side}.json")


def put(folder: Path, side: str, **fields: Any) -> None:
    (folder / "power" / f"{side}.json").write_bytes(descriptor(folder, side).changed(**fields).encode())


def refresh(folder: Path) -> None:
    """Write the checksums of the files as they now are, as whoever tampers would."""
    for side in ("client", "server"):
        one = descriptor(folder, side)
        there = {path: folder / path for path in one.body["results"]}
        kept = {
            path: sha1_of(file, path) if file.is_file() else one.body["results"][path] for path, file in there.items()
        }
        put(folder, side, results=kept)
    server = descriptor(folder, "server")
    if "power/client.json" in server.body["results"]:  # v1.0 kept one of client.json itself
        put(
            folder,
            "server",
            results=server.body["results"]
            | {"power/client.json": sha1_of(folder / "power/client.json", "client.json")},
        )


def change_spl(path: Path, change: Callable[[list[SplSample | Unread]], list[SplSample | Unread]]) -> None:
    path.write_bytes(written(change(list(spl_lines(path)))))


def scaled(line: SplSample | Unread, ratio: float, labels: tuple[str, ...] = ("Watts",)) -> SplSample | Unread:
    """The same sample with other watts, in the sum and in every channel."""
    if isinstance(line, Unread):
        return line
    fields = list(line.fields)
    for place, field in enumerate(fields[:-1]):
        if field in labels and float(fields[place + 1]) > 0:
            fields[place + 1] = f"{float(fields[place + 1]) * ratio:.6f}"
    return SplSample(line.number, tuple(fields), line.ending, line.time_s, line.power_w * ratio, 0.0, 0.0, 0.0)


def change_messages(folder: Path, change: Callable[[int, dict[str, str]], dict[str, str]]) -> None:
    messages = descriptor(folder, "server").body["ptd_messages"]
    put(folder, "server", ptd_messages=[change(place, dict(one)) for place, one in enumerate(messages)])


def testing_from(folder: Path) -> tuple[int, int]:
    """Places of the two commands that start a measurement."""
    commands = [one.command for one in descriptor(folder, "server").ptd_messages]
    first, second = [place for place, command in enumerate(commands) if command.startswith("Go,")][:2]
    return first, second


def insert_in_log(folder: Path, texts: list[str], phase: str = "testing") -> None:
    """Put messages into the daemon's log, a second apart, in the middle of the window."""
    path = folder / "power" / "ptd_logs.txt"
    lines = list(ptd_lines(path))
    mark = f"_{phase}'"
    place = next(
        i for i, line in enumerate(lines) if any("Go with mark" in s.text and mark in s.text for s in line.messages)
    )
    begin_s = middle_s(folder) - len(texts) / 2
    ending = lines[place].ending or "\n"
    # The log's clock is the samples' clock; LoadGen's may lie in another zone in v1.0.
    new = [ptd_line(begin_s + number, text) + ending for number, text in enumerate(texts)]
    whole = [line.line for line in lines[: place + 2]] + new + [line.line for line in lines[place + 2 :]]
    path.write_bytes("".join(whole).encode("utf-8", "surrogateescape"))


def middle_s(folder: Path) -> float:
    samples = [line for line in spl_lines(folder / "run_1" / "spl.txt") if isinstance(line, SplSample)]
    return stamp_s(samples[len(samples) // 2].fields[1])


# ---- what the official checker rejects


def client_sources(folder: Path) -> None:
    put(folder, "client", sources=descriptor(folder, "client").body["sources"] | {"lib/client.py": "0" * 40})


def server_sources(folder: Path) -> None:
    put(folder, "server", sources=descriptor(folder, "server").body["sources"] | {"lib/server.py": "0" * 40})


def refused_range(folder: Path) -> None:
    change_messages(folder, lambda _, one: one | {"reply": "Error: range"} if one["cmd"].startswith("SR,A") else one)


def other_uuid(folder: Path) -> None:
    uuid = descriptor(folder, "client").body["uuid"]
    put(folder, "client", uuid=uuid | {"server": "00000000-0000-4000-8000-000000000000"})


def other_session(folder: Path) -> None:
    put(folder, "client", session_name="2020-01-01_00-00-00")


def clocks_apart(folder: Path) -> None:
    phases = descriptor(folder, "client").body["phases"]
    put(
        folder,
        "client",
        phases={name: [[wall + 2.0, *rest] for wall, *rest in steps] for name, steps in phases.items()},
    )


def lost_message(folder: Path) -> None:
    put(folder, "client", messages=descriptor(folder, "client").body["messages"][:-1])


def watts_without_checksums(folder: Path) -> None:
    change_spl(folder / "run_1" / "spl.txt", lambda lines: [scaled(line, 0.9) for line in lines])


def unchecked_uncertainty(folder: Path) -> None:
    path = folder / "power" / "ptd_logs.txt"
    path.write_bytes(written(line for line in ptd_lines(path) if "Uncertainty checking for" not in line.text))
    refresh(folder)


def dummy_device(folder: Path) -> None:
    config = descriptor(folder, "server").body["ptd_config"]
    put(
        folder,
        "server",
        ptd_config=[one | {"device_type": 0} for one in config]
        if isinstance(config, list)
        else config | {"device_type": 0},
    )


def debugging(folder: Path) -> None:
    put(folder, "server", debug=True)


# ---- what it accepts


def half_the_watts(folder: Path) -> None:
    for run in ("ranging", "run_1"):
        change_spl(folder / run / "spl.txt", lambda lines: [scaled(line, 0.5) for line in lines])
    refresh(folder)


def without_the_highest(folder: Path) -> None:
    def lowest(lines: list[SplSample | Unread]) -> list[SplSample | Unread]:
        watts = sorted(line.power_w for line in lines if isinstance(line, SplSample))
        limit_w = watts[int(len(watts) * 0.7)]
        return [line for line in lines if isinstance(line, Unread) or line.power_w < limit_w]

    change_spl(folder / "run_1" / "spl.txt", lowest)
    refresh(folder)


def twice_the_queries(folder: Path) -> str | None:
    path = folder / "run_1" / "mlperf_log_detail.txt"
    lines = list(log_lines(path))
    keys = {line.key for line in lines if isinstance(line, LogEvent)}
    key = "result_query_count" if "result_query_count" in keys else "result_qps_with_loadgen_overhead"
    if key not in keys:
        return "its log has neither a number of queries nor a rate of them"
    value = re.compile(r'("value"\s*:\s*)([\d.]+)')
    new = [
        value.sub(lambda found: f"{found[1]}{2 * float(found[2]):.10g}", line.line)
        if isinstance(line, LogEvent) and line.key == key
        else line.line
        for line in lines
    ]
    path.write_bytes("".join(new).encode("utf-8", "surrogateescape"))
    refresh(folder)
    return None


def other_replies(folder: Path) -> str | None:
    def half(_: int, one: dict[str, str]) -> dict[str, str]:
        if one["cmd"] != "Watts":
            return one
        name, mean, *rest = one["reply"].split(",")
        return one | {"reply": ",".join((name, f"{float(mean) / 2:.6f}", *rest))}

    if not any(one.command == "Watts" for one in descriptor(folder, "server").ptd_messages):
        return "the daemon was not asked for its averages before v4.0"
    change_messages(folder, half)
    return None


def uncertain_samples(folder: Path) -> None:
    old = "WARNING: Uncertainty 5.00% above 1.00% limit for the last measurement sample!"
    new = "WARNING: Uncertainty 5.00%, which is above 1.00% limit for the last sample!"
    version = descriptor(folder, "server").identities[0]
    insert_in_log(folder, [old if "version=1.9" in version else new] * WARNINGS)
    refresh(folder)


def automatic_ranges(folder: Path) -> None:
    first, second = testing_from(folder)

    def auto(place: int, one: dict[str, str]) -> dict[str, str]:
        inside = first < place < second and one["cmd"].startswith("SR,")
        return one | {"cmd": one["cmd"][:5] + "Auto"} if inside else one

    change_messages(folder, auto)


# ---- what it accepts if an earlier warning made it stop reading


def meter_errors(folder: Path) -> None:
    insert_in_log(folder, ["ERROR: Current appears to be too high for set range"] * 20)
    refresh(folder)


# ---- what nobody can tell


def everything_halved(folder: Path) -> None:
    """Watts and amps of samples, of the daemon's averages, echoes and answers, and of the range of the test."""
    for run in ("ranging", "run_1"):
        change_spl(folder / run / "spl.txt", lambda lines: [scaled(line, 0.5, ("Watts", "Amps")) for line in lines])
    halved = re.compile(r"((?:Avg|min|max) watts |(?:Watts|Amps),)(\d+\.\d+)")
    log = folder / "power" / "ptd_logs.txt"
    text = log.read_bytes().decode("utf-8", "surrogateescape")
    text = halved.sub(lambda found: f"{found[1]}{float(found[2]) / 2:.6f}", text)
    log.write_bytes(text.encode("utf-8", "surrogateescape"))
    first, second = testing_from(folder)

    def half(place: int, one: dict[str, str]) -> dict[str, str]:
        if one["cmd"] == "Watts":
            name, mean, least, most, *rest = one["reply"].split(",")
            values = (f"{float(value) / 2:.6f}" for value in (mean, least, most))
            return one | {"reply": ",".join((name, *values, *rest))}
        if first < place < second and one["cmd"].startswith("SR,A"):
            return one | {"cmd": f"SR,A,{float(one['cmd'][5:]) / 2}"}
        return one

    change_messages(folder, half)
    refresh(folder)


REJECTED, ACCEPTED = "rejected", "accepted"
VARIANTS = (
    Variant(name="client's sources changed", officially=REJECTED, tamper=client_sources),
    Variant(name="server's sources changed", officially=REJECTED, tamper=server_sources),
    Variant(name="a range was refused by the meter", officially=REJECTED, tamper=refused_range),
    Variant(name="another UUID", officially=REJECTED, tamper=other_uuid),
    Variant(name="another session's name", officially=REJECTED, tamper=other_session),
    Variant(name="clocks 2 s apart", officially=REJECTED, tamper=clocks_apart),
    Variant(name="a message lost", officially=REJECTED, tamper=lost_message),
    Variant(name="watts × 0.9, checksums left", officially=REJECTED, tamper=watts_without_checksums),
    Variant(name="uncertainty was not checked", officially=REJECTED, tamper=unchecked_uncertainty),
    Variant(name="a dummy device", officially=REJECTED, tamper=dummy_device),
    Variant(name="debug mode", officially=REJECTED, tamper=debugging),
    Variant(name="all watts halved, checksums renewed", officially=ACCEPTED, tamper=half_the_watts),
    Variant(name="the highest 30 % of samples deleted", officially=ACCEPTED, tamper=without_the_highest),
    Variant(name="twice the queries", officially=ACCEPTED, tamper=twice_the_queries),
    Variant(name="Watts replies halved", officially=ACCEPTED, tamper=other_replies),
    Variant(name=f"{WARNINGS} samples of 5 % uncertainty", officially=ACCEPTED, tamper=uncertain_samples),
    Variant(name="test under automatic ranges", officially=ACCEPTED, tamper=automatic_ranges),
)
STOPPED = Variant(name="20 errors of the meter in the test", officially=None, tamper=meter_errors)
BEYOND = Variant(
    name="every copy of every figure halved", officially=ACCEPTED, tamper=everything_halved, detectable=False
)


def tampered(source: Path, target: Path, variant: Variant) -> str | None:
    """Make the variant of a result in TARGET. What comes back says why this result has nothing to change so."""
    shutil.copytree(source, target, copy_function=shutil.copyfile)
    for folder in (target, *(path for path in target.rglob("*") if path.is_dir())):
        folder.chmod(0o755)
    return variant.tamper(target)
