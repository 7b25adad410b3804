"""The official checks, as the checker of each round has them, with their names and all their gaps.

Where it overlooks something, the strict layer looks again; here the verdict is the round's own.
"""

import re
import uuid
from collections.abc import Callable

from wattsmith.report.checks.evidence import PHASE_OF, REQUIRED, RUNS, Evidence
from wattsmith.report.checks.findings import Check, Layer, Outcome
from wattsmith.report.checks.rounds import MULTICHANNEL, sources_digest
from wattsmith.report.formats.descriptor import Descriptor, Message

Found = tuple[Outcome, str]
STARTED = "Starting untimed measurement, maximum 500000 samples at 1000ms with 0 rampup samples"
STOPPED, NOTHING_TO_STOP = "Stopping untimed measurement", "Error: no measurement to stop"
_VERSION = re.compile(r"version=(.+?)-")
HOUR_S = 3600.0
MOST_SHORTER = 0.5  # the message of the official checker says 5 %; its code says this
POWER_LIMIT = -0.05
DURATION_LIMIT = 0.05


def failed(why: str) -> Found:
    return Outcome.FAILED, why


def passed(evidence: str) -> Found:
    return Outcome.PASSED, evidence


def remark(what: str) -> Found:
    return Outcome.REMARK, what


def _sources(found: Evidence, side: Descriptor | None, path: str) -> Found:
    if side is None:
        return failed(found.problems.get(path, f"{path} is missing"))
    if side.missing:
        return failed(f"{path} has no {', '.join(side.missing)}")
    digest = sources_digest(side.sources)
    if digest not in found.rules.sources:
        return failed(f"{path} names {len(side.sources)} source files that are no published workflow of the round")
    return passed(f"{len(side.sources)} files, the published workflow {digest}")


def client_sources(found: Evidence) -> Found:
    return _sources(found, found.client, "power/client.json")


def server_sources(found: Evidence) -> Found:
    return _sources(found, found.server, "power/server.json")


def _both(found: Evidence) -> tuple[Descriptor, Descriptor] | None:
    return (found.client, found.server) if found.client is not None and found.server is not None else None


def _no_descriptor(found: Evidence) -> Found:
    return failed(found.problem("power/client.json", "power/server.json") or "client.json or server.json is missing")


def ptd_messages(found: Evidence) -> Found:
    if found.server is None:
        return _no_descriptor(found)
    messages, rules = found.server.ptd_messages, found.rules
    identity = next((one.reply for one in messages if one.command == "Identify"), "")
    version = _VERSION.search(identity)
    if not identity:
        return failed("the daemon gave no answer to Identify")
    if version is None or version[1] not in rules.daemons:
        had = version[1] if version else "unknown"
        return failed(f"version {had} of the daemon; the round takes {', '.join(rules.daemons)}")
    model = identity.partition(",")[0]
    if model not in rules.meters:
        return failed(f"meter {model}; the round takes {', '.join(rules.meters)}")
    wrong = _wrong_reply(messages) or _not_put_back(messages, rules.fourth_amps)
    return failed(wrong) if wrong else passed(f"{model}, daemon {version[1]}, {len(messages)} messages")


def _wrong_reply(messages: tuple[Message, ...]) -> str | None:
    stops = 0
    expected = {"SR,A": "Range A changed", "SR,V": "Range V changed", "Go,1000,": STARTED}
    for one in messages:
        if one.command.startswith("Stop"):
            right = NOTHING_TO_STOP if stops >= 2 else STOPPED
            stops += one.command == "Stop"
        else:
            right = next((reply for start, reply in expected.items() if one.command.startswith(start)), one.reply)
        if one.reply != right:
            return f"the answer to {one.command!r} is {one.reply!r}, and should be {right!r}"
    return None


def _not_put_back(messages: tuple[Message, ...], fourth_amps: bool) -> str | None:
    """Why the meter's ranges are not those that it had before; None: they are."""
    had = messages[2].reply.split(",") if len(messages) > 2 else []
    for letter, place, numbers in (("A", 1, (3, 4) if fourth_amps else (3,)), ("V", 3, (3,))):
        try:
            fixed = had[place] == "0" and float(had[place + 1]) > 0
        except (IndexError, ValueError):
            return f"the ranges before the session cannot be read from {','.join(had)!r}"
        before = f"SR,{letter},{had[place + 1] if fixed else 'Auto'}"
        set_to = [one.command for one in messages if one.command.startswith(f"SR,{letter}")]
        if len(set_to) < max(numbers):
            return f"SR,{letter} was sent {len(set_to)} times, and must be {max(numbers)} times"
        if all(set_to[number - 1] != before for number in numbers):
            return f"the range was not put back by {before!r}, but by {set_to[numbers[0] - 1]!r}"
    return None


def uuids(found: Evidence) -> Found:
    both = _both(found)
    if both is None:
        return _no_descriptor(found)
    for side, (ours, theirs) in zip(("client", "server"), zip(both[0].uuids, both[1].uuids, strict=True), strict=True):
        try:
            same = uuid.UUID(ours) == uuid.UUID(theirs)
        except ValueError:
            return failed(f"the uuid of the {side} is none: {ours!r}, {theirs!r}")
        if not same:
            return failed(f"the uuid of the {side} is {ours} in client.json and {theirs} in server.json")
    return passed("both files have both")


def session_name(found: Evidence) -> Found:
    both = _both(found)
    if both is None:
        return _no_descriptor(found)
    client, server = both
    if client.session != server.session:
        return failed(f"{client.session!r} in client.json, {server.session!r} in server.json")
    return passed(client.session)


def time_difference(found: Evidence) -> Found:
    both = _both(found)
    if both is None:
        return _no_descriptor(found)
    client, server = both
    rules, worst_s = found.rules, 0.0
    for phase in ("ranging", "testing"):
        ours, theirs = client.phases(phase), server.phases(phase)
        if len(ours) != len(theirs) or len(ours) < 3:
            return failed(f"{phase} has {len(ours)} steps in client.json and {len(theirs)} in server.json")
        for step, ((one_s, _), (other_s, _)) in enumerate(zip(ours, theirs, strict=True), start=1):
            apart_s = abs(one_s - other_s)
            worst_s = max(worst_s, apart_s)
            if apart_s > rules.clock_limit_s or (apart_s == rules.clock_limit_s and not rules.clock_limit_included):
                return failed(f"clocks are {apart_s:.3f} s apart at step {step} of {phase}; {rules.clock_limit_s:g} s")
    for run in RUNS:
        window = found.runs[run].window
        if window is None:
            return failed(f"{run}: {found.problem(f'{run}/mlperf_log_detail.txt') or found.runs[run].why_no_window}")
        steps = client.phases(PHASE_OF[run])
        for moment_s, what in ((window.begin_s, "power_begin"), (window.end_s, "power_end")):
            if not any(steps[1][0] < moment_s - off_s < steps[2][0] for off_s in (0.0, HOUR_S)):
                return failed(f"{what} of {run} lies outside of the {PHASE_OF[run]} phase")
    return _ranging_against_testing(found, worst_s)


def _ranging_against_testing(found: Evidence, worst_s: float) -> Found:
    ranging, testing = (found.runs[run] for run in RUNS)
    if ranging.window is None or testing.window is None:
        return failed("a window is missing")
    ranging_s, testing_s = ranging.window.duration_s, testing.window.duration_s
    clocks = f"clocks at most {worst_s * 1_000:.0f} ms apart"
    if found.rules.same_duration:
        apart = abs(ranging_s - testing_s) / max(ranging_s, testing_s)
        words = f"ranging took {ranging_s:.1f} s, testing {testing_s:.1f} s: {apart:.1%} apart"
        return (
            failed(f"{words}, {DURATION_LIMIT:.0%} allowed")
            if apart >= DURATION_LIMIT
            else passed(f"{clocks}; {words}")
        )
    if (ranging_s - testing_s) / ranging_s > MOST_SHORTER:
        return remark(f"testing took {testing_s:.1f} s, less than half of ranging, {ranging_s:.1f} s")
    means = [_positive_mean(found, run) for run in RUNS]
    if means[0] is None or means[1] is None:
        why = found.problem("ranging/spl.txt", "run_1/spl.txt")
        return failed(why or "there is no sample in the window of ranging or testing")
    change = round(means[1] / means[0] - 1, 4)
    words = f"testing took {means[1]:.3f} W, ranging {means[0]:.3f} W: {change:+.2%}"
    return failed(f"{words}, more than 5 % less") if change <= POWER_LIMIT else passed(f"{clocks}; {words}")


def _positive_mean(found: Evidence, run: str) -> float | None:
    spl = found.runs[run].spl
    return None if spl is None or spl.window is None else spl.window.result().mean_w


def messages(found: Evidence) -> Found:
    both = _both(found)
    if both is None:
        return _no_descriptor(found)
    client, server = both[0].messages, both[1].messages
    more = found.rules.server_has_more_messages
    if len(client) + more != len(server):
        return failed(f"client.json has {len(client)} messages, server.json {len(server)}; it must have {more} more")
    for number, (ours, theirs) in enumerate(zip(client, server, strict=False), start=1):
        if ours.command != theirs.command:
            return failed(f"message {number} is {ours.command!r} for the client, {theirs.command!r} for the server")
        if ours.command != "time" and ours.reply != theirs.reply:
            return failed(f"the answer to {ours.command!r} differs: {ours.reply!r}, {theirs.reply!r}")
    first = server[0] if server else Message(command="", reply="")
    spoken = [
        re.search(rf"mlcommons/power {side} v(\d+)$", text)
        for side, text in (("client", first.command), ("server", first.reply))
    ]
    if spoken[0] is None or spoken[1] is None or spoken[0][1] != spoken[1][1]:
        return failed(f"the greeting is {first.command!r}, answered by {first.reply!r}")
    return passed(f"{len(client)} messages, protocol {spoken[0][1]}")


def checksums(found: Evidence) -> Found:
    both = _both(found)
    if both is None:
        return _no_descriptor(found)
    unhashed = {"power/server.json"} | (set() if found.rules.client_json_is_hashed else {"power/client.json"})
    needed = [path for path in REQUIRED if path not in unhashed]
    recorded = {**both[0].results, **both[1].results}
    for path in needed:
        ours, theirs = (side.results.get(path) for side in both)
        if ours is not None and theirs is not None and ours != theirs:
            return failed(f"client.json and server.json have different checksums of {path}")
    absent = [path for path in needed if path not in found.hashes]
    if absent:
        return failed(found.problems.get(absent[0], f"{absent[0]} is missing"))
    unknown = [path for path in needed if path not in recorded]
    if unknown:
        return failed(f"no checksum was recorded of {', '.join(unknown)}")
    wrong = [path for path in needed if recorded[path] != found.hashes[path]]
    if wrong:
        return failed(f"{len(wrong)} of {len(needed)} files differ from their checksums: {', '.join(wrong)}")
    return passed(f"{len(needed)} files agree")


def ptd_log(found: Evidence) -> Found:
    ptd = found.ptd
    if ptd is None:
        return failed(found.problem("power/ptd_logs.txt") or "power/ptd_logs.txt is missing")
    if found.runs["run_1"].window is None:
        return failed(f"run_1: {found.runs['run_1'].why_no_window}")
    if "ranging" not in ptd.began_s or "ranging" not in ptd.ended_s:
        return failed(f"the log does not show when ranging of session {found.session} began and ended")
    if ptd.activated is None:
        return failed("the log does not say that uncertainty is checked")
    if ptd.activated[0] >= ptd.began_s["ranging"]:
        return failed("uncertainty was checked only after ranging began")
    if ptd.official is not None:
        kind, why = ptd.official
        return failed(why) if kind == "failed" else remark(why)
    return passed("uncertainty is checked, and no warning or error counts")


def ptd_config(found: Evidence) -> Found:
    if found.server is None:
        return _no_descriptor(found)
    kinds = sorted(set(found.rules.meters.values()))
    if not found.server.analyzers:
        return failed("server.json does not say how the daemon was started")
    for analyzer in found.server.analyzers:
        kind = analyzer.get("device_type")
        if kind not in kinds:
            return failed(f"device type {kind}; the round takes {', '.join(map(str, kinds))}")
        if kind == MULTICHANNEL and not _has_two_channels(analyzer.get("command"), analyzer.get("channel")):
            return failed("a meter with several channels was started with one")
    return passed(f"device type {', '.join(str(one.get('device_type')) for one in found.server.analyzers)}")


def _has_two_channels(command: object, channel: object) -> bool:
    words = command if isinstance(command, list) else []
    given = next((words[place + 1] for place, word in enumerate(words[:-1]) if word == "-c"), "")
    return len(str(given).split(",")) == 2 and isinstance(channel, list) and len(channel) == 2


def no_debug(found: Evidence) -> Found:
    if found.server is None:
        return _no_descriptor(found)
    return failed("the server ran in debug mode") if found.server.debug else passed("off")


def power_samples(found: Evidence) -> Found:
    """The submission checker: there must be samples in the window."""
    run = found.runs["run_1"]
    if run.spl is None or run.window is None or run.spl.window is None:
        return failed(found.problem("run_1/mlperf_log_detail.txt", "run_1/spl.txt") or f"run_1: {run.why_no_window}")
    power = run.spl.window.result()
    if power.mean_w is None or power.mean_w <= 0:
        return failed("there is no sample with power in the window")
    return passed(f"{power.samples} samples in {power.duration_s:.3f} s")


def required_files(found: Evidence) -> Found:
    """The submission checker: these files must be there."""
    absent = [path for path in REQUIRED if path in found.problems and path not in found.hashes]
    if absent:
        return failed("; ".join(found.problems[path] for path in absent[:3]) + (" …" if len(absent) > 3 else ""))
    return passed(f"all {len(REQUIRED)} are there")


OFFICIAL: dict[str, Callable[[Evidence], Found]] = {
    "Check client sources checksum": client_sources,
    "Check server sources checksum": server_sources,
    "Check PTD commands and replies": ptd_messages,
    "Check UUID": uuids,
    "Check session name": session_name,
    "Check time difference": time_difference,
    "Check client server messages": messages,
    "Check results checksum": checksums,
    "Check errors and warnings from PTD logs": ptd_log,
    "Check PTD configuration": ptd_config,
    "Check debug is disabled on server-side": no_debug,
    "Required files": required_files,
    "Samples in the window": power_samples,
}


def official_checks(found: Evidence) -> list[Check]:
    checks = []
    for name, look in OFFICIAL.items():
        outcome, evidence = look(found)
        checks.append(Check(name=name, layer=Layer.OFFICIAL, outcome=outcome, evidence=evidence))
    return checks
