"""From a trace and what is known of a device to an estimate: time, memory, power, energy, and how far to trust it."""

import bisect
import math
from dataclasses import dataclass

from wattsmith.estimate.conformal import Doubt
from wattsmith.estimate.device import LEAST_DOUBT, UNTOLD, DeviceModel, Doubts, Known, Switches, Timed
from wattsmith.estimate.memory import Peaks
from wattsmith.estimate.queue import Paced, paced
from wattsmith.terms.errors import BadInput
from wattsmith.terms.estimate import Basis, MemoryNeed
from wattsmith.terms.trace import Trace
from wattsmith.terms.work import Interval

SCALED = 2.0  # how much wider, in the logarithm, where another device's record is scaled by data sheets
UNCOVERED = 0.05  # share of bytes in operators never measured from which an estimate is at the edge
LOST = 0.25  # and outside
COMPILED = 1.5  # how much wider where a few compiled steps told what is fused
SEQUENTIAL_S = 5e-6  # a kernel of a recurrent layer, which waits for the one before
SLOWED_BY = (0.35, 0.45)  # logarithm of time, by that of wanted over allowed power and its square
SLOW = 1.5  # times as slow; beyond it little is known
DRAWN = 0.95  # of a power limit, by a device that is held back by it
WIDE = 2.0  # factor of the interval beyond which it helps nobody to decide
LIKELY = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """How the step is run, and on what."""

    switches: Switches
    trains: bool
    compiled: bool = False
    measured: bool = False  # the record has this very step
    basis: Basis = Basis.OPERATORS
    capacity_bytes: int | None = None
    power_limit_w: float | None = None
    power_ratio: float = 1.0  # of the device's power to that of the one recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the model of a device says of a step."""

    step_s: Interval
    busy_s: Interval
    host_s: Interval
    host_bound: bool
    memory: MemoryNeed
    power_w: Interval | None
    step_energy_j: Interval | None
    standing: str
    reasons: tuple[str, ...]
    timed: Timed


def answer(model: DeviceModel, trace: Trace, peaks: Peaks, how: Conditions) -> Answer:
    """What TRACE should cost. PEAKS: its memory, played through the allocator."""
    if not any(one.shapes for one in trace.calls):
        raise BadInput("the step calls no operator on the device: there is nothing to estimate")
    assert model.known is not None
    doubts = model.known.doubts
    timed = model.time(trace.calls, how.switches, trains=how.trains)
    fused = model.known.fused if how.compiled else None
    queued = 1.0  # share of the host's time
    widen = SCALED if how.basis is Basis.SHEET else 1.0
    if fused is not None:
        timed, queued, widen = fused.applied(timed), fused.host, COMPILED * widen
    busy_factor = doubts.busy.factor(LIKELY, widen * max(timed.doubt, LEAST_DOUBT))
    host_factor = doubts.host.factor()
    free = _paced(model, trace, timed, 1.0, queued)
    slowed = slowed_by_limit(model, timed, free, how)
    middle = free if slowed == 1.0 else _paced(model, trace, timed, slowed, queued)
    low = _paced(model, trace, timed, 1 / busy_factor, queued / host_factor)
    high = _paced(model, trace, timed, slowed**2 * busy_factor, queued * host_factor)
    step_s = Interval(value=middle.step_s, low=low.step_s, high=high.step_s)
    power_w, energy_j = _energy(model, timed, middle, step_s, how, widen)
    standing, reasons = _standing(timed, model.known, how, busy_factor, trace, slowed)
    return Answer(
        step_s=step_s,
        busy_s=Interval(value=middle.busy_s, low=low.busy_s, high=high.busy_s),
        host_s=_around(middle.host_s, host_factor),
        host_bound=middle.host_bound,
        memory=_memory(model, peaks, doubts, how),
        power_w=power_w,
        step_energy_j=energy_j,
        standing=standing,
        reasons=reasons,
        timed=timed,
    )


def _around(value: float, factor: float) -> Interval:
    return Interval(value=value, low=value / factor, high=value * factor)


def _paced(model: DeviceModel, trace: Trace, timed: Timed, busy_factor: float, host_factor: float) -> Paced:
    places = {id(one): at for at, one in enumerate(timed.calls)}
    busy_s = [busy_factor * timed.busy_s[places[id(one)]] if id(one) in places else 0.0 for one in trace.calls]
    host_s = [host_factor * model.host.call_s(one) for one in trace.calls]
    found = paced(trace.order, busy_s, host_s, host_factor * model.host.step_s)
    if not trace.sequential:
        return found
    more_s = busy_factor * trace.sequential * SEQUENTIAL_S
    return Paced(step_s=max(found.step_s, found.busy_s + more_s), busy_s=found.busy_s + more_s, host_s=found.host_s)


def _energy(
    model: DeviceModel, timed: Timed, middle: Paced, step_s: Interval, how: Conditions, widen: float
) -> tuple[Interval | None, Interval | None]:
    assert model.known is not None
    doubt = model.known.doubts.energy
    if model.energy is None or doubt is None:
        return None, None
    power_w = how.power_ratio * model.energy.energy_j(model.activity(timed, middle.step_s)) / middle.step_s
    if how.power_limit_w is not None:
        power_w = min(power_w, DRAWN * how.power_limit_w)
    factor = math.exp(widen * math.log(doubt.factor()))
    # A step that waits for the host draws little meanwhile, so its energy is surer than its time.
    stretched = max(step_s.high / step_s.value, step_s.value / step_s.low) if middle.host_bound else 1.0
    power = _around(power_w, factor)
    recorded_w = None if model.energy.limit_w is None else how.power_ratio * model.energy.limit_w
    limits = [one for one in (how.power_limit_w, recorded_w) if one is not None]
    # No mean power exceeds the limit in force, however little is known of it.
    power = Interval(value=power_w, low=power.low, high=max(power_w, min([power.high, *limits])))
    return power, _around(power_w * middle.step_s, max(factor, math.sqrt(stretched)))


def slowed_by_limit(model: DeviceModel, timed: Timed, step: Paced, how: Conditions) -> float:
    """How many times as long the device takes because of the power limit; 1 where it does not reach it.

    No record has responses to limits yet. What stands in is the mean of what four GPUs did in Zeus's published
    measurements (A40, P100, RTX 6000, V100; 568 points): little at first, then more than in proportion.
    """
    if how.power_limit_w is None or model.energy is None:
        return 1.0
    idle_w = how.power_ratio * model.energy.idle_w
    if how.power_limit_w <= idle_w:
        told = f"draws about {idle_w:.0f} W when it does nothing"
        raise BadInput(f"a power limit of {how.power_limit_w:.0f} W cannot hold: this device {told}")
    wanted_w = how.power_ratio * model.energy.energy_j(model.activity(timed, step.step_s)) / step.step_s
    short = math.log(max(wanted_w / how.power_limit_w, 1.0))
    return math.exp(SLOWED_BY[0] * short + SLOWED_BY[1] * short**2)


def _memory(model: DeviceModel, peaks: Peaks, doubts: Doubts, how: Conditions) -> MemoryNeed:
    allocated = peaks.allocated_bytes + model.fixed_bytes
    held = max(peaks.reserved_bytes + model.fixed_bytes, allocated)
    # What workspaces add is never less than nothing, so the lower end is that of the tensors alone.
    tensors = Interval(
        value=allocated, low=min(allocated, peaks.allocated_bytes), high=allocated * _factor(doubts.memory)
    )
    return MemoryNeed(
        peak_tensor_bytes=tensors,
        peak_held_bytes=Interval(value=held, low=tensors.low, high=max(held, allocated * _factor(doubts.held))),
        memory_bytes=how.capacity_bytes,
        runs_out=None if how.capacity_bytes is None else runs_out(allocated, how.capacity_bytes, doubts.memory),
    )


def runs_out(allocated_bytes: float, capacity_bytes: int, doubt: Doubt | None) -> float | None:
    """How probable it is that what tensors need exceeds the device. The allocator can give back what it only holds."""
    if doubt is None:
        return None
    room = math.log(capacity_bytes / allocated_bytes)
    worse = 1 - bisect.bisect_right(doubt.scores, abs(room)) / len(doubt.scores)
    beyond = worse / 2  # half of the errors are to the other side
    return beyond if room >= 0 else 1 - beyond


def _factor(doubt: Doubt | None) -> float:
    return UNTOLD if doubt is None else doubt.factor()


def _standing(
    timed: Timed, known: Known, how: Conditions, factor: float, trace: Trace, slowed: float
) -> tuple[str, tuple[str, ...]]:
    outside, edge = [], []
    doubts, fused = known.doubts, known.fused if how.compiled else None
    if how.basis is Basis.SHEET:
        outside.append("this device was not measured: another's record is scaled by the two data sheets")
    if how.compiled and fused is None:
        outside.append("what compiling saves was not measured; this is the eager step that it replaces")
    elif fused is not None and how.trains:
        outside.append(f"{fused.steps} compiled steps were measured, none of which trains")
    elif fused is not None:
        edge.append(f"only {fused.steps} compiled steps were measured")
    if trace.sequential:
        outside.append("recurrent layers were hardly measured; their steps one after the other are a rough guess")
    if slowed > SLOW:
        outside.append(f"the power limit makes it {slowed:.1f} times as slow, by what other GPUs did")
    elif slowed > 1:
        edge.append("the response to power limits was not measured; that of other GPUs stands in")
    missing = 1 - timed.covered_bytes_ratio
    if missing > LOST:
        outside.append(f"{missing:.0%} of the bytes move in operators that were never measured")
    elif missing > UNCOVERED:
        edge.append(f"{missing:.0%} of the bytes move in operators that were never measured")
    if factor > WIDE:
        outside.append(f"the interval is as wide as a factor of {factor:.1f} either way")
    if timed.doubt > doubts.large:
        outside.append("its operators are less like the measured ones than nearly all networks left out were")
    elif timed.doubt > doubts.usual:
        edge.append("its operators are less like the measured ones than most networks left out were")
    if outside:
        return "outside", tuple(outside + edge)
    if how.measured:
        return "measured", ("this very step is in the record",)
    return ("edge", tuple(edge)) if edge else ("inside", ("operators like its own were measured",))
