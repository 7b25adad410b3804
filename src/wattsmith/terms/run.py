"""A run: a workload on a device at a setting, how it was built, how long it took and what it consumed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Parameter, Setting, Workload

HOST_BOUND_BELOW = 0.9  # share of a step in which a device must be busy to set the pace


class Status(StrEnum):
    """How a run ended. All of them are results."""

    MEASURED = "measured"
    OUT_OF_MEMORY = "out of memory"
    CRASHED = "crashed"
    HUNG = "hung"
    KILLED = "killed"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCount:
    """What one class of operators does in one step."""

    calls: int
    flops: float
    moved_bytes: float  # inputs read once, outputs written once


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorCall:
    """One operator on tensors of certain shapes, as often as a step calls it so."""

    operator: str  # as aten calls it: "convolution", "mm"
    kind: str  # its class: "conv", "grouped-conv", "matmul", "norm", …
    dtype: str  # of the first input that has fractions: "float32", "bfloat16"; else of the first input
    shapes: tuple[tuple[int, ...], ...]  # of the tensors that go in; of an update over many tensors, all of it in one
    options: Mapping[str, Parameter] = field(default_factory=dict)  # what else decides its cost: "stride", "groups"
    calls: int = 1
    flops: float = 0.0  # of all calls together, as the two that follow
    moved_bytes: float = 0.0
    busy_s: float | None = None  # time in the device's kernels; None: not measured


@dataclass(frozen=True, slots=True, kw_only=True)
class Structure:
    """What one step of a workload does, found without running it."""

    parameters: int  # trainable
    parameter_bytes: int
    input_bytes: int  # one batch
    flops: float
    moved_bytes: float
    launches: int  # operators that reach the device
    peak_bytes: int  # largest sum of live tensors
    conv_layers: int = 0
    dense_layers: int = 0
    recurrent_layers: int = 0  # each way of each; cells that a program steps through by itself, once a step
    conv_strength: float = 0.0  # sum over convolutional layers of filters times depth before them
    dense_strength: float = 0.0  # sum over dense layers of nodes times nodes before them
    operators: Mapping[str, OperatorCount] = field(default_factory=dict)  # by class: "conv", "matmul", "norm", …

    @property
    def intensity(self) -> float | None:
        """Floating-point operations per byte moved; None when nothing moves."""
        return self.flops / self.moved_bytes if self.moved_bytes else None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """How long steps took. The first is kept apart: it holds compiling and loading."""

    steps: int  # how many were counted, without the first
    mean_s: float
    median_s: float
    spread_s: float  # standard deviation
    error_ratio: float  # half of the 95 % interval of the mean, over the mean
    first_s: float
    busy_s: float | None = None  # per step, time in which the device ran a kernel; None: not profiled
    host_s: float | None = None  # per step, until the host has queued it on an idle device; None: it queues nothing
    input_s: float | None = None  # per step, time spent on input, which is not in mean_s; None: none was read

    @property
    def host_bound(self) -> bool | None:
        """Whether the device waited for the host most of the time; None: not profiled.

        Such a step goes at the pace of that host at that moment, which may be half or double another time, whatever
        error_ratio says of this one. busy_s repeats.
        """
        return None if self.busy_s is None else self.busy_s < HOST_BOUND_BELOW * self.mean_s

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise BadTerm(f"steps must be at least 1, got {self.steps}")
        if not 0 < self.mean_s < math.inf:
            raise BadTerm(f"mean_s must be positive and finite, got {self.mean_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumption:
    """What the steps consumed. None: unknown on that machine."""

    window_s: float  # how long energy was measured
    step_energy_j: float | None = None
    step_energy_error_j: float | None = None
    power_w: float | None = None  # mean over the window, of all devices of the run
    energy_source: Source | None = None
    peak_tensor_bytes: int | None = None  # largest sum of live tensors, as the framework counts
    peak_held_bytes: int | None = None  # largest sum that its allocator held
    storage_bytes: int | None = None  # of the trained parameters
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """How the device was while it ran. None: it does not tell."""

    busy_ratio: float | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    throttled_by: tuple[str, ...] | None = None
    # How busy parts of the chip were over the window, as activity counters tell; `terms.telemetry.ACTIVITIES`.
    engine_ratio: float | None = None
    sm_ratio: float | None = None
    occupancy_ratio: float | None = None
    tensor_ratio: float | None = None
    dram_ratio: float | None = None
    fp64_ratio: float | None = None
    fp32_ratio: float | None = None
    fp16_ratio: float | None = None
    integer_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """The type of device that a run was on."""

    name: str  # "NVIDIA H200", or the model of the CPU
    kind: str  # "cuda" or "cpu"
    memory_bytes: int | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """Who measured it, where, when and with what."""

    measured_at: str  # ISO 8601 with zone
    session: str  # names one `record run`
    hostname: str
    device_id: str | None = None  # of the very device: the UUID of a GPU
    driver: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)  # "torch" → "2.13.0"


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One point of the record."""

    workload: Workload
    device: Device
    setting: Setting
    status: Status
    provenance: Provenance
    reason: str | None = None  # why it was not measured
    structure: Structure | None = None
    times: StepTimes | None = None
    consumption: Consumption | None = None
    condition: Condition | None = None
    dataset_size: int | None = None  # samples in the data set that it stands for
    input_shape: tuple[int, ...] = ()  # of one sample
    calls: tuple[OperatorCall, ...] = ()  # what one step called, seen live; empty: nobody looked

    def __post_init__(self) -> None:
        if self.status is Status.MEASURED and (self.times is None or self.consumption is None):
            raise BadTerm(f"a measured run of {self.workload.family} must have times and consumption")
        if self.status is not Status.MEASURED and self.reason is None:
            raise BadTerm(f"a run of {self.workload.family} that ended as {self.status!s} must say why")
