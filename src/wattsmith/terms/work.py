"""Workloads, the settings they run at, what a run cost and what one is predicted to cost."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.machine import Machine

Parameter = str | int | float | bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A piece of machine-learning work, named by its family and the parameters that shape it."""

    family: str  # "cnn", "transformer-encoder", "matmul"
    parameters: Mapping[str, Parameter]
    batch: int
    precision: str = "fp32"  # "fp32", "tf32", "bf16", "fp16"
    mode: str = "train"  # "train": forward, backward and update; "infer": forward alone

    def __post_init__(self) -> None:
        if self.batch < 1:
            raise BadTerm(f"batch must be at least 1, got {self.batch}")
        if self.mode not in ("train", "infer"):
            raise BadTerm(f"mode must be 'train' or 'infer', got {self.mode!r}")


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
class Run:
    """A workload that was run on a machine at a setting, and what each step of it cost."""

    workload: Workload
    machine: Machine
    setting: Setting
    steps: int
    step_s: float  # mean over the steps counted
    windows: tuple[Window, ...]
    peak_memory_bytes: int | None = None
    versions: Mapping[str, str] = field(default_factory=dict)  # package → version

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadTerm(f"steps must be at least 1, got {self.steps}")
        if not 0 < self.step_s < math.inf:
            raise BadTerm(f"step_s must be positive and finite, got {self.step_s}")


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
