"""What a user will not go beyond, and what is to be least: "gpus<=2", "epoch<=20min", "memory<=16GiB"."""

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.quantity import UNITS, format_quantity, parse_quantity

# What can be limited, and the kind of quantity it is.
LIMITED: Mapping[str, str] = {
    "gpus": "count",  # devices used at once
    "batch": "count",  # samples per step, on all devices
    "step": "time",
    "epoch": "time",
    "job": "time",  # all epochs
    "memory": "memory",  # of each device
    "power": "power",  # mean, all devices together
    "energy": "energy",  # of the job, all devices together
    "cost": "number",  # of the job, in the currency of the prices
}
OBJECTIVES = ("gpus", "energy", "time", "cost", "memory")
MEANT = {"devices": "gpus", "gpu": "gpus", "mem": "memory", "ram": "memory", "price": "cost", "watts": "power"}
_WRITTEN = re.compile(r"\s*([A-Za-z_]*)\s*(<=|>=|≤|≥|==|=|<|>)\s*(.*?)\s*")
_BOUNDS = {"<=": "at most", "≤": "at most", ">=": "at least", "≥": "at least"}
_EXAMPLES = {
    "count": "2",
    "number": "10",
    "time": "20min",
    "memory": "16GiB",
    "power": "500W",
    "energy": "2kWh",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A figure that must not go beyond a value, in SI units (bytes for memory)."""

    name: str
    bound: str  # "at most" or "at least"
    value: float

    def __post_init__(self) -> None:
        if self.name not in LIMITED:
            raise BadTerm(f"{self.name!r} cannot be limited; what can is {', '.join(LIMITED)}")
        if self.bound not in ("at most", "at least"):
            raise BadTerm(f"bound must be 'at most' or 'at least', got {self.bound!r}")
        if not 0 < self.value < math.inf:
            raise BadTerm(f"a limit on {self.name} must be positive and finite, got {self.value}")

    def __str__(self) -> str:
        return f"{self.name} {self.bound} {format_figure(self.value, self.name)}"

    def excess_ratio(self, figure: float) -> float:
        """By how much FIGURE goes beyond this limit, as a share of it: 0.1 is ten per cent. Not positive: it holds."""
        beyond = figure / self.value - 1
        return beyond if self.bound == "at most" else -beyond


def format_figure(value: float | None, name: str) -> str:
    """VALUE of what is called NAME among the limits, for people."""
    kind = LIMITED[name]
    if kind in UNITS:
        return format_quantity(value, kind)
    return "unknown" if value is None else f"{value:.6g}"


def parse_limit(text: str) -> Limit:
    """TEXT as a limit. Raises BadInput that says what is wrong and what to write."""
    matched = _WRITTEN.fullmatch(text)
    if matched is None:
        raise BadInput(f'limit {text!r} is not understood: write a name, <= and a value, such as "gpus<=2"')
    name, sign, written = matched.groups()
    name = _known_name(name, text)
    if sign not in _BOUNDS:
        meant = ">=" if sign == ">" else "<="
        raise BadInput(f'limit {text!r} uses {sign!r}: write "{name}{meant}{written or _EXAMPLES[LIMITED[name]]}"')
    if not written:
        raise BadInput(f'limit {text!r} has no value: write for instance "{name}{sign}{_EXAMPLES[LIMITED[name]]}"')
    try:
        return Limit(name=name, bound=_BOUNDS[sign], value=_value(written, name))
    except BadTerm as refused:
        raise BadInput(f"limit {text!r}: {refused}") from refused


def parse_limits(texts: Sequence[str]) -> tuple[Limit, ...]:
    """TEXTS as limits that can hold together."""
    limits = tuple(parse_limit(text) for text in texts)
    first: dict[tuple[str, str], str] = {}
    for limit, text in zip(limits, texts, strict=True):
        before = first.setdefault((limit.name, limit.bound), text)
        if before != text:
            raise BadInput(f"{limit.name} is limited twice, by {before!r} and {text!r}: keep one of them")
    for name in dict.fromkeys(limit.name for limit in limits):
        _check_room(name, {limit.bound: limit.value for limit in limits if limit.name == name})
    _check_times({limit.name: limit for limit in limits if limit.bound == "at most"}, limits)
    return tuple(dict.fromkeys(limits))


def parse_objective(text: str) -> str:
    """TEXT as the name of what is to be least."""
    name = text.strip().lower()
    name = MEANT.get(name, name)
    if name in OBJECTIVES:
        return name
    if name in ("step", "epoch", "job"):
        raise BadInput(f"{text!r} cannot be minimised by itself: write time, which is least when each of them is")
    raise BadInput(f"{text!r} cannot be minimised{_perhaps(name, OBJECTIVES)}; what can is {', '.join(OBJECTIVES)}")


def _known_name(name: str, text: str) -> str:
    known = MEANT.get(name.lower(), name.lower())
    if known in LIMITED:
        return known
    if known == "time":
        raise BadInput(f"limit {text!r}: time of what? Write step, epoch or job")
    if not known:
        raise BadInput(f'limit {text!r} does not say what is limited: write for instance "gpus<=2"')
    raise BadInput(
        f"limit {text!r}: {name!r} cannot be limited{_perhaps(known, LIMITED)}; what can is {', '.join(LIMITED)}"
    )


def _perhaps(name: str, known: Sequence[str] | Mapping[str, str]) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {near[0]}?)" if near else ""


def _value(written: str, name: str) -> float:
    kind = LIMITED[name]
    if kind in UNITS:
        return parse_quantity(written, kind)
    try:
        number = float(written)
    except ValueError:
        what = "a whole number" if kind == "count" else "a number, in the currency of the prices"
        raise BadTerm(f"{name} is {what} without a unit, not {written!r}") from None
    if kind == "count" and not number.is_integer():
        raise BadTerm(f"{name} is a whole number, not {written}")
    return number


def _check_room(name: str, bounds: Mapping[str, float]) -> None:
    most, least = bounds.get("at most", math.inf), bounds.get("at least", 0.0)
    if least > most:
        told = f"at least {format_figure(least, name)} and at most {format_figure(most, name)}"
        raise BadInput(f"no {name} can be {told}: loosen one of the two limits")


def _check_times(most: Mapping[str, Limit], limits: Sequence[Limit]) -> None:
    """A step is no longer than an epoch, and an epoch than a job; so a longer one must not be asked of a shorter."""
    order = ("step", "epoch", "job")
    for limit in limits:
        if limit.bound == "at least" and limit.name in order:
            for longer in order[order.index(limit.name) + 1 :]:
                if longer in most and most[longer].value < limit.value:
                    raise BadInput(f"{limit} contradicts {most[longer]}: loosen one of the two")
