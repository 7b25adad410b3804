"""Figures, times and states in the page's words. What is not known is said to be unknown."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from markupsafe import Markup, escape

from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.work import Setting

UNKNOWN = Markup('<span class="unknown">unknown</span>')
DIGITS = 3
FIRST_S, LAST_S = 0.0, 253_402_300_799.0  # of times since 1970 that a calendar has: up to the year 9999
_AGES = ((86400.0, "d"), (3600.0, "h"), (60.0, "min"))
_TURNED = (
    ("power_limit_w", "power", "limit"),
    ("clock_hz", "frequency", "clock"),
    ("memory_clock_hz", "frequency", "memory clock"),
    ("cpu_clock_hz", "frequency", "CPU clock"),
)


def field(fact: Any, name: str) -> Any:
    """A field of a fact, or of its plain form; None where there is none."""
    return fact.get(name) if isinstance(fact, Mapping) else getattr(fact, name, None)


def quantity(value: float | None, kind: str, digits: int = DIGITS) -> str:
    """VALUE with its unit."""
    return UNKNOWN if value is None else escape(format_quantity(value, kind, digits))


def interval(found: Any, kind: str) -> str:
    """An Interval, or its plain form: the value, and the range that holds it nine times of ten."""
    if found is None:
        return UNKNOWN
    low, high = (format_quantity(field(found, name), kind, DIGITS) for name in ("low", "high"))
    value = format_quantity(field(found, "value"), kind, DIGITS)
    if low == high:
        return escape(value)
    return Markup('<span class="value">{}</span> <span class="range" title="nine times of ten">{} … {}</span>').format(
        value, low, high
    )


def ratio(value: float | None, digits: int = 0) -> str:
    # Adding 0.0 takes the sign from a zero.
    return UNKNOWN if value is None else escape(f"{round(100 * value, digits) + 0.0:.{digits}f} %")


def number(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return escape(f"{value:,.0f}" if value == int(value) else f"{value:,.3g}")


def date_of(time_s: float) -> datetime:
    """In UTC; what no calendar has is at the nearest end of it."""
    return datetime.fromtimestamp(min(max(time_s, FIRST_S), LAST_S), UTC)


def stamp(time_s: float) -> str:
    """For people, in UTC."""
    return date_of(time_s).strftime("%Y-%m-%d %H:%M:%S UTC")


def age(seconds: float) -> str:
    """Roughly how long: "12 s", "3 min", "2 d"."""
    return next((f"{seconds / each:.0f} {unit}" for each, unit in _AGES if seconds >= each), f"{seconds:.0f} s")


def when(time_s: float | None, now_s: float) -> str:
    """How long ago, or in how long; page.js keeps it true."""
    if time_s is None:
        return UNKNOWN
    away_s = now_s - time_s
    text = f"{age(away_s)} ago" if away_s >= 0 else f"in {age(-away_s)}"
    exact = date_of(time_s).isoformat(timespec="seconds")
    return Markup('<time datetime="{}" title="{}" data-age>{}</time>').format(exact, stamp(time_s), text)


def setting(chosen: Any) -> str:
    """What a Setting, or its plain form, turns; "as found" where it turns nothing."""
    if chosen is None:
        return UNKNOWN
    turned = [
        f"{word} {format_quantity(field(chosen, name), kind, DIGITS)}"
        for name, kind, word in _TURNED
        if field(chosen, name) is not None
    ]
    counted = [f"{field(chosen, name)} {name}" for name in ("threads", "concurrency") if field(chosen, name)]
    return escape(", ".join([*turned, *counted]) or "as found")


def is_as_found(chosen: Any) -> bool:
    return all(field(chosen, name) is None for name in Setting.__dataclass_fields__)


FILTERS = {
    "interval": interval,
    "number": number,
    "quantity": quantity,
    "ratio": ratio,
    "setting": setting,
    "stamp": stamp,
}
