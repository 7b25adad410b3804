"""The strict layer, second half: what the records of the session can prove."""

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

from wattsmith.report.checks.evidence import PHASE_OF, RUNS, Evidence, Run, queries_of, sha1_with_endings
from wattsmith.report.checks.findings import Check, Layer
from wattsmith.report.checks.official import HOUR_S, Found, failed, passed, remark
from wattsmith.report.checks.strict_power import (
    FEW,
    coverage,
    daemon_average,
    echoed_samples,
    electric,
    invalid_samples,
    long_enough,
    meter_ranges,
    no_evidence,
    order_of_samples,
    watts_replies,
    window_power,
)
from wattsmith.report.formats.lines import readable
from wattsmith.report.window import Scenario, scenario_called
from wattsmith.terms.errors import BadInput, BadTerm

UNCERTAINTY_LIMIT = 0.01
CLOCK_REMARK_S, DRIFT_S = 0.4, 0.5
RATES = {  # what LoadGen says beside the count, and how far it may be off
    Scenario.SINGLE_STREAM: ("result_qps_with_loadgen_overhead", 0.01),
    Scenario.MULTI_STREAM: ("result_qps_with_loadgen_overhead", 0.01),
    Scenario.SERVER: ("result_completed_samples_per_sec", 0.15),
    Scenario.INTERACTIVE: ("result_completed_samples_per_sec", 0.15),
    Scenario.OFFLINE: ("result_samples_per_second", 0.25),
}
LATENCIES = {
    Scenario.SINGLE_STREAM: "result_mean_latency_ns",
    Scenario.MULTI_STREAM: "result_mean_query_latency_ns",
}
_SESSION = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d(_[\w-]+)?")


def simulated(found: Evidence) -> Found:
    if found.simulated:
        return failed("the analyzer says that it is simulated: this is never compliant, whatever else passes")
    if found.server is None:
        return no_evidence("the analyzer's identity is not known")
    return passed("the analyzer's identity does not say so")


def identity(found: Evidence) -> Found:
    """Vendor, model, serial number and firmware: in the answer to Identify, and as the meter told the daemon."""
    answers = found.server.identities if found.server is not None else ()
    if not answers or found.ptd is None or found.ptd.identity is None or found.meters > 1:
        return no_evidence("the meter's identity is not recorded twice")
    told = [part.strip() for part in answers[0].rpartition(",")[2].split(";")]
    logged = [part.strip() for part in found.ptd.identity.split(",")]
    if len(told) != 4 or len(logged) != 4:
        return no_evidence(f"the meter's identity cannot be read: {readable(answers[0][-60:])}")
    if told != logged:
        return failed(f"server.json names {' '.join(told)}, the daemon's log {' '.join(logged)}")
    calibrated = "" if "no_cal_date" not in answers[0] else "; the daemon does not tell when it was calibrated"
    return passed(f"{' '.join(told)}{calibrated}")


def uncertainty(found: Evidence) -> Found:
    """Samples above 1 % in the window, by the clock, and not 800 s away from its ends."""
    ptd, power = found.ptd, window_power(found)
    if ptd is None or power is None:
        return no_evidence("the daemon's log or the window is missing")
    count, unknown = len(ptd.uncertain_seconds), ptd.unknown.count
    answer = _uncertainty_reply(found)
    if answer is not None and not 0 <= answer <= UNCERTAINTY_LIMIT:
        told = "unknown, as under automatic ranges" if answer < 0 else f"{answer:.2%}"
        return failed(f"the mean uncertainty of the test is {told}; 1 % is allowed")
    if not count and not unknown:
        return passed("no sample in the window above 1 %" + ("" if answer is None else f", {answer:.2%} in the mean"))
    worst = f", at worst {ptd.worst_uncertainty:.2%}" if count else ""
    words = f"{count} samples in the window above 1 %{worst}; {unknown} unknown"
    words += f"; {(ptd.uncertain if count else ptd.unknown).first}"
    total = max(1, power.samples + power.invalid)
    fails = (count and found.rules.uncertainty_fails) or count > FEW * total or unknown > FEW * total
    return failed(words) if fails else remark(words)


def _uncertainty_reply(found: Evidence) -> float | None:
    """Mean uncertainty of the test as the daemon answered; None: it was not asked. Negative: not known."""
    replies = [one.reply for one in found.server.ptd_messages if one.command == "Uncertainty"] if found.server else []
    try:
        return float(replies[-1].split(",")[1]) if replies else None
    except (IndexError, ValueError):
        return -1.0


def daemon_log(found: Evidence) -> Found:
    """All of the daemon's log, also after the first warning, where the official checker stops to read."""
    ptd = found.ptd
    if ptd is None:
        return failed(found.problem("power/ptd_logs.txt") or "power/ptd_logs.txt is missing")
    for phase in ("ranging", "testing"):
        if phase not in ptd.began_s or phase not in ptd.ended_s:
            return failed(f"the log does not show when {phase} of session {found.session} began and ended")
    if ptd.errors_in_window.count:
        told = ptd.errors_in_window
        return failed(f"{told.count} errors of the meter in the window; {told.first}")
    notes = []
    if ptd.errors.count:
        notes.append(f"{ptd.errors.count} errors while testing, outside of the window; {ptd.errors.first}")
    if ptd.backwards.count and found.meters == 1:  # the logs of several daemons follow each other
        notes.append(f"the clock of the log goes backwards {ptd.backwards.count} times; {ptd.backwards.first}")
    return remark("; ".join(notes)) if notes else passed("no error while testing")


def hashes(found: Evidence) -> Found:
    """Every recorded checksum, and whether a file that differs differs by its line endings alone."""
    sides = [one for one in (found.client, found.server) if one is not None]
    if not sides:
        return failed("there is neither client.json nor server.json")
    endings, changed, agree = [], [], 0
    for path in sorted({path for side in sides for path in side.results}):
        recorded = {side.results[path] for side in sides if path in side.results}
        actual = found.hashes.get(path)
        if actual is None:
            continue
        if recorded == {actual}:
            agree += 1
        elif len(recorded) == 1 and _by_endings(found.folder / path, next(iter(recorded))):
            endings.append(path)
        else:
            changed.append(path)
    if changed:
        return failed(f"changed since their checksums were taken: {', '.join(changed)}")
    if endings:
        return remark(f"only the line endings changed since the checksums were taken: {', '.join(endings)}")
    return passed(f"{agree} files agree")


def _by_endings(path: Path, recorded: str) -> bool:
    try:
        return recorded in (sha1_with_endings(path, crlf=True), sha1_with_endings(path, crlf=False))
    except BadInput:
        return False


def clocks(found: Evidence) -> Found:
    """Client against server, wall clock against monotonic clock, samples and LoadGen against the phases."""
    if found.client is None or found.server is None:
        return failed("there is no client.json or no server.json")
    notes, worst_s = [], 0.0
    for phase in ("ranging", "testing"):
        ours, theirs = found.client.phases(phase), found.server.phases(phase)
        if len(ours) != 4 or len(theirs) != 4:
            return failed(f"{phase} has {len(ours)} and {len(theirs)} steps; there are four")
        apart_s = max(abs(one[0] - other[0]) for one, other in zip(ours, theirs, strict=True))
        worst_s = max(worst_s, apart_s)
        for side, steps in (("client", ours), ("server", theirs)):
            if any(later[0] <= one[0] for one, later in pairwise(steps)):
                return failed(f"{side}: the steps of {phase} are not in order of time")
            drift_s = _drift_s(steps)
            if drift_s is not None and abs(drift_s) > DRIFT_S:
                notes.append(f"{side}: wall clock and monotonic clock drift by {drift_s:+.2f} s in {phase}")
    if worst_s > found.rules.clock_limit_s:
        return failed(f"client and server are {worst_s:.3f} s apart; {found.rules.clock_limit_s:g} s is allowed")
    if worst_s > CLOCK_REMARK_S:
        notes.append(f"client and server are {worst_s:.3f} s apart")
    outside = _outside(found)
    if outside is not None:
        return failed(outside)
    if _an_hour_off(found):
        notes.append("LoadGen's clock is an hour off, as after a change to summer time")
    return remark("; ".join(notes)) if notes else passed(f"at most {worst_s * 1_000:.0f} ms apart")


def _drift_s(steps: tuple[tuple[float, float | None], ...]) -> float | None:
    (first_s, first), (last_s, last) = steps[0], steps[-1]
    return None if first is None or last is None else (last_s - first_s) - (last - first)


def _outside(found: Evidence) -> str | None:
    """Which samples do not belong to the phase that the server recorded; None: all do."""
    for run in RUNS:
        spl, steps = found.runs[run].spl, found.server.phases(PHASE_OF[run]) if found.server is not None else ()
        if spl is None or not spl.count or len(steps) != 4:
            continue
        shift_s = 0.0
        if found.rules.local_times and abs(spl.first_s - steps[0][0]) > HOUR_S / 2:
            shift_s = round((spl.first_s - steps[0][0]) / HOUR_S) * HOUR_S  # summer time
        if spl.first_s - shift_s < steps[0][0] - 2 or spl.last_s - shift_s > steps[3][0] + 2:
            return f"{run}/spl.txt has samples outside of the {PHASE_OF[run]} phase of the server"
    return None


def _an_hour_off(found: Evidence) -> bool:
    window = found.runs["run_1"].window
    steps = found.client.phases("testing") if found.client is not None else ()
    return window is not None and len(steps) == 4 and window.begin_s > steps[2][0]


def session_records(found: Evidence) -> Found:
    """Marks of the samples, the session's name and the commands: all must tell of the same session."""
    name = found.session
    if not _SESSION.fullmatch(name):
        return failed(f"{name!r} is no name of a session")
    for run in RUNS:
        spl = found.runs[run].spl
        if spl is None:
            return failed(found.problem(f"{run}/spl.txt") or f"{run}/spl.txt is missing")
        mark = f"{name}_{PHASE_OF[run]}"
        if spl.without_mark:
            return failed(f"{run}/spl.txt has {spl.without_mark} samples without a mark")
        if spl.marks != {mark}:
            return failed(f"{run}/spl.txt is marked {', '.join(sorted(spl.marks)) or 'with nothing'}, not {mark}")
    commands = [one.command for one in found.server.ptd_messages] if found.server is not None else []
    for phase in ("ranging", "testing"):
        if not any(one.startswith("Go,") and one.endswith(f",{name}_{phase}") for one in commands):
            return failed(f"the daemon was not asked to start {phase} of {name}")
    return passed(f"samples, commands and names are of {name}")


def queries(found: Evidence) -> Found:
    """The number of queries against rate, latency and duration, which LoadGen wrote beside it."""
    power, count = window_power(found), queries_of(found.runs["run_1"], found.rules.counts_by_rate)
    if power is None:
        return no_evidence("the window is not known")
    bounds = _possible_queries(found, power.duration_s)
    if count is None or not bounds:
        return no_evidence("the log has neither a number of queries nor a rate to compare it with")
    for low, high, what in bounds:
        if not low <= count <= high:
            return failed(f"{count:.0f} queries; {what}: between {max(low, 0):.1f} and {high:.1f} are possible")
    return passed(f"{count:.0f} queries; {'; '.join(what for _, _, what in bounds)}")


def _possible_queries(found: Evidence, duration_s: float) -> list[tuple[float, float, str]]:
    """Least and most queries, and by which figure. The limits are wide of what 850 real results show."""
    run = found.runs["run_1"]
    try:
        scenario = scenario_called(str(run.values.get("effective_scenario", "")))
    except BadTerm:
        return []
    bounds = []
    key, wide = RATES[scenario]
    rate_hz = run.number(key)
    if rate_hz is not None and rate_hz > 0 and not found.rules.counts_by_rate:
        each = run.number("effective_samples_per_query") or 1.0
        count = rate_hz * duration_s / (each if scenario is Scenario.OFFLINE else 1.0)
        slack = 0.0 if scenario is Scenario.OFFLINE else 2.0
        words = f"{rate_hz:.6g} a second for {duration_s:.1f} s"
        bounds.append((count * (1 - wide) - slack, count * (1 + wide) + slack, words))
    latency = run.number(LATENCIES[scenario]) if scenario in LATENCIES else None
    if latency is not None and latency > 0:  # one after the other: they cannot take longer than the window
        most = duration_s / (latency / 1e9)
        bounds.append((most * 0.5, most * 1.02 + 2, f"each took {latency / 1e6:.4g} ms"))
    return bounds


def loadgen(found: Evidence) -> Found:
    """LoadGen's own verdict, and its summary against its detail log."""
    words = []
    for run in RUNS:
        one = found.runs[run]
        if not one.values or one.summary is None:
            return failed(found.problem(f"{run}/mlperf_log_detail.txt", f"{run}/mlperf_log_summary.txt") or "no log")
        if one.broken_events:
            words.append(f"{run}: {one.broken_events} lines of the detail log cannot be read")
        said, valid = one.summary.values, str(one.values.get("result_validity", "")).upper()
        told = said.get("Result is", "").upper()
        if told and valid and told != valid:
            return failed(f"{run}: the detail log says {valid}, the summary {told}")
        scenario = str(one.values.get("effective_scenario", ""))
        if said.get("Scenario", scenario).replace(" ", "") != scenario.replace(" ", ""):
            return failed(f"{run}: the detail log is of {scenario}, the summary of {said['Scenario']}")
        wrong = _other_rate(one)
        if wrong is not None:
            return failed(f"{run}: {wrong}")
        if valid == "INVALID":
            words.append(f"{run}: LoadGen calls the run invalid")
    return remark("; ".join(words)) if words else passed("valid, and both logs agree")


SUMMARISED = {
    "QPS w/ loadgen overhead": "result_qps_with_loadgen_overhead",
    "Samples per second": "result_samples_per_second",
    "Completed samples per second": "result_completed_samples_per_sec",
    "Mean latency (ns)": "result_mean_query_latency_ns",  # MultiStream has this one, and of samples another
}


def _other_rate(run: Run) -> str | None:
    """Which figure of the summary is another in the detail log; None: none."""
    for name, key in SUMMARISED.items():
        told, logged = run.summary.number(name) if run.summary is not None else None, run.number(key)
        if told is not None and logged is not None and abs(told - logged) > 1e-3 * abs(logged) + 1e-2:
            return f"the summary says {told:g} {name}, the detail log {logged:g}"
    return None


STRICT: dict[str, Callable[[Evidence], Found]] = {
    "Simulated analyzer": simulated,
    "Identity of the analyzer": identity,
    "Coverage of the window": coverage,
    "Invalid and over-range samples": invalid_samples,
    "Length of the run": long_enough,
    "Order of samples": order_of_samples,
    "Ranges of the test": meter_ranges,
    "Uncertainty in the window": uncertainty,
    "Samples against the daemon's average": daemon_average,
    "Samples against the daemon's log": echoed_samples,
    "Recorded Watts replies": watts_replies,
    "Watts against volts and amps": electric,
    "Queries against the rate": queries,
    "The daemon's whole log": daemon_log,
    "Checksums and line endings": hashes,
    "Clock agreement": clocks,
    "One session": session_records,
    "LoadGen's own verdict": loadgen,
}


def strict_checks(found: Evidence) -> list[Check]:
    checks = []
    for name, look in STRICT.items():
        outcome, evidence = look(found)
        checks.append(Check(name=name, layer=Layer.STRICT, outcome=outcome, evidence=evidence))
    return checks
