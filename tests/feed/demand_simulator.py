"""A trainer, a buffer and workers that come late, in simulated time: what a rule for the number of workers does.

The trainer is busy 0.1 s a step. A worker takes a log-normal time a batch, on average 0.8 s (8 are needed), from the
middle on 1.6 s (16 are needed). A worker that is asked for works 5 s later; one that is let go ends its batch first.
"""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from wattsmith.feed.demand import Seen

BUSY_S, NEEDS, SLOTS = 0.1, (8, 16), 32
PERIOD_S, START_S, LENGTH_S = 5.0, 5.0, 240.0
VARIATION = 0.6  # standard deviation of a service time, in means
WARM_S = 30.0  # not judged: every rule starts from one worker

Rule = Callable[[Seen, int, int], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    starved: float  # share of the judged time in which the trainer waited
    worker_s: float  # of all workers, over what the need alone would have paid
    most_after: int  # workers at most in the second half
    reached_s: float  # from the change until there are as many as are needed
    turns: int  # from adding to removing and back, in the judged time without the 40 s after the change


def play(rule: Rule, seed: int, *, needs: tuple[float, float] = NEEDS, workers: int = 1) -> Outcome:
    chance, now_s = random.Random(seed), 0.0
    sigma = math.sqrt(math.log(1 + VARIATION**2))

    def service_s() -> float:
        mean_s = BUSY_S * needs[now_s >= LENGTH_S / 2]
        return chance.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)

    events: list[tuple[float, int, str]] = []
    count = 0

    def later(after_s: float, what: str) -> None:
        nonlocal count
        heapq.heappush(events, (now_s + after_s, count, what))
        count += 1

    alive, starting, leaving, blocked, filled = workers, 0, 0, 0, 0
    training, since_s = False, 0.0
    tally = dict.fromkeys(("waiting", "blocked", "filled", "steps", "batches", "occupied", "worked"), 0.0)
    starved_s = paid_s = ideal_s = 0.0
    sizes: deque[tuple[float, int]] = deque()
    for _ in range(workers):
        later(service_s(), "made")
    later(PERIOD_S, "control")
    while now_s < LENGTH_S:
        when_s, _, what = heapq.heappop(events)
        past_s, now_s = when_s - now_s, when_s
        tally["waiting"] += past_s * (not training)
        tally["blocked"] += past_s * blocked
        tally["worked"] += past_s * alive
        tally["filled"] += past_s * min(1.0, filled / SLOTS)
        if now_s >= WARM_S:
            starved_s += past_s * (not training)
            paid_s += past_s * (alive + starting)
            ideal_s += past_s * needs[now_s >= LENGTH_S / 2]
        if what == "made":
            tally["batches"] += 1
            if filled < SLOTS:
                filled += 1
                leaving, alive = _next_or_leave(leaving, alive, lambda: later(service_s(), "made"))
            else:
                blocked += 1
        elif what == "trained":
            training = False
            tally["steps"] += 1
        elif what == "started":
            starting, alive = starting - 1, alive + 1
            later(service_s(), "made")
        else:
            span_s = now_s - since_s
            since_s = now_s
            busy_s = (span_s - tally["waiting"]) / tally["steps"] if tally["steps"] else None
            occupied_s = (tally["worked"] - tally["blocked"]) / tally["batches"] if tally["batches"] else None
            seen = Seen(
                busy_s=busy_s,
                waiting=min(1.0, tally["waiting"] / span_s),
                occupied_s=occupied_s,
                blocked=min(1.0, tally["blocked"] / tally["worked"]),
                filled=min(1.0, tally["filled"] / span_s),
                buffer=SLOTS,
            )
            tally = dict.fromkeys(tally, 0.0)
            wanted = rule(seen, alive - leaving, starting)
            change = wanted - (alive - leaving + starting)
            for _ in range(change):
                starting += 1
                later(START_S, "started")
            leaving += max(0, -change)
            sizes.append((now_s, wanted))
            later(PERIOD_S, "control")
        if not training and filled:
            training, filled = True, filled - 1
            later(BUSY_S, "trained")
            if blocked:
                blocked, filled = blocked - 1, filled + 1
                leaving, alive = _next_or_leave(leaving, alive, lambda: later(service_s(), "made"))
    return _outcome(sizes, starved_s, paid_s / ideal_s, needs)


def _next_or_leave(leaving: int, alive: int, again: Callable[[], None]) -> tuple[int, int]:
    if leaving:
        return leaving - 1, alive - 1
    again()
    return leaving, alive


def _outcome(sizes: deque[tuple[float, int]], starved_s: float, paid: float, needs: tuple[float, float]) -> Outcome:
    half_s = LENGTH_S / 2
    after = [size for when_s, size in sizes if when_s >= half_s]
    reached = [when_s for when_s, size in sizes if when_s >= half_s and size >= needs[1]]
    settled = [size for when_s, size in sizes if WARM_S <= when_s < half_s or when_s >= half_s + 40]
    moves = [b - a for a, b in itertools.pairwise(settled) if a != b]
    return Outcome(
        starved=starved_s / (LENGTH_S - WARM_S),
        worker_s=paid,
        most_after=max(after),
        reached_s=min(reached, default=math.inf) - half_s,
        turns=sum(a * b < 0 for a, b in itertools.pairwise(moves)),
    )
