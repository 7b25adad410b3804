"""Changes the number of workers while an epoch runs, from what was measured in the last few seconds."""

import os
import time

from wattsmith.feed.demand import Bounds, Demand, Seen, Watts
from wattsmith.feed.draws import Draws
from wattsmith.feed.engine import Engine
from wattsmith.feed.pool import PoolMember
from wattsmith.feed.reporting import Counts

PERIOD_S = 5.0
FIRST_PERIOD_S = 1.0  # the first guess is the worst one


class Elastic:
    """Looks at the counts after each batch, and while none comes, and decides once in a period.

    POOL: what is shared with other jobs. DRAWS: what tells watts while it runs, where none are given. STEP_S: how long
    a step of the trainer is expected to take; with it the first decision need not wait until steps were measured.
    """

    def __init__(
        self,
        most: int | None = None,
        watts: Watts | None = None,
        pool: PoolMember | None = None,
        draws: Draws | None = None,
        step_s: float | None = None,
    ) -> None:
        cores = len(os.sched_getaffinity(0))
        self.most = most or cores
        self.first = max(1, min(self.most, cores // 2))
        self._demand = Demand(Bounds(most=self.most), watts)
        self._pool = pool
        self._draws = draws if watts is None else None
        self._step_s = step_s
        self._since: tuple[float, float, int, float, int, float] | None = None
        self._period_s = FIRST_PERIOD_S

    def tick(self, engine: Engine, counts: Counts) -> None:
        now_s = time.perf_counter()
        here = (now_s, counts.waiting_by_s(now_s), counts.batches, counts.made_s, counts.made, counts.blocked_s)
        if self._since is None:
            self._since = here
            return
        expected_s = self._step_s if self._period_s == FIRST_PERIOD_S else None
        if now_s - self._since[0] < self._period_s and (expected_s is None or counts.made == self._since[4]):
            return
        wall_s, waiting_s, batches, made_s, made, blocked_s = (a - b for a, b in zip(here, self._since, strict=True))
        self._since, self._period_s = here, PERIOD_S
        workers, starting = len(engine.workers) - engine.starting, engine.starting
        measured_s = max(0.0, wall_s - waiting_s) / batches if batches else None
        seen = Seen(
            busy_s=measured_s if expected_s is None else expected_s,
            waiting=min(1.0, max(0.0, waiting_s / wall_s)),
            occupied_s=made_s / made if made else None,
            blocked=min(1.0, blocked_s / (made_s + blocked_s)) if made_s + blocked_s > 0 else 0.0,
            filled=engine.filled,
            buffer=max(1, 2 * (workers + starting)),
        )
        if self._pool is not None:
            self._keep_to_pool(self._pool, seen, workers + starting)
        if self._draws is not None:
            self._demand.watts = self._draws.look(workers)
        wanted = self._demand.decide(seen, workers, starting)
        if wanted != workers + starting:
            engine.resize(wanted)

    def _keep_to_pool(self, pool: PoolMember, seen: Seen, have: int) -> None:
        need = seen.need
        leave = None if need is None else pool.leave_for(min(need, float(self.most)), have, seen.buffer)
        if leave is not None:
            self._demand.bounds = Bounds(most=max(1, min(self.most, leave)))
