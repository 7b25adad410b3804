"""What a job needs beside what a machine has: memory, settings that it may have, cores for data workers, power."""

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

from wattsmith.schedule.guard import OVERSHOOTS
from wattsmith.terms.feed import plain_target
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import DataWork, DataWorkers, Need, OperatingPoint, PoolNode, workers_within

SIGMAS = NormalDist().inv_cdf(1 - OVERSHOOTS)


def has_memory(need: Need, node: PoolNode) -> bool:
    """Whether each of the node's devices is large enough, as far as anyone knows."""
    return need.memory_bytes is None or node.memory_bytes is None or need.memory_bytes <= node.memory_bytes


def settable(need: Need, node: PoolNode) -> Need | None:
    """NEED with the settings alone that NODE may have; None: it may have none of them."""
    points = tuple(point for point in need.response.points if node.allows(point))
    if len(points) == len(need.response.points):
        return need
    return replace(need, response=replace(need.response, points=points)) if points else None


def fed(need: Need, nodes: Iterable[PoolNode]) -> Need | None:
    """NEED with data workers at each setting, as many as each of NODES has cores for; None: none has one for a device.

    A node allows those points alone that were made for as many cores as it has.
    """
    if need.data_work is None:
        return need
    cores = dict.fromkeys(node.cores_each for node in nodes if node.kind == need.kind)
    points = dict.fromkeys(
        _fed(point, need.data_work, each) for each in cores if each != 0 for point in need.response.points
    )
    if not points:
        return None
    return replace(need, response=replace(need.response, points=tuple(points)), data_work=None)


def _fed(point: OperatingPoint, work: DataWork, cores: int | None) -> OperatingPoint:
    """POINT with its data workers; slower, where CORES are too few for its speed."""
    needed = work.made_s * point.rate
    count = workers_within(cores, int(plain_target(needed)))
    workers_w = None if work.worker_w is None else count * work.worker_w
    workers = DataWorkers(count=count, needed=needed, power_w=workers_w)
    # A device that waits is counted with what it draws at work: it draws no more.
    return replace(point, rate=count / work.made_s if workers.data_bound else point.rate, data_workers=workers)


def limits_asked(needs: Iterable[Need]) -> str:
    """In words: the power limits at which figures of NEEDS are known."""
    asked_w = sorted({point.setting.power_limit_w or 0.0 for need in needs for point in need.response.points})
    return f"power limits of {', '.join(format_quantity(each_w, 'power', 3) for each_w in asked_w)}"


def affordable(need: Need, drawn_w: float, square: float, room_w: float) -> OperatingPoint | None:
    """The fastest setting whose power fits into ROOM_W beside what is drawn, with its guard."""
    if not need.response.power_known and room_w < math.inf:
        return None  # nobody could say whether it fits
    for point in sorted(need.response.points, key=lambda one: -one.rate):
        if drawn_w + more_w(need, point, square) + SIGMAS * math.sqrt(max(0.0, square)) <= room_w:
            return point
    return None


def more_w(need: Need, point: OperatingPoint, square: float) -> float:
    """What a job takes of the budget: power above idle, and by how much the guard grows."""
    above_w = need.devices * max(0.0, point.known_w - need.response.idle_w)
    more_square = need.devices * (need.response.doubt.power_ratio * point.known_w) ** 2
    return above_w + SIGMAS * (math.sqrt(max(0.0, square + more_square)) - math.sqrt(max(0.0, square)))
