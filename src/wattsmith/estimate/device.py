"""All that a record says of one device: how long operators take, how fast the host queues them, what it costs.

Learned from runs whose calls were watched. Intervals come from networks that were left out, family by family. What
takes long to find (how far calls reach, how far off left-out networks were) is kept as `Known`, in plain numbers.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from wattsmith.estimate.conformal import Doubt
from wattsmith.estimate.fused import Compiled, Fused
from wattsmith.estimate.host import HostModel, host_time_s
from wattsmith.estimate.likeness import Reach
from wattsmith.estimate.operators import Example, OperatorTimes, Peak
from wattsmith.estimate.power import Activity, EnergyModel
from wattsmith.estimate.shapes import PRODUCTS, Features, features_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.run import OperatorCall, Run, Status

ENOUGH = 5  # watched networks; fewer say nothing of networks
TWICE = 0.01  # of the time: so much more by call than by step means kernels side by side
NOTABLE = 0.05  # share of the time from which products matter
STRAY = 3.0  # an allocator that holds more times the tensors still has what a program before it needed
LEAST_DOUBT = 0.05  # of a whole step, in the logarithm
USUAL_DOUBT, LARGE_DOUBT = 0.3, 0.6  # where too few networks tell
UNTOLD = 3.0  # factor by which a figure may be off, there


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """Whether single precision may use the matrix units. By default as PyTorch has it."""

    conv_tf32: bool = True
    matmul_tf32: bool = False

    def allow(self, kind: str) -> bool:
        return self.matmul_tf32 if kind == "matmul" else self.conv_tf32


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """How far off estimates of left-out networks were."""

    busy: Doubt
    host: Doubt
    energy: Doubt | None
    memory: Doubt | None
    held: Doubt | None
    usual: float  # doubt that four of five left-out networks had less of
    large: float  # and nearly all


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What takes long to find, in plain numbers."""

    reaches: Mapping[str, Reach]
    doubts: Doubts
    fused: Fused | None = None  # None: too few compiled steps were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A step's calls, each with what it should take."""

    features: tuple[Features, ...]
    calls: tuple[OperatorCall, ...]
    busy_s: tuple[float, ...]  # of one call
    doubt: float  # of their sum: standard deviation of its logarithm, were all errors alike
    covered_flops_ratio: float  # share, of operators that the record has
    covered_bytes_ratio: float

    @property
    def whole_s(self) -> float:
        return math.fsum(one.calls * took_s for one, took_s in zip(self.calls, self.busy_s, strict=True))

    def by_kind(self) -> dict[str, float]:
        """Seconds by class of operators, the longest first."""
        sums: dict[str, float] = defaultdict(float)
        for one, took_s in zip(self.calls, self.busy_s, strict=True):
            sums[one.kind] += one.calls * took_s
        return dict(sorted(sums.items(), key=lambda item: -item[1]))


@dataclass(slots=True, kw_only=True)
class DeviceModel:
    """A device, as its record knows it."""

    peak: Peak
    operators: OperatorTimes
    host: HostModel
    energy: EnergyModel | None
    fixed_bytes: float  # held beside the tensors, such as workspaces
    runs: int
    networks: int
    seen: frozenset[tuple[str, ...]]  # words of operators that were measured
    steps: frozenset[int]  # signatures of whole steps that were measured
    known: Known | None = field(default=None)

    @classmethod
    def learn(
        cls,
        runs: Sequence[Run],
        peak: Peak,
        *,
        known: Known | None = None,
        eager_calls: Callable[[Run], Sequence[OperatorCall]] = lambda _: (),
        tell: Callable[[str], object] = lambda _: None,
    ) -> "DeviceModel":
        """From the runs of one type of device. KNOWN: what was found before; None: find it now, which takes a while.

        EAGER_CALLS tells what a compiled run would call if it were not compiled.
        """
        watched = [run for run in runs if usable(run)]
        if not watched:
            raise BadInput("no run of this record tells how long its operators took; take it anew with this version")
        tell("learning how long operators take")
        model = _fit(watched, peak, known.reaches if known else {})
        if known is None:
            tell("finding out how far off it is for networks left out")
            reaches = model.operators.reaches
            fused = Fused.learn([model.beside(run, eager_calls(run)) for run in runs if compiled(run)])
            known = Known(reaches=reaches, doubts=_doubts(watched, peak, reaches), fused=fused)
        model.known = known
        return model

    def time(self, calls: Sequence[OperatorCall], switches: Switches, *, trains: bool) -> Timed:
        """What each of CALLS should take."""
        import numpy as np

        used = tuple(one for one in calls if one.shapes)
        features = tuple(features_of(one, tf32=switches.allow(one.kind), trains=trains) for one in used)
        guess = self.operators.guess(features)
        took_s = np.array([one.calls for one in used]) * guess.busy_s
        share = took_s / took_s.sum()
        known = np.array([one.words[:2] in self.seen for one in features], dtype=bool)
        flops, moved = np.array([one.flops for one in used]), np.array([one.moved_bytes for one in used])
        return Timed(
            features=features,
            calls=used,
            busy_s=tuple(float(one) for one in guess.busy_s),
            doubt=float(share @ guess.doubt),
            covered_flops_ratio=_share(flops, known),
            covered_bytes_ratio=_share(moved, known),
        )

    def beside(self, run: Run, eager: Sequence[OperatorCall]) -> Compiled:
        """RUN, a compiled one, and what the EAGER calls should take."""
        assert run.times is not None
        assert run.times.busy_s is not None
        return Compiled(
            eager=self.time(eager, switches_of(run), trains=run.workload.mode == "train"),
            eager_host_s=self.host.whole_s(eager),
            busy_s=run.times.busy_s,
            host_s=host_time_s(run.times) or run.times.mean_s,
        )

    def on(self, peak: Peak) -> "DeviceModel":
        """The same, for a device of other peaks: it is taken to come as close to its own as this one does."""
        return replace(self, peak=peak, operators=self.operators.on(peak))

    def activity(self, timed: Timed, step_s: float) -> Activity:
        return Activity(
            step_s=step_s,
            features=timed.features,
            busy_s=[one.calls * took_s for one, took_s in zip(timed.calls, timed.busy_s, strict=True)],
            calls=[one.calls for one in timed.calls],
        )


def _share(amounts: Any, chosen: Any) -> float:
    whole = float(amounts.sum())
    return float(amounts[chosen].sum()) / whole if whole else 1.0


def signature(calls: Sequence[OperatorCall], precision: str) -> int:
    """Names a step by what it calls, whatever the order."""
    return hash((precision, frozenset((one.operator, one.dtype, one.shapes, one.calls) for one in calls)))


def usable(run: Run) -> bool:
    """Whether RUN tells how long its operators took."""
    return run.status is Status.MEASURED and any(one.busy_s is not None for one in run.calls)


def compiled(run: Run) -> bool:
    """Whether RUN tells what compiling does to a step."""
    return run.workload.compiled and run.times is not None and run.times.busy_s is not None


def computes(run: Run) -> bool:
    """Whether RUN is like the steps that are asked for: with products, and without recurrent layers."""
    products_s = math.fsum(one.busy_s or 0.0 for one in run.calls if one.kind in (*PRODUCTS, "attention"))
    whole_s = math.fsum(one.busy_s or 0.0 for one in run.calls)
    return products_s > NOTABLE * whole_s and not any("rnn" in one.operator for one in run.calls)


def side_by_side(run: Run) -> dict[str, float]:
    """By kind of operator: the share of its calls' time that counts, where kernels side by side were counted twice.

    Runs of schema 4's first days sum the kernels of a call. Their sum is then above the step's busy time, and it is
    grouped convolutions that are run so, or convolutions where there are none, or recurrent layers.
    """
    whole_s = math.fsum(one.busy_s or 0.0 for one in run.calls)
    excess_s = whole_s - (run.times.busy_s or whole_s if run.times else whole_s)
    if excess_s <= TWICE * whole_s:
        return {}
    for kind in ("grouped-conv", "conv", "matmul"):
        part_s = math.fsum(one.busy_s or 0.0 for one in run.calls if one.kind == kind)
        if part_s > excess_s:
            return {kind: (part_s - excess_s) / part_s}
    return {}


def examples_of(run: Run) -> list[Example]:
    counted = side_by_side(run)
    tf32 = run.workload.precision == "tf32"
    trains = run.workload.mode == "train"
    return [
        Example(
            features=features_of(one, tf32=tf32 and one.kind in PRODUCTS, trains=trains),
            busy_s=counted.get(one.kind, 1.0) * one.busy_s / one.calls,
        )
        for one in run.calls
        if one.busy_s and one.shapes
    ]


def switches_of(run: Run) -> Switches:
    allowed = run.workload.precision == "tf32"
    return Switches(conv_tf32=allowed, matmul_tf32=allowed)


def _fit(runs: Sequence[Run], peak: Peak, reaches: Mapping[str, Reach]) -> DeviceModel:
    networks = [run for run in runs if run.workload.kind == "network"]
    examples = [one for run in runs for one in examples_of(run)]
    return DeviceModel(
        peak=peak,
        operators=OperatorTimes.fit(examples, peak, reaches),
        host=HostModel.fit(
            (run.calls, host_s, run.provenance.session)
            for run in networks
            if run.times and (host_s := host_time_s(run.times)) is not None
        ),
        energy=_energy_model(runs),
        fixed_bytes=_fixed_bytes(networks),
        runs=len(runs),
        networks=len(networks),
        seen=frozenset(one.features.words[:2] for one in examples),
        steps=frozenset(signature(run.calls, run.workload.precision) for run in networks),
    )


def _energy_model(runs: Sequence[Run]) -> EnergyModel | None:
    rows = []
    for run in runs:
        if run.consumption is None or run.times is None or not run.consumption.step_energy_j:
            continue
        used = [one for one in run.calls if one.shapes and one.busy_s is not None]
        features = [
            features_of(one, tf32=switches_of(run).conv_tf32, trains=run.workload.mode == "train") for one in used
        ]
        activity = Activity(
            step_s=run.times.mean_s,
            features=features,
            busy_s=[one.busy_s or 0.0 for one in used],
            calls=[one.calls for one in used],
        )
        rows.append((activity, run.consumption.step_energy_j))
    if len(rows) < ENOUGH:
        return None
    limits = [run.condition.power_limit_w for run in runs if run.condition and run.condition.power_limit_w]
    return EnergyModel.fit(rows, median(limits) if limits else None)


def _fixed_bytes(networks: Sequence[Run]) -> float:
    beside = [
        run.consumption.peak_tensor_bytes - run.structure.peak_bytes
        for run in networks
        if run.consumption and run.structure and run.consumption.peak_tensor_bytes is not None
    ]
    return max(0.0, median(beside)) if beside else 0.0


def _doubts(runs: Sequence[Run], peak: Peak, reaches: Mapping[str, Reach]) -> Doubts:
    """From networks that are left out, family by family."""
    rows = _all_left_out(runs, peak, reaches)
    if len(rows) < ENOUGH:
        wide = _wide()
        return Doubts(
            busy=_wide(USUAL_DOUBT),
            host=wide,
            energy=wide,
            memory=wide,
            held=wide,
            usual=USUAL_DOUBT,
            large=LARGE_DOUBT,
        )
    levels = sorted(one.doubt for one in rows)
    return Doubts(
        busy=_doubt(rows, "busy", widened=True),
        host=_maybe_doubt(rows, "host") or _wide(),
        energy=_maybe_doubt(rows, "energy"),
        memory=_maybe_doubt(rows, "memory"),
        held=_maybe_doubt(rows, "held"),
        usual=levels[int(0.8 * (len(levels) - 1))],
        large=levels[int(0.97 * (len(levels) - 1))],
    )


def errors_of_left_out(runs: Sequence[Run], peak: Peak) -> dict[str, float]:
    """By workload: log of estimated over measured busy time, for networks whose family is left out."""
    reaches = _fit(runs, peak, {}).operators.reaches if runs else {}
    rows = _all_left_out(runs, peak, reaches)
    return {one.network: math.log(one.figures["busy"][0] / one.figures["busy"][1]) for one in rows}


def _all_left_out(runs: Sequence[Run], peak: Peak, reaches: Mapping[str, Reach]) -> list["_LeftOut"]:
    networks = [run for run in runs if run.workload.kind == "network" and computes(run)]
    families = sorted({run.workload.family for run in networks})
    rows: list[_LeftOut] = []
    for out in families if len(families) > 1 else ():
        rest = [run for run in runs if run.workload.kind != "network" or run.workload.family != out]
        model = _fit(rest, peak, reaches)
        rows += [_left_out(model, run) for run in networks if run.workload.family == out]
    return rows


@dataclass(frozen=True, slots=True, kw_only=True)
class _LeftOut:
    """A network, estimated without its family: by figure, what was said and what was."""

    network: str
    doubt: float
    figures: Mapping[str, tuple[float, float]]


def _left_out(model: DeviceModel, run: Run) -> _LeftOut:
    assert run.times is not None
    assert run.consumption is not None
    timed = model.time(run.calls, switches_of(run), trains=run.workload.mode == "train")
    figures: dict[str, tuple[float, float]] = {}
    busy_s = run.times.busy_s or math.fsum(one.busy_s or 0.0 for one in run.calls)
    figures["busy"] = timed.whole_s, busy_s
    host_s = model.host.whole_s(run.calls)
    if actual_s := host_time_s(run.times):
        figures["host"] = host_s, actual_s
    if model.energy is not None and run.consumption.step_energy_j and not run.times.host_bound:
        said_j = model.energy.energy_j(model.activity(timed, max(timed.whole_s, host_s)))
        figures["energy"] = said_j, run.consumption.step_energy_j
    if run.structure is not None and run.consumption.peak_tensor_bytes:
        said_bytes = run.structure.peak_bytes + model.fixed_bytes
        figures["memory"] = said_bytes, run.consumption.peak_tensor_bytes
        held_bytes = run.consumption.peak_held_bytes
        if held_bytes and held_bytes < STRAY * run.consumption.peak_tensor_bytes:
            figures["held"] = said_bytes, held_bytes
    return _LeftOut(network=run.workload.key, doubt=max(timed.doubt, LEAST_DOUBT), figures=figures)


def _doubt(rows: Sequence[_LeftOut], figure: str, widened: bool = False) -> Doubt:
    with_it = [one for one in rows if figure in one.figures]
    return Doubt.fit(
        [one.figures[figure][0] for one in with_it],
        [one.figures[figure][1] for one in with_it],
        [one.network for one in with_it],
        [one.doubt for one in with_it] if widened else None,
    )


def _wide(at: float = 1.0) -> Doubt:
    """The doubt where too few networks tell. AT: the width that it is meant for."""
    return Doubt.fit([1.0], [UNTOLD], ["any"], [at])


def _maybe_doubt(rows: Sequence[_LeftOut], figure: str) -> Doubt | None:
    return _doubt(rows, figure) if sum(figure in one.figures for one in rows) >= ENOUGH else None
