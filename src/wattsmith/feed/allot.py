"""Several jobs share one pool of data workers: the next worker goes where it saves most waiting.

Each further worker of a job saves less than the one before, so going to the best place each time is the best division.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattsmith.feed.demand import waiting_share
from wattsmith.terms.errors import BadTerm

STAYS = 0.05  # a worker moves only for a saving this much above the one it leaves: it must start anew


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one job brings to the division of a pool."""

    name: str
    need: float  # workers that would keep its trainers busy if nothing varied
    buffer: int = 8  # finished batches it has room for
    weight: float = 1.0  # what its waiting costs: the watts of its idle accelerators, or any figure of worth
    least: int = 1
    most: int | None = None
    has: int = 0  # workers it has now

    def __post_init__(self) -> None:
        if not 0 <= self.need < math.inf:
            raise BadTerm(f"{self.name}: need must be a number from 0 on, got {self.need}")
        if not 0 < self.weight < math.inf:
            raise BadTerm(f"{self.name}: weight must be positive, got {self.weight}")
        if self.least < 0 or self.has < 0 or self.buffer < 1:
            raise BadTerm(f"{self.name}: least and has must not be negative, and buffer at least 1, got {self}")
        if self.most is not None and self.most < self.least:
            raise BadTerm(f"{self.name}: at least {self.least} and at most {self.most} workers cannot both hold")

    def saves(self, workers: int) -> float:
        """The weighted waiting that one more saves where there are WORKERS."""
        now, then = (waiting_share(count, self.need, self.buffer) for count in (workers, workers + 1))
        return self.weight * max(0.0, now - then)


def allot(shares: Sequence[Share], workers: int, *, worth: float = 0.0) -> Mapping[str, int]:
    """How many of WORKERS each job gets.

    A worker that would save less than WORTH, in the unit of the weights, goes to nobody: with weights in watts and
    WORTH the watts of a worker, none is kept that costs more than the waiting it saves. Raises BadTerm where the
    pool is smaller than what the jobs need at least.
    """
    names = [share.name for share in shares]
    if len(set(names)) < len(names):
        raise BadTerm(f"two jobs have one name: {sorted(names)}; give each its own")
    given = {share.name: share.least for share in shares}
    left = workers - sum(given.values())
    if left < 0:
        raise BadTerm(
            f"{workers} workers are fewer than the {sum(given.values())} that {len(shares)} jobs need at least; "
            "add workers, or let a job wait its turn"
        )
    best = [(-_pull(share, share.least), place) for place, share in enumerate(shares)]
    heapq.heapify(best)
    while left and best:
        _, place = heapq.heappop(best)
        share = shares[place]
        count = given[share.name]
        saved = share.saves(count)
        if (share.most is not None and count >= share.most) or saved <= 0 or saved < worth:
            continue  # each further one would save less still
        given[share.name], left = count + 1, left - 1
        heapq.heappush(best, (-_pull(share, count + 1), place))
    return given


def _pull(share: Share, workers: int) -> float:
    return share.saves(workers) * (1 + STAYS if workers < share.has else 1)
