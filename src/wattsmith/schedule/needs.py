"""What a job needs beside what a machine has: memory, settings that it may have, power."""

import math
from collections.abc import Iterable
from dataclasses import replace
from statistics import NormalDist

from wattsmith.schedule.guard import OVERSHOOTS
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Need, OperatingPoint, PoolNode

SIGMAS = NormalDist().inv_cdf(1 - OVERSHOOTS)


def has_memory(need: Need, node: PoolNode) -> bool:
    """Whether each of the node's devices is large enough, as far as anyone knows."""
    return need.memory_bytes is None or node.memory_bytes is None or need.memory_bytes <= node.memory_bytes


def settable(need: Need, node: PoolNode) -> Need | None:
    """NEED with the settings alone that NODE may have; None: it may have none of them."""
    points = tuple(point for point in need.response.points if node.allows(point.setting))
    if len(points) == len(need.response.points):
        return need
    return replace(need, response=replace(need.response, points=points)) if points else None


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
    above_w = need.devices * max(0.0, point.power_w - need.response.idle_w)
    more_square = need.devices * (need.response.doubt.power_ratio * point.power_w) ** 2
    return above_w + SIGMAS * (math.sqrt(max(0.0, square + more_square)) - math.sqrt(max(0.0, square)))
