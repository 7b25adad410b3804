"""Queries as they come: when each arrives, and how long those that were answered had to wait."""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from wattsmith.terms.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What came of a load."""

    latencies_s: tuple[float, ...]  # from arrival to answer, in order of arrival; without those that were left
    arrived: int
    duration_s: float  # from the first arrival to the last answer
    energy_j: float | None = None  # of the whole; None: not measured
    left_s: tuple[float, ...] = ()  # how long those had waited that were left when serving ended
    batches: int = 0  # in which they were answered; 0: not counted

    @property
    def answered(self) -> int:
        return len(self.latencies_s)

    @property
    def energy_per_query_j(self) -> float | None:
        return None if self.energy_j is None or not self.answered else self.energy_j / self.answered

    def percentile_s(self, share: float) -> float:
        """The latency that SHARE of the queries did not exceed: the smallest that was measured so.

        Queries that were left count with what they had waited until then, which is less than they would have.
        """
        return percentile_s((*self.latencies_s, *self.left_s), share)

    def percentile_error(self, share: float, slices: int = 8) -> float:
        """Relative standard error of that percentile, from leaving out one stretch of the queries after the other.

        Neighbouring queries wait for the same batches, so that one by one they would look surer than they are.
        """
        waited = (*self.latencies_s, *self.left_s)
        if len(waited) < 2 * slices:
            return 1.0
        edges = [len(waited) * at // slices for at in range(slices + 1)]
        rest = [percentile_s(waited[:a] + waited[b:], share) for a, b in pairwise(edges)]
        middle = sum(rest) / slices
        spread = math.sqrt((slices - 1) / slices * sum((one - middle) ** 2 for one in rest))
        return min(1.0, spread / middle) if middle > 0 else 1.0

    def over(self, limit_s: float) -> float:
        """The share of arrived queries that were not answered within LIMIT_S."""
        if not self.arrived:
            return 0.0
        return 1 - sum(one <= limit_s for one in self.latencies_s) / self.arrived


def percentile_s(latencies_s: Sequence[float], share: float) -> float:
    """The smallest of LATENCIES_S that SHARE of them do not exceed; infinite when there is none."""
    if not latencies_s:
        return math.inf
    return sorted(latencies_s)[max(0, math.ceil(share * len(latencies_s)) - 1)]


def poisson(rate_hz: float, duration_s: float, seed: int = 0) -> list[float]:
    """Arrivals that know nothing of each other, RATE_HZ of them in a second at the mean."""
    if not (0 < rate_hz < math.inf and 0 < duration_s < math.inf):
        raise BadInput(f"rate and duration must be positive and finite, got {rate_hz} per second for {duration_s} s")
    drawn = random.Random(seed)
    return list(_until(duration_s, lambda: drawn.expovariate(rate_hz)))


def poisson_of(count: int, duration_s: float, seed: int = 0) -> list[float]:
    """Arrivals that know nothing of each other, given that COUNT of them come within DURATION_S.

    Where energy per query is compared, the number of queries must not be left to chance: it would be most of the noise.
    """
    if count < 1 or not 0 < duration_s < math.inf:
        raise BadInput(f"at least one query must come in a positive, finite time, got {count} in {duration_s} s")
    drawn = random.Random(seed)
    return sorted(drawn.uniform(0.0, duration_s) for _ in range(count))


def steady(rate_hz: float, duration_s: float) -> list[float]:
    """Arrivals at equal distances."""
    if not (0 < rate_hz < math.inf and 0 < duration_s < math.inf):
        raise BadInput(f"rate and duration must be positive and finite, got {rate_hz} per second for {duration_s} s")
    return [at / rate_hz for at in range(math.ceil(rate_hz * duration_s))]


def replayed(times_s: Sequence[float], faster: float = 1.0) -> list[float]:
    """Arrivals of a trace, from its first on, FASTER times as fast."""
    if not times_s:
        raise BadInput("a trace without arrivals cannot be replayed")
    if any(b < a for a, b in pairwise(times_s)):
        raise BadInput("arrivals of a trace must be in order")
    if not 0 < faster < math.inf:
        raise BadInput(f"faster must be positive and finite, got {faster}")
    return [(at - times_s[0]) / faster for at in times_s]


def _until(duration_s: float, gap_s: Callable[[], float]) -> Iterator[float]:
    at = gap_s()
    while at < duration_s:
        yield at
        at += gap_s()
