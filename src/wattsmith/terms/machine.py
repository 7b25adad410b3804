"""A machine: what it has, what it can be measured with, and how it was found."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattsmith.terms.energy import MeterCard


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, or one MIG instance of one, as its driver describes it."""

    domain: str  # "gpu:0", or "gpu:0/mig:1"
    name: str
    uuid: str
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    max_clock_hz: float | None = None
    max_memory_clock_hz: float | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeReading:
    """How a device was at one moment. None: this device does not tell."""

    time_s: float
    domain: str
    busy_ratio: float | None = None  # share of recent time with any work on it
    memory_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    throttled_by: tuple[str, ...] | None = None  # () when it runs freely
    power_limit_w: float | None = None
    read_bytes: int | None = None  # since the measurement began
    written_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What this machine is and can be measured with."""

    hostname: str
    system: str  # kernel and distribution
    cpu: str
    cpu_count: int
    memory_bytes: int
    gpus: tuple[Gpu, ...] = ()
    driver: str | None = None  # of the GPUs
    meters: tuple[MeterCard, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # kind of meter → why, and what to do

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus) or any(meter.simulated for meter in self.meters)
