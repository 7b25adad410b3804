"""Two hundred agents that post every second: is a report lost, and how long does an estimate take meanwhile?

    python benchmarks/serve_load.py [--agents 200] [--seconds 120] [--db URL] [--json FILE]

A real `wattsmith serve` on a home of its own. A second process, which gives way to the service, sends what the agents
of as many nodes with four GPUs would: each on a connection of its own, one report a second, the seconds spread. A third
asks for an estimate five times a second, by turns one that was asked before and one that is new on a structure that is
known, and looks at the jobs and the pool. Agents send a report again only where the service said so or hung up. Then
the service is stopped and the reports in the database are counted. Exits with 1 when a report was lost or kept twice,
or when an estimate takes 250 ms at the 99th percentile. The agents are simulated; the service is not.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from results.shape import bar, table
from wattsmith.store.opening import open_service_store

if TYPE_CHECKING:
    import httpx

ESTIMATE_P99_S = 0.25
ASKS_HZ = 5.0
GIVES_WAY = 5  # niceness of the agents: on machines of their own they would take no time from the service
POOL = "nodes:\n  - {name: here, device: h200, count: 8, power_limits: [200W, 700W]}\n"
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        block = [torch.nn.Conv2d(64, 64, 3, padding=1), torch.nn.BatchNorm2d(64), torch.nn.ReLU()]
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3, padding=1), *(4 * block), torch.nn.Flatten(), torch.nn.Linear(65536, 10)
        )

    def forward(self, images):
        return self.layers(images)
"""
JOB = """
name: net
command: [python, train.py]
model: net.py:Net
input: 3x32x32
batch: 64
samples: 50000
"""


@dataclass(slots=True, kw_only=True)
class Times:
    """How long answers took, in seconds."""

    all_s: list[float] = field(default_factory=list)

    def at(self, share: float) -> float:
        """The time within which SHARE of the answers came."""
        return sorted(self.all_s)[max(0, math.ceil(share * len(self.all_s)) - 1)] if self.all_s else math.nan

    def told(self) -> dict[str, float]:
        return {"count": len(self.all_s), "p50_s": self.at(0.5), "p99_s": self.at(0.99), "max_s": self.at(1.0)}


# ---- the agents


def report_of(number: int, now_s: float) -> dict[str, Any]:
    """What an agent of a node with four GPUs sees."""
    domains: dict[str, Any] = {
        f"gpu:{place}": {
            "power_w": 512.25 + place,
            "energy_j": 512.25 * number,
            "busy_ratio": 0.97,
            "memory_busy_ratio": 0.41,
            "memory_used_bytes": 91_234_567_890,
            "clock_hz": 1.98e9,
            "memory_clock_hz": 3.2e9,
            "temperature_c": 61.0,
            "power_limit_w": 700.0,
            "activity": {"sm": 0.93, "tensor": 0.52, "dram": 0.47},
        }
        for place in range(4)
    }
    domains["cpu-package:0"] = {"power_w": 143.5, "energy_j": 143.5 * number}
    return {"boot": "b1", "number": number, "time_s": now_s, "domains": domains, "steps": 12.0 * number}


@dataclass(slots=True)
class Agents:
    """What the agents of a fleet did."""

    sent: int = 0  # reports
    posts: int = 0  # with those that were sent again
    acknowledged: int = 0
    duplicates: int = 0
    put_off: int = 0  # answers 429 and 503
    broken: int = 0  # connections
    refused: list[str] = field(default_factory=list)
    times: Times = field(default_factory=Times)
    late_s: float = 0.0  # by how much a report was sent after its second, at worst


async def one_agent(told: Agents, port: int, name: str, token: str, begin_s: float, seconds: int) -> None:
    loop = asyncio.get_running_loop()
    head = (
        f"POST /api/v1/clients/{name}/telemetry HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        "Content-Type: application/json\r\nContent-Length: "
    )
    line: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
    for number in range(1, seconds + 1):
        wait_s = begin_s + number - 1 - loop.time()
        await asyncio.sleep(max(0.0, wait_s))
        told.late_s = max(told.late_s, -wait_s)
        body = json.dumps({"reports": [report_of(number, time.time())]}, separators=(",", ":"))
        told.sent += 1
        while True:
            told.posts += 1
            asked_s = loop.time()
            try:
                line = line or await asyncio.open_connection("127.0.0.1", port)
                line[1].write(f"{head}{len(body)}\r\n\r\n{body}".encode())
                status, again_s, answer = await _answer(line[0])
            except (OSError, asyncio.IncompleteReadError):
                told.broken += 1
                line = None
                await asyncio.sleep(0.5)
                continue
            told.times.all_s.append(loop.time() - asked_s)
            if status not in (429, 503):
                break
            told.put_off += 1
            await asyncio.sleep(again_s)
        if status == 200:
            kept = json.loads(answer)
            told.acknowledged += kept["accepted"] + kept["duplicates"]
            told.duplicates += kept["duplicates"]
        else:
            told.refused.append(f"{status} {answer[:200]!r}")
    if line is not None:
        line[1].close()


async def _answer(reader: asyncio.StreamReader) -> tuple[int, float, bytes]:
    """Status, Retry-After and body of an answer."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
    first, *lines = head.split("\r\n")
    headers = dict(one.split(": ", 1) for one in lines if one)
    body = await reader.readexactly(int(headers["content-length"]))
    return int(first.split()[1]), float(headers.get("retry-after", 1)), body


async def all_agents(port: int, tokens: Mapping[str, str], seconds: int) -> Agents:
    told = Agents()
    begin_s = asyncio.get_running_loop().time() + 1.0
    agents = [
        one_agent(told, port, name, token, begin_s + place / len(tokens), seconds)
        for place, (name, token) in enumerate(tokens.items())
    ]
    await asyncio.gather(*agents)
    return told


def agents_process(port: int, seconds: int) -> None:
    """The other process: tokens come in, what was done goes out."""
    tokens = json.loads(sys.stdin.read())
    print(json.dumps(asdict(asyncio.run(all_agents(port, tokens, seconds)))))


# ---- who asks


@dataclass(slots=True)
class Asked:
    """What who asked was told."""

    first_s: float = math.nan  # the first estimate: the record is read for it
    new: Times = field(default_factory=Times)  # estimates on a known structure
    again: Times = field(default_factory=Times)  # estimates that were asked before
    looks: Times = field(default_factory=Times)  # jobs and pool
    failed: list[str] = field(default_factory=list)


def question(structure: str, place: int) -> dict[str, Any]:
    """Odd PLACES: one of four that are asked again and again. Even ones: never asked before."""
    asked: dict[str, Any] = {"structure": structure, "device": "h200", "devices": 1 + place % 2, "epochs": 3}
    if place % 2:
        return asked | {"samples": 50_000, "power_limit_w": [None, 400.0, 500.0, 600.0][place // 2 % 4]}
    return asked | {"samples": 50_000 + place, "power_limit_w": [None, 350.0 + place][place // 2 % 2]}


def ask(api: "httpx.Client", structure: str, seconds: float, told: Asked) -> None:
    """Ask five times a second for SECONDS, at even times whatever the answers take."""
    begin_s = time.monotonic()
    for place in range(int(seconds * ASKS_HZ)):
        time.sleep(max(0.0, begin_s + place / ASKS_HZ - time.monotonic()))
        times = told.again if place % 2 else told.new
        _timed(times, told, api, "POST", "/estimates", question(structure, place))
        if place % 5 == 0:
            _timed(told.looks, told, api, "GET", "/jobs", None)
            _timed(told.looks, told, api, "GET", "/pool", None)


def _timed(times: Times, told: Asked, api: "httpx.Client", method: str, path: str, body: Any) -> None:
    asked_s = time.monotonic()
    answer = api.request(method, path, json=body)
    times.all_s.append(time.monotonic() - asked_s)
    if answer.status_code != 200:
        told.failed.append(f"{method} {path}: {answer.status_code} {answer.text[:200]}")


# ---- the service


@contextlib.contextmanager
def served(folder: Path, db: str | None) -> Iterator[tuple[str, str, int]]:
    """A service: its URL, its admin's token and its process id."""
    (folder / "pool.yaml").write_text(POOL)
    command = [sys.executable, "-c", "from wattsmith.cli import main; main()", "serve", "--json", "--port", "0"]
    command += ["--home", str(folder / "home"), "--pool", str(folder / "pool.yaml")]
    command += ["--db", database(folder, db)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            said = json.loads(process.stdout.readline())
            yield said["url"], Path(said["admin_token"]).read_text().strip(), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def database(folder: Path, db: str | None) -> str:
    return db or str(folder / "service.sqlite")


def tokens_of(api: "httpx.Client", agents: int, prefix: str) -> dict[str, str]:
    made = {}
    for place in range(agents):
        name = f"{prefix}-{place:03d}"
        while (answer := api.post("/tokens", json={"name": name, "role": "agent"})).status_code == 429:
            time.sleep(float(answer.headers["Retry-After"]))
        made[name] = answer.raise_for_status().json()["text"]
    return made


def structure_of(folder: Path) -> dict[str, Any]:
    """A step of a small network, traced as `wattsmith submit` does it."""
    from wattsmith.flows.submitting import ready_job

    for name, text in {"net.py": NET, "job.yaml": JOB, "train.py": ""}.items():
        (folder / name).write_text(text)
    structure = ready_job(folder / "job.yaml").structure
    assert structure is not None
    return dict(structure)


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def kept_in(db: str, names: Sequence[str]) -> tuple[int, int]:
    """Reports of clients NAMES in the database, and how many clients have a gap in their numbers."""
    kept = gaps = 0
    store = open_service_store(db)
    try:
        for name in names:
            numbers = [one.report.number for one in store.reports(name, limit=1_000_000)]
            kept += len(numbers)
            gaps += sorted(numbers) != list(range(1, len(numbers) + 1))
    finally:
        store.close()
    return kept, gaps


def measured(agents: int, seconds: int, db: str | None) -> dict[str, Any]:
    """Everything, as figures."""
    import httpx

    with tempfile.TemporaryDirectory(prefix="wattsmith-load-") as name:
        folder = Path(name)
        structure = structure_of(folder)
        told = Asked()
        prefix = f"node-{os.getpid()}"
        with served(folder, db) as (url, admin, pid):
            api = httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {admin}"}, timeout=60)
            tokens = tokens_of(api, agents, prefix)
            key = api.post("/structures", json=structure).raise_for_status().json()["key"]
            began_s = time.monotonic()
            api.post("/estimates", json=question(key, 1)).raise_for_status()
            told.first_s = time.monotonic() - began_s
            load = os.getloadavg()[0]
            sender = _sender(httpx.URL(url).port, tokens, seconds)
            try:
                time.sleep(2.0)
                began_s, before_s, before_bytes = time.monotonic(), cpu_s(pid), memory_bytes(pid)
                ask(api, key, seconds - 2.0, told)
                used_s, took_s = cpu_s(pid) - before_s, time.monotonic() - began_s
                grown_bytes = memory_bytes(pid) - before_bytes
                fleet = json.loads(sender.communicate(timeout=120)[0])
            finally:
                sender.kill()
                sender.communicate()
            api.close()
        kept, gaps = kept_in(database(folder, db), list(tokens))
    times = Times(all_s=fleet.pop("times")["all_s"])
    return {
        "facts": facts(agents, seconds, db, load),
        "reports": fleet | {"kept": kept, "clients with gaps": gaps},
        "times": {
            "telemetry": times.told(),
            "estimate, new": told.new.told(),
            "estimate, asked before": told.again.told(),
            "estimate, all": Times(all_s=told.new.all_s + told.again.all_s).told(),
            "jobs and pool": told.looks.told(),
        },
        "first estimate_s": told.first_s,
        "failed": told.failed,
        "service": {
            "cpu_ratio": used_s / took_s,
            "memory_bytes": before_bytes,
            "grown_bytes": grown_bytes,
        },
    }


def _sender(port: int | None, tokens: Mapping[str, str], seconds: int) -> "subprocess.Popen[str]":
    command = ["nice", "-n", str(GIVES_WAY), sys.executable, __file__, "--as", "agents", "--port", str(port)]
    command += ["--seconds", str(seconds)]
    sender = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert sender.stdin is not None
    sender.stdin.write(json.dumps(dict(tokens)))
    sender.stdin.close()
    sender.stdin = None  # so that communicate does not write to it
    return sender


def facts(agents: int, seconds: int, db: str | None, load: float) -> dict[str, str]:
    from importlib.metadata import version

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "wattsmith": version("wattsmith"),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "load average before": f"{load:.2f}",
        "agents": f"{agents}, each a report a second for {seconds} s (simulated)",
        "database": (db or "SQLite").partition(":")[0],
    }


# ---- telling


def bars(found: Mapping[str, Any]) -> dict[str, bool]:
    """What must hold, and whether it does."""
    reports = found["reports"]
    return {
        "every report that was sent was acknowledged": reports["acknowledged"] == reports["sent"],
        "every report is in the database, once": reports["kept"] == reports["sent"]
        and not reports["clients with gaps"],
        "nothing was refused, and every question answered": not reports["refused"] and not found["failed"],
        f"estimate with the structure known, p99 under {ESTIMATE_P99_S * 1000:.0f} ms": (
            found["times"]["estimate, new"]["p99_s"] < ESTIMATE_P99_S
            and found["times"]["estimate, all"]["p99_s"] < ESTIMATE_P99_S
        ),
    }


def told_of(found: Mapping[str, Any]) -> dict[str, Any]:
    """The same as tables and bars."""
    reports, service = found["reports"], found["service"]
    names = ("sent", "acknowledged", "kept", "duplicates", "put_off", "broken")
    times = [
        [name, one["count"], *(f"{1000 * one[at]:.1f}" for at in ("p50_s", "p99_s", "max_s"))]
        for name, one in found["times"].items()
    ]
    used = [
        f"{service['cpu_ratio']:.0%}",
        f"{service['memory_bytes'] / 1e6:.0f}",
        f"{service['grown_bytes'] / 1e6:.1f}",
    ]
    return {
        "tables": [
            table(f"Reports of {found['facts']['agents']}", [name.replace("_", " ") for name in names],
                  [[reports[name] for name in names]]),
            table("Answers", ["what was asked", "count", "p50 ms", "p99 ms", "slowest ms"], times),
            table("The service", ["first estimate, the record being read, s", "of a core", "memory MB", "grown MB"],
                  [[f"{found['first estimate_s']:.1f}", *used]]),
        ],
        "bars": [bar(what, _figure_of(what, found), met) for what, met in bars(found).items()],
    }  # fmt: skip


def _figure_of(what: str, found: Mapping[str, Any]) -> str:
    if what.startswith("estimate"):
        return f"{1000 * found['times']['estimate, new']['p99_s']:.0f} ms"
    reports = found["reports"]
    if what.startswith("nothing"):
        return f"{len(reports['refused']) + len(found['failed'])} refused or failed"
    return f"{reports['acknowledged' if 'acknowledged' in what else 'kept']} of {reports['sent']}"


def show(found: Mapping[str, Any]) -> None:
    for name, value in found["facts"].items():
        print(f"{name}: {value}")
    reports = found["reports"]
    names = ("sent", "acknowledged", "kept", "duplicates", "put_off", "broken")
    print("\nreports: " + ", ".join(f"{reports[name]} {name.replace('_', ' ')}" for name in names))
    print(f"the agents were late by {reports['late_s'] * 1000:.0f} ms at worst")
    print(f"\n{'answers':24}{'count':>8}{'p50':>10}{'p99':>10}{'max':>10}")
    for name, one in found["times"].items():
        print(
            f"{name:24}{one['count']:8d}" + "".join(f"{one[at] * 1000:7.1f} ms" for at in ("p50_s", "p99_s", "max_s"))
        )
    service = found["service"]
    print(f"\nthe first estimate, for which the record is read: {found['first estimate_s'] * 1000:.0f} ms")
    print(f"the service used {service['cpu_ratio']:.0%} of a core and {service['memory_bytes'] / 1e6:.0f} MB, ", end="")
    print(f"{service['grown_bytes'] / 1e6:+.1f} MB while it was asked")
    for line in [*reports["refused"][:5], *found["failed"][:5]]:
        print(f"REFUSED {line}")
    for what, met in bars(found).items():
        print(f"{'met   ' if met else 'MISSED'}  {what}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, default=200)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--db", help="postgresql://…; by default a SQLite file of its own")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    parser.add_argument("--as", choices=["agents"], help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if getattr(options, "as"):
        agents_process(options.port, options.seconds)
        return 0
    found = measured(options.agents, options.seconds, options.db)
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found | told_of(found), indent=1) + "\n")
    return 0 if all(bars(found).values()) else 1


if __name__ == "__main__":
    sys.exit(main())
