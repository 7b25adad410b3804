"""Response curves: from rows of measured settings, and the hulls that planning walks along."""

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Run, Status
from wattsmith.terms.schedule import Doubt, OperatingPoint, Response, SettingSource
from wattsmith.terms.work import Setting


def response_from_rows(
    rows: Iterable[tuple[Setting, float, float]], *, idle_w: float = 0.0, doubt: Doubt | None = None
) -> Response:
    """The response that ROWS of (setting, seconds per step, mean watts) tell; rows of one setting are averaged."""
    at: dict[Setting, list[tuple[float, float]]] = {}
    for setting, step_s, power_w in rows:
        if not (0 < step_s < math.inf and 0 < power_w < math.inf):
            raise BadTerm(f"a row at {setting} must have a positive time and power, got {step_s} s and {power_w} W")
        at.setdefault(setting, []).append((step_s, power_w))
    points = tuple(
        OperatingPoint(
            setting=setting,
            rate=1 / fmean(step_s for step_s, _ in seen),
            # Energy over time: the mean of powers would weigh a short window as much as a long one.
            power_w=sum(s * w for s, w in seen) / sum(s for s, _ in seen),
        )
        for setting, seen in at.items()
    )
    return Response(points=points, idle_w=idle_w, doubt=doubt or Doubt())


def responses_from_runs(runs: Iterable[Run], *, idle_w: float = 0.0) -> dict[tuple[str, str], Response]:
    """By workload's key and device's name: the response that the measured ones of RUNS tell."""
    rows: dict[tuple[str, str], list[tuple[Setting, float, float]]] = {}
    for run in runs:
        if run.status is not Status.MEASURED or run.times is None or run.consumption is None:
            continue
        if run.consumption.power_w is not None:
            row = (run.setting, run.times.mean_s, run.consumption.power_w)
            rows.setdefault((run.workload.key, run.device.name), []).append(row)
    return {key: response_from_rows(found, idle_w=idle_w) for key, found in rows.items()}


def energy_hull(response: Response, *, idle_w: float = 0.0) -> tuple[OperatingPoint, ...]:
    """The points that mixtures of least energy are made of: the fastest first, the most frugal last.

    Energy is what a step costs above IDLE_W: with the idle power of a device that stays on, racing to the end and
    waiting there is weighed against going slowly.
    """
    by_time = sorted(response.points, key=lambda one: (one.step_s, one.known_w))
    hull: list[tuple[float, float, OperatingPoint]] = []
    for one in by_time:
        here = (one.step_s, (one.known_w - idle_w) * one.step_s, one)
        if hull and here[1] >= hull[-1][1]:
            continue  # slower, and saves nothing
        if hull and here[0] == hull[-1][0]:
            hull.pop()
        while len(hull) > 1 and _turns_up(hull[-2], hull[-1], here):
            hull.pop()
        hull.append(here)
    return tuple(one for _, _, one in hull)


def _turns_up(a: tuple[float, float, object], b: tuple[float, float, object], c: tuple[float, float, object]) -> bool:
    """Whether B lies on or above the line from A to C."""
    return (b[1] - a[1]) * (c[0] - a[0]) >= (c[1] - a[1]) * (b[0] - a[0])


def rate_hull(points: Sequence[tuple[float, float]]) -> list[int]:
    """Places of the POINTS (power, rate) on their upper concave hull, by rising power and rate."""
    order = sorted(range(len(points)), key=lambda place: (points[place][0], -points[place][1]))
    hull: list[int] = []
    for place in order:
        power, rate = points[place]
        if hull and rate <= points[hull[-1]][1]:
            continue
        while len(hull) > 1:
            (power_a, rate_a), (power_b, rate_b) = points[hull[-2]], points[hull[-1]]
            if (rate_b - rate_a) * (power - power_a) > (rate - rate_a) * (power_b - power_a):
                break
            hull.pop()
        hull.append(place)
    return hull


def thinned(response: Response, most: int = 12) -> Response:
    """RESPONSE with at most MOST points: those on its hull, and of these every so many-th.

    A sweep over a hundred clocks has hardly more to say than a dozen of them, and planning takes time for each.
    """
    hull = energy_hull(response)
    if len(response.points) <= most:
        return response
    step = max(1.0, (len(hull) - 1) / (most - 1))
    kept = tuple(hull[min(len(hull) - 1, round(place * step))] for place in range(most) if place * step <= len(hull))
    return Response(points=tuple(dict.fromkeys(kept)), idle_w=response.idle_w, doubt=response.doubt)


def is_convex(hull: Sequence[OperatingPoint], *, idle_w: float = 0.0) -> bool:
    """Whether each further second saves no more than the one before it."""
    slopes = [
        ((b.known_w - idle_w) * b.step_s - (a.known_w - idle_w) * a.step_s) / (b.step_s - a.step_s)
        for a, b in pairwise(hull)
    ]
    return all(before <= after + 1e-9 * abs(before) for before, after in pairwise(slopes))


def stated(setting: Setting, *, step_s: float, power_w: float) -> OperatingPoint:
    """A point that somebody wrote down."""
    return OperatingPoint(setting=setting, rate=1 / step_s, power_w=power_w, source=SettingSource.STATED)
