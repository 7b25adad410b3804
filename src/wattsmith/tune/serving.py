"""A model served in this process under a load: queries wait, are taken in batches, and are answered.

The same rule in earnest (`serve`, with threads and the clock on the wall) and by arithmetic (`foreseen`), so that a
plan can be made before anything is served. A free server takes what waits, up to `batch` queries; where fewer wait, it
waits for more until the oldest has waited `wait_s`. Between the beginnings of two batches lies at least `pace_s`.
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

Answer = Callable[[int], None]  # answers so many queries, and returns when that is done


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How queries are taken."""

    batch: int = 1  # at most so many at once
    concurrency: int = 1  # batches in work at the same time
    wait_s: float = 0.0  # the oldest query waits no longer than this for others to come
    pace_s: float = 0.0  # from the beginning of one batch to that of the next, at least

    def __post_init__(self) -> None:
        if self.batch < 1 or self.concurrency < 1 or not 0 <= self.wait_s < math.inf or not 0 <= self.pace_s < math.inf:
            raise BadInput(
                "batch and concurrency must be at least 1, wait_s and pace_s not negative, got "
                f"{self.batch}, {self.concurrency}, {self.wait_s} and {self.pace_s}"
            )


def foreseen(arrivals_s: Sequence[float], service_s: Callable[[int], float], policy: Policy) -> Served:
    """What would come of a load if a batch of n took SERVICE_S(n), by arithmetic."""
    free_at = [0.0] * policy.concurrency
    heapq.heapify(free_at)
    latencies: list[float] = []
    at, end_s, begun_s, batches = 0, 0.0, -math.inf, 0
    while at < len(arrivals_s):
        ready_s = max(heapq.heappop(free_at), arrivals_s[at], begun_s + policy.pace_s)
        full = at + policy.batch - 1
        waits_until_s = arrivals_s[at] + policy.wait_s
        start_s = max(ready_s, min(waits_until_s, arrivals_s[full] if full < len(arrivals_s) else waits_until_s))
        taken = at
        while taken < len(arrivals_s) and taken - at < policy.batch and arrivals_s[taken] <= start_s:
            taken += 1
        done_s = start_s + service_s(taken - at)
        latencies += [done_s - one for one in arrivals_s[at:taken]]
        heapq.heappush(free_at, done_s)
        end_s, at, begun_s, batches = max(end_s, done_s), taken, start_s, batches + 1
    first_s = arrivals_s[0] if arrivals_s else 0.0
    return Served(
        latencies_s=tuple(latencies), arrived=len(arrivals_s), duration_s=max(end_s - first_s, 0.0), batches=batches
    )


class _Desk:
    """Where queries wait, and servers take them."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._waiting: deque[tuple[int, float]] = deque()  # number, arrival
        self._changed = threading.Condition()
        self._closed = False
        self._begun_s = -math.inf  # when the latest batch was taken

    def put(self, number: int, arrived_s: float) -> None:
        with self._changed:
            self._waiting.append((number, arrived_s))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def give_up(self) -> list[tuple[int, float]]:
        """Close, and send away those who wait."""
        with self._changed:
            left = list(self._waiting)
            self._waiting.clear()
            self._closed = True
            self._changed.notify_all()
        return left

    def take(self) -> list[tuple[int, float]]:
        """The next batch; empty: no more will come."""
        with self._changed:
            while self._waiting or not self._closed:
                left_s = self._not_before_s() - time.perf_counter() if self._waiting else None
                if left_s is not None and left_s <= 0:
                    size = min(self._policy.batch, len(self._waiting))
                    self._begun_s = time.perf_counter()
                    return [self._waiting.popleft() for _ in range(size)]
                self._changed.wait(left_s)
        return []

    def _not_before_s(self) -> float:
        """When those who wait may be taken, if nobody else comes."""
        paced_s = self._begun_s + self._policy.pace_s
        if self._closed or len(self._waiting) >= self._policy.batch:
            return paced_s
        return max(paced_s, self._waiting[0][1] + self._policy.wait_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begins:
    """What is done before the first query comes."""

    prepare: Callable[[Answer], object] = lambda _: None  # by each server, in the thread in which it will serve
    ready: Callable[[], object] = lambda: None  # once, when all of them are


class _Servers:
    """Threads that answer what waits at a desk."""

    def __init__(
        self,
        answers: Sequence[Answer],
        desk: _Desk,
        answered: Callable[[int, float], None],
        begins: Begins | None,
    ) -> None:
        """ANSWERED(number, time_s) is told of every query when its batch is done. Returns when all may begin."""
        self.done: dict[int, float] = {}
        self.failures: list[BaseException] = []
        self.batches = 0
        self._desk, self._answered = desk, answered
        self._counting = threading.Lock()
        self._begins = begins or Begins()
        prepared = [threading.Event() for _ in answers]
        self._threads = [
            threading.Thread(target=self._work, args=(one, done), daemon=True)
            for one, done in zip(answers, prepared, strict=True)
        ]
        for thread in self._threads:
            thread.start()
        for done in prepared:
            done.wait()
        if self.failures:
            desk.close()
            self.join(math.inf)
        self._begins.ready()

    def _work(self, answer: Answer, prepared: threading.Event) -> None:
        try:
            self._begins.prepare(answer)
        except BaseException as failed:  # noqa: BLE001 - handed to the caller, whose load this is
            self.failures.append(failed)
            return
        finally:
            prepared.set()
        while batch := self._desk.take():
            try:
                answer(len(batch))
            except BaseException as failed:  # noqa: BLE001 - handed to the caller, whose load this is
                self.failures.append(failed)
                self._desk.close()
                return
            now_s = time.perf_counter()
            with self._counting:
                self.batches += 1
                self.done.update({number: now_s - arrived_s for number, arrived_s in batch})
            for number, _ in batch:
                self._answered(number, now_s)

    def join(self, patience_s: float) -> list[tuple[int, float]]:
        """Wait until all is answered, PATIENCE_S at most; those who were still waiting then."""
        until_s = time.perf_counter() + patience_s
        for thread in self._threads:
            thread.join(None if patience_s == math.inf else max(0.0, until_s - time.perf_counter()))
        left = self._desk.give_up() if any(thread.is_alive() for thread in self._threads) else []
        for thread in self._threads:
            thread.join()  # what it has begun it ends
        if self.failures:
            raise self.failures[0]
        return left


def serve(
    arrivals_s: Sequence[float],
    answer: Answer | Sequence[Answer],
    policy: Policy,
    measured_j: Callable[[], float | None] = lambda: None,
    *,
    patience_s: float = math.inf,
    begins: Begins | None = None,
) -> Served:
    """Serve queries that arrive at ARRIVALS_S, seconds from now; ANSWER(n) answers n of them and returns when done.

    ANSWER may be one for each server. MEASURED_J, called once after the last answer, tells the joules of all of it.
    Who still waits PATIENCE_S after the last arrival is left. What ANSWER raises ends the load and is raised here.
    """
    desk = _Desk(policy)
    servers = _Servers(_each(answer, policy), desk, lambda _number, _time_s: None, begins)
    begin_s = time.perf_counter()
    try:
        for number, at in enumerate(arrivals_s):
            ahead_s = begin_s + at - time.perf_counter()
            if ahead_s > 0:
                time.sleep(ahead_s)
            if servers.failures:
                break
            desk.put(number, begin_s + at)
    finally:
        desk.close()  # also when somebody interrupts it: servers must not wait for ever
    left = servers.join(patience_s)
    first_s = arrivals_s[0] if arrivals_s else 0.0
    return _served(servers, left, len(arrivals_s), begin_s + first_s, measured_j)


def serve_clients(
    clients: int,
    duration_s: float,
    answer: Answer | Sequence[Answer],
    policy: Policy,
    measured_j: Callable[[], float | None] = lambda: None,
    *,
    begins: Begins | None = None,
) -> Served:
    """Serve CLIENTS who each ask again as soon as they are answered, for DURATION_S: a closed loop."""
    if clients < 1 or not 0 < duration_s < math.inf:
        raise BadInput(f"at least one client for a positive, finite time, got {clients} for {duration_s} s")
    desk, asked, counting = _Desk(policy), [clients], threading.Lock()
    end_s = [math.inf]

    def ask_again(_number: int, now_s: float) -> None:
        with counting:
            if now_s >= end_s[0]:
                return
            asked[0] += 1
            number = asked[0] - 1
        desk.put(number, now_s)

    servers = _Servers(_each(answer, policy), desk, ask_again, begins)
    begin_s = time.perf_counter()
    end_s[0] = begin_s + duration_s
    for number in range(clients):
        desk.put(number, begin_s)
    try:
        while time.perf_counter() < end_s[0] and not servers.failures:
            time.sleep(min(0.01, duration_s))
    finally:
        end_s[0] = -math.inf
        desk.close()
    return _served(servers, servers.join(math.inf), asked[0], begin_s, measured_j)


def _each(answer: Answer | Sequence[Answer], policy: Policy) -> Sequence[Answer]:
    if callable(answer):
        return [answer] * policy.concurrency
    if len(answer) != policy.concurrency:
        raise BadInput(f"{policy.concurrency} servers need an answer each, got {len(answer)}")
    return answer


def _served(
    servers: _Servers,
    left: Sequence[tuple[int, float]],
    arrived: int,
    begin_s: float,
    measured_j: Callable[[], float | None],
) -> Served:
    now_s = time.perf_counter()
    return Served(
        latencies_s=tuple(servers.done[number] for number in sorted(servers.done)),
        arrived=arrived,
        duration_s=now_s - begin_s,
        energy_j=measured_j(),
        left_s=tuple(now_s - arrived_s for _, arrived_s in left),
        batches=servers.batches,
    )
