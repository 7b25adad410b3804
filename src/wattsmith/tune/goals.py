"""What is to be least, and what must hold: "energy" under "latency_p99<=50ms" and "slowdown<=10%"."""

import math
import numbers
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.quantity import UNITS, format_quantity, parse_quantity

SUFFIXES = {"time": "_s", "energy": "_j", "power": "_w", "memory": "_bytes", "frequency": "_hz"}
PRODUCT = "*"  # between the metrics of an objective, such as "time_per_epoch*average_power"
# An objective is a product of metrics, so that its logarithm is a sum.
OBJECTIVES: Mapping[str, tuple[str, ...]] = {
    "energy": ("energy",),
    "time": ("time",),
    "cost": ("cost",),
    "energy-delay": ("energy", "time"),
}
_WRITTEN = re.compile(r"\s*([A-Za-z][\w./-]*)\s*(<=|>=|≤|≥|==|=|<|>)\s*(.*?)\s*")
_BOUNDS = {"<=": "at most", "≤": "at most", ">=": "at least", "≥": "at least"}
_NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_TIMES = re.compile(rf"({_NUMBER})\s*[x×]")
_SHARE = re.compile(rf"({_NUMBER})\s*%")
_ENDS_WITH_UNIT = re.compile(r"(.+?)(_s|_j|_w|_bytes|_hz)")


class MetricMissing(BadInput):
    """A metric that is needed was not given, or is no number one can use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A metric that must not go beyond a value: in SI units, or as a multiple of what the present setting gives."""

    metric: str  # without its unit: "latency_p99"
    bound: str  # "at most" or "at least"
    value: float
    relative: bool = False  # VALUE is a multiple of the present setting's
    kind: str | None = None  # of quantity; None: a plain number

    def __post_init__(self) -> None:
        if self.bound not in ("at most", "at least"):
            raise BadTerm(f"bound must be 'at most' or 'at least', got {self.bound!r}")
        if not 0 < self.value < math.inf:
            raise BadTerm(f"a limit on {self.metric} must be positive and finite, got {self.value:g}")

    def __str__(self) -> str:
        if self.relative:
            return f"{self.metric} {self.bound} {self.value:g} × the present"
        told = format_quantity(self.value, self.kind) if self.kind else f"{self.value:g}"
        return f"{self.metric} {self.bound} {told}"


def parse_limit(text: str) -> Limit:
    """TEXT as a limit: "latency_p99<=50ms", "power<=300W", "throughput>=100", "latency<=1.1x", "slowdown<=10%"."""
    matched = _WRITTEN.fullmatch(text)
    if matched is None:
        raise BadInput(f'limit {text!r} is not understood: write a metric, <= and a value, as "latency_p99<=50ms"')
    name, sign, written = matched.groups()
    if sign not in _BOUNDS:
        meant = ">=" if sign == ">" else "<="
        raise BadInput(f'limit {text!r} uses {sign!r}: write "{name}{meant}{written}"')
    if not written:
        raise BadInput(f'limit {text!r} has no value: write for instance "{name}{sign}50ms"')
    try:
        if name == "slowdown":
            return _slowdown(_BOUNDS[sign], written, text)
        return _limit(_without_unit(name), _BOUNDS[sign], written)
    except BadTerm as refused:
        raise BadInput(f"limit {text!r}: {refused}") from refused


def _slowdown(bound: str, written: str, text: str) -> Limit:
    share = _SHARE.fullmatch(written)
    if share is None or bound != "at most":
        raise BadInput(f'limit {text!r}: slowdown is a share of the present time, such as "slowdown<=10%"')
    return Limit(metric="time", bound=bound, value=1 + float(share[1]) / 100, relative=True)


def _limit(name: str, bound: str, written: str) -> Limit:
    if times := _TIMES.fullmatch(written):
        return Limit(metric=name, bound=bound, value=float(times[1]), relative=True)
    if share := _SHARE.fullmatch(written):
        raise BadTerm(f"{share[0]} of what? Write {1 + float(share[1]) / 100:g}x for a multiple of the present")
    if re.fullmatch(_NUMBER, written):
        return Limit(metric=name, bound=bound, value=float(written))
    unit = re.sub(rf"^\s*{_NUMBER}\s*", "", written)
    kind = next((kind for kind, units in UNITS.items() if unit in units), None)
    if kind is None:
        raise BadTerm(f"{written!r} is neither a number, a multiple (1.1x) nor a quantity (50ms, 300W, 8GiB)")
    return Limit(metric=name, bound=bound, value=parse_quantity(written, kind), kind=kind)


def _without_unit(name: str) -> str:
    matched = _ENDS_WITH_UNIT.fullmatch(name)
    return matched[1] if matched else name


def parse_limits(limits: str | Sequence[str | Limit]) -> tuple[Limit, ...]:
    """LIMITS, one or several, that can hold together."""
    limits = (limits,) if isinstance(limits, str) else limits
    parsed = tuple(dict.fromkeys(parse_limit(one) if isinstance(one, str) else one for one in limits))
    for one in parsed:
        for other in parsed:
            if one is other or (one.metric, one.relative) != (other.metric, other.relative):
                continue
            if one.bound == other.bound:
                raise BadInput(f"{one.metric} is limited twice: {one}, and {other}. Keep one of them")
            if one.bound == "at least" and one.value > other.value:
                raise BadInput(f"no setting can keep both: {one}, and {other}. Loosen one of them")
    return parsed


def parse_objective(text: str) -> tuple[str, ...]:
    """The metrics whose product is to be least: a known goal, a metric, or several with * between them."""
    names = [one.strip() for one in text.split(PRODUCT)]
    if not all(names):
        raise BadInput(f"{text!r} cannot be least: name a metric, or several as in time*power")
    return tuple(metric for name in names for metric in OBJECTIVES.get(name, (_without_unit(name),)))


def figure(metrics: Mapping[str, float], name: str, kind: str | None = None) -> float:
    """The metric called NAME, with or without its unit. Raises MetricMissing when it is absent, NaN or not positive."""
    suffixes = [SUFFIXES[kind]] if kind else SUFFIXES.values()
    for spelled in (name, *(name + suffix for suffix in suffixes)):
        if spelled in metrics:
            value = metrics[spelled]
            if not is_number(value) or not 0 < value < math.inf:
                raise MetricMissing(f"{spelled} must be a positive number, got {value!r}")
            return float(value)
    other = next((unit for unit, suffix in SUFFIXES.items() if name + suffix in metrics), None)
    if other is not None:
        raise MetricMissing(f"{name} is limited as a {kind}, but {name + SUFFIXES[other]} is a {other}")
    known = ", ".join(map(str, metrics)) or "nothing"
    raise MetricMissing(f"there is no metric {name}; what came is {known}")


def is_number(value: object) -> bool:
    """Whether VALUE is a real number of any kind, numpy's too; yes and no are none."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def value_of(metrics: Mapping[str, float], objective: Sequence[str]) -> float:
    """The objective: the product of its metrics."""
    return math.prod(figure(metrics, name) for name in objective)
