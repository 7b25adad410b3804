"""Whether anything in a record works as a program does, by its activity counters.

How busy a chip is depends on the host as much as on the program. What its cores do while they are at work does not: how
much of it is tensor products, floating point, integers, memory, and how full the cores are. Each is taken as the
logarithm of its share of the cores' time, since one that is a hundred times rarer is something else, not a little less.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattsmith.terms.telemetry import Benchmark

OVER = "sm"  # the cores' own time
DOES = ("occupancy", "tensor", "dram", "fp64", "fp32", "fp16", "integer")
LEAST_SHARE = 1e-4  # what is rarer is not there: a tenth of the least that any recorded network does of what it does
LEAST_WORK = 1e-4  # of the time; counters tell no finer
FEWEST_SHARED = 3
FEWEST_POINTS = 20
LEAST_SPREAD = 0.25  # decades; what no benchmark does is strange in a client, though it does not vary


@dataclass(frozen=True, slots=True)
class Likeness:
    """How far a program is from what was recorded, in units of how far recorded ones are from their next."""

    place: int  # of the nearest
    nearest: float
    farthest: float  # within which nearly all recorded ones have another


def counted(points: Sequence[Benchmark], features: Mapping[str, float | None]) -> list[int]:
    """Places of the points whose activity was counted as the client's was; empty: too little to go by."""
    names = _shared(features)
    if len(names) < FEWEST_SHARED:
        return []
    places = [place for place, point in enumerate(points) if set(names) <= set(_shared(point.features))]
    return places if len(places) >= FEWEST_POINTS else []


def likeness(points: Sequence[Benchmark], features: Mapping[str, float | None], quantile: float) -> Likeness | None:
    """How like the client works to the nearest of POINTS; None: activity was not counted."""
    import numpy as np

    places = counted(points, features)
    if not places:
        return None
    names = _shared(features)
    rows = np.array([_shares(points[place].features, names) for place in places])
    spread = np.maximum(rows.std(axis=0), LEAST_SPREAD)
    asked = np.array(_shares(features, names)) / spread
    rows = rows / spread
    groups = np.array([points[place].group for place in places])
    apart = np.sqrt(((rows[:, None, :] - rows[None, :, :]) ** 2).sum(axis=2))
    next_one = np.where(groups[:, None] != groups[None, :], apart, np.inf).min(axis=1)
    next_one = next_one[np.isfinite(next_one)]
    if not len(next_one):
        return None
    far = np.sqrt(((rows - asked) ** 2).sum(axis=1))
    usual = float(np.median(next_one)) or 1.0
    best = int(far.argmin())
    return Likeness(places[best], float(far[best]) / usual, float(np.quantile(next_one, quantile)) / usual)


def _shared(features: Mapping[str, float | None]) -> tuple[str, ...]:
    if features.get(OVER) is None:
        return ()
    return tuple(name for name in DOES if features.get(name) is not None)


def _shares(features: Mapping[str, float | None], names: Sequence[str]) -> list[float]:
    at_work = float(features[OVER] or 0.0)
    return [_log_share(float(features[name] or 0.0), at_work) for name in names]


def _log_share(value: float, of: float) -> float:
    return math.log10(max(value, 0.0) / max(of, LEAST_WORK) + LEAST_SHARE)
