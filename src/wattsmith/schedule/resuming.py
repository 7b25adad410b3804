"""The state of a pool put together from what is known to run in it, and brought in line with what really happens."""

from collections.abc import Sequence
from dataclasses import replace

from wattsmith.schedule.deciding import PoolState, Running
from wattsmith.schedule.needs import settable
from wattsmith.terms.schedule import Job, Need, OperatingPoint, PoolNode
from wattsmith.terms.work import Setting


def with_running(
    state: PoolState,
    job: Job,
    *,
    node: str,
    devices: Sequence[int],
    setting: Setting,
    since_s: float,
    steps_told: float | None = None,
) -> PoolState:
    """STATE in which JOB runs on DEVICES of NODE, as it was found there.

    STEPS_TOLD are those that it said it did. A node that is not known, or devices that others have, are taken as they
    are: what runs is the truth.
    """
    need, point = _way(state, job, node, len(devices), setting)
    one = Running(
        job=job,
        need=need,
        node=node,
        devices=tuple(devices),
        point=point,
        since_s=since_s,
        steps_left=max(0.0, job.steps - (steps_told or 0.0) * need.steps_each),
    )
    free = {
        name: tuple(place for place in places if name != node or place not in devices)
        for name, places in state.free.items()
    }
    waiting = {name: waits for name, waits in state.waiting.items() if name != job.name}
    return replace(
        state,
        running={**state.running, job.name: one},
        waiting=waiting,
        # Its devices must not be given away once it ends: there are none as far as anyone knows.
        lost=state.lost if node in state.nodes else state.lost | {node},
        free={name: places for name, places in free.items() if places},
        drawn_w=state.drawn_w + one.above_idle_w,
        square=state.square + one.square,
    )


def _way(state: PoolState, job: Job, node: str, count: int, setting: Setting) -> tuple[Need, OperatingPoint]:
    """The need of JOB that fits what was found best, and its point at SETTING or the nearest."""
    kind = state.nodes[node].kind if node in state.nodes else None
    need = min(job.needs, key=lambda one: (one.kind != kind, abs(one.devices - count)))
    limit_w = setting.power_limit_w

    def away(point: OperatingPoint) -> tuple[bool, float]:
        other_w = point.setting.power_limit_w
        far_w = 0.0 if limit_w == other_w else abs((limit_w or 0.0) - (other_w or 0.0))
        return point.setting != setting, far_w

    here = settable(need, state.nodes[node]) if node in state.nodes else need
    need = here or need
    return need, min(need.response.points, key=away)


def moved(state: PoolState, job: str, node: str, devices: Sequence[int] | None) -> PoolState:
    """STATE in which a running JOB is where an engine that places by itself has put it.

    DEVICES None: which ones there is not known; as many are taken for them, free ones first. Others may be believed
    to be on the same devices until it is seen where they are.
    """
    one = state.running[job]
    if devices is not None and len(devices) != len(one.devices):
        devices = None  # such as of a CPU, which has no number
    if devices is None and node == one.node:
        return state
    if devices is None:
        devices = _some(state, node, one)
    if node == one.node and tuple(devices) == one.devices:
        return state
    running = {**state.running, job: replace(one, node=node, devices=tuple(devices))}
    state = replace(
        state,
        running=running,
        drawn_w=sum(each.above_idle_w for each in running.values()),
        square=sum(each.square for each in running.values()),
    )
    return with_free(with_free(state, one.node), node)


def _some(state: PoolState, node: str, one: Running) -> tuple[int, ...]:
    here = state.nodes.get(node)
    if here is None or here.kind != one.need.kind:
        return ()  # such as work for processors, on a machine that is counted by its cards
    free = state.free.get(node, ())
    others = tuple(place for place in range(here.count) if place not in free)
    return (*free, *others)[: len(one.devices)]


def with_free(state: PoolState, name: str) -> PoolState:
    """STATE in which those devices of a node are free that no running job has; none, if it is lost or not known."""
    node = state.nodes.get(name)
    free = {other: places for other, places in state.free.items() if other != name}
    if node is None or name in state.lost:
        return replace(state, free=free)
    used = {place for one in state.running.values() if one.node == name for place in one.devices}
    places = tuple(place for place in range(node.count) if place not in node.excluded and place not in used)
    return replace(state, free={**free, name: places} if places else free)


def with_node(state: PoolState, node: PoolNode) -> PoolState:
    """STATE with NODE: a machine more, one that is back, or one that is not what it was."""
    state = without_node(state, node.name)
    state = replace(
        state,
        nodes={**state.nodes, node.name: node},
        idle_w=state.idle_w + node.known_idle_w,
    )
    return with_free(state, node.name)


def without_node(state: PoolState, name: str) -> PoolState:
    """STATE that knows nothing of a node; what is believed to run there is left."""
    state = set_aside(state, name)
    nodes = {other: node for other, node in state.nodes.items() if other != name}
    return replace(state, nodes=nodes, lost=state.lost - {name})


def set_aside(state: PoolState, name: str) -> PoolState:
    """STATE in which a node gets no more work. What runs there is left: each is seen to be lost or not."""
    node = state.nodes.get(name)
    if node is None or name in state.lost:
        return state
    idle_w = max(0.0, state.idle_w - node.known_idle_w)
    return with_free(replace(state, lost=state.lost | {name}, idle_w=idle_w), name)
