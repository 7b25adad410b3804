"""Quantities with units, read and written in one place: "250W", "1.2kJ", "20min", "8GiB"."""

import re
from collections.abc import Mapping

from wattsmith.terms.errors import BadTerm

_SI = {"n": 1e-9, "u": 1e-6, "µ": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15}
_BINARY = {"Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50}
_NUMBER = re.compile(r"\s*([+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(\S*)\s*")


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
        raise BadTerm(f"{text!r} is not a {kind}: write a number and a unit, such as {_example(kind)}")
    number, unit = matched.groups()
    if not unit:
        raise BadTerm(f"{text!r} has no unit: write {text.strip()}{_BASE_UNIT[kind]} if that is what you mean")
    if unit not in units:
        raise BadTerm(f"{text!r} is not a {kind}: {_why_unit_is_wrong(unit, kind)}")
    return float(number.replace("_", "")) * units[unit]


def _why_unit_is_wrong(unit: str, kind: str) -> str:
    other = next((name for name, units in UNITS.items() if unit in units), None)
    if other is not None:
        return f"{unit} is a unit of {other}; write for instance {_example(kind)}"
    spelled = next((known for known in UNITS[kind] if known.lower() == unit.lower()), None)
    if spelled is not None:
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
    """VALUE (in the SI unit of KIND) for people, with DIGITS significant digits; None is "unknown"."""
    if value is None:
        return "unknown"
    if kind == "memory":
        prefixes, unit = {"": 1.0, **_BINARY}, "B"
    elif kind == "time" and abs(value) >= 120:
        return _format_long_time(value)
    else:
        prefixes, unit = {p: f for p, f in _SI.items() if p not in ("u",)}, _BASE_UNIT[kind]
        if kind == "time":
            prefixes = {p: f for p, f in prefixes.items() if f <= 1}
    prefix = max((p for p in prefixes if abs(value) >= prefixes[p] * 0.9995), key=prefixes.__getitem__, default="")
    return f"{value / prefixes[prefix]:.{digits}g} {prefix}{unit}"


def _format_long_time(seconds: float) -> str:
    sign = "-" if seconds < 0 else ""
    minutes, rest_s = divmod(round(abs(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{sign}{hours} h {minutes:02d} min" if hours else f"{sign}{minutes} min {rest_s:02d} s"
