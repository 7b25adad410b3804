"""Which workloads to measure, and in which order: space-filling in what matters.

What matters is how much a step computes, how much it computes per byte, how much memory it works on, and how often it
launches; then the precision, the mode and the layout. Families take turns, and each gives the candidate that lies
farthest from all chosen before, so whoever stops early has the best record for the time spent.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from wattsmith.record.candidates import Candidate
from wattsmith.terms.run import Structure
from wattsmith.terms.work import Workload

SWITCH_WEIGHT = 0.25  # how far apart two precisions are, where a whole axis is 1
NEIGHBOURS = 3


def features(structure: Structure, step_s: float) -> tuple[float, float, float, float]:
    """Decimal logarithms of operations, operations per byte, working set, and launches per second."""
    return (
        math.log10(max(structure.flops, 1.0)),
        math.log10(max(structure.flops, 1.0) / max(structure.moved_bytes, 1.0)),
        math.log10(max(structure.peak_bytes, 1)),
        math.log10(max(structure.launches, 1) / step_s),
    )


def switches(workload: Workload) -> tuple[float, ...]:
    """Where the workload stands in what is not a number."""
    return (
        *(float(workload.precision == one) for one in ("fp32", "tf32", "bf16", "fp16")),
        float(workload.mode == "train"),
        float(workload.layout == "channels-last"),
        float(workload.optimizer == "adamw"),
    )


class Cover:
    """An order of candidates. Iterating takes the next one out; `next_worst` takes out one where predictions fail."""

    def __init__(self, by_family: Mapping[str, Sequence[Candidate]], shares: Mapping[str, float] | None = None) -> None:
        """SHARES: how often a family's turn comes, beside the others; one that is not named has 1."""
        import numpy

        self.candidates = [one for group in by_family.values() for one in group]
        self._at = {one.workload.key: place for place, one in enumerate(self.candidates)}
        self._points = placed(self.candidates)
        self._free = numpy.ones(len(self.candidates), dtype=bool)
        self._gap = numpy.full(len(self.candidates), math.inf)  # to the nearest that was taken
        families = [one.workload.family for one in self.candidates]
        self._members = {name: numpy.array([one == name for one in families]) for name in by_family}
        self._pace = {name: 1 / (shares or {}).get(name, 1.0) for name in by_family}
        # Neighbours in the list are alike, so the first turns go to every third.
        names = list(by_family)
        starts = [name for first in range(3) for name in names[first::3]]
        self._due = {name: min(self._pace[name], 1.0) * place / len(starts) for place, name in enumerate(starts)}

    def __iter__(self) -> Iterator[Workload]:
        return self

    def __next__(self) -> Workload:
        while self._due:
            name = min(self._due, key=lambda one: self._due[one])
            free = self._members[name] & self._free
            if free.any():
                self._due[name] += self._pace[name]
                return self._take(self._farthest(free))
            del self._due[name]
        raise StopIteration

    def next_worst(self, errors: Mapping[str, float]) -> Workload | None:
        """The free candidate where most is to be learned, given relative errors of predictions by workload key.

        That is where the nearest measured points were predicted badly and none is close. None: no candidate is left.
        """
        import numpy

        known = [(self._at[key], abs(error)) for key, error in errors.items() if key in self._at]
        if not self._free.any():
            return None
        if not known:
            return next(self)
        places = [place for place, _ in known]
        wrong = numpy.array([error for _, error in known])
        apart = numpy.linalg.norm(self._points[:, None] - self._points[None, places], axis=2)
        nearest = numpy.argsort(apart, axis=1)[:, :NEIGHBOURS]
        weight = 1.0 / (numpy.take_along_axis(apart, nearest, axis=1) + 1e-6)
        expected = (weight * wrong[nearest]).sum(axis=1) / weight.sum(axis=1)
        promise = numpy.where(self._free, expected * numpy.minimum(self._gap, 1.0), -1.0)
        return self._take(int(promise.argmax()))

    def skip(self, workload: Workload) -> None:
        """Take the workload as measured already, if it is among the candidates."""
        if workload.key in self._at and self._free[self._at[workload.key]]:
            self._take(self._at[workload.key])

    def _farthest(self, allowed: Any) -> int:
        import numpy

        return int(numpy.where(allowed, self._gap, -1.0).argmax())

    def _take(self, place: int) -> Workload:
        import numpy

        self._free[place] = False
        self._gap = numpy.minimum(self._gap, numpy.linalg.norm(self._points - self._points[place], axis=1))
        return self.candidates[place].workload


def placed(candidates: Sequence[Candidate]) -> Any:
    """The candidates as points, one row each; each numeric axis runs from 0 to 1."""
    import numpy

    if not candidates:
        return numpy.zeros((0, 1))
    numbers = numpy.array([features(one.structure, one.step_s) for one in candidates])
    spread = numpy.ptp(numbers, axis=0)
    numbers = (numbers - numbers.min(axis=0)) / numpy.where(spread > 0, spread, 1.0)
    turned = SWITCH_WEIGHT / math.sqrt(2) * numpy.array([switches(one.workload) for one in candidates])
    return numpy.hstack([numbers, turned])


def interleaved(*rows: Sequence[Workload]) -> list[Workload]:
    """All of ROWS in one, each spread evenly over the whole."""
    order = sorted(
        (((place + 0.5) / len(row), number, place) for number, row in enumerate(rows) for place in range(len(row)))
    )
    return [rows[number][place] for _, number, place in order]
