"""Checks of a tiny energy result: the folder with results.txt and a trace in either layout."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wattsmith.report.checks.findings import Check, Layer, Outcome, Report
from wattsmith.report.checks.official import Found, failed, passed
from wattsmith.report.formats.descriptor import SIMULATED
from wattsmith.report.formats.lines import lines_of
from wattsmith.report.formats.tiny import (
    TinyResults,
    TinyWindow,
    read_results,
    read_timestamps,
    read_trials,
    trace_microjoules,
    trace_rate_hz,
)
from wattsmith.report.window import edge_windows, median_j, sample_windows, trace_energies
from wattsmith.terms.errors import BadInput, BadTerm

WINDOWS, LEAST_S = 5, 10.0
AGREEMENT = 1e-3  # results.txt has three decimals, of a few tens of microjoules at times
STREAMING = {"sww", "strm_ww"}
TRIAL_RATE_HZ = 1000.0  # the MLCommons runner asks its monitors for this


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One window, computed from the trace."""

    number: int
    energy_j: float
    duration_s: float
    samples: int
    inferences: int | None


@dataclass(slots=True, kw_only=True)
class TinyEvidence:
    folder: Path
    layout: str = "none"
    said: TinyResults | None = None
    measured: list[Measured] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    simulated: bool = False

    def file(self, name: str) -> Path:
        """Some submitters put the kind of the run before the names of its files."""
        other = self.folder / f"energy_{name}"
        return other if other.exists() and not (self.folder / name).exists() else self.folder / name

    @property
    def old_runner(self) -> bool:
        return self.layout == "EEMBC runner" or self.file("script.async").exists()

    @property
    def streaming(self) -> bool:
        """Whether this is the wake word in a stream, which is measured once and told as mean power."""
        return self.folder.resolve().parent.name in STREAMING

    @property
    def power_w(self) -> float | None:
        """Mean over the stream; None: there is none."""
        windows = _energy_windows(self.said)
        if not self.streaming or not windows or not windows[0].duration_s or windows[0].energy_j is None:
            return None
        return windows[0].energy_j / windows[0].duration_s

    @property
    def per_inference_j(self) -> list[float]:
        return [one.energy_j / one.inferences for one in self.measured if one.inferences]

    @property
    def median_j(self) -> float | None:
        known = [one for one in self.measured if one.inferences]
        try:
            return median_j([one.energy_j for one in known], [one.inferences or 0 for one in known]) if known else None
        except BadTerm:
            return None


def gather_tiny(folder: Path, root: Path) -> TinyEvidence:
    """Read a result. Never raises for what stands in the files."""
    found = TinyEvidence(folder=folder)
    names = ("results.txt", "trace1-energy.bin", "trace1-timestamps.json", "results.json", "log.txt")
    there = [name for name in names if found.file(name).exists() and _inside(found, found.file(name), root)]
    try:
        if "log.txt" in there:
            log = lines_of(found.file("log.txt"), "log.txt")
            found.simulated = any(SIMULATED in line.text.lower() for line in log)
        if "results.txt" in there:
            found.said = read_results(found.file("results.txt"), "results.txt")
        if {"trace1-energy.bin", "trace1-timestamps.json"} <= set(there):
            found.layout = "EEMBC runner"
            _read_trace(found)
        elif "results.json" in there:
            found.layout = "MLCommons runner"
            _read_trials(found)
    except BadInput as wrong:
        found.problems.append(str(wrong))
    return found


def _inside(found: TinyEvidence, path: Path, root: Path) -> bool:
    if root.resolve() in path.resolve().parents:
        return True
    found.problems.append(f"{path.name}: refused: it is a link that leaves the folder")
    return False


def _read_trace(found: TinyEvidence) -> None:
    trace = found.folder / "trace1-energy.bin"
    rate_hz = trace_rate_hz(trace, trace.name)
    edges_s = read_timestamps(found.folder / "trace1-timestamps.json", "trace1-timestamps.json")
    windows = edge_windows(edges_s)
    spans = [(begin_s, end_s) for _, begin_s, end_s in windows]
    sums = trace_energies(trace_microjoules(trace, trace.name), rate_hz, spans)
    said = {window.number: window for window in found.said.windows} if found.said else {}
    for (number, begin_s, end_s), (microjoules, samples) in zip(windows, sums, strict=True):
        found.measured.append(
            Measured(
                number=number,
                energy_j=microjoules / 1_000_000,
                duration_s=end_s - begin_s,
                samples=samples,
                inferences=said[number].inferences if number in said else None,
            )
        )


def _read_trials(found: TinyEvidence) -> None:
    for number, trial in enumerate(read_trials(found.folder / "results.json", "results.json").trials):
        found.simulated = found.simulated or trial.simulated
        span = sample_windows(trial.edges)
        if span is None or not 0 <= span[0] < span[1] <= len(trial.energies_j):
            found.problems.append(f"results.json: the edges of measurement {number + 1} lie outside of its samples")
            continue
        inside = trial.energies_j[span[0] : span[1]]
        found.measured.append(
            Measured(
                number=number,
                energy_j=math.fsum(inside),
                duration_s=len(inside) / TRIAL_RATE_HZ,
                samples=len(inside),
                inferences=trial.inferences,
            )
        )


# ---- checks


def five_windows(found: TinyEvidence) -> Found:
    count, needed = len(_energy_windows(found.said)), 1 if found.streaming else WINDOWS
    words = f"{count} measurements"
    return passed(words) if count == needed else failed(f"{words}; {needed} are needed")


def ten_seconds(found: TinyEvidence) -> Found:
    spans = [one.duration_s for one in _energy_windows(found.said) if one.duration_s is not None]
    if not spans:
        return failed("results.txt names no duration")
    words = f"the shortest measurement took {min(spans):.3f} s"
    return passed(words) if min(spans) >= LEAST_S else failed(f"{words}; {LEAST_S:.0f} s are needed")


def stated_median(found: TinyEvidence) -> Found:
    windows = [one.energy_per_inference_j for one in _energy_windows(found.said)]
    known = sorted(one for one in windows if one is not None)
    if found.said is None or found.said.median_j is None or not known:
        return failed("results.txt names no median")
    middle = (known[(len(known) - 1) // 2] + known[len(known) // 2]) / 2
    words = f"{found.said.median_j * 1e6:.3f} µJ stated, {middle * 1e6:.3f} µJ of the measurements"
    return passed(words) if _agree(found.said.median_j, middle) else failed(words)


def trace_agrees(found: TinyEvidence) -> Found:
    """Every window of results.txt against the trace."""
    if not found.measured:
        return failed("; ".join(found.problems[:2])) if found.problems else (Outcome.NO_EVIDENCE, "there is no trace")
    said = {one.number: one for one in _energy_windows(found.said)}
    for one in found.measured:
        stated = said.get(one.number)
        if stated is None or stated.energy_j is None:
            return failed(f"results.txt does not name window {one.number}, which the trace has")
        if not _agree(stated.energy_j, one.energy_j):
            return failed(
                f"window {one.number}: {stated.energy_j * 1e6:.3f} µJ stated, {one.energy_j * 1e6:.3f} µJ in the trace"
            )
        if stated.energy_per_inference_j is not None and one.inferences:
            each_j = one.energy_j / one.inferences
            if not _agree(stated.energy_per_inference_j, each_j):
                return failed(f"window {one.number}: {stated.energy_per_inference_j * 1e6:.3f} µJ per inference stated")
    if len(said) != len(found.measured):
        return failed(f"{len(said)} windows are stated, the trace has {len(found.measured)}")
    return passed(f"{len(found.measured)} windows agree with the trace of the {found.layout}")


def trace_is_whole(found: TinyEvidence) -> Found:
    short = [
        one for one in found.measured if abs(one.samples - one.duration_s * TRIAL_RATE_HZ) > 0.01 * one.samples + 2
    ]
    if found.problems:
        return failed("; ".join(found.problems[:3]))
    if not found.measured:
        return Outcome.NO_EVIDENCE, "there is no trace"
    if short and found.layout != "none":
        return failed(f"window {short[0].number} has {short[0].samples} samples for {short[0].duration_s:.3f} s")
    return passed(f"{sum(one.samples for one in found.measured)} samples in the windows")


def own_measurements(found: TinyEvidence) -> Found:
    traced = [one.energy_j for one in found.measured]
    energies = traced or [one.energy_j or 0.0 for one in _energy_windows(found.said)]
    if len(set(energies)) < len(energies):
        return failed("two measurements have the same energy to the last digit")
    return passed("no two are the same")


def runner_log(found: TinyEvidence) -> Found:
    """Inferences as the runner logged its command, against what results.txt counts."""
    log = found.file("log.txt")
    counts = {one.inferences for one in _energy_windows(found.said)}
    if not log.is_file() or counts == {None} or found.streaming:
        return Outcome.NO_EVIDENCE, "there is no log of the runner, or no count in it"
    try:
        text = "\n".join(line.text for line in lines_of(log, "log.txt") if "infer" in line.text)
    except BadInput as wrong:
        return failed(str(wrong))
    missing = [str(one) for one in counts if one is not None and str(one) not in text]
    return failed(f"the log knows nothing of {', '.join(missing)} inferences") if missing else passed("counts agree")


def not_simulated(found: TinyEvidence) -> Found:
    return failed("the log says that it is simulated") if found.simulated else passed("the log does not say so")


def _agree(one: float, other: float) -> bool:
    return abs(one - other) <= AGREEMENT * abs(other) + 1e-9


def _energy_windows(said: TinyResults | None) -> Sequence[TinyWindow]:
    return [] if said is None else [one for one in said.windows if one.energy_j is not None]


CHECKS = {
    "Five measurements": (Layer.OFFICIAL, five_windows),
    "Ten seconds each": (Layer.OFFICIAL, ten_seconds),
    "Stated median": (Layer.OFFICIAL, stated_median),
    "Trace against results": (Layer.STRICT, trace_agrees),
    "Whole trace": (Layer.STRICT, trace_is_whole),
    "Measurements of their own": (Layer.STRICT, own_measurements),
    "Runner's log": (Layer.STRICT, runner_log),
    "Simulated analyzer": (Layer.STRICT, not_simulated),
}


def judge_tiny(folder: Path, root: Path, place: str) -> Report:
    found = gather_tiny(folder, root)
    checks = []
    for name, (layer, look) in CHECKS.items():
        outcome, evidence = look(found)
        # Whoever checked results of the old runner did not look at number and length: five published ones are shorter.
        shown = Layer.STRICT if found.old_runner and look in (five_windows, ten_seconds) else layer
        checks.append(Check(name=name, layer=shown, outcome=outcome, evidence=evidence))
    stated = found.said.median_j if found.said else None
    return Report(
        place=place,
        kind="tiny",
        round=None,
        round_known_by="rules of tiny do not differ by round here",
        figures={
            "layout": found.layout,
            "windows": len(found.measured),
            "energy_per_inference_j": found.median_j if found.median_j is not None else stated,
            "stated_energy_per_inference_j": stated,
            "power_w": found.power_w,
            "per_window_j": json.dumps(found.per_inference_j),
        },
        checks=tuple(checks),
        simulated=found.simulated,
    )
