"""What to do when something happens in a pool. Pure: a state and an event give a new state and actions.

Jobs wait in a queue and start where they fit: memory by its upper end, devices, and power with the guard that the doubt
of what runs asks for. A job runs at the setting that is best at the present price of a watt. The price is found anew
when the budget changes or is overdrawn, or when much has changed since; in between a start takes the best setting that
still fits.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from wattsmith.schedule.making_room import Sharer, shared_power
from wattsmith.schedule.needs import SIGMAS, affordable, has_memory, limits_asked, settable
from wattsmith.terms.dispatch import (
    Action,
    BudgetChanged,
    Event,
    JobCancelled,
    JobEnded,
    JobSubmitted,
    MatchAgain,
    NodeBack,
    NodeLost,
    OverBudget,
    PassedOver,
    PauseJob,
    RefuseJob,
    SetPoint,
    StartJob,
    Telemetry,
)
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Job, Need, NoPlan, OperatingPoint, PoolNode, Response

DRIFT = 0.15  # measured over predicted power or time off by more: match again
LOOKS = 16  # waiting jobs that are tried after each event, so that one large job does not stop all small ones
SPARE = 0.05  # of the budget; what lies idle above that is shared anew
SETTLE_S = 300.0  # but not more often than this
AGE_S = 3600.0  # a job that has waited longer than this holds back those behind it, and nobody goes before it
NAMED = 5  # jobs, where many could be


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A job at work."""

    job: Job
    need: Need  # with the settings alone that its node may have
    node: str
    devices: tuple[int, ...]
    point: OperatingPoint
    since_s: float
    steps_left: float
    power_ratio: float = 1.0  # measured over predicted
    warned: bool = False

    @property
    def above_idle_w(self) -> float:
        """All its devices, as predicted and then corrected by what was measured."""
        return len(self.devices) * max(0.0, self.point.power_w * self.power_ratio - self.need.response.idle_w)

    @property
    def power_known(self) -> bool:
        """Whether anybody has said or measured what it draws."""
        return self.need.response.power_known or self.power_ratio != 1.0

    @property
    def square(self) -> float:
        return len(self.devices) * (self.need.response.doubt.power_ratio * self.point.power_w) ** 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A job in the queue."""

    job: Job
    since_s: float
    steps_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolState:
    """All that is known of a pool."""

    nodes: Mapping[str, PoolNode]
    budget_w: float = math.inf
    time_s: float = 0.0
    lost: frozenset[str] = frozenset()
    free: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # devices without work, of nodes with some
    running: Mapping[str, Running] = field(default_factory=dict)
    waiting: Mapping[str, Waiting] = field(default_factory=dict)  # in order
    ended: int = 0
    refused: int = 0
    cancelled: int = 0
    drawn_w: float = 0.0  # above idle, as believed
    square: float = 0.0
    idle_w: float = 0.0
    shared_s: float = 0.0  # when the power was last shared anew among what runs

    @property
    def over_w(self) -> float:
        """So much more is drawn than there may be, as believed; 0: no more."""
        return max(0.0, self.idle_w + self.drawn_w - self.budget_w)

    @property
    def free_w(self) -> float:
        """What is left of the budget after what runs, and after the guard for what that may be off by."""
        return self.budget_w - self.idle_w - self.drawn_w - SIGMAS * math.sqrt(max(0.0, self.square))

    @property
    def known(self) -> int:
        """Jobs that were submitted and are accounted for."""
        return len(self.running) + len(self.waiting) + self.ended + self.refused + self.cancelled


def empty_pool(nodes: Mapping[str, PoolNode], budget_w: float = math.inf) -> PoolState:
    """A pool with nothing to do."""
    idle_w = sum(node.known_idle_w for node in nodes.values())
    if budget_w < idle_w:
        raise NoPlan(
            f"the pool draws {format_quantity(idle_w, 'power')} when idle, more than the budget of "
            f"{format_quantity(budget_w, 'power')}"
        )
    free = {name: _all_devices(node) for name, node in nodes.items()}
    return PoolState(nodes=dict(nodes), budget_w=budget_w, free=free, idle_w=idle_w)


def _all_devices(node: PoolNode) -> tuple[int, ...]:
    return tuple(place for place in range(node.count) if place not in node.excluded)


def decide(state: PoolState, event: Event) -> tuple[PoolState, list[Action]]:
    """The state after EVENT, and what is to be done. An event that makes no sense changes nothing."""
    if not math.isfinite(event.time_s) or event.time_s < state.time_s:
        return state, [PassedOver(why=f"time runs backwards: {event.time_s} s after {state.time_s} s")]
    state = replace(state, time_s=event.time_s)
    match event:
        case JobSubmitted():
            return _submitted(state, event.job)
        case JobEnded() | JobCancelled():
            return _ended(state, event)
        case Telemetry():
            return _measured(state, event)
        case NodeLost():
            return _lost(state, event.node)
        case NodeBack():
            return _back(state, event.node)
        case BudgetChanged():
            return _rebudgeted(replace(state, budget_w=event.budget_w))


def _submitted(state: PoolState, job: Job) -> tuple[PoolState, list[Action]]:
    if job.name in state.running or job.name in state.waiting:
        return state, [PassedOver(why=f"a job called {job.name!r} is here already")]
    why = _never(state, job)
    if why is not None:
        return replace(state, refused=state.refused + 1), [RefuseJob(job=job.name, why=why)]
    waits = Waiting(job=job, since_s=state.time_s, steps_left=job.steps)
    before, waiting = _queued(state, waits)
    state = replace(state, waiting=waiting)
    if before >= LOOKS:
        return state, []  # nothing was freed, and those before it did not fit either
    return _started(state)


def _queued(state: PoolState, waits: Waiting) -> tuple[int, dict[str, Waiting]]:
    """How many are before WAITS in the queue, and the queue with it: behind all but those that are less urgent."""
    queue = list(state.waiting.values())
    place = len(queue)
    while place > 0 and _goes_before(waits, queue[place - 1], state.time_s):
        place -= 1
    queue.insert(place, waits)
    return place, {one.job.name: one for one in queue}


def _goes_before(one: Waiting, other: Waiting, now_s: float) -> bool:
    """Whether ONE, which has come later, is served first: of equal weight, and its deadline is nearer."""
    if one.job.weight != other.job.weight or now_s - other.since_s > AGE_S:
        return False
    return _deadline_s(one) < _deadline_s(other)


def _deadline_s(waits: Waiting) -> float:
    return math.inf if waits.job.deadline_s is None else waits.job.deadline_s


def _never(state: PoolState, job: Job) -> str | None:
    """Why JOB can never run in this pool, lost nodes included; None: it can."""
    kinds = [(need, node) for need in job.needs for node in state.nodes.values() if node.kind == need.kind]
    if not kinds:
        return f"it runs on {', '.join(sorted({need.kind for need in job.needs}))}, which the pool does not have"
    roomy = [(need, node) for need, node in kinds if has_memory(need, node)]
    if not roomy:
        least = min(need.memory_bytes or 0.0 for need, _ in kinds)
        most = max(node.memory_bytes or 0 for _, node in kinds)
        return (
            f"it needs up to {format_quantity(least, 'memory', 3)} of each device, and the largest has "
            f"{format_quantity(most, 'memory', 3)}"
        )
    wide = [(need, node) for need, node in roomy if node.usable >= need.devices]
    if not wide:
        return f"it needs {min(need.devices for need, _ in roomy)} devices of one machine, and none has as many"
    if all(settable(need, node) is None for need, node in wide):
        return f"it has figures at {limits_asked(need for need, _ in wide)}, and no machine may be set so"
    return None


def _started(state: PoolState) -> tuple[PoolState, list[Action]]:
    """STATE with waiting jobs started, the first ones first, where they fit."""
    actions: list[Action] = []
    waiting = running = free = None
    drawn_w, square = state.drawn_w, state.square
    for looked, (name, waits) in enumerate(state.waiting.items()):
        if looked >= LOOKS or not state.free:
            break
        room_w = state.budget_w - state.idle_w
        found = _place(state, free if free is not None else state.free, waits, drawn_w, square, room_w)
        if found is None:
            if state.time_s - waits.since_s > AGE_S:
                break
            continue
        need, node, devices, point = found
        if waiting is None or running is None or free is None:
            waiting, running, free = dict(state.waiting), dict(state.running), dict(state.free)
        del waiting[name]
        left = tuple(place for place in free[node] if place not in devices)
        if left:
            free[node] = left
        else:
            del free[node]
        one = Running(
            job=waits.job,
            need=need,
            node=node,
            devices=devices,
            point=point,
            since_s=state.time_s,
            steps_left=waits.steps_left,
        )
        running[name] = one
        drawn_w, square = drawn_w + one.above_idle_w, square + one.square
        actions.append(StartJob(job=name, node=node, devices=devices, point=point, steps=waits.steps_left))
    if waiting is None or running is None or free is None:
        return state, actions
    return replace(state, waiting=waiting, running=running, free=free, drawn_w=drawn_w, square=square), actions


def _place(
    state: PoolState, free: Mapping[str, tuple[int, ...]], waits: Waiting, drawn_w: float, square: float, room_w: float
) -> tuple[Need, str, tuple[int, ...], OperatingPoint] | None:
    """The node that a job fits most tightly, and the fastest setting whose power is left."""
    job = waits.job

    def first(need: Need) -> tuple[bool, float]:  # rates that nobody knows only stand in
        return not need.response.time_known, need.devices if job.fewest_devices else -max(_rates(need))

    for need in sorted(job.needs, key=first):
        if affordable(need, drawn_w, square, room_w) is None:
            continue  # whatever a node allows
        best: tuple[tuple[float, int, int, str], Need, OperatingPoint] | None = None
        by_limits: dict[tuple[float, float] | None, tuple[Need, OperatingPoint] | None] = {}
        for name, devices in free.items():
            node = state.nodes[name]
            if node.kind != need.kind or len(devices) < need.devices or not has_memory(need, node):
                continue
            if node.power_limits_w not in by_limits:
                here = settable(need, node)
                point = here and affordable(timely(here, waits, state.time_s), drawn_w, square, room_w)
                by_limits[node.power_limits_w] = (here, point) if here and point else None
            way = by_limits[node.power_limits_w]
            if way is None:
                continue
            key = (-way[1].rate, len(devices), node.memory_bytes or 0, name)
            if best is None or key < best[0]:
                best = key, *way
                if len(devices) == need.devices and node.memory_bytes is None and way[0] is need:
                    break
        if best is not None:
            (_, _, _, name), here, point = best
            return here, name, free[name][: need.devices], point
    return None


def _rates(need: Need) -> list[float]:
    return [point.rate for point in need.response.points]


def timely(need: Need, waits: Waiting, now_s: float) -> Need:
    """NEED with the settings alone that keep the job's deadline; all of them where it has none, or none does."""
    if waits.job.deadline_s is None or not need.response.time_known:
        return need
    left_s = waits.job.deadline_s - now_s
    points = tuple(point for point in need.response.points if waits.steps_left <= point.rate * left_s)
    return replace(need, response=replace(need.response, points=points)) if points else need


def _without(state: PoolState, name: str) -> tuple[PoolState, Running]:
    """STATE without the running job NAME; its devices are free unless their node is lost."""
    running = dict(state.running)
    one = running.pop(name)
    free = state.free
    if one.node not in state.lost:
        # A set: of a job that an engine has put elsewhere the devices may be believed to be free already.
        free = {**free, one.node: tuple(sorted({*free.get(one.node, ()), *one.devices}))}
    drawn_w = max(0.0, state.drawn_w - one.above_idle_w) if running else 0.0
    square = max(0.0, state.square - one.square) if running else 0.0
    return replace(state, running=running, free=free, drawn_w=drawn_w, square=square), one


def _ended(state: PoolState, event: JobEnded | JobCancelled) -> tuple[PoolState, list[Action]]:
    if event.job in state.waiting and isinstance(event, JobCancelled):
        waiting = {name: one for name, one in state.waiting.items() if name != event.job}
        return replace(state, waiting=waiting, cancelled=state.cancelled + 1), []
    if event.job not in state.running:
        return state, [PassedOver(why=f"{event.job!r} is not running here")]
    state, one = _without(state, event.job)
    if isinstance(event, JobCancelled):
        state = replace(state, cancelled=state.cancelled + 1)
    elif event.done:
        state = replace(state, ended=state.ended + 1)
    else:
        state = _again(state, one)
    state, actions = _started(state)
    if not state.waiting and _has_spare(state):
        state, more = _rebudgeted(state)
        actions += more
    return state, actions


def _has_spare(state: PoolState) -> bool:
    """Whether enough power lies idle, for long enough, that those which run slowly should have it."""
    return (
        state.budget_w < math.inf and state.free_w > SPARE * state.budget_w and state.time_s - state.shared_s > SETTLE_S
    )


def _again(state: PoolState, *ones: Running) -> PoolState:
    """STATE with jobs that stopped at the head of the queue: they have waited before."""
    back = {one.job.name: Waiting(job=one.job, since_s=one.since_s, steps_left=one.steps_left) for one in ones}
    return replace(state, waiting={**back, **state.waiting})


def _measured(state: PoolState, event: Telemetry) -> tuple[PoolState, list[Action]]:
    one = state.running.get(event.job)
    if one is None:
        return state, [PassedOver(why=f"{event.job!r} is not running here")]
    for name in ("power_w", "rate", "steps"):
        value = getattr(event, name)
        if value is not None and not 0 <= value < math.inf:
            return state, [PassedOver(why=f"{event.job!r}: {name} must be finite and not negative, got {value}")]
    seen = one
    actions: list[Action] = []
    if event.steps is not None:
        left = max(0.0, one.job.steps - event.steps)
        if left > one.steps_left * (1 + 1e-9):
            return state, [PassedOver(why=f"{event.job!r}: its steps run backwards")]
        seen = replace(seen, steps_left=left)
    expected_w = len(one.devices) * one.point.power_w
    if event.power_w is not None and event.power_w > 0:
        seen = replace(seen, power_ratio=event.power_w / expected_w)
    response = one.need.response
    off_power = abs(seen.power_ratio - 1) if response.power_known else 0.0
    off_rate = abs(event.rate / one.point.rate - 1) if event.rate is not None and response.time_known else 0.0
    if max(off_power, off_rate) > DRIFT and not one.warned:
        what = "power" if off_power >= off_rate else "rate"
        actions.append(MatchAgain(job=event.job, why=f"its {what} is {max(off_power, off_rate):.0%} off"))
        seen = replace(seen, warned=True)
    drawn_w = max(0.0, state.drawn_w + seen.above_idle_w - one.above_idle_w)
    state = replace(state, running={**state.running, event.job: seen}, drawn_w=drawn_w)
    if state.idle_w + drawn_w > state.budget_w:
        state, more = _rebudgeted(state)
        actions += more
    return state, actions


def _lost(state: PoolState, node: str) -> tuple[PoolState, list[Action]]:
    if node not in state.nodes or node in state.lost:
        return state, [PassedOver(why=f"{node!r} is not a node of this pool that works")]
    gone = state.nodes[node]
    idle_w = state.idle_w - gone.known_idle_w
    free = {name: devices for name, devices in state.free.items() if name != node}
    state = replace(state, lost=state.lost | {node}, free=free, idle_w=max(0.0, idle_w))
    stopped = []
    for name in [name for name, one in state.running.items() if one.node == node]:
        state, one = _without(state, name)
        stopped.append(one)
    return _started(_again(state, *stopped))


def _back(state: PoolState, name: str) -> tuple[PoolState, list[Action]]:
    if name not in state.lost:
        return state, [PassedOver(why=f"{name!r} was not lost")]
    node = state.nodes[name]
    idle_w = state.idle_w + node.known_idle_w
    state = replace(state, lost=state.lost - {name}, free={**state.free, name: _all_devices(node)}, idle_w=idle_w)
    # What it draws when idle may have been lent to others meanwhile.
    return _rebudgeted(state) if state.over_w > 0 else _started(state)


def _rebudgeted(state: PoolState) -> tuple[PoolState, list[Action]]:
    """STATE with the power shared anew among what runs; where it is short, those that may pause do. Then others may
    start."""
    state = replace(state, shared_s=state.time_s)
    ones = list(state.running.values())
    # Devices that pause still draw their idle power, which is in idle_w for all nodes already.
    room_w = state.budget_w - state.idle_w
    now = [one.need.response.points.index(one.point) for one in ones]
    places = shared_power([_sharer(one, state.time_s) for one in ones], room_w, now, SIGMAS)
    actions: list[Action] = []
    running = dict(state.running)
    paused: list[Running] = []
    for one, place in zip(ones, places, strict=True):
        if place is None:
            actions.append(PauseJob(job=one.job.name))
            paused.append(one)
            continue
        point = one.need.response.points[place]
        if point != one.point:
            actions.append(SetPoint(job=one.job.name, point=point))
            running[one.job.name] = replace(one, point=point)
    state = replace(state, running=running)
    for one in paused:
        state, _ = _without(state, one.job.name)
    state = _counted(_again(state, *paused))
    if (why := why_over_budget(state)) is not None:
        return state, [*actions, OverBudget(over_w=state.over_w, why=why)]
    if paused:
        return state, actions  # no power was left, so nothing can start
    state, more = _started(state)
    return state, [*actions, *more]


def why_over_budget(state: PoolState) -> str | None:
    """Why more is drawn than there may be; None: it is not, as far as anyone knows."""
    if state.over_w <= 1e-9 * state.budget_w:
        return None
    runs = sorted((one for one in state.running.values() if not one.job.pausable), key=lambda one: -one.above_idle_w)
    named = ", ".join(f"{one.job.name} ({_watts(one.above_idle_w)})" for one in runs[:NAMED])
    more = f" and {len(runs) - NAMED} more" if len(runs) > NAMED else ""
    kept = f"{named}{more} may not pause, and the settings are as low as they go; " if runs else ""
    return (
        f"the pool draws {_watts(state.idle_w + state.drawn_w)}, {_watts(state.over_w)} above its budget of "
        f"{_watts(state.budget_w)}: {kept}idle machines draw {_watts(state.idle_w)}"
    )


def _watts(power_w: float) -> str:
    return format_quantity(power_w, "power", 3)


def _sharer(one: Running, now_s: float) -> Sharer:
    """The job with its response above idle, all devices together, corrected by what was measured."""
    response, count = one.need.response, len(one.devices)
    points = tuple(
        replace(
            point,
            power_w=max(1e-6, count * (point.power_w * one.power_ratio - response.idle_w)),
            p99_w=None,
            peak_w=None,
        )
        for point in response.points
    )
    left_s = math.inf if one.job.deadline_s is None else one.job.deadline_s - now_s
    return Sharer(
        response=Response(points=points),
        weight=one.job.weight,
        pausable=one.job.pausable,
        deadline_s=one.job.deadline_s,
        since_s=one.since_s,
        keeps=tuple(place for place, point in enumerate(points) if one.steps_left <= point.rate * left_s),
        doubts_w=tuple(math.sqrt(count) * response.doubt.power_ratio * point.power_w for point in response.points),
    )


def _counted(state: PoolState) -> PoolState:
    """STATE with what is drawn added up anew: sums and differences of many jobs drift."""
    return replace(
        state,
        drawn_w=sum(one.above_idle_w for one in state.running.values()),
        square=sum(one.square for one in state.running.values()),
    )
