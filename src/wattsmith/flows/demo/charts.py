"""Small pictures as SVG that stand in a page: they take its colours, light or dark, and need no plotting package."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from wattsmith.terms.quantity import format_quantity

WIDTH = 480
LEFT, RIGHT, TOP, BOTTOM = 92, 24, 40, 30  # around what is drawn
ROW = 46
RADIUS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar from zero, or from the smallest, with the range that it may lie in."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    says: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A dot at X and Y, both above zero."""

    x: float
    y: float
    look: str = "first"  # "first", "second", "bad" or "ring"
    says: str = ""
    label: str = ""


class Scale:
    """From figures to places, in the logarithm or not."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool) -> None:
        self._turn = math.log10 if logarithmic else float
        self._low, self._high = self._turn(low), self._turn(high)
        self._start, self._end = start, end

    def __call__(self, value: float) -> float:
        span = self._high - self._low or 1.0
        share = (self._turn(value) - self._low) / span
        return self._start + share * (self._end - self._start)


def bars(title: str, rows: Sequence[Bar], *, kind: str | None = None, logarithmic: bool = False) -> str:
    """ROWS under each other. KIND: of quantity, for the numbers beside them; None: as each says."""
    ends = [edge for row in rows for edge in (row.value, row.low, row.high) if edge]
    low = 10 ** math.floor(math.log10(min(ends))) if logarithmic else 0.0
    high = 10 ** math.ceil(math.log10(max(ends))) if logarithmic else max(ends)
    height = TOP + ROW * len(rows) + BOTTOM
    across = Scale(low, high * (1 if logarithmic else 1.02), LEFT, WIDTH - RIGHT, logarithmic=logarithmic)
    ticks = decades(low, high) if logarithmic else [high * part / 4 for part in range(5)]
    parts = [_grid_line(across(tick), TOP, TOP + ROW * len(rows), _figure(tick, kind)) for tick in ticks]
    for place, row in enumerate(rows):
        middle = TOP + ROW * place + ROW / 2
        end = across(row.value)
        parts.append(
            f'<text class="name" x="{LEFT - 10}" y="{middle + 5:.1f}" text-anchor="end">{escape(row.name)}</text>'
            f'<rect class="fill {"first" if place else "second"}" x="{LEFT}" y="{middle - 11:.1f}" '
            f'width="{max(end - LEFT, 1):.1f}" height="22" rx="3"><title>{escape(row.says)}</title></rect>'
        )
        if row.low and row.high:
            a, b = across(row.low), across(row.high)
            parts.append(
                f'<path class="range" d="M{a:.1f} {middle:.1f}H{b:.1f}M{a:.1f} {middle - 7:.1f}v14'
                f'M{b:.1f} {middle - 7:.1f}v14"/>'
            )
        text = format_quantity(row.value, kind, 3) if kind else row.says
        inside = end - LEFT > 8 * len(text)
        place_at, anchor, look = (end - 8, "end", "inside") if inside else (end + 8, "start", "beside")
        if row.low and row.high:  # the range would strike it through
            parts.append(f'<text class="tick" x="{LEFT}" y="{middle - 15:.1f}">{escape(text)}</text>')
        else:
            parts.append(
                f'<text class="{look}" x="{place_at:.1f}" y="{middle + 5:.1f}" text-anchor="{anchor}">'
                f"{escape(text)}</text>"
            )
    return _svg(title, height, parts)


def scatter(
    title: str,
    dots: Sequence[Dot],
    *,
    across: tuple[str, str],
    up: tuple[str, str],
    legend: Sequence[tuple[str, str]] = (),
    at_most: float | None = None,
) -> str:
    """DOTS on two logarithmic axes, each with its name and kind of quantity ("": plain numbers).

    AT_MOST: a limit on the horizontal one.
    """
    height = 360
    right = [dot.x for dot in dots] + ([at_most] if at_most else [])
    low_x, high_x = _wide(right)
    low_y, high_y = _wide([dot.y for dot in dots])
    x = Scale(low_x, high_x, LEFT, WIDTH - RIGHT, logarithmic=True)
    y = Scale(low_y, high_y, height - BOTTOM - 20, TOP + 22, logarithmic=True)
    floor = height - BOTTOM - 20
    parts = [_grid_line(x(tick), TOP + 22, floor, _figure(tick, across[1])) for tick in _ticks(low_x, high_x)]
    parts += [
        f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/><text class="tick" x="{LEFT - 8}" '
        f'y="{y(tick) + 4:.1f}" text-anchor="end">{escape(_figure(tick, up[1]))}</text>'
        for tick in _ticks(low_y, high_y)
    ]
    if at_most:
        parts.append(
            f'<path class="limit" d="M{x(at_most):.1f} {TOP + 22}V{floor}"/><text class="limit-text" '
            f'x="{x(at_most) - 6:.1f}" y="{TOP + 36}" text-anchor="end">limit {_figure(at_most, across[1])}</text>'
        )
    parts += [_dot(dot, x(dot.x), y(dot.y)) for dot in dots]
    middle_x, middle_y = (LEFT + WIDTH - RIGHT) / 2, (TOP + 22 + floor) / 2
    parts.append(f'<text class="axis" x="{middle_x:.0f}" y="{height - 6}" text-anchor="middle">{across[0]}</text>')
    parts.append(
        f'<text class="axis" transform="translate(16 {middle_y:.0f}) rotate(-90)" text-anchor="middle">{up[0]}</text>'
    )
    at = WIDTH - RIGHT
    for look, name in reversed(legend):
        at -= 8 * len(name)
        parts.append(f'<text class="tick" x="{at}" y="{TOP + 10}">{escape(name)}</text>')
        at -= 12
        parts.append(_dot(Dot(x=1, y=1, look=look), at, TOP + 6))
        at -= 18
    return _svg(title, height, parts)


def _dot(dot: Dot, x: float, y: float) -> str:
    said = f"<title>{escape(dot.says)}</title>" if dot.says else ""
    label = f'<text class="dot-label" x="{x + 9:.1f}" y="{y - 6:.1f}">{escape(dot.label)}</text>' if dot.label else ""
    if dot.look == "bad":
        return f'<path class="bad" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10">{said}</path>{label}'
    ring = f'<circle class="ring" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS + 5}"/>' if dot.look == "ring" else ""
    look = "first" if dot.look == "ring" else dot.look
    return f'{ring}<circle class="fill {look}" cx="{x:.1f}" cy="{y:.1f}" r="{RADIUS}">{said}</circle>{label}'


def _grid_line(x: float, top: float, bottom: float, text: str) -> str:
    return (
        f'<path class="grid" d="M{x:.1f} {top}V{bottom}"/><text class="tick" x="{x:.1f}" y="{bottom + 18}" '
        f'text-anchor="middle">{escape(text)}</text>'
    )


def _figure(value: float, kind: str | None) -> str:
    if kind:
        return format_quantity(value, kind, 2)
    if value and (value >= 1e4 or value < 1e-3):
        return f"10{''.join('⁰¹²³⁴⁵⁶⁷⁸⁹⁻'['0123456789-'.index(one)] for one in str(round(math.log10(value))))}"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def decades(low: float, high: float) -> list[float]:
    """Powers of ten from LOW to HIGH, at most about eight of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    step = max(1, math.ceil((last - first) / 7))
    return [10.0**power for power in range(first, last + 1, step)]


def _ticks(low: float, high: float) -> list[float]:
    """Round numbers between LOW and HIGH."""
    if high / low > 100:
        return [tick for tick in decades(low, high) if low <= tick <= high]
    steps = [digit * tick for tick in decades(low, high) for digit in (1, 2, 5)]
    return [tick for tick in steps if low <= tick <= high]


def _wide(values: Sequence[float]) -> tuple[float, float]:
    """The range of VALUES with some room on both sides."""
    low, high = min(values), max(values)
    room = max(1.25, (high / low) ** 0.06)
    return low / room, high * room


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">'
        f'<text class="title" x="12" y="18">{escape(title)}</text>{"".join(parts)}</svg>'
    )
