"""Window arithmetic: what samples of power say about a stretch of time, and what metric that makes.

All of it is pure. Inference: the official mean of the samples strictly inside the window, and beside it the exact
integral. Training: readings times the time since the one before. Tiny: the energy between two edges of a trace.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise

from wattsmith.terms.errors import BadTerm

SAMPLES_OF_MULTISTREAM = 8  # in each query
PERIOD_S = 1.0  # what analyzers are asked for
MISSING_FROM = 1.5  # periods between two samples from which on one of them is missing


class Scenario(StrEnum):
    SINGLE_STREAM = "SingleStream"
    MULTI_STREAM = "MultiStream"
    SERVER = "Server"
    OFFLINE = "Offline"
    INTERACTIVE = "Interactive"

    @property
    def is_stream(self) -> bool:
        """Whether the metric is energy per query; power otherwise."""
        return self in (Scenario.SINGLE_STREAM, Scenario.MULTI_STREAM)

    @property
    def samples_per_query(self) -> int:
        return SAMPLES_OF_MULTISTREAM if self is Scenario.MULTI_STREAM else 1


def scenario_called(name: str) -> Scenario:
    """The scenario of a folder or a log, in whichever letters. Raises BadTerm when there is none."""
    for scenario in Scenario:
        if scenario.lower() == name.lower().replace("_", "").replace("-", ""):
            return scenario
    raise BadTerm(f"{name!r} is no scenario; there are {', '.join(Scenario)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadWindow:
    """From power_begin to power_end."""

    begin_s: float
    end_s: float

    def __post_init__(self) -> None:
        if not self.duration_s > 0:
            raise BadTerm(f"the window ends at {self.end_s} s, not after its begin at {self.begin_s} s")

    @property
    def duration_s(self) -> float:
        return round(self.end_s - self.begin_s, 6)  # dates have no more digits


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowPower:
    """What the samples say about a window: as the rules have it, and exactly."""

    duration_s: float
    mean_w: float | None  # the official one; None: no sample that counts
    samples: int  # that count for the mean
    invalid: int  # inside the window and not above 0, or no number
    integral_j: float | None  # trapezoids through the valid samples, cut at both edges
    held_s: float  # of the integral, where no sample lies beyond the edge and the nearest one was held
    largest_gap_s: float  # between valid samples, or between one and the edge of the window
    uncovered_s: float  # time in such gaps beyond one period, where samples are missing
    out_of_order: int  # samples older than one before them; the integral leaves them out
    min_w: float | None
    max_w: float | None

    @property
    def energy_j(self) -> float | None:
        """By the official mean."""
        return None if self.mean_w is None else self.mean_w * self.duration_s

    @property
    def coverage_ratio(self) -> float:
        return max(0.0, 1.0 - self.uncovered_s / self.duration_s)

    @property
    def difference_ratio(self) -> float | None:
        """How far the integral lies from the official energy."""
        energy_j = self.energy_j
        return None if not energy_j or self.integral_j is None else self.integral_j / energy_j - 1


class WindowTally:
    """Takes samples in the order of the log, one by one, and keeps no more than sums."""

    def __init__(self, window: LoadWindow, drop_non_positive: bool = True, period_s: float = PERIOD_S) -> None:
        self.window = window
        self._drops = drop_non_positive
        self._period_s = period_s
        self._sum_w = 0.0
        self._count = self._invalid = self._out_of_order = 0
        self._min_w, self._max_w = math.inf, -math.inf
        self._last: tuple[float, float] | None = None  # the latest valid sample
        self._integral_j = self._held_s = self._gap_s = self._uncovered_s = 0.0

    def add(self, time_s: float, power_w: float) -> None:
        begin_s, end_s = self.window.begin_s, self.window.end_s
        inside = begin_s < time_s < end_s
        valid = 0 < power_w < math.inf
        if inside:
            if valid:
                self._min_w, self._max_w = min(self._min_w, power_w), max(self._max_w, power_w)
            else:
                self._invalid += 1
            if valid or (not self._drops and math.isfinite(power_w)):
                self._sum_w += power_w  # one after the other, as the official sum, to the last digit
                self._count += 1
        if valid:
            self._reach(time_s, power_w)

    def _reach(self, time_s: float, power_w: float) -> None:
        begin_s, end_s = self.window.begin_s, self.window.end_s
        last = self._last
        if last is not None and time_s < last[0]:
            self._out_of_order += 1
            return
        self._last = (time_s, power_w)
        if time_s <= begin_s or (last is not None and last[0] >= end_s):
            return
        upto_s = min(time_s, end_s)
        if last is None:
            self._held_s += upto_s - begin_s
            self._integral_j += power_w * (upto_s - begin_s)
            self._note_gap(upto_s - begin_s)
        else:
            from_s = max(last[0], begin_s)
            self._integral_j += _trapezoid_j(last, (time_s, power_w), from_s, upto_s)
            self._note_gap(upto_s - from_s)

    def _note_gap(self, gap_s: float) -> None:
        self._gap_s = max(self._gap_s, gap_s)
        if gap_s > MISSING_FROM * self._period_s:
            self._uncovered_s += gap_s - self._period_s

    def result(self) -> WindowPower:
        begin_s, end_s, duration_s = self.window.begin_s, self.window.end_s, self.window.duration_s
        last, integral_j, held_s = self._last, self._integral_j, self._held_s
        gap_s, uncovered_s = self._gap_s, self._uncovered_s
        if last is not None and last[0] < end_s:  # the log stops inside the window, or before it
            rest_s = end_s - max(last[0], begin_s)
            held_s += rest_s
            integral_j += last[1] * rest_s
            gap_s = max(gap_s, rest_s)
            uncovered_s += rest_s - self._period_s if rest_s > MISSING_FROM * self._period_s else 0.0
        known = last is not None and held_s < duration_s
        return WindowPower(
            duration_s=duration_s,
            mean_w=self._sum_w / self._count if self._count else None,
            samples=self._count,
            invalid=self._invalid,
            integral_j=integral_j if known else None,
            held_s=held_s if known else duration_s,
            largest_gap_s=gap_s if last is not None else duration_s,
            uncovered_s=uncovered_s if last is not None else duration_s,
            out_of_order=self._out_of_order,
            min_w=self._min_w if self._min_w < math.inf else None,
            max_w=self._max_w if self._max_w > -math.inf else None,
        )


def window_power(
    samples: Iterable[tuple[float, float]], window: LoadWindow, drop_non_positive: bool = True
) -> WindowPower:
    """What samples (seconds, watts), in order of time, say about WINDOW.

    Rounds up to v3.0 did not drop values that are not above 0, which stand for readings that failed.
    """
    tally = WindowTally(window, drop_non_positive)
    for time_s, power_w in samples:
        tally.add(time_s, power_w)
    return tally.result()


def _trapezoid_j(one: tuple[float, float], other: tuple[float, float], from_s: float, upto_s: float) -> float:
    """Energy under the line through two samples, between two moments."""
    (one_s, one_w), (other_s, other_w) = one, other
    if other_s == one_s:
        return 0.0
    slope = (other_w - one_w) / (other_s - one_s)
    mean_w = one_w + slope * ((from_s + upto_s) / 2 - one_s)
    return mean_w * (upto_s - from_s)


# ---- the metric of an inference result


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """What is published: mean power, or energy per query; and how it came about."""

    scenario: Scenario
    power_w: float  # mean over the window
    energy_per_query_j: float | None  # None: the scenario's metric is power
    formula: str

    @property
    def value(self) -> float:
        """Watts, or joules per query."""
        return self.power_w if self.energy_per_query_j is None else self.energy_per_query_j

    @property
    def unit(self) -> str:
        return "W" if self.energy_per_query_j is None else "J/query"


def inference_metric(
    published: Scenario, run: Scenario, power_w: float, duration_s: float, queries: float | None
) -> Metric:
    """The metric of a result that is published as one scenario and was run as the same, or inferred from another.

    MultiStream that was inferred from SingleStream counts eight queries as one; Offline keeps the power of the run.
    """
    if not published.is_stream:
        return Metric(scenario=published, power_w=power_w, energy_per_query_j=None, formula="mean W")
    if queries is None or not queries > 0:
        raise BadTerm(f"energy per query of {published} needs the number of queries, got {queries}")
    inferred = published is Scenario.MULTI_STREAM and run is Scenario.SINGLE_STREAM
    times = SAMPLES_OF_MULTISTREAM if inferred else 1
    return Metric(
        scenario=published,
        power_w=power_w,
        energy_per_query_j=power_w * duration_s / queries * times,
        formula=f"mean W × window / queries{f' × {times}' if inferred else ''}",
    )


def queries_at_rate(rate_hz: float, duration_s: float) -> float:
    """How many queries rounds v1.0 and v1.1 counted, whose logs name the rate alone."""
    return rate_hz * duration_s


def samples_per_joule(metric: Metric, samples_hz: float | None) -> float | None:
    """Samples per second over watts, or samples per query over joules per query."""
    if metric.energy_per_query_j is not None:
        return metric.scenario.samples_per_query / metric.energy_per_query_j
    return None if samples_hz is None else samples_hz / metric.power_w


# ---- training


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLog:
    """The power log of a node: marks and readings, in seconds since 1970 and watts."""

    start_s: float | None
    stop_s: float | None
    readings: Sequence[tuple[float, float]]  # in the order of the file
    conversion_ratio: float = 1.0  # of readings at the AC side; 1: measured behind the supplies

    @property
    def marked(self) -> LoadWindow | None:
        """What the marks enclose; up to the last reading where the stop mark is missing, or not after the other."""
        if not self.readings:
            return None
        begin_s = self.readings[0][0] if self.start_s is None else self.start_s
        stopped = self.stop_s is not None and self.stop_s > begin_s
        end_s = self.stop_s if stopped and self.stop_s is not None else self.readings[-1][0]
        return LoadWindow(begin_s=begin_s, end_s=end_s) if begin_s < end_s else None

    def summarised_j(self, run: LoadWindow) -> float | None:
        """As the summariser has it: the mean over the marked log, in the order of the file, times the time of the run.

        The first reading holds since the start mark, each other since the one before.
        """
        marked = self.marked
        if marked is None:
            return None
        energy_j, before_s = 0.0, marked.begin_s
        for time_s, power_w in self.readings:
            if marked.begin_s <= time_s <= marked.end_s:
                energy_j += power_w * round(time_s - before_s, 6)
                before_s = time_s
        return self.conversion_ratio * energy_j * run.duration_s / marked.duration_s


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeEnergy:
    """What a node needed for a run, by both formulas; None: too few readings."""

    summarised_j: float | None  # mean over the marked log × run time, as the summariser has it
    in_window_j: float | None  # mean over the run × run time
    before_s: float  # padding: the log goes on before the run …
    after_s: float  # … and after it
    coverage_ratio: float  # of the run by the log
    readings_inside: int
    largest_gap_s: float  # inside the run

    @property
    def dilution_ratio(self) -> float | None:
        """How much more the run needed than the summarised figure says."""
        if not self.summarised_j or self.in_window_j is None:
            return None
        return self.in_window_j / self.summarised_j - 1


def node_energy(log: NodeLog, run: LoadWindow) -> NodeEnergy:
    """Energy of one node for RUN, by readings times the time since the reading before."""
    readings = sorted(log.readings)
    inside = [time_s for time_s, _ in readings if run.begin_s <= time_s <= run.end_s]
    first_s = readings[0][0] if readings else run.begin_s
    last_s = readings[-1][0] if readings else run.begin_s
    edges = [max(first_s, run.begin_s), *inside, min(last_s, run.end_s)]
    energy_j, covered_s = held_energy_j(readings, run)
    return NodeEnergy(
        summarised_j=log.summarised_j(run),
        in_window_j=log.conversion_ratio * energy_j * run.duration_s / covered_s if covered_s > 0 else None,
        before_s=max(0.0, run.begin_s - first_s),
        after_s=max(0.0, last_s - run.end_s),
        coverage_ratio=max(0.0, min(last_s, run.end_s) - max(first_s, run.begin_s)) / run.duration_s,
        readings_inside=len(inside),
        largest_gap_s=max((b - a for a, b in pairwise(edges)), default=run.duration_s),
    )


def held_energy_j(readings: Sequence[tuple[float, float]], part: LoadWindow) -> tuple[float, float]:
    """Joules and seconds in PART, each reading holding since the one before: the rule of training."""
    energy_j = covered_s = 0.0
    for (one_s, _), (next_s, next_w) in pairwise(readings):
        step_s = round(min(next_s, part.end_s) - max(one_s, part.begin_s), 6)
        if step_s > 0:
            energy_j += next_w * step_s
            covered_s += step_s
    return energy_j, covered_s


@dataclass(frozen=True, slots=True, kw_only=True)
class RunEnergy:
    """One training run: nodes and switches together."""

    duration_s: float
    nodes_j: float
    nodes_in_window_j: float
    switches_j: float

    @property
    def energy_j(self) -> float:
        return self.nodes_j + self.switches_j


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingScore:
    """The score over all runs, each mean over those that are kept, times the scaling factor."""

    duration_s: float
    energy_j: float
    energy_in_window_j: float
    switches_j: float
    kept: int
    dropped: int
    scaling_ratio: float


def training_score(runs: Sequence[RunEnergy], scaling_ratio: float = 1.0, drop: int = 1) -> TrainingScore:
    """Runs are ordered by time to train; the same best and worst ones are dropped (four at each end for unet3d)."""
    if len(runs) <= 2 * drop:
        raise BadTerm(f"{len(runs)} runs are too few to drop {drop} at each end")
    kept = sorted(runs, key=lambda run: run.duration_s)[drop : len(runs) - drop]
    return TrainingScore(
        duration_s=scaling_ratio * statistics.fmean(run.duration_s for run in kept),
        energy_j=scaling_ratio * statistics.fmean(run.energy_j for run in kept),
        energy_in_window_j=scaling_ratio * statistics.fmean(run.nodes_in_window_j + run.switches_j for run in kept),
        switches_j=scaling_ratio * statistics.fmean(run.switches_j for run in kept),
        kept=len(kept),
        dropped=2 * drop,
        scaling_ratio=scaling_ratio,
    )


# ---- tiny


def edge_windows(edges_s: Sequence[float]) -> list[tuple[int, float, float]]:
    """Number, begin and end of the scored windows: number k lies between the edges k and k + 1, for even k.

    The first edge comes from the device's start, and those between from the loading of the next input.
    """
    return [(number, edges_s[number - 1], edges_s[number]) for number in range(2, len(edges_s), 2)]


def trace_energies(
    energies: Iterable[float], rate_hz: float, windows: Sequence[tuple[float, float]]
) -> list[tuple[float, int]]:
    """Sum and number of the samples strictly inside each window (begin, end in seconds), in the unit of the samples.

    The runner adds 1/rate again and again instead of dividing the sample's number; over a minute that moves two
    thirds of the windows by a sample, so we do the same. Windows must not overlap and come in order.
    """
    step_s = 1.0 / rate_hz
    sums = [(0.0, 0)] * len(windows)
    place, time_s, total, count = 0, 0.0, 0.0, 0
    for energy in energies:
        while place < len(windows) and time_s >= windows[place][1]:
            sums[place] = (total, count)
            place, total, count = place + 1, 0.0, 0
        if place == len(windows):
            break
        if time_s > windows[place][0]:
            total += energy
            count += 1
        time_s += step_s
    if place < len(windows):
        sums[place] = (total, count)
    return sums


def sample_windows(edges: Sequence[int]) -> tuple[int, int] | None:
    """First sample of a trial of the MLCommons runner, and the first behind it; None: fewer than two edges.

    The last two edges enclose the timed loop; one before them comes from the device's start.
    """
    return (edges[-2], edges[-1]) if len(edges) >= 2 else None


def median_j(energies_j: Sequence[float], inferences: Sequence[int]) -> float:
    """The tiny score: median of the energy per inference."""
    return statistics.median(each for each in per_inference_j(energies_j, inferences))


def per_inference_j(energies_j: Sequence[float], inferences: Sequence[int]) -> Iterator[float]:
    for energy_j, count in zip(energies_j, inferences, strict=True):
        if count <= 0:
            raise BadTerm(f"a measurement of {count} inferences has no energy per inference")
        yield energy_j / count
