"""A simulated `amdsmi`: the functions, dictionaries and exceptions of AMD's binding, on GPUs that are not there.

An instance stands in for the module. Shapes and units follow amdsmi 7.0 (ROCm 7): watts for power, microwatts
for caps, MHz for clocks, bytes for memory, "N/A" for what a GPU does not tell.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, ClassVar

STATUS_NOT_SUPPORTED = 2
STATUS_TIMEOUT = 8
STATUS_NOT_FOUND = 31
STATUS_DRIVER_NOT_LOADED = 34
ENERGY_STEP_UJ = 15.259  # what one count of the accumulator stands for
NOT_TOLD = "N/A"


class AmdSmiException(Exception):
    """Root of the binding's exceptions."""


class AmdSmiLibraryException(AmdSmiException):
    """The library answered with an error code."""

    def __init__(self, err_code: int) -> None:
        super().__init__(err_code)
        self.err_code = err_code

    def get_error_code(self) -> int:
        return self.err_code

    def __str__(self) -> str:
        return f"Error code:\n\t{self.err_code} | simulated"


class AmdSmiParameterException(AmdSmiException):
    """An argument is of the wrong type."""


class AmdSmiInitFlags(IntEnum):
    INIT_AMD_GPUS = 2


class AmdSmiClkType(IntEnum):
    GFX = 0
    MEM = 4


class AmdSmiTemperatureType(IntEnum):
    EDGE = 0
    HOTSPOT = 1


class AmdSmiTemperatureMetric(IntEnum):
    CURRENT = 0


class AmdSmiMemoryType(IntEnum):
    VRAM = 0


@dataclass(slots=True, eq=False)
class SimulatedAmdGpu:
    """One GPU, which is also its own handle. Change its fields to change what it tells."""

    name: str = "AMD Instinct MI300X (simulated)"
    power_w: float = 150.0
    energy_j: float = 5_000.0
    power_key: str | None = "current_socket_power"  # the MI200 fills "average_socket_power"; None: neither
    has_counter: bool = True
    busy_ratio: float = 0.0
    memory_used_bytes: int = 1 << 30
    power_cap_w: float = 750.0
    failures: list[int] = field(default_factory=list)  # error codes, each answered once, before anything else


class SimulatedAmdSmi:
    """Stands in for the module `amdsmi`."""

    SIMULATED: ClassVar = True
    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiParameterException = AmdSmiParameterException
    AmdSmiInitFlags = AmdSmiInitFlags
    AmdSmiClkType = AmdSmiClkType
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiMemoryType = AmdSmiMemoryType

    def __init__(self, gpus: Sequence[SimulatedAmdGpu], *, driver_loaded: bool = True) -> None:
        self.gpus = list(gpus)
        self.users = 0  # how many init calls are not yet followed by a shut down
        self._driver_loaded = driver_loaded

    def advance(self, duration_s: float) -> None:
        """Let time pass: each accumulator gains power × time."""
        for gpu in self.gpus:
            gpu.energy_j += gpu.power_w * duration_s

    def amdsmi_init(self, flag: IntEnum = AmdSmiInitFlags.INIT_AMD_GPUS) -> None:
        _must_be(flag, AmdSmiInitFlags)
        if not self._driver_loaded:
            raise AmdSmiLibraryException(STATUS_DRIVER_NOT_LOADED)
        self.users += 1

    def amdsmi_shut_down(self) -> None:
        self.users -= 1

    def amdsmi_get_processor_handles(self) -> list[SimulatedAmdGpu]:
        return list(self.gpus)

    def amdsmi_get_gpu_asic_info(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        return {"market_name": _asked(processor_handle).name, "vendor_id": "0x1002"}

    def amdsmi_get_energy_count(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        gpu = _asked(processor_handle)
        counted = round(gpu.energy_j * 1_000_000 / ENERGY_STEP_UJ) if gpu.has_counter else 0
        return {"energy_accumulator": counted, "counter_resolution": ENERGY_STEP_UJ, "timestamp": 0}

    def amdsmi_get_power_info(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        gpu = _asked(processor_handle)
        told = dict.fromkeys(["socket_power", "current_socket_power", "average_socket_power", "gfx_voltage"], NOT_TOLD)
        watts = {} if gpu.power_key is None else {gpu.power_key: round(gpu.power_w)}
        return told | watts | {"power_limit": round(gpu.power_cap_w * 1_000_000)}

    def amdsmi_get_power_cap_info(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        cap_uw = round(_asked(processor_handle).power_cap_w * 1_000_000)
        return {"power_cap": cap_uw, "default_power_cap": cap_uw, "min_power_cap": 0, "max_power_cap": cap_uw}

    def amdsmi_get_gpu_activity(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        busy = round(_asked(processor_handle).busy_ratio * 100)
        return {"gfx_activity": busy, "umc_activity": busy // 2, "mm_activity": NOT_TOLD}

    def amdsmi_get_gpu_memory_usage(self, processor_handle: SimulatedAmdGpu, mem_type: IntEnum) -> int:
        _must_be(mem_type, AmdSmiMemoryType)
        return _asked(processor_handle).memory_used_bytes

    def amdsmi_get_clock_info(self, processor_handle: SimulatedAmdGpu, clock_type: IntEnum) -> dict[str, Any]:
        _must_be(clock_type, AmdSmiClkType)
        _asked(processor_handle)
        clock_mhz = 2_100 if clock_type is AmdSmiClkType.GFX else 1_300
        return {"clk": clock_mhz, "min_clk": 132, "max_clk": clock_mhz, "clk_locked": False}

    def amdsmi_get_temp_metric(
        self,
        processor_handle: SimulatedAmdGpu,
        sensor_type: IntEnum,
        metric: IntEnum,
    ) -> int:
        _must_be(sensor_type, AmdSmiTemperatureType)
        _must_be(metric, AmdSmiTemperatureMetric)
        _asked(processor_handle)
        if sensor_type is AmdSmiTemperatureType.EDGE:
            raise AmdSmiLibraryException(STATUS_NOT_SUPPORTED)  # as on the MI300
        return 55


def _must_be(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise AmdSmiParameterException(f"expected {kind.__name__}, got {type(value).__name__}")


def _asked(handle: SimulatedAmdGpu) -> SimulatedAmdGpu:
    _must_be(handle, SimulatedAmdGpu)
    if handle.failures:
        raise AmdSmiLibraryException(handle.failures.pop(0))
    return handle
