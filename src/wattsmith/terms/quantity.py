"""Quantities with units, read and written in one place: "250W", "1.2kJ", "20min", "8GiB"."""

import math
import re
from collections.abc import Mapping

from wattsmith.terms.errors import BadTerm

_WRITTEN = {"n": 1e-9, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_SI = {**_WRITTEN, "u": 1e-6, "\N{GREEK SMALL LETTER MU}": 1e-6}  # what keyboards give for µ
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_NUMBER = re.compile(r"\s*([+-]?(?:\d+(?:_\d+)*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


def _with_prefixes(unit: str, prefixes: Mapping[str, float] = _SI) -> dict[str, float]:
    return {prefix + unit: factor for prefix, factor in prefixes.items()}


# What each kind of quantity may be written in, as a factor to its SI unit (bytes for memory).
UNITS: Mapping[str, Mapping[str, float]] = {
    "power": _with_prefixes("W"),
    "energy": {
        **_with_prefixes("J"),
        **{prefix + "Wh": factor * 3600 for prefix, factor in _SI.items()},
    },
    "time": {
        **_with_prefixes("s", {prefix: f for prefix, f in _SI.items() if f <= 1}),
        "sec": 1.0,
        "min": 60.0,
        "h": 3600.0,
        "d": 86400.0,
    },
    "frequency": _with_prefixes("Hz"),
    "memory": {
        **_with_prefixes("B", {prefix: f for prefix, f in _SI.items() if f >= 1}),
        **_with_prefixes("B", _BINARY),
    },
}
_BASE_UNIT = {"power": "W", "energy": "J", "time": "s", "frequency": "Hz", "memory": "B"}


def parse_quantity(text: str, kind: str) -> float:
    """TEXT as a number in the SI unit of KIND ("power", "energy", "time", "frequency", "memory").

    A unit must be written: "250" alone could be watts or milliwatts, so it is refused.
    """
    units = UNITS[kind]
    matched = _NUMBER.fullmatch(text)
    if matched is None:
        raise BadTerm(f"{text!r} is not a quantity of {kind}: write a number and a unit, such as {_example(kind)}")
    number, unit = matched.groups()
    if not unit:
        raise BadTerm(f"{text!r} has no unit: write {text.strip()}{_BASE_UNIT[kind]} if that is what you mean")
    if unit not in units:
        raise BadTerm(f"{text!r} is not a quantity of {kind}: {_why_unit_is_wrong(unit, kind)}")
    value = float(number) * units[unit]
    if not math.isfinite(value):
        raise BadTerm(f"{text!r} is too large a number")
    return value


def _why_unit_is_wrong(unit: str, kind: str) -> str:
    other = next((name for name, units in UNITS.items() if unit in units), None)
    if other is not None:
        return f"{unit} is a unit of {other}; write for instance {_example(kind)}"
    spelled = " or ".join(known for known in UNITS[kind] if known.lower() == unit.lower())
    if spelled:
        return f"the unit {unit!r} is spelled {spelled}"
    return f"the unit {unit!r} is not known; write for instance {_example(kind)}"


def _example(kind: str) -> str:
    return {
        "power": "250W or 1.2kW",
        "energy": "500J or 1.2kWh",
        "time": "50ms or 20min",
        "frequency": "1.41GHz",
        "memory": "8GiB or 512MB",
    }[kind]


def format_quantity(value: float | None, kind: str, digits: int = 4) -> str:
    """VALUE (in the SI unit of KIND) for people, with DIGITS significant digits.

    None, and a number that is not finite, is "unknown". Two minutes and more are written in minutes and
    seconds, an hour and more in hours and minutes, whatever DIGITS says.
    """
    if value is None or not math.isfinite(value):
        return "unknown"
    if kind == "time" and abs(value) >= 120:
        return _format_long_time(value)
    if kind == "memory":
        prefixes = {"": 1.0, **_BINARY}
    elif kind == "time":
        prefixes = {prefix: factor for prefix, factor in _WRITTEN.items() if factor <= 1}
    else:
        prefixes = _WRITTEN
    rounded = _rounded(value, digits)
    prefix = max((p for p in prefixes if abs(rounded) >= prefixes[p]), key=prefixes.__getitem__, default="")
    return f"{_rounded(value / prefixes[prefix], digits):.15g} {prefix}{_BASE_UNIT[kind]}"


def _rounded(number: float, digits: int) -> float:
    return float(f"{number:.{digits}g}")


def _format_long_time(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    minutes, rest_s = divmod(round(abs(seconds)), 60)
    if minutes < 60:
        return f"{sign}{minutes} min {rest_s:02d} s"
    hours, minutes = divmod(round(abs(seconds) / 60), 60)
    return f"{sign}{hours} h {minutes:02d} min"
