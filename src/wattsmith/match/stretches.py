"""A trace cut where the device began to do something else.

Change points are those that pay: the sum of squares around the means of all parts, plus a price for each cut, is
smallest. Channels count alike after each is divided by its own noise.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from wattsmith.terms.telemetry import Stretch, Telemetry

GRID = 400  # moments that a trace is looked at; finer cuts tell nothing more
SHORTEST_S = 1.0  # a stretch
PRICE = 8.0  # of a cut, in units of noise times the logarithm of the moments
ALIKE = 0.1  # by which parts that do the same thing may differ
IDLE_BELOW = 0.15  # of the way from the lowest to the highest mean power, where nothing is busy
WATCHED = ("power_w", "engine_ratio", "busy_ratio", "sm_ratio", "dram_ratio", "memory_busy_ratio")
WORKING = ("engine_ratio", "sm_ratio", "busy_ratio")  # the first of them that is there tells idle from busy
IDLE_ACTIVITY = 0.05
NOTHING = 0.0005  # some networks keep their GPU busy for a hundredth of the time


def stretches_of(telemetry: Telemetry) -> tuple[Stretch, ...]:
    """The parts of a trace in order; the longest one that is not idle is "steady", with those like it."""
    import numpy as np

    channels = [telemetry.series[name] for name in WATCHED if name in telemetry.series]
    if not channels:
        channels = [next(iter(telemetry.series.values()))]
    begin_s = min(one.time_s[0] for one in channels)
    end_s = max(one.time_s[-1] for one in channels)
    at_s = np.linspace(begin_s, end_s, GRID)
    rows = np.array([_scaled(_means_on(one.time_s, one.values, at_s)) for one in channels])
    least = max(2, round(SHORTEST_S / (end_s - begin_s) * GRID))
    edges = [0, *cuts(rows, least), GRID]
    bounds_s = [float(at_s[min(edge, GRID - 1)]) for edge in edges]
    parts = list(pairwise(bounds_s))
    return _named(telemetry, parts)


def never_worked(telemetry: Telemetry) -> str | None:
    """The channel that shows that the device had nothing to do at any time; None: it worked, or no channel tells."""
    there = [name for name in WORKING if name in telemetry.series]
    idle = there and all(value < NOTHING for name in there for value in telemetry.series[name].values)
    return there[0] if idle else None


def worked_between_s(telemetry: Telemetry) -> tuple[float, float]:
    """From when to when the device worked: by its activity where that is known, else by the parts of its power."""
    for name in WORKING:
        if name in telemetry.series:
            series = telemetry.series[name]
            active_s = [
                time_s for time_s, value in zip(series.time_s, series.values, strict=True) if value > IDLE_ACTIVITY
            ]
            if active_s:
                return active_s[0], active_s[-1]
    busy = [one for one in stretches_of(telemetry) if one.kind != "idle"]
    return busy[0].begin_s, busy[-1].end_s


def cuts(rows: Any, least: int, price: float = PRICE) -> list[int]:
    """Where to cut ROWS (channels × moments, in units of their noise) into parts of at least LEAST moments."""
    import numpy as np

    count = rows.shape[1]
    sums = np.concatenate([np.zeros((len(rows), 1)), np.cumsum(rows, axis=1)], axis=1)
    squares = np.concatenate([[0.0], np.cumsum((rows**2).sum(0))])
    cost_of_cut = price * len(rows) * np.log(count)
    best = np.full(count + 1, np.inf)
    best[0] = -cost_of_cut
    came_from = np.zeros(count + 1, dtype=int)
    for end in range(least, count + 1):
        begins = np.arange(0, end - least + 1)
        means = (sums[:, end, None] - sums[:, begins]) ** 2 / (end - begins)
        around = squares[end] - squares[begins] - means.sum(0)
        totals = best[begins] + around + cost_of_cut
        place = int(np.argmin(totals))
        best[end], came_from[end] = totals[place], begins[place]
    found: list[int] = []
    end = int(came_from[count])
    while end > 0:
        found.append(end)
        end = int(came_from[end])
    return found[::-1]


def within(time_s: Sequence[float], values: Sequence[float], stretches: Sequence[Stretch]) -> tuple[Any, Any]:
    """Times and values that lie in one of STRETCHES, as arrays."""
    import numpy as np

    times, kept = np.asarray(time_s, dtype=float), np.asarray(values, dtype=float)
    inside = np.zeros(len(times), dtype=bool)
    for one in stretches:
        inside |= (times >= one.begin_s) & (times <= one.end_s)
    return times[inside], kept[inside]


def _means_on(time_s: Sequence[float], values: Sequence[float], at_s: Any) -> Any:
    """The values on other moments: the mean of those that fall to one, interpolated where none does."""
    import numpy as np

    times, had = np.asarray(time_s, dtype=float), np.asarray(values, dtype=float)
    step_s = at_s[1] - at_s[0]
    place = np.clip(((times - at_s[0]) / step_s + 0.5).astype(int), 0, len(at_s) - 1)
    count = np.bincount(place, minlength=len(at_s))
    total = np.bincount(place, weights=had, minlength=len(at_s))
    there = count > 0
    return np.interp(at_s, at_s[there], total[there] / count[there])


def _scaled(row: Any) -> Any:
    """A channel in units of its own noise, seen where neighbours in time differ."""
    import numpy as np

    steps = np.abs(np.diff(row))
    noise = np.median(steps[steps > 0]) if np.any(steps > 0) else 1.0
    # A step of a program is no change of what it does: its swing counts as noise.
    swing = np.percentile(row, 75) - np.percentile(row, 25)
    return (row - row.mean()) / max(noise, 0.25 * swing, 1e-3 * float(np.max(np.abs(row))), 1e-12)


def _named(telemetry: Telemetry, parts: Sequence[tuple[float, float]]) -> tuple[Stretch, ...]:
    name = next((one for one in WATCHED if one in telemetry.series), next(iter(telemetry.series)))
    levels = _levels(telemetry, name, parts)
    busy = _busy(telemetry, levels, parts)
    steady = max(busy or range(len(parts)), key=lambda place: parts[place][1] - parts[place][0])
    alike = [abs(level - levels[steady]) <= ALIKE * max(abs(levels[steady]), 1e-12) for level in levels]
    kinds = [
        "steady" if place == steady or (alike[place] and place in busy) else "other" if place in busy else "idle"
        for place in range(len(parts))
    ]
    for place in range(kinds.index("steady")):
        kinds[place] = "load" if kinds[place] == "other" else kinds[place]
    return tuple(
        Stretch(begin_s=begin_s, end_s=end_s, power_w=level if name == "power_w" else None, kind=kind)
        for (begin_s, end_s), level, kind in zip(parts, levels, kinds, strict=True)
    )


def _levels(telemetry: Telemetry, name: str, parts: Sequence[tuple[float, float]]) -> list[float]:
    """The mean of a channel in each part; 0 where it has no value."""
    import numpy as np

    series = telemetry.series[name]
    times, values = np.asarray(series.time_s), np.asarray(series.values)
    inside = [values[(times >= begin_s) & (times <= end_s)] for begin_s, end_s in parts]
    return [float(one.mean()) if len(one) else 0.0 for one in inside]


def _busy(telemetry: Telemetry, levels: Sequence[float], parts: Sequence[tuple[float, float]]) -> list[int]:
    """The parts in which the device worked: by its activity where that is known, else by what it drew."""
    working = next((one for one in WORKING if one in telemetry.series), None)
    if working is not None:
        active = _levels(telemetry, working, parts)
        found = [place for place, level in enumerate(active) if level > IDLE_ACTIVITY]
        if found:
            return found
    idle_below = min(levels) + IDLE_BELOW * (max(levels) - min(levels))
    return [place for place, level in enumerate(levels) if level > idle_below] or list(range(len(parts)))
