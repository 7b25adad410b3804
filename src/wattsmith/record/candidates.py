"""Workloads that could be measured on a device, and what each should roughly cost there.

Drawn by scrambled Sobol sequences from the families' usual ranges, evenly in the logarithm. Each is traced, and its
batch brought to where a step takes neither too long nor almost nothing, and fits into memory. A few are brought close
to the device's memory on purpose.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from wattsmith.record.families import FAMILIES
from wattsmith.record.family import Choice, Family, Span, problems_of
from wattsmith.record.structure import structure_of
from wattsmith.terms.run import Structure
from wattsmith.terms.work import Parameter, Workload

One = TypeVar("One")

FULL_RATIO = 0.95  # of the memory; more is not tried
EDGE_RATIO = 0.80  # of the memory; from here on a point is at the edge
COMPUTE_RATIO = 0.5  # of the peak rate, as real steps reach it
STREAM_RATIO = 0.7  # of the bandwidth

PRECISION_SHARES = {"fp32": 0.42, "bf16": 0.42, "tf32": 0.10, "fp16": 0.06}
OPTIMIZER_SHARES: Mapping[str | None, float] = {"sgd": 0.45, "adamw": 0.45, None: 0.10}
KNOBS = ("batch", "precision", "mode", "layout", "optimizer", "accumulation")  # drawn beside the family's parameters


@dataclass(frozen=True, slots=True, kw_only=True)
class Sketch:
    """What a device can do, roughly: enough to choose what to measure on it, never to predict from."""

    kind: str  # "cuda" or "cpu"
    memory_bytes: int
    flops_per_s: Mapping[str, float]  # at best, by precision; a precision that is not here is not tried
    bandwidth_bytes_per_s: float
    launch_s: float  # the host's time per operator


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How long a step may be predicted to take."""

    longest_s: float
    shortest_s: float = 0.0  # points below it are made larger, but for one in six


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A workload with what its step does and roughly takes."""

    workload: Workload
    structure: Structure
    step_s: float
    at_edge: bool = False  # close to the device's memory


def rough_work_s(structure: Structure, precision: str, sketch: Sketch) -> float:
    """Computing and moving."""
    computing_s = structure.flops / (COMPUTE_RATIO * sketch.flops_per_s[precision])
    return computing_s + structure.moved_bytes / (STREAM_RATIO * sketch.bandwidth_bytes_per_s)


def rough_step_s(structure: Structure, precision: str, sketch: Sketch) -> float:
    """Computing and moving, or launching where that takes longer."""
    return max(rough_work_s(structure, precision, sketch), structure.launches * sketch.launch_s)


def traced(workload: Workload, sketch: Sketch) -> Candidate:
    structure = structure_of(workload)
    return Candidate(workload=workload, structure=structure, step_s=rough_step_s(structure, workload.precision, sketch))


def fits(candidate: Candidate, sketch: Sketch) -> bool:
    return candidate.structure.peak_bytes <= FULL_RATIO * sketch.memory_bytes


def fitting(workloads: Iterable[Workload], sketch: Sketch, longest_s: float = math.inf) -> Iterator[Workload]:
    """Those of WORKLOADS that should fit into the device's memory, with steps no longer than longest_s."""
    for workload in workloads:
        candidate = traced(workload, sketch)
        if fits(candidate, sketch) and candidate.step_s <= longest_s:
            yield workload


def candidates(
    names: Sequence[str], count: int, sketch: Sketch, limits: Limits, seed: int
) -> dict[str, list[Candidate]]:
    """About COUNT candidates by family, as many of each as its share says, and two at least."""
    whole = sum(FAMILIES[name].share for name in names)

    def of_family(family: Family) -> list[Candidate]:
        wanted = max(2, math.ceil(count * family.share / whole))
        return list(_of_family(family, wanted, sketch, limits, seed))

    return {name: of_family(FAMILIES[name]) for name in names}


def _of_family(family: Family, count: int, sketch: Sketch, limits: Limits, seed: int) -> Iterator[Candidate]:
    import torch

    sobol = torch.quasirandom.SobolEngine(len(family.parameters) + len(KNOBS), scramble=True, seed=seed)
    seen: set[str] = set()
    reach = reach_of(sketch, limits)
    for place, row in enumerate(sobol.draw(2 * count, dtype=torch.float64).tolist()):
        if len(seen) == count:
            return
        workload = drawn(family, row, sketch, reach)
        if problems_of(family, workload):
            continue
        edge = family.kind == "network" and place % 6 == 5 and sketch.kind == "cuda"
        found = near_memory(workload, sketch, limits, row[-1]) if edge else within(workload, sketch, limits, place)
        if found is not None and found.workload.key not in seen:
            seen.add(found.workload.key)
            yield found


def reach_of(sketch: Sketch, limits: Limits) -> float:
    """Which share of the usual ranges, in the logarithm, suits the device: 1 for the largest, down to a third."""
    work = max(sketch.flops_per_s["fp32"] * limits.longest_s, 1.0)
    return min(1.0, max(1 / 3, 1 / 3 + (math.log10(work) - 9) / 7))


def drawn(family: Family, row: Sequence[float], sketch: Sketch, reach: float) -> Workload:
    """The workload at one point of the unit cube."""
    parameters = {
        name: valued(allowed, at, reach) for (name, allowed), at in zip(family.parameters.items(), row, strict=False)
    }
    knobs = dict(zip(KNOBS, row[len(parameters) :], strict=True))
    able = [one for one in family.precisions if one in sketch.flops_per_s]
    mode = picked({one: 0.6 if one == "train" else 0.4 for one in family.modes}, knobs["mode"])
    updates = family.updates or (family.kind == "network" and mode == "train")
    optimizers = {one: share for one, share in OPTIMIZER_SHARES.items() if one or not family.updates}
    gathers = updates and not family.updates and knobs["accumulation"] > 0.94
    return Workload(
        family=family.name,
        kind=family.kind,
        parameters=dict(family.fit(parameters)),
        batch=int(valued(family.batch, knobs["batch"], reach)),
        precision=picked({one: PRECISION_SHARES[one] for one in able}, knobs["precision"]),
        mode=mode,
        layout=picked(dict.fromkeys(family.layouts, 1.0), knobs["layout"]),
        optimizer=picked(optimizers, knobs["optimizer"]) if updates else None,
        accumulation=2 if gathers else 1,
    )


def picked(shares: Mapping[One, float], at: float) -> One:
    """The one whose share of the whole holds AT, which is between 0 and 1."""
    left = at * sum(shares.values())
    for one, share in shares.items():
        left -= share
        if left < 0:
            return one
    return list(shares)[-1]


def valued(allowed: Span | Choice, at: float, reach: float) -> Parameter:
    """The value of a parameter at AT, between 0 and 1."""
    if isinstance(allowed, Choice):
        return picked(dict.fromkeys(allowed.values, 1.0), at)
    low, high = allowed.usual or (allowed.low, allowed.high)
    if not allowed.logarithmic:
        return low + math.floor(at * (reach * (high - low) + 1))
    value: float = low * (high / low) ** (at * reach)
    # Most real sizes are multiples of eight. The others run on other kernels, so one in eight stays as it is.
    if value < 32 or math.floor(at * 2**20) % 8 == 0:
        return round(value)
    return max(allowed.low, min(allowed.high, round(value / 8) * 8))


def within(workload: Workload, sketch: Sketch, limits: Limits, place: int) -> Candidate | None:
    """The workload with its batch brought between the limits; None if no batch is."""
    first = traced(workload, sketch)
    memory_scale = 0.9 * FULL_RATIO * sketch.memory_bytes / first.structure.peak_bytes
    scale = min(limits.longest_s / first.step_s, memory_scale)
    if scale >= 1 and first.step_s < limits.shortest_s and place % 6:
        work_s = rough_work_s(first.structure, workload.precision, sketch)
        scale = min(memory_scale, 2 * limits.shortest_s / work_s)
    elif scale >= 1:
        return first
    batch = rebatched(workload, scale)
    if batch is None:
        return None
    second = traced(batch, sketch)
    return second if fits(second, sketch) and second.step_s <= limits.longest_s else None


def rebatched(workload: Workload, scale: float) -> Workload | None:
    """The workload with SCALE times its batch, as far as the family allows; None below the smallest."""
    span = FAMILIES[workload.family].batch
    batch = min(span.high, math.floor(workload.batch * scale))
    return None if batch < span.low else dataclasses.replace(workload, batch=batch)


def near_memory(workload: Workload, sketch: Sketch, limits: Limits, at: float) -> Candidate | None:
    """The workload with its batch brought to the edge of the memory; None where that is not to be had.

    What a step needs is affine in the batch, so two traces tell where the edge is, and a third whether that was true.
    """
    doubled = dataclasses.replace(workload, batch=2 * workload.batch)
    if problems_of(FAMILIES[workload.family], doubled):
        return None
    once = traced(workload, sketch).structure.peak_bytes
    slope_bytes = (traced(doubled, sketch).structure.peak_bytes - once) / workload.batch
    wanted_bytes = (EDGE_RATIO + (FULL_RATIO - EDGE_RATIO) * at) * sketch.memory_bytes
    batch = math.floor(workload.batch + (wanted_bytes - once) / max(slope_bytes, 1.0))
    moved = dataclasses.replace(workload, batch=max(batch, 1))
    if batch < 1 or problems_of(FAMILIES[workload.family], moved):
        return None
    found = traced(moved, sketch)
    full = EDGE_RATIO * sketch.memory_bytes <= found.structure.peak_bytes and fits(found, sketch)
    return dataclasses.replace(found, at_edge=True) if full and found.step_s <= 3 * limits.longest_s else None
