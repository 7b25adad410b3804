"""Keeps what a benchmark found, and makes docs/results.md of all that is kept.

    python benchmarks/results/page.py keep NAME --exit-code N [--took S] [--figures FILE] [--said FILE] -- COMMAND …
    python benchmarks/results/page.py render
    python benchmarks/results/page.py busy        # how much of this machine is in use

`bash benchmarks/all.sh` calls all three. A file NAME.json holds the newest run without a GPU, NAME.gpu.json that with
one. Nothing here decides whether a bar is met: that is the benchmark's.
"""

import argparse
import ast
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

KEPT = Path(__file__).parent
BENCHMARKS = KEPT.parent
ROOT = BENCHMARKS.parent
sys.path.insert(0, str(BENCHMARKS))

from results.shape import of_tests, shown, verdict  # noqa: E402 - found as the benchmarks find it

PAGE = ROOT / "docs" / "results.md"
TOLD_ANYWAY = {"date", "cores", "wattsmith", "load average before"}  # of every run
NOT_RUN = 2  # how a benchmark ends that lacks data, a peer or a GPU
BUSY = 0.1  # of all cores: a machine with more to do when a benchmark begins is not idle
LOOK_S = 2.0
# By room, and what a reader asks first.
ORDER = {
    "Measuring": ("measure_peers", "measure_gpu"),
    "The record": ("record_speed", "record_repeat", "record_coverage"),
    "Estimating": ("estimate_accuracy", "estimate_ranking"),
    "Matching and planning": ("match_accuracy", "plan_quality", "closed_loop"),
    "Settings that come back": ("control_faults",),
    "Tuning": ("tune_replay", "tune_serving"),
    "Split and feed": ("feed_training", "feed_transport"),
    "Reporting": ("report_corpus", "report_analysis", "report_loopback"),
    "The service": ("serve_load",),
}
PAGES = {
    "closed_loop": "plan.md", "control_faults": "control.md", "estimate_accuracy": "estimate.md",
    "estimate_ranking": "estimate.md", "feed_training": "feed_machines.md", "feed_transport": "feed_machines.md",
    "match_accuracy": "match.md", "measure_gpu": "measure.md", "measure_peers": "benchmarks.md",
    "plan_quality": "plan.md", "record_coverage": "record.md", "record_repeat": "record.md",
    "record_speed": "record.md", "report_analysis": "report_analysis.md", "report_corpus": "report.md",
    "report_loopback": "report_sessions.md", "serve_load": "service.md", "tune_replay": "tune.md",
    "tune_serving": "tune.md",
}  # fmt: skip
HEAD = """\
# Results

Made by `bash benchmarks/all.sh` of what every benchmark found ([benchmarks/results](../benchmarks/results)), and not by
hand. How to run them, and how each is done: [benchmarks](benchmarks.md). A bar is what we ask of ourselves; it is met
or missed, and a missed one is shown. What needs a GPU is shown as a run on one left it.
"""


# ---- keeping


def kept_path(name: str, gpu: bool) -> Path:
    return KEPT / f"{name}{'.gpu' if gpu else ''}.json"


def keep(asked: argparse.Namespace) -> str:
    """Write down one run; a word about how it went."""
    path = kept_path(asked.name, asked.gpu)
    today = asked.date or datetime.now(UTC).date().isoformat()
    said = asked.said.read_text(errors="replace").strip().splitlines() if asked.said else []
    before: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if asked.exit_code == NOT_RUN:
        why = {"date": today, "reason": reason_of(said)}
        # What an earlier run found is still true of that run; the page tells both.
        path.write_text(written(before | {"benchmark": asked.name, "not_run": why}))
        return f"not run here: {why['reason']}"
    figures = json.loads(asked.figures.read_text()) if asked.figures and asked.figures.exists() else None
    if isinstance(figures, list):
        figures = of_tests(figures)
    told = {
        "benchmark": asked.name,
        "command": " ".join(asked.command),
        "date": today,
        "took_s": asked.took,
        "version": version_of(),
        "commit": commit_of(),
        "machine": asked.machine or machine_in_words(),
        "busy_before": asked.busy,
        "exit_code": asked.exit_code,
    }
    if figures is None:
        path.write_text(written(told | {"failed": reason_of(said)}))
        return f"FAILED with exit code {asked.exit_code}: {reason_of(said)}"
    told |= {"note": asked.note, "facts": figures.get("facts", {})}
    path.write_text(written(told | {name: figures[name] for name in ("tables", "bars")}))
    missed = [bar["what"] for bar in figures["bars"] if bar["met"] is False]
    if missed:
        return f"MISSED: {'; '.join(missed)}"
    met = sum(bar["met"] is True for bar in figures["bars"])
    return f"all {met} bars met" if met else "no bar is set"


def written(told: Mapping[str, Any]) -> str:
    """JSON with a row to a line, so that a change can be read."""
    text = json.dumps(told, indent=1, ensure_ascii=False)
    return re.sub(r"\[\s+([^\[\]{}]*?)\s+\]", lambda row: f"[{' '.join(row[1].split())}]", text) + "\n"


def reason_of(said: Sequence[str]) -> str:
    """The line in which a benchmark says why it was not run; else its last one."""
    marks = ("NOT DONE", "SKIPPED", "skipped", "not run", "nothing to compute")
    marked = [line for line in said if line.strip().startswith(marks) or " is not there" in line]
    line = (marked or list(said[-1:]) or ["it said nothing"])[0].strip()
    for mark in marks[:4]:
        line = line.removeprefix(f"{mark}: ")
    return " ".join(word if "/" not in word or word.startswith("..") else Path(word).name for word in line.split())


def machine_in_words() -> str:
    gpus = gpu_names()
    return f"{os.cpu_count()} cores, {', '.join(gpus) if gpus else 'no GPU'}"


def gpu_names() -> list[str]:
    try:
        asked = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=False
        )
    except OSError:
        return []
    return asked.stdout.split("\n")[:-1] if asked.returncode == 0 else []


def busy_share() -> float:
    """The share of all cores that is in use now, while nothing of ours runs."""

    def ticks() -> tuple[int, int]:
        fields = [int(one) for one in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all of them; idle, and waiting for a disk

    (all_before, idle_before), _ = ticks(), time.sleep(LOOK_S)
    all_after, idle_after = ticks()
    return 1 - (idle_after - idle_before) / (all_after - all_before)


def version_of() -> str:
    from importlib.metadata import version

    return version("wattsmith")


def commit_of() -> str | None:
    """The commit of this checkout. None: it is no checkout."""
    asked = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return asked.stdout.strip() or None


# ---- the page


def kept_runs() -> dict[str, list[dict[str, Any]]]:
    """By benchmark, what is kept: first without a GPU, then with one."""
    return {
        name: [json.loads(path.read_text()) for gpu in (False, True) if (path := kept_path(name, gpu)).exists()]
        for names in ORDER.values()
        for name in names
    }


def page() -> str:
    kept = kept_runs()
    lines = [HEAD, "## In short", ""]
    lines += ["| benchmark | bars met | missed | when | on | |", "|---|---|---|---|---|---|"]
    lines += [line for name, runs in kept.items() for line in in_short(name, runs)]
    for room, names in ORDER.items():
        lines += ["", f"## {room}"]
        for name in names:
            lines += ["", f"### {name}", "", *section(name, kept[name])]
    return "\n".join(lines).rstrip() + "\n"


def in_short(name: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    link = f"[{name}](#{name})"
    if not runs:
        yield f"| {link} | – | – | | | not run yet |"
    for run in runs:
        if "date" not in run:
            yield f"| {link} | – | – | | | not run here: {escaped(run['not_run']['reason'])} |"
        elif "failed" in run:
            yield f"| {link} | – | – | {run['date']} | {run['machine']} | FAILED: {escaped(run['failed'])} |"
        else:
            met = [bar["met"] for bar in run["bars"]]
            counts = f"{met.count(True)} of {len(met)}" if met else "no bar is set"
            missed = f"**{met.count(False)}**" if False in met else "0" if met else ""
            words = (late_words(run), busy_words(run), "not compared with all" if None in met else "")
            rest = escaped(", ".join(one for one in words if one))
            yield f"| {link} | {counts} | {missed} | {run['date']} | {run['machine']} | {rest} |"


def section(name: str, runs: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield f"{shows(name)} [How it is done, and what to read off it]({PAGES[name]})."
    if not runs:
        yield "\n**Not run yet.**"
    for run in runs:
        yield ""
        if "date" not in run:
            yield f"**Not run here** on {run['not_run']['date']}: {run['not_run']['reason']}"
            continue
        if "not_run" in run:
            yield f"**N{late_words(run)[1:]}**; what follows is of an earlier run.\n"
        yield from told_lines(run)


def told_lines(run: Mapping[str, Any]) -> Iterator[str]:
    of = f"Wattsmith {run['version']}" + (f" ({run['commit']})" if run["commit"] else "")
    busy = busy_words(run)
    took = "" if run["took_s"] is None else f", {run['took_s']:,.0f} s"
    yield f"`{run['command']}`\n"
    yield f"{run['date']}, {run['machine']}, {of}{took}{'; ' + busy if busy else ''}."
    facts = [f"{name}: {value}" for name, value in run.get("facts", {}).items() if name.lower() not in TOLD_ANYWAY]
    if facts:
        yield f"\n{'; '.join(facts)}."
    if run.get("note"):
        yield f"\n{run['note']}"
    if "failed" in run:
        yield f"\n**Failed** with exit code {run['exit_code']}: {run['failed']}"
        return
    if run["bars"]:
        yield "\n| bar | figure | |\n|---|---|---|"
        for bar in run["bars"]:
            said = verdict(bar["met"])
            cells = (bar["what"], shown(bar["figure"]), f"**{said}**" if bar["met"] is False else said)
            yield f"| {' | '.join(map(escaped, cells))} |"
    else:
        yield "\nNo bar is set."
    for table in run["tables"]:
        yield f"\n{table['title']}\n" if table["title"] else ""
        yield f"| {' | '.join(map(escaped, table['heads']))} |\n|{'---|' * len(table['heads'])}"
        yield from (f"| {' | '.join(escaped(shown(cell)) for cell in row)} |" for row in table["rows"])
        yield from (f"\n{note}" for note in table["notes"])


def late_words(run: Mapping[str, Any]) -> str:
    """That it could not be run again, and why."""
    return f"not run on {run['not_run']['date']}: {run['not_run']['reason']}" if "not_run" in run else ""


def busy_words(run: Mapping[str, Any]) -> str:
    """That the machine had other work when the benchmark began, if it had."""
    share = run.get("busy_before") or 0.0
    return f"beside other work ({share:.0%} of the cores were busy before it began)" if share > BUSY else ""


def shows(name: str) -> str:
    """The first line of what the script says of itself."""
    docstring = ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text())) or ""
    return docstring.partition("\n")[0]


def escaped(cell: str) -> str:
    return cell.replace("|", "\\|")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    doing = parser.add_subparsers(dest="doing", required=True)
    keeping = doing.add_parser("keep")
    keeping.add_argument("name", choices=sorted(PAGES))
    keeping.add_argument("--exit-code", type=int, required=True)
    keeping.add_argument("--took", type=float, help="seconds")
    keeping.add_argument("--busy", type=float, help="share of the cores that others used right before it began")
    keeping.add_argument("--figures", type=Path, help="what the benchmark wrote with --json")
    keeping.add_argument("--said", type=Path, help="what it printed")
    keeping.add_argument("--gpu", action="store_true", help="it ran on a GPU")
    keeping.add_argument("--date", help="when it ran, if not today")
    keeping.add_argument("--machine", help="where it ran, if not here: cores and GPU")
    keeping.add_argument("--note", help="what a reader has to know of this run")
    keeping.add_argument("command", nargs="+", help="what was run, with DIR for folders")
    doing.add_parser("render")
    doing.add_parser("busy")
    asked = parser.parse_args()
    if asked.doing == "busy":
        print(f"{busy_share():.2f}")
    elif asked.doing == "keep":
        print(f"{asked.name}: {keep(asked)}")
    else:
        PAGE.write_text(page())
        print(f"wrote {PAGE.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
