"""Why a job waits, in words and figures: for a machine, memory, devices, power, or its turn."""

import math
from dataclasses import dataclass

from wattsmith.schedule.deciding import AGE_S, LOOKS, PoolState, timely
from wattsmith.schedule.needs import affordable, has_memory, limits_asked, more_w, settable
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Need, PoolNode

NAMED = 5  # machines, where many could be


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lack:
    """What one way to run a job lacks. The further it got, the nearer it is to a start."""

    got: int
    why: str


def why_it_waits(state: PoolState, name: str, before: int) -> str:
    """Why the waiting job NAME, with BEFORE others before it in the queue, has not started."""
    if before >= LOOKS:
        return f"waits for its turn: {before} jobs are before it"
    this = state.waiting[name]
    lacks = [_lack(state, timely(need, this, state.time_s)) for need in this.job.needs]
    known = [one for one in lacks if one is not None]
    if len(known) == len(lacks):
        return max(known, key=lambda one: one.got).why
    for other, waits in state.waiting.items():
        if other == name:
            break
        waited_s = state.time_s - waits.since_s
        if waited_s > AGE_S:
            return f"waits behind {other}, which has waited for {format_quantity(waited_s, 'time', 2)} and goes first"
    return "waits for the next look at the queue"


def _lack(state: PoolState, need: Need) -> _Lack | None:
    alike = [node for node in state.nodes.values() if node.kind == need.kind]
    there = [node for node in alike if node.name not in state.lost]
    if not there:
        gone = _names(alike)
        lost = f"{gone} {'is' if len(alike) == 1 else 'are'} lost" if alike else "the pool has none just now"
        return _Lack(got=0, why=f"waits for a machine: it runs on {need.kind}, and {lost}")
    roomy = [node for node in there if has_memory(need, node)]
    if not roomy:
        most_bytes = max(node.memory_bytes or 0 for node in there)
        return _Lack(
            got=1,
            why=f"waits for memory: needs {format_quantity(need.memory_bytes or 0.0, 'memory', 3)} of each device, and "
            f"the largest {need.kind} that is there has {format_quantity(most_bytes, 'memory', 3)}",
        )
    wide = [node for node in roomy if len(state.free.get(node.name, ())) >= need.devices]
    if not wide:
        return _Lack(got=2, why=_devices(state, need, roomy))
    able = [here for node in wide if (here := settable(need, node)) is not None]
    if not able:
        return _Lack(got=3, why=f"waits for a machine that may have {limits_asked([need])}: {_names(wide)} may not")
    room_w = state.budget_w - state.idle_w
    if all(affordable(here, state.drawn_w, state.square, room_w) is None for here in able):
        return _Lack(got=4, why=_power(state, able[0]))
    return None


def _devices(state: PoolState, need: Need, roomy: list[PoolNode]) -> str:
    free = {node.name: len(state.free.get(node.name, ())) for node in roomy}
    most = max(free, key=lambda name: free[name])
    wants = f"{need.devices} {need.kind}" + (" of one machine" if need.devices > 1 else "")
    if len(roomy) == 1:
        return f"waits for devices: needs {wants}, {free[most]} of {roomy[0].usable} on {most} are free"
    if free[most] == 0:
        return f"waits for devices: needs {wants}, none of {sum(node.usable for node in roomy)} are free"
    return f"waits for devices: needs {wants}, and no machine has more than {free[most]} free ({most})"


def _power(state: PoolState, need: Need) -> str:
    if not need.response.power_known:
        return (
            f"waits: nobody knows what it draws, and the pool has a budget of {_watts(state.budget_w)}; state its step "
            "and power, or lift the budget"
        )
    least_w = min(more_w(need, point, state.square) for point in need.response.points)
    alone_w = min(more_w(need, point, 0.0) for point in need.response.points)
    needs = f"waits for power: needs {_watts(least_w)}" + (" above idle" if need.response.idle_w else "")
    whole_w = state.budget_w - state.idle_w
    if alone_w > whole_w:
        return (
            f"{needs}, and the budget of {_watts(state.budget_w)} has {_watts(max(0.0, whole_w))} for jobs: "
            "it cannot start before the budget is raised"
        )
    return f"{needs}, {_watts(max(0.0, state.free_w))} of the budget of {_watts(state.budget_w)} are free"


def _watts(power_w: float) -> str:
    return "unlimited power" if math.isinf(power_w) else format_quantity(power_w, "power", 3)


def _names(nodes: list[PoolNode]) -> str:
    names = [node.name for node in nodes]
    return ", ".join(names[:NAMED]) + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
