"""Checks of a training result: runs `result_*.txt`, and beside them `power/<run>/node_*.txt` and `sw_*.txt`."""

import hashlib
import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from wattsmith.report.checks.findings import Check, Layer, Outcome, Report
from wattsmith.report.checks.official import Found, failed, passed, remark
from wattsmith.report.formats.descriptor import SIMULATED
from wattsmith.report.formats.lines import whole
from wattsmith.report.formats.mllog import LogEvent, log_events
from wattsmith.report.window import (
    LoadWindow,
    NodeEnergy,
    NodeLog,
    RunEnergy,
    TrainingScore,
    node_energy,
    training_score,
)
from wattsmith.terms.errors import BadInput, BadTerm

POWER_KEYS = frozenset(
    {"power_measurement_start", "power_measurement_stop", "power_reading", "conversion_eff", "interconnect_power_est"}
)
RUN_KEYS = frozenset({"run_start", "run_stop"})
MOST_READINGS = 2_000_000
SLOWEST_S, LEAST_READINGS, LEAST_COVERAGE = 1.1, 60, 0.99
MOST_PADDING = 0.01  # what padding may change
DROPS = {"unet3d": 4}  # runs at each end; one elsewhere
_NUMBER = re.compile(r"_(\d+)$")


@dataclass(slots=True, kw_only=True)
class Node:
    """One power log of a node."""

    path: str
    log: NodeLog
    energy: NodeEnergy | None
    sha1: str
    backwards: int


@dataclass(slots=True, kw_only=True)
class TrainingRun:
    name: str
    window: LoadWindow | None
    status: str | None
    nodes: list[Node] = field(default_factory=list)
    switches_w: list[float] = field(default_factory=list)  # estimates
    switches: int = 0  # files

    @property
    def energy(self) -> RunEnergy | None:
        """None: something of it is not known."""
        energies = [node.energy for node in self.nodes]
        if self.window is None or not energies or any(one is None or one.summarised_j is None for one in energies):
            return None
        return RunEnergy(
            duration_s=self.window.duration_s,
            nodes_j=sum(one.summarised_j or 0.0 for one in energies if one is not None),
            nodes_in_window_j=sum(one.in_window_j or 0.0 for one in energies if one is not None),
            switches_j=sum(self.switches_w) * self.window.duration_s,
        )


@dataclass(slots=True, kw_only=True)
class TrainingEvidence:
    folder: Path
    runs: list[TrainingRun] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)  # power folders without a run
    scaling_ratio: float = 1.0
    problems: list[str] = field(default_factory=list)
    simulated: bool = False

    @property
    def score(self) -> TrainingScore | None:
        energies = [run.energy for run in self.runs]
        known = [one for one in energies if one is not None]
        try:
            whole_set = len(known) == len(energies)
            return training_score(known, self.scaling_ratio, DROPS.get(self.folder.name, 1)) if whole_set else None
        except BadTerm:
            return None


def gather_training(folder: Path, root: Path) -> TrainingEvidence:
    """Read all runs of a benchmark. Never raises for what stands in the files."""
    found = TrainingEvidence(folder=folder)
    powers = {path.name: path for path in sorted((folder / "power").iterdir()) if path.is_dir()}
    for path in sorted(folder.glob("result_*.txt")):
        found.runs.append(_run(found, path, powers.pop(path.stem, None), root))
    found.orphans = sorted(powers)
    scaling = folder / "scaling.json"
    if scaling.is_file():
        try:
            ratio = float(json.loads(whole(scaling, most_bytes=1 << 16))["scaling_factor"])
            if not 0 < ratio < math.inf:
                raise ValueError(f"a scaling factor of {ratio} makes no sense")
            found.scaling_ratio = ratio
        except (BadInput, ValueError, KeyError, TypeError, RecursionError) as wrong:
            found.problems.append(f"scaling.json: {wrong}")
    return found


def _inside(found: TrainingEvidence, path: Path, root: Path) -> bool:
    if root.resolve() in path.resolve().parents:
        return True
    found.problems.append(f"{path.relative_to(found.folder)}: refused: it is a link that leaves the folder")
    return False


def _run(found: TrainingEvidence, path: Path, power: Path | None, root: Path) -> TrainingRun:
    times_s: dict[str, float] = {}
    status = None
    if _inside(found, path, root):
        for event in _events(found, path, RUN_KEYS):
            if event.time_s is not None:
                times_s[event.key] = event.time_s
            if event.key == "run_stop":
                status = event.metadata.get("status")
    run = TrainingRun(name=path.stem, window=None, status=status if isinstance(status, str) else None)
    try:
        run.window = LoadWindow(begin_s=times_s["run_start"], end_s=times_s["run_stop"])
    except (KeyError, BadTerm) as wrong:
        found.problems.append(f"{path.name}: no run_start before a run_stop ({wrong})")
    for log in sorted(power.iterdir()) if power is not None else ():
        if not _inside(found, log, root):
            continue
        if log.name.startswith("node_"):
            run.nodes.append(_node(found, log, run.window))
        elif log.name.startswith("sw_"):
            run.switches += 1
            events = _events(found, log, POWER_KEYS)
            run.switches_w += [watts for one in events if one.key == "interconnect_power_est" for watts in _number(one)]
    return run


def _events(found: TrainingEvidence, path: Path, keys: frozenset[str]) -> Iterator[LogEvent]:
    name = str(path.relative_to(found.folder))
    broken = 0
    try:
        for event in log_events(path, name, keys):
            if isinstance(event, LogEvent):
                found.simulated = found.simulated or SIMULATED in str(event.metadata).lower()
                yield event
            else:
                broken += 1
                if broken == 1:
                    found.problems.append(f"{name}, line {event.number}: {event.why}")
    except BadInput as wrong:
        found.problems.append(str(wrong))


def _number(event: LogEvent) -> list[float]:
    """The value, if it is a number; some logs have the text "null"."""
    return [float(event.value)] if isinstance(event.value, int | float) and abs(event.value) < 1e12 else []


def _node(found: TrainingEvidence, path: Path, window: LoadWindow | None) -> Node:
    readings: list[tuple[float, float]] = []
    marks: dict[str, float] = {}
    ratio, backwards = 1.0, 0
    digest = hashlib.sha1(usedforsecurity=False)
    for event in _events(found, path, POWER_KEYS):
        if event.key == "conversion_eff":
            ratio = next(iter(_number(event)), 1.0)
        elif event.time_s is None:
            continue
        elif event.key == "power_reading":
            backwards += bool(readings) and event.time_s < readings[-1][0]
            readings += [(event.time_s, watts) for watts in _number(event)][: MOST_READINGS - len(readings)]
            digest.update(f"{event.time_s},{event.value};".encode())
        else:
            marks.setdefault(event.key, event.time_s)
    log = NodeLog(
        start_s=marks.get("power_measurement_start"),
        stop_s=marks.get("power_measurement_stop"),
        readings=readings,
        conversion_ratio=ratio,
    )
    return Node(
        path=str(path.relative_to(found.folder)),
        log=log,
        energy=None if window is None else node_energy(log, window),
        sha1=digest.hexdigest() if readings else "",
        backwards=backwards,
    )


# ---- checks


def logs_for_each_run(found: TrainingEvidence) -> Found:
    missing = [run.name for run in found.runs if not run.nodes]
    if not found.runs:
        return failed("there is no result_*.txt")
    if missing or found.orphans:
        return failed(f"runs without power logs: {', '.join(missing) or 'none'}; logs without run: {found.orphans}")
    return passed(f"{len(found.runs)} runs, each with power logs")


def same_nodes(found: TrainingEvidence) -> Found:
    counts = {(len(run.nodes), run.switches) for run in found.runs}
    if len(counts) > 1:
        return failed(f"nodes and switches differ from run to run: {sorted(counts)}")
    nodes, switches = next(iter(counts), (0, 0))
    numbers = [_NUMBER.search(Path(node.path).stem) for run in found.runs for node in run.nodes]
    first = min((int(one[1]) for one in numbers if one is not None), default=0)
    words = f"{nodes} nodes and {switches} switches in each run"
    return remark(f"{words}; nodes are numbered from {first}, not 0") if first else passed(words)


def readable_files(found: TrainingEvidence) -> Found:
    return failed("; ".join(found.problems[:3])) if found.problems else passed("every file can be read")


def sampling(found: TrainingEvidence) -> Found:
    """At least one reading a second, and 60 of them, inside the run."""
    gaps_s = [
        b - a for run in found.runs for node in run.nodes for (a, _), (b, _) in pairwise(sorted(node.log.readings))
    ]
    energies = list(_energies(found))
    if not gaps_s or not energies:
        return failed("there are no readings")
    mean_s, fewest = sum(gaps_s) / len(gaps_s), min(one.readings_inside for one in energies)
    words = f"a reading every {mean_s:.2f} s, at least {fewest} in each run"
    wrong = mean_s > SLOWEST_S or fewest < LEAST_READINGS
    return failed(f"{words}; one a second and {LEAST_READINGS} are needed") if wrong else passed(words)


def run_coverage(found: TrainingEvidence) -> Found:
    energies = list(_energies(found))
    if not energies:
        return failed("there are no readings")
    least, gap_s = min(one.coverage_ratio for one in energies), max(one.largest_gap_s for one in energies)
    words = f"{least:.1%} of the run at least, largest gap {gap_s:.1f} s"
    return failed(words) if least < 0.9 else remark(words) if least < LEAST_COVERAGE else passed(words)


def padding(found: TrainingEvidence) -> Found:
    """Idle time before and after the run, which the summarised figure counts in."""
    energies, score = list(_energies(found)), found.score
    if not energies or score is None:
        return Outcome.NO_EVIDENCE, "the score cannot be computed"
    before_s, after_s = max(one.before_s for one in energies), max(one.after_s for one in energies)
    change = score.energy_in_window_j / score.energy_j - 1
    words = f"logs begin up to {before_s:.0f} s before and end up to {after_s:.0f} s after the run: {change:+.2%}"
    return failed(words) if abs(change) > MOST_PADDING else passed(words)


def marks(found: TrainingEvidence) -> Found:
    wrong = [
        node.path
        for run in found.runs
        for node in run.nodes
        if node.log.start_s is None or node.log.stop_s is None or node.log.stop_s <= node.log.start_s
    ]
    return failed(f"no stop mark after the start mark: {_few(wrong)}") if wrong else passed("start before stop in all")


def same_logs(found: TrainingEvidence) -> Found:
    """Nodes with the same readings at the same moments."""
    twins = []
    for run in found.runs:
        seen: dict[str, str] = {}
        for node in run.nodes:
            if node.sha1 and node.sha1 in seen:
                twins.append(f"{node.path} = {seen[node.sha1]}")
            seen.setdefault(node.sha1, node.path)
    everywhere = [node.sha1 for run in found.runs for node in run.nodes if node.sha1]
    again = len(set(everywhere)) + len(twins) < len(everywhere)
    if again:
        return failed("the same log serves several runs")
    return remark(f"same readings in {len(twins)} pairs: {_few(twins)}") if twins else passed("every log is its own")


def order_of_readings(found: TrainingEvidence) -> Found:
    wrong = [node.path for run in found.runs for node in run.nodes if node.backwards]
    return remark(f"the clock goes backwards in {_few(wrong)}") if wrong else passed("time runs forward")


def finished(found: TrainingEvidence) -> Found:
    wrong = [f"{run.name} ({run.status})" for run in found.runs if run.status != "success"]
    return failed(f"runs that did not succeed: {_few(wrong)}") if wrong else passed("every run succeeded")


def not_simulated(found: TrainingEvidence) -> Found:
    return failed("a log says that it is simulated") if found.simulated else passed("no log says so")


def _energies(found: TrainingEvidence) -> Iterator[NodeEnergy]:
    return (node.energy for run in found.runs for node in run.nodes if node.energy is not None)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


CHECKS = {
    "Power logs for each run": (Layer.OFFICIAL, logs_for_each_run),
    "Nodes and switches": (Layer.OFFICIAL, same_nodes),
    "Readable files": (Layer.STRICT, readable_files),
    "Sampling": (Layer.STRICT, sampling),
    "Coverage of the run": (Layer.STRICT, run_coverage),
    "Padding": (Layer.STRICT, padding),
    "Marks": (Layer.STRICT, marks),
    "Same logs": (Layer.STRICT, same_logs),
    "Order of readings": (Layer.STRICT, order_of_readings),
    "Runs that succeeded": (Layer.STRICT, finished),
    "Simulated analyzer": (Layer.STRICT, not_simulated),
}


def judge_training(folder: Path, root: Path, place: str) -> Report:
    found = gather_training(folder, root)
    checks = []
    for name, (layer, look) in CHECKS.items():
        outcome, evidence = look(found)
        checks.append(Check(name=name, layer=layer, outcome=outcome, evidence=evidence))
    score = found.score
    figures: dict[str, float | int | str | None] = {"runs": len(found.runs), "scaling_ratio": found.scaling_ratio}
    ratios = {node.log.conversion_ratio for run in found.runs for node in run.nodes}
    figures["conversion_ratio"] = min(ratios, default=1.0)
    if score is not None:
        figures |= {
            "time_to_train_s": score.duration_s,
            "energy_j": score.energy_j,
            "energy_in_window_j": score.energy_in_window_j,
            "switches_j": score.switches_j,
            "runs_kept": score.kept,
        }
    return Report(
        place=place,
        kind="training",
        round=None,
        round_known_by="rules of training do not differ by round here",
        figures=figures,
        checks=tuple(checks),
        simulated=found.simulated,
    )
