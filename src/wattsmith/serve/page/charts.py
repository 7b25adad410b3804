"""The frame of a chart: SVG that stands in the page.

Text keeps its size at every width: it is placed in percent, and only paths are stretched. All looks come from
page.css, so that nothing inline is needed.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from wattsmith.serve.page.words import FIRST_S, LAST_S, date_of
from wattsmith.terms.quantity import format_quantity

SIDE = 1000  # of the square in which paths are drawn before they are stretched
_TIME_STEPS_S = (
    *(1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800),
    *(3600, 7200, 3 * 3600, 6 * 3600, 12 * 3600, 86400, 2 * 86400, 7 * 86400, 30 * 86400, 365 * 86400),
)
Point = tuple[float, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """From one value to another, with what is written beside it."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...] = ()
    log: bool = False

    def at(self, value: float) -> float:
        """Where VALUE lies, from 0 to 1; beyond the ends, at the end."""
        if self.log:
            value, low, high = (math.log10(max(each, 1e-300)) for each in (value, self.low, self.high))
        else:
            low, high = self.low, self.high
        return min(1.0, max(0.0, (value - low) / (high - low))) if high > low else 0.5


def linear_axis(high: float, kind: str | None = None, *, low: float = 0.0, most_ticks: int = 5) -> Axis:
    """From LOW to a round value at or above HIGH."""
    span = (high - low) if high > low else abs(high) or 1.0
    least = span / most_ticks
    if kind == "memory":
        step = 2.0 ** math.ceil(math.log2(least))
    else:
        power = 10.0 ** math.floor(math.log10(least))
        step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= least * (1 - 1e-9))
    first, last = math.floor(low / step), math.ceil((low + span) / step - 1e-9)
    ticks = tuple((place * step, _label(place * step, kind)) for place in range(first, last + 1))
    return Axis(low=first * step, high=last * step, ticks=ticks)


def log_axis(low: float, high: float, most_ticks: int = 6) -> Axis:
    """Whole decades around LOW and HIGH, which are positive."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    last = max(last, first + 1)
    step = max(1, math.ceil((last - first) / most_ticks))
    ticks = tuple((10.0**power, _decade(power)) for power in range(first, last + 1, step))
    return Axis(low=10.0**first, high=10.0**last, ticks=ticks, log=True)


def time_axis(begin_s: float, end_s: float, most_ticks: int = 6) -> Axis:
    """From BEGIN_S to END_S since 1970, with round times of day in UTC."""
    begin_s = min(max(begin_s, FIRST_S), LAST_S - 1)
    end_s = min(max(end_s, begin_s + 1), LAST_S)
    # Seconds are longer to write.
    fits = (each for each in _TIME_STEPS_S if (end_s - begin_s) / each <= (most_ticks if each >= 60 else 4))
    longest_s = _TIME_STEPS_S[-1]
    step_s = next(fits, longest_s * math.ceil((end_s - begin_s) / longest_s / most_ticks))
    form = "%H:%M:%S" if step_s < 60 else "%H:%M" if step_s < 86400 else "%d %b" if step_s <= longest_s else "%Y-%m"
    first = math.ceil(begin_s / step_s)
    ticks = tuple(
        (place * step_s, date_of(place * step_s).strftime(form))
        for place in range(first, math.floor(end_s / step_s) + 1)
        if begin_s <= place * step_s <= end_s  # dividing rounds
    )
    return Axis(low=begin_s, high=end_s, ticks=ticks)


def _label(value: float, kind: str | None) -> str:
    if kind is None:
        return f"{value:.4g}"
    return "0" if value == 0 else format_quantity(value, kind, 3)


def _decade(exponent: int) -> str:
    if 0 <= exponent <= 3:
        return str(10**exponent)
    return "10" + "".join("⁰¹²³⁴⁵⁶⁷⁸⁹"[int(digit)] if digit.isdigit() else "⁻" for digit in str(exponent))


def percent(share: float) -> str:
    return f"{100 * share:.2f}%"


def runs_of(points: Iterable[Point]) -> list[list[tuple[float, float]]]:
    """POINTS cut where a value is not known."""
    runs: list[list[tuple[float, float]]] = [[]]
    for at, value in points:
        if value is None:
            runs.append([])
        else:
            runs[-1].append((at, value))
    return [run for run in runs if run]


def trail(points: Sequence[tuple[float, float]], x: Axis, y: Axis, *, steps: bool = False) -> str:
    """Places of POINTS as the text of a path. STEPS: each value holds until the next."""
    words, before = [], None
    for at, value in points:
        across, down = x.at(at) * SIDE, (1 - y.at(value)) * SIDE
        if steps and before is not None:
            words.append(f"L{across:.1f} {before:.1f}")
        words.append(f"{'L' if words else 'M'}{across:.1f} {down:.1f}")
        before = down
    return "".join(words)


def line(points: Iterable[Point], x: Axis, y: Axis, kind: str, *, steps: bool = False) -> Markup:
    """A line in the look of KIND, broken where values are not known."""
    runs = runs_of(points)
    # A lone point has no length: drawn to itself, its round ends show it.
    paths = [trail(run if len(run) > 1 else run * 2, x, y, steps=steps) for run in runs]
    return Markup('<path class="line {}" d="{}"/>').format(kind, "".join(paths)) if paths else Markup("")


def area(points: Iterable[Point], x: Axis, y: Axis, kind: str, *, steps: bool = False) -> Markup:
    """What lies below a line."""
    paths = [
        f"{trail(run, x, y, steps=steps)}L{x.at(run[-1][0]) * SIDE:.1f} {SIDE}L{x.at(run[0][0]) * SIDE:.1f} {SIDE}Z"
        for run in runs_of(points)
        if len(run) > 1
    ]
    return Markup('<path class="area {}" d="{}"/>').format(kind, "".join(paths)) if paths else Markup("")


def band(
    lows: Sequence[tuple[float, float]], highs: Sequence[tuple[float, float]], x: Axis, y: Axis, kind: str
) -> Markup:
    """What lies between two lines."""
    there, back = trail(highs, x, y), trail(list(reversed(lows)), x, y)
    return Markup('<path class="band {}" d="{}Z"/>').format(kind, there + "L" + back[1:])


def frame(
    *, label: str, x: Axis, y: Axis, paths: Iterable[Markup], over: Iterable[Markup] = (), height: int = 210
) -> Markup:
    """A chart. LABEL says to those who cannot see it what it shows; PATHS are stretched, what is OVER them is not."""
    across = Markup('<line class="grid" x1="0" x2="100%" y1="{0}" y2="{0}"/>')
    beside = Markup('<text class="tick up" x="-8" y="{0}" dy="4">{1}</text>')
    under = Markup('<text class="tick" x="{0}" y="100%" dy="17">{1}</text>')
    up = [(percent(1 - y.at(value)), text) for value, text in y.ticks]
    along = [(percent(x.at(value)), text) for value, text in x.ticks if x.low <= value <= x.high]
    return Markup(
        '<div class="frame"><svg class="chart" role="img" aria-label="{label}" width="100%" height="{height}">{ticks}'
        '<svg class="stretch" width="100%" height="100%" viewBox="0 0 {side} {side}" preserveAspectRatio="none">'
        "{paths}</svg>{over}</svg></div>"
    ).format(
        label=label,
        height=height,
        ticks=joined(
            [*(across.format(*one) + beside.format(*one) for one in up), *(under.format(*one) for one in along)]
        ),
        side=SIDE,
        paths=joined(paths),
        over=joined(over),
    )


def joined(parts: Iterable[Markup]) -> Markup:
    return Markup("").join(parts)


def level(value: float, y: Axis, kind: str, text: str) -> Markup:
    """A line across at VALUE, with TEXT at its right end."""
    return Markup(
        '<line class="level {1}" x1="0" x2="100%" y1="{0}" y2="{0}"/>'
        '<text class="says {1}" x="100%" y="{0}" dy="-5">{2}</text>'
    ).format(percent(1 - y.at(value)), kind, text)


def sparkline(points: Sequence[Point], label: str, high: float | None = None) -> Markup:
    """A line the size of a word. Its foot is 0, so that lines beside each other compare."""
    known = [value for _, value in points if value is not None]
    if len(known) < 2:
        return Markup('<span class="unknown">too few readings</span>')
    x = Axis(low=points[0][0], high=points[-1][0])
    y = Axis(low=0.0, high=max(high or 0.0, *known) or 1.0)
    return Markup(
        '<svg class="spark" role="img" aria-label="{}" viewBox="0 -40 {s} {t}" preserveAspectRatio="none">{}{}</svg>'
    ).format(label, area(points, x, y, "measured"), line(points, x, y, "measured"), s=SIDE, t=SIDE + 80)


def bar(share: float, kind: str, label: str) -> Markup:
    """How much of the whole, as a bar."""
    return Markup(
        '<svg class="bar" role="img" aria-label="{2}" width="100%" height="8">'
        '<rect class="rail" width="100%" height="8" rx="4"/>'
        '<rect class="{1}" width="{0}" height="8" rx="4"/></svg>'
    ).format(percent(min(1.0, max(0.0, share))), kind, label)
