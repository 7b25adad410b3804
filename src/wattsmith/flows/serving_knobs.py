"""How a model is served, as knobs of which none needs a privilege: levels as they are typed, and what they mean."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.quantity import parse_quantity
from wattsmith.terms.tuning import Level
from wattsmith.tune.serving import Policy

PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
LAYOUTS = ("contiguous", "channels-last")
ON_OR_OFF = {"on": True, "off": False}


class NotAvailable(BadInput):
    """This machine, or this version of PyTorch, cannot be set so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How a model is served."""

    policy: Policy = field(default_factory=Policy)
    precision: str = "fp32"
    layout: str = "contiguous"
    graph: bool = False  # whether the GPU's work is recorded once and replayed
    share: float = 1.0  # of the GPU's multiprocessors
    threads: int | None = None  # of one operator on the CPU; None: as PyTorch has it
    affinity: tuple[int, ...] | None = None  # the cores that may be used; None: all


def _count(level: Level) -> int:
    if isinstance(level, str) or level != int(level) or level < 1:
        raise BadInput(f"it must be a whole number from 1 on, got {level!r}")
    return int(level)


def _seconds(level: Level) -> float:
    if level == 0:
        return 0.0
    try:
        return parse_quantity(str(level), "time")
    except BadTerm as refused:
        raise BadInput(str(refused)) from refused


def _one_of(*words: str) -> Callable[[Level], str]:
    def word(level: Level) -> str:
        if level not in words:
            raise BadInput(f"there is {', '.join(words)}, got {level!r}")
        return str(level)

    return word


def _share(level: Level) -> float:
    text = str(level)
    with suppress(ValueError):
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
        if 0 < share <= 1:
            return share
    raise BadInput(f"it must be a share of the GPU, such as 50% or 0.5, got {level!r}")


def _cores(level: Level) -> tuple[int, ...]:
    """Cores as "0-3", "2" or "0-3+8-11"; commas part levels."""
    found: set[int] = set()
    with suppress(ValueError):
        for part in str(level).split("+"):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    if not found:
        raise BadInput(f"cores are written as 0-3, 2 or 0-3+8-11, got {level!r}")
    return tuple(sorted(found))


_OF_POLICY: Mapping[str, tuple[str, Callable[[Level], Any]]] = {
    "batch": ("batch", _count),
    "concurrency": ("concurrency", _count),
    "wait": ("wait_s", _seconds),
    "pace": ("pace_s", _seconds),
}
_OF_MODEL: Mapping[str, Callable[[Level], Any]] = {
    "precision": _one_of(*PRECISIONS),
    "layout": _one_of(*LAYOUTS),
    "graph": lambda level: ON_OR_OFF[_one_of(*ON_OR_OFF)(level)],
    "share": _share,
    "threads": _count,
    "affinity": _cores,
}
KNOBS = (*_OF_POLICY, *_OF_MODEL)


def how_of(setting: Mapping[str, Level]) -> How:
    """SETTING, levels by the names in KNOBS, as a way to serve; what it does not name is as a person writes first."""
    policy: dict[str, Any] = {}
    rest: dict[str, Any] = {}
    for name, level in setting.items():
        try:
            if name in _OF_POLICY:
                field_name, read = _OF_POLICY[name]
                policy[field_name] = read(level)
            elif name in _OF_MODEL:
                rest[name] = _OF_MODEL[name](level)
            else:
                raise BadInput(f"a served model has no such knob; it has {', '.join(KNOBS)}")
        except BadInput as refused:
            raise BadInput(f"knob {name}: {refused}") from refused
    return How(policy=Policy(**policy), **rest)
