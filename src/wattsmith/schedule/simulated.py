"""A pool that is not there: it carries out what `decide` says, thousands of times faster than time passes.

What a job really draws and how fast it is differ from what was predicted, by errors drawn with a seed. Nodes are lost
and come back. Nothing here decides.
"""

import heapq
import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattsmith.schedule.deciding import PoolState, decide
from wattsmith.terms.dispatch import (
    Action,
    Event,
    JobEnded,
    JobSubmitted,
    MatchAgain,
    NodeBack,
    NodeLost,
    PauseJob,
    RefuseJob,
    SetPoint,
    StartJob,
    Telemetry,
)
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """How the pool differs from what is predicted of it."""

    power_error_ratio: float = 0.05
    time_error_ratio: float = 0.05
    telemetry_s: float = 600.0  # between two readings of a running job
    loses: tuple[tuple[float, str, float], ...] = ()  # when, which node, and for how long


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """What came of it."""

    submitted: int
    ended: int
    refused: int
    left: int  # still waiting or running
    restarts: int
    decisions: int
    deciding_s: float  # of real time
    span_s: float  # of simulated time
    energy_j: float  # of the jobs
    over_s: float  # simulated time in which the true power was above the budget
    most_over_ratio: float
    most_used_ratio: float  # the true power at its highest, of the budget
    matches: int  # that were asked for again
    lost: tuple[str, ...] = ()  # jobs that nobody accounts for; there must be none

    @property
    def decisions_per_s(self) -> float:
        return self.decisions / self.deciding_s if self.deciding_s > 0 else 0.0

    @property
    def times_real_speed(self) -> float:
        return self.span_s / self.deciding_s if self.deciding_s > 0 else 0.0


@dataclass(slots=True)
class _Busy:
    point: OperatingPoint
    devices: int
    idle_w: float
    power_ratio: float  # true over predicted
    slow: float
    since_s: float
    steps: float  # left
    total: float
    turn: int  # of its events; older ones are void

    @property
    def rate(self) -> float:
        return self.point.rate / self.slow

    @property
    def above_idle_w(self) -> float:
        return self.devices * (self.point.power_w * self.power_ratio - self.idle_w)


@dataclass(slots=True)
class _World:
    truth: Truth
    rng: Any
    events: list[tuple[float, int, Event, int]] = field(default_factory=list)
    busy: dict[str, _Busy] = field(default_factory=dict)
    counter: Any = field(default_factory=itertools.count)
    totals: dict[str, float] = field(default_factory=dict)
    above_w: float = 0.0
    energy_j: float = 0.0
    restarts: int = 0
    matches: int = 0
    refused: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)

    def push(self, event: Event, turn: int = -1) -> None:
        heapq.heappush(self.events, (event.time_s, next(self.counter), event, turn))


def simulate(
    state: PoolState,
    events: Sequence[Event],
    truth: Truth | None = None,
    *,
    seed: int = 0,
    clock_s: Callable[[], float] = time.perf_counter,
    watch: Callable[[PoolState, Event, Sequence[Action]], None] | None = None,
) -> Simulation:
    """Drive `decide` from STATE with EVENTS and all that follows from its actions, until nothing is left to happen."""
    import numpy as np

    truth = truth or Truth()
    world = _World(truth=truth, rng=np.random.default_rng(seed))
    for event in events:
        world.push(event)
    for at_s, node, lasts_s in truth.loses:
        if lasts_s <= 0:
            raise BadTerm(f"{node} must be lost for a while, got {lasts_s} s")
        world.push(NodeLost(time_s=at_s, node=node))
        world.push(NodeBack(time_s=at_s + lasts_s, node=node))
    jobs = {event.job.name: event.job for event in events if isinstance(event, JobSubmitted)}
    decisions, deciding_s, over_s, most_over, most_used = 0, 0.0, 0.0, 0.0, 0.0
    begin_s = now_s = world.events[0][0] if world.events else 0.0
    while world.events:
        at_s, _, event, turn = heapq.heappop(world.events)
        if turn >= 0 and (busy := world.busy.get(_job_of(event))) is not None and busy.turn != turn:
            continue
        if turn >= 0 and _job_of(event) not in world.busy:
            continue
        true_w = state.idle_w + world.above_w
        most_used = max(most_used, true_w / state.budget_w)
        if true_w > state.budget_w * (1 + 1e-9):
            over_s += at_s - now_s
            most_over = max(most_over, true_w / state.budget_w - 1) if at_s > now_s else most_over
        now_s = at_s
        event = _seen(world, event, at_s)
        if isinstance(event, NodeLost):
            _drop(world, state, event.node, at_s)
        if isinstance(event, JobEnded):
            _leave(world, event.job, at_s)
            world.ended.add(event.job)
        began_s = clock_s()
        state, actions = decide(state, event)
        deciding_s += clock_s() - began_s
        decisions += 1
        for action in actions:
            _carry_out(world, state, action, at_s)
        if isinstance(event, Telemetry) and event.job in world.busy:
            _next_reading(world, event.job, at_s)
        if watch is not None:
            watch(state, event, actions)
    accounted = world.ended | world.refused | set(state.running) | set(state.waiting)
    return Simulation(
        submitted=len(jobs),
        ended=len(world.ended),
        refused=len(world.refused),
        left=len(state.running) + len(state.waiting),
        restarts=world.restarts,
        decisions=decisions,
        deciding_s=deciding_s,
        span_s=now_s - begin_s,
        energy_j=world.energy_j,
        over_s=over_s,
        most_over_ratio=most_over,
        most_used_ratio=most_used,
        matches=world.matches,
        lost=tuple(sorted(set(jobs) - accounted)),
    )


def _job_of(event: Event) -> str:
    return event.job if isinstance(event, JobEnded | Telemetry) else ""


def _seen(world: _World, event: Event, at_s: float) -> Event:
    """A reading with what is true at that moment."""
    if not isinstance(event, Telemetry):
        return event
    busy = world.busy[event.job]
    done = busy.total - max(0.0, busy.steps - (at_s - busy.since_s) * busy.rate)
    return Telemetry(
        time_s=at_s,
        job=event.job,
        power_w=busy.devices * busy.point.power_w * busy.power_ratio,
        rate=busy.rate,
        steps=done,
    )


def _carry_out(world: _World, state: PoolState, action: Action, at_s: float) -> None:
    match action:
        case StartJob():
            one = state.running[action.job]
            power, slow = 1 + world.rng.standard_normal(2) * (
                world.truth.power_error_ratio,
                world.truth.time_error_ratio,
            )
            if action.job in world.totals:
                world.restarts += 1
            world.totals[action.job] = one.job.steps
            busy = _Busy(
                point=action.point,
                devices=len(action.devices),
                idle_w=one.need.response.idle_w,
                power_ratio=max(0.5, float(power)),
                slow=max(0.5, float(slow)),
                since_s=at_s,
                steps=action.steps,
                total=one.job.steps,
                turn=next(world.counter),
            )
            world.busy[action.job] = busy
            world.above_w += busy.above_idle_w
            _will_end(world, action.job, at_s)
            _next_reading(world, action.job, at_s)
        case SetPoint():
            busy = world.busy[action.job]
            world.above_w -= busy.above_idle_w
            _settle(world, busy, at_s)
            busy.point, busy.turn = action.point, next(world.counter)
            world.above_w += busy.above_idle_w
            _will_end(world, action.job, at_s)
            _next_reading(world, action.job, at_s)
        case PauseJob():
            _leave(world, action.job, at_s)
        case RefuseJob():
            world.refused.add(action.job)
        case MatchAgain():
            world.matches += 1
        case _:
            pass


def _settle(world: _World, busy: _Busy, at_s: float) -> None:
    """Count what BUSY did since it was last looked at."""
    lasted_s = at_s - busy.since_s
    world.energy_j += lasted_s * busy.devices * busy.point.power_w * busy.power_ratio
    busy.steps = max(0.0, busy.steps - lasted_s * busy.rate)
    busy.since_s = at_s


def _leave(world: _World, job: str, at_s: float) -> None:
    busy = world.busy.pop(job, None)
    if busy is not None:
        world.above_w -= busy.above_idle_w
        _settle(world, busy, at_s)
        if not world.busy:
            world.above_w = 0.0


def _drop(world: _World, state: PoolState, node: str, at_s: float) -> None:
    for name in [name for name, one in state.running.items() if one.node == node]:
        _leave(world, name, at_s)


def _will_end(world: _World, job: str, at_s: float) -> None:
    busy = world.busy[job]
    world.push(JobEnded(time_s=at_s + busy.steps / busy.rate, job=job), busy.turn)


def _next_reading(world: _World, job: str, at_s: float) -> None:
    busy = world.busy[job]
    if at_s + world.truth.telemetry_s < at_s + busy.steps / busy.rate - (at_s - busy.since_s):
        world.push(Telemetry(time_s=at_s + world.truth.telemetry_s, job=job), busy.turn)
