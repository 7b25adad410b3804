"""Power that is short, shared among jobs that run: settings fall first, then those that may pause do, the least worth
first. Those that may not pause run on, at their lowest settings if need be."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from wattsmith.schedule.budget import share_budget
from wattsmith.terms.schedule import NoPlan, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Sharer:
    """A job that wants its share of the power."""

    response: Response  # above idle, of all its devices
    weight: float  # its worth when it runs as fast as it can
    pausable: bool
    deadline_s: float | None
    since_s: float  # it has run
    keeps: tuple[int, ...]  # places of the points that are fast enough for its deadline; all, where it has none
    doubts_w: tuple[float, ...]  # by point, what its power may differ by: one standard deviation

    @property
    def lowest(self) -> int:
        """The place of the point that draws least; of equals the fastest."""
        points = self.response.points
        return min(range(len(points)), key=lambda place: (points[place].power_w, -points[place].rate))


def shared_power(sharers: Sequence[Sharer], room_w: float, now: Sequence[int], sigmas: float) -> list[int | None]:
    """By sharer the place of its point, or None: it pauses. NOW are the places at present.

    All stay within ROOM_W where those that may not pause leave it at that, with SIGMAS of their doubt kept free.
    """
    stay = _who_stays(sharers, room_w, sigmas)
    chosen: list[int | None] = [None] * len(sharers)
    points = _points([sharers[place] for place in stay], room_w, [now[place] for place in stay], sigmas)
    for place, point in zip(stay, points, strict=True):
        chosen[place] = point
    return chosen


def _who_stays(sharers: Sequence[Sharer], room_w: float, sigmas: float) -> list[int]:
    """Places of those that go on; all of them if that can be at their lowest settings."""
    least_w = [one.response.points[one.lowest].power_w for one in sharers]
    squares = [one.doubts_w[one.lowest] ** 2 for one in sharers]
    drawn_w, square = sum(least_w), sum(squares)

    def fits(drawn_w: float, square: float) -> bool:
        return drawn_w + sigmas * math.sqrt(max(0.0, square)) <= room_w

    paused: list[int] = []
    may_pause = [place for place, one in enumerate(sharers) if one.pausable]
    for place in sorted(may_pause, key=lambda one: _value(sharers[one])):
        if fits(drawn_w, square):
            break
        paused.append(place)
        drawn_w, square = drawn_w - least_w[place], square - squares[place]
    for place in reversed(paused.copy()):  # the last may have left room for one before it
        if fits(drawn_w + least_w[place], square + squares[place]):
            paused.remove(place)
            drawn_w, square = drawn_w + least_w[place], square + squares[place]
    gone = set(paused)
    return [place for place in range(len(sharers)) if place not in gone]


def _value(one: Sharer) -> tuple[float, float, float]:
    """Least first: by weight; of equals those with time left, then those that have lost least."""
    return one.weight, -(math.inf if one.deadline_s is None else one.deadline_s), -one.since_s


def _guard_w(ones: Sequence[Sharer], points: Sequence[int], sigmas: float) -> float:
    return sigmas * math.sqrt(sum(one.doubts_w[place] ** 2 for one, place in zip(ones, points, strict=True)))


def _points(ones: Sequence[Sharer], room_w: float, now: Sequence[int], sigmas: float) -> list[int]:
    """Points of most worth, fast enough for their deadlines where all can be; the lowest, where none would do."""
    if not ones:
        return []
    lowest = [one.lowest for one in ones]
    left_w = room_w - max(_guard_w(ones, now, sigmas), _guard_w(ones, lowest, sigmas))
    weights = [one.weight / max(point.rate for point in one.response.points) for one in ones]
    all_of_them = [tuple(range(len(one.response.points))) for one in ones]
    for allowed in ([one.keeps or every for one, every in zip(ones, all_of_them, strict=True)], all_of_them):
        responses = [_only(one.response, places) for one, places in zip(ones, allowed, strict=True)]
        if left_w <= 0:
            break
        try:
            found = share_budget(responses, left_w, weights=weights, may_pause=False)
        except NoPlan:
            continue
        return [places[place] for places, place in zip(allowed, found.choice, strict=True) if place is not None]
    return lowest


def _only(response: Response, places: Sequence[int]) -> Response:
    return replace(response, points=tuple(response.points[place] for place in places))
