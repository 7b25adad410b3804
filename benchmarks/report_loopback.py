"""Whole sessions on loopback: our client against the simulated daemon under LoadGen; both checkers on what came of it.

    python benchmarks/report_loopback.py [--official DIR] [--seconds N] [--json FILE]

DIR is a copy of mlcommons/power-dev, a git repository. With it, the official checker is run on our sessions, its own
client and director drive our stand-in for the daemon, and both checkers look at what they wrote. Exits with 1 when a
check fails that should hold, or the checkers differ. With 60 seconds a load, the default, it takes ten minutes; with
fewer, the checks of length fail as they must.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from report_cases.peer import OfficialChecker
from report_cases.workflow import NotPossible, official_session
from results.shape import bar, table
from wattsmith.flows.report_session import HowToRun, SessionPlan, run
from wattsmith.report.checks.findings import Layer, Outcome
from wattsmith.report.checks.judging import judge_inference
from wattsmith.report.session_load import has_loadgen

ROUND = "v5.1"
OURS = {"Check client sources checksum", "Check server sources checksum"}
SIMULATED = {
    *("Check PTD commands and replies", "Check errors and warnings from PTD logs", "Check PTD configuration"),
    "Simulated analyzer",
}
SHORT = {"Coverage of the window", "Length of the run"}
WORK = """import sys
from pathlib import Path
from wattsmith.report.session_load import LoadPlan, generate
from wattsmith.report.window import Scenario
sys.path.insert(0, {folder!r})
from report_loopback import work
generate(work, LoadPlan(scenario=Scenario.SINGLE_STREAM, least_duration_s={seconds}), Path({logs!r}), use_loadgen=True)
"""


def work(samples) -> None:
    """About a millisecond of arithmetic for each sample."""
    for _ in samples:
        sum(range(50_000))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--official", type=Path, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=60.0, metavar="N")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    asked = parser.parse_args()
    if not has_loadgen():
        print("SKIPPED: LoadGen is not installed: pip install 'wattsmith[loadgen]'", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        peer = OfficialChecker(asked.official, scratch / "official") if asked.official else None
        allowed = OURS | SIMULATED | (set() if asked.seconds >= 60 else SHORT)
        told = [ours(scratch, scenario, asked.seconds, allowed, peer) for scenario in ("SingleStream", "Offline")]
        if asked.official:
            told.append(theirs(scratch, asked.official, asked.seconds, allowed - OURS, peer))
        else:
            print("NOT COMPARED: give a copy of mlcommons/power-dev with --official", file=sys.stderr)
    for one in told:
        show(one)
    if asked.json:
        asked.json.write_text(json.dumps(told_of(told, asked.seconds), indent=1) + "\n")
    return 0 if all(one["as_expected"] for one in told) else 1


def told_of(sessions: list[dict], seconds: float) -> dict:
    """What is written: the sessions, and the same as a table and bars."""
    heads = ["session", "window s", "mean W", "metric", "checks that fail", "official checks that come out the same"]
    rows, bars = [], []
    for one in sessions:
        if "skipped" in one:
            bars.append(bar(f"{one['name']}: nothing fails but what must", one["skipped"], None))
            continue
        failed = f"{len(one['evidence'])} of {len(one['checks'])}"
        there = one.get("official", {})
        same = f"{len(there) - len(one['differ'])} of {len(there)}" if there else "not compared"
        figures = [f"{one[name]:.3f}" if name in one else None for name in ("window_s", "power_w", "metric")]
        rows.append([one["name"], *figures, failed, same])
        bars.append(bar(f"{one['name']}: nothing fails but what must", f"{failed} fail", one["as_expected"]))
    return {"sessions": sessions, "tables": [table(f"{seconds:g} s and more each", heads, rows)], "bars": bars}


def ours(scratch, scenario, seconds, allowed, peer) -> dict:
    """A session of ours in SCENARIO."""
    short = seconds < 60
    plan = SessionPlan(least_duration_s=seconds, settle_s=1.0 if short else 10.0)
    how = HowToRun(scenario=scenario, meters="ptd:simulated:450W", plan=plan, system="loopback", batch=8)
    driven = run(work, scratch / "ours", how)
    told = judged(f"our session, {scenario}", driven.folder, scratch / "ours", allowed, peer)
    return told | {"window_s": driven.result.window_s, "power_w": driven.result.power_w, "metric": driven.result.metric}


def theirs(scratch, repository, seconds, allowed, peer) -> dict:
    """A session of the official client and director with our stand-in."""
    logs, script = scratch / "logs", scratch / "work.py"
    logs.mkdir()
    here = str(Path(__file__).parent)
    script.write_text(WORK.format(folder=here, seconds=max(seconds, 15.0), logs=str(logs)))
    try:
        folder = official_session(repository, scratch, f"{sys.executable} {script}", logs, watts=450.0)
    except NotPossible as why:
        return {"name": "official client and director", "skipped": str(why), "as_expected": True}
    return judged("official client and director", folder, scratch, allowed, peer)


def judged(name, folder, root, allowed, peer) -> dict:
    """What both checkers say of FOLDER, and whether it is what it should be."""
    report = judge_inference(folder, root, name, ROUND)
    failed = {check.name for check in report.reasons(Layer.STRICT)}
    told = {
        "name": name,
        "checks": {check.name: check.outcome.value for check in report.checks},
        "evidence": {check.name: check.evidence for check in report.checks if check.outcome is Outcome.FAILED},
        "unexpected": sorted(failed - allowed),
        "simulated": report.simulated,
    }
    same = True
    if peer is not None:
        verdict = peer.check(folder, ROUND)
        told["official"] = verdict.checks
        mine = {check.name: check.outcome is not Outcome.FAILED for check in report.checks}
        told["differ"] = sorted(check for check, passed in verdict.checks.items() if mine.get(check) is not passed)
        same = not told["differ"] and len(verdict.checks) >= 11
    return told | {"as_expected": not told["unexpected"] and report.simulated and same}


def show(one) -> None:
    print(f"\n{one['name']}")
    if "skipped" in one:
        print(f"  NOT DONE: {one['skipped']}")
        return
    if "window_s" in one:
        print(f"  window {one['window_s']:.3f} s, {one['power_w']:.3f} W, metric {one['metric']:.6g}")
    for check, outcome in one["checks"].items():
        there = one.get("official", {}).get(check)
        beside = "" if there is None else f"official: {'passed' if there else 'failed'}"
        print(f"  {check:<44} {outcome:<12} {beside}")
    if one["unexpected"]:
        print(f"  UNEXPECTED: {[(name, one['evidence'][name]) for name in one['unexpected']]}")
    if one.get("differ"):
        print(f"  THE CHECKERS DIFFER: {one['differ']}")
    print(f"  {'as expected: nothing fails but what must' if one['as_expected'] else 'NOT as expected'}")


if __name__ == "__main__":
    sys.exit(main())
