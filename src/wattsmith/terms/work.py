"""Workloads, the settings they run at, and what one is predicted to cost."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

from wattsmith.terms.errors import BadTerm

Parameter = str | int | float | bool

_CHOICES = {
    "kind": ("network", "operator"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "mode": ("train", "infer"),
    "layout": ("contiguous", "channels-last"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A piece of machine-learning work: its family, the parameters that shape it, and how it is run."""

    family: str  # "cnn", "transformer-encoder", "matmul"
    parameters: Mapping[str, Parameter]
    batch: int
    kind: str = "network"  # "network": a whole step; "operator": one operator, with its backward when it trains
    precision: str = "fp32"
    mode: str = "train"  # "train": forward, backward and update; "infer": forward alone
    layout: str = "contiguous"  # or "channels-last"
    compiled: bool = False
    optimizer: str | None = None  # "sgd", "adamw", …; None: nothing is updated
    accumulation: int = 1  # forward and backward passes per update
    devices: int = 1  # data-parallel replicas

    def __post_init__(self) -> None:
        for name in ("batch", "accumulation", "devices"):
            if getattr(self, name) < 1:
                raise BadTerm(f"{name} must be at least 1, got {getattr(self, name)}")
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in allowed:
                raise BadTerm(f"{name} must be {' or '.join(map(repr, allowed))}, got {getattr(self, name)!r}")

    @property
    def key(self) -> str:
        """Names this workload and no other, on every machine."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        facts["parameters"] = dict(sorted(self.parameters.items()))
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What can be turned on a machine. None: left as found."""

    power_limit_w: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    cpu_clock_hz: float | None = None
    threads: int | None = None
    concurrency: int | None = None

    def __post_init__(self) -> None:
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadTerm(f"{name} must be positive and finite, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A predicted value with the range that should hold the truth nine times out of ten."""

    value: float
    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.value <= self.high:
            raise BadTerm(f"{self.value} lies outside its own interval {self.low} … {self.high}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What a workload should cost on a machine. None: not predicted."""

    step_s: Interval | None = None
    memory_bytes: Interval | None = None
    power_w: Interval | None = None
    step_energy_j: Interval | None = None
    from_runs: int = 0  # how many recorded runs it rests on; 0 means a formula alone
    inside_record: bool = False  # whether what was measured surrounds it
    why_doubtful: str | None = None  # why the intervals are wide, when they are

    def __post_init__(self) -> None:
        for name in ("step_s", "memory_bytes", "power_w", "step_energy_j"):
            interval = getattr(self, name)
            if interval is not None and interval.low < 0:
                raise BadTerm(f"{name} cannot be below zero, but its interval begins at {interval.low}")
        if self.from_runs < 0:
            raise BadTerm(f"from_runs must not be negative, got {self.from_runs}")
        if self.inside_record and self.from_runs == 0:
            raise BadTerm("a prediction from no recorded runs cannot lie inside the record")
