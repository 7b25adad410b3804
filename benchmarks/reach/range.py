"""How far a record reaches: whether a step lies between the recorded ones, and how near the nearest of them is."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.run import Run, Status, Structure
from wattsmith.terms.work import Workload

AXES = ("operations", "intensity", "memory")  # per step; per byte; peak
NEAR = 0.5  # standard deviations; chosen beforehand, close to the 0.51 of the study below
PRODUCTS = ("attention", "conv", "grouped-conv", "matmul")  # what has other kernels for every precision

Place = tuple[float, float, float]  # decimal logarithms, along AXES
Kind = tuple[str, str]  # precision and mode
Known = tuple[Workload, Structure]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Where one step lies."""

    outside: tuple[str, ...]  # "memory above", …; empty: between the least and the most on every axis
    distance: float | None  # to the nearest recorded network, in standard deviations; None: nothing is recorded

    @property
    def inside(self) -> bool:
        return not self.outside

    @property
    def within(self) -> bool:
        """Between the recorded ones, and near one of them."""
        return self.inside and self.distance is not None and self.distance <= NEAR


def place_of(flops: float, moved_bytes: float, peak_bytes: float) -> Place:
    return (
        math.log10(max(flops, 1.0)),
        math.log10(max(flops, 1.0) / max(moved_bytes, 1.0)),
        math.log10(max(peak_bytes, 1.0)),
    )


def place(structure: Structure) -> Place:
    return place_of(structure.flops, structure.moved_bytes, structure.peak_bytes)


def measured(runs: Iterable[Run]) -> list[Known]:
    """What was measured, each workload once."""
    done = (run for run in runs if run.status is Status.MEASURED and run.structure)
    return list({run.workload.key: (run.workload, run.structure) for run in done}.values())


def recorded_places(known: Iterable[Known]) -> dict[Kind, list[Place]]:
    """Where the networks of a record lie, by precision and mode."""
    places: dict[Kind, list[Place]] = defaultdict(list)
    for workload, structure in known:
        if workload.kind == "network":
            places[workload.precision, workload.mode].append(place(structure))
    return dict(places)


def deviations(places: Sequence[Place]) -> list[float]:
    """The standard deviation along each axis; 1 where there is none."""
    import numpy

    return [float(one) or 1.0 for one in numpy.std(numpy.array(places), axis=0)]


def verdicts(places: Sequence[Place], recorded: Sequence[Place], scale: Sequence[float]) -> list[Verdict]:
    """Where each of PLACES lies among RECORDED, which are of its own precision and mode."""
    import numpy

    if not recorded:
        return [Verdict(outside=("nothing recorded",), distance=None) for _ in places]
    known = numpy.array(recorded)
    least, most = known.min(axis=0), known.max(axis=0)
    found = []
    for one in numpy.array(places):
        below = [f"{axis} below" for axis, short in zip(AXES, one < least, strict=True) if short]
        above = [f"{axis} above" for axis, long in zip(AXES, one > most, strict=True) if long]
        nearest = float(numpy.linalg.norm((known - one) / scale, axis=1).min())
        found.append(Verdict(outside=(*below, *above), distance=nearest))
    return found


def shares(found: Sequence[Verdict]) -> dict[str, Any]:
    """How many lie inside, how near the nearest recorded network is, and which sides the others are on."""
    import numpy

    near = [one.distance for one in found if one.distance is not None]
    half, most = numpy.quantile(near, (0.5, 0.95)) if near else (None, None)
    return {
        "steps": len(found),
        "inside": sum(one.inside for one in found) / len(found),
        "within": sum(one.within for one in found) / len(found),
        "distance_median": None if half is None else float(half),
        "distance_95": None if most is None else float(most),
        "sides": dict(Counter(side for one in found for side in one.outside).most_common()),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """The least and the most that one call of a class was measured at."""

    flops: tuple[float, float]
    moved_bytes: tuple[float, float]
    points: int

    def hold(self, flops: float, moved_bytes: float) -> bool:
        return self.flops[0] <= flops <= self.flops[1] and self.moved_bytes[0] <= moved_bytes <= self.moved_bytes[1]


def class_key(its_class: str, precision: str) -> str:
    return f"{its_class} {precision}" if its_class in PRODUCTS else its_class


def recorded_sizes(known: Iterable[Known]) -> dict[str, Sizes]:
    """The range of the operators of a record: each counts for the class that moves most of its bytes."""
    calls: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for workload, structure in known:
        if workload.kind == "operator":
            its_class, count = max(structure.operators.items(), key=lambda pair: pair[1].moved_bytes)
            key = class_key(its_class, workload.precision)
            calls[key].append((count.flops / count.calls, count.moved_bytes / count.calls))
    return {
        key: Sizes(
            flops=(min(flops for flops, _ in some), max(flops for flops, _ in some)),
            moved_bytes=(min(moved for _, moved in some), max(moved for _, moved in some)),
            points=len(some),
        )
        for key, some in sorted(calls.items())
    }


def operator_shares(steps: Iterable[tuple[str, Structure]], sizes: Mapping[str, Sizes]) -> dict[str, dict[str, float]]:
    """By class: how much of the operations and bytes of STEPS (precision, structure) is in calls of measured sizes.

    A step counts by the mean of its calls of the class, and every step has the same weight.
    """
    whole: dict[str, Counter[str]] = defaultdict(Counter)
    for precision, structure in steps:
        for its_class, count in structure.operators.items():
            held = sizes.get(class_key(its_class, precision))
            fits = held is not None and held.hold(count.flops / count.calls, count.moved_bytes / count.calls)
            for what, amount, of in (
                ("flops", count.flops, structure.flops),
                ("bytes", count.moved_bytes, structure.moved_bytes),
            ):
                for name in (its_class, "all"):
                    whole[name][what] += amount / of
                    whole[name][f"{what} inside"] += fits * amount / of
    steps_all = whole.get("all", Counter())
    return {
        name: {
            "flops_of_all": _over(tally["flops"], steps_all["flops"]),
            "flops_inside": _over(tally["flops inside"], tally["flops"]),
            "bytes_of_all": _over(tally["bytes"], steps_all["bytes"]),
            "bytes_inside": _over(tally["bytes inside"], tally["bytes"]),
        }
        for name, tally in sorted(whole.items())
    }


def _over(part: float, whole: float) -> float:
    return part / whole if whole else 1.0
