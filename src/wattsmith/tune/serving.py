"""A model served in this process under a load: queries wait, are taken in batches, and are answered.

The same rule in earnest (`serve`, with threads and the clock on the wall) and by arithmetic (`foreseen`), so that a
plan can be made before anything is served. A free server takes what waits, up to `batch` queries; where fewer wait, it
waits for more until the oldest has waited `wait_s`.
"""

import heapq
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattsmith.terms.errors import BadInput
from wattsmith.tune.load import Served


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How queries are taken."""

    batch: int = 1  # at most so many at once
    concurrency: int = 1  # batches in work at the same time
    wait_s: float = 0.0  # the oldest query waits no longer than this for others to come

    def __post_init__(self) -> None:
        if self.batch < 1 or self.concurrency < 1 or not 0 <= self.wait_s < math.inf:
            raise BadInput(
                f"batch and concurrency must be at least 1 and wait_s not negative, got {self.batch}, "
                f"{self.concurrency} and {self.wait_s}"
            )


def foreseen(arrivals_s: Sequence[float], service_s: Callable[[int], float], policy: Policy) -> Served:
    """What would come of a load if a batch of n took SERVICE_S(n), by arithmetic."""
    free_at = [0.0] * policy.concurrency
    heapq.heapify(free_at)
    latencies: list[float] = []
    at, end_s = 0, 0.0
    while at < len(arrivals_s):
        ready_s = max(heapq.heappop(free_at), arrivals_s[at])
        full = at + policy.batch - 1
        waits_until_s = arrivals_s[at] + policy.wait_s
        start_s = max(ready_s, min(waits_until_s, arrivals_s[full] if full < len(arrivals_s) else waits_until_s))
        taken = at
        while taken < len(arrivals_s) and taken - at < policy.batch and arrivals_s[taken] <= start_s:
            taken += 1
        done_s = start_s + service_s(taken - at)
        latencies += [done_s - one for one in arrivals_s[at:taken]]
        heapq.heappush(free_at, done_s)
        end_s, at = max(end_s, done_s), taken
    first_s = arrivals_s[0] if arrivals_s else 0.0
    return Served(latencies_s=tuple(latencies), arrived=len(arrivals_s), duration_s=max(end_s - first_s, 0.0))


class _Desk:
    """Where queries wait, and servers take them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: deque[tuple[int, float]] = deque()  # number, arrival
        self._changed = threading.Condition()
        self._closed = False

    def put(self, number: int, arrived_s: float) -> None:
        with self._changed:
            self._waiting.append((number, arrived_s))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def take(self) -> list[tuple[int, float]]:
        """The next batch; empty: no more will come."""
        with self._changed:
            while True:
                if len(self._waiting) >= self._policy.batch or (self._waiting and self._closed):
                    break
                if self._waiting:
                    left_s = self._waiting[0][1] + self._policy.wait_s - time.perf_counter()
                    if left_s <= 0:
                        break
                    self._changed.wait(left_s)
                elif self._closed:
                    return []
                else:
                    self._changed.wait()
            size = min(self._policy.batch, len(self._waiting))
            return [self._waiting.popleft() for _ in range(size)]


def serve(
    arrivals_s: Sequence[float],
    answer: Callable[[int], None],
    policy: Policy,
    measured_j: Callable[[], float | None] = lambda: None,
) -> Served:
    """Serve queries that arrive at ARRIVALS_S, seconds from now; ANSWER(n) answers n of them and returns when done.

    MEASURED_J, called once after the last answer, tells the joules of all of it. What ANSWER raises ends the load and
    is raised here.
    """
    desk = _Desk(policy)
    done: dict[int, float] = {}
    failures: list[BaseException] = []

    def work() -> None:
        while batch := desk.take():
            try:
                answer(len(batch))
            except BaseException as failed:  # noqa: BLE001 - handed to the caller, whose load this is
                failures.append(failed)
                desk.close()
                return
            now_s = time.perf_counter()
            done.update({number: now_s - arrived_s for number, arrived_s in batch})

    servers = [threading.Thread(target=work, daemon=True) for _ in range(policy.concurrency)]
    for server in servers:
        server.start()
    begin_s = time.perf_counter()
    for number, at in enumerate(arrivals_s):
        ahead_s = begin_s + at - time.perf_counter()
        if ahead_s > 0:
            time.sleep(ahead_s)
        if failures:
            break
        desk.put(number, begin_s + at)
    desk.close()
    for server in servers:
        server.join()
    if failures:
        raise failures[0]
    first_s = arrivals_s[0] if arrivals_s else 0.0
    return Served(
        latencies_s=tuple(done[number] for number in sorted(done)),
        arrived=len(arrivals_s),
        duration_s=time.perf_counter() - begin_s - first_s,
        energy_j=measured_j(),
    )
