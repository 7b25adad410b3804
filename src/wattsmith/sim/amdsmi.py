"""A simulated `amdsmi`: the functions, dictionaries and exceptions of AMD's binding, on GPUs that are not there.

An instance stands in for the module. Shapes and units follow amdsmi 7.0 (ROCm 7): watts for power, microwatts
for caps, MHz for clocks, bytes for memory, "N/A" for what a GPU does not tell. `write_module` makes one that other
processes can import, with the power caps in a file that they share.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

STATUS_INVALID = 1
STATUS_NOT_SUPPORTED = 2
STATUS_TIMEOUT = 8
STATUS_NO_PERMISSION = 10
STATUS_NOT_FOUND = 31
STATUS_DRIVER_NOT_LOADED = 34
ENERGY_STEP_UJ = 15.259  # what one count of the accumulator stands for
NOT_TOLD = "N/A"
CLOCKS_MHZ = (132, 2_100)  # of an MI300X


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
    SYS = 0
    MEM = 4


class AmdSmiDevPerfLevel(IntEnum):
    AUTO = 0
    HIGH = 2
    MANUAL = 3


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
    least_cap_w: float = 0.0
    most_cap_w: float | None = None  # the default too; None: whatever the cap is
    uuid: str = "00ff74a0-0000-1000-8000-000000000000"
    process_ids: tuple[int, ...] = ()
    failures: list[int] = field(default_factory=list)  # error codes, each answered once, before anything else


class SimulatedAmdSmi:
    """Stands in for the module `amdsmi`."""

    SIMULATED: ClassVar = True
    AmdSmiException = AmdSmiException
    AmdSmiLibraryException = AmdSmiLibraryException
    AmdSmiParameterException = AmdSmiParameterException
    AmdSmiInitFlags = AmdSmiInitFlags
    AmdSmiClkType = AmdSmiClkType
    AmdSmiDevPerfLevel = AmdSmiDevPerfLevel
    AmdSmiTemperatureType = AmdSmiTemperatureType
    AmdSmiTemperatureMetric = AmdSmiTemperatureMetric
    AmdSmiMemoryType = AmdSmiMemoryType

    def __init__(
        self,
        gpus: Sequence[SimulatedAmdGpu],
        *,
        driver_loaded: bool = True,
        root: bool = True,
        caps_file: Path | None = None,
    ) -> None:
        """With root=False setters are refused. CAPS_FILE holds power caps by UUID, for all processes that share it."""
        self.gpus = list(gpus)
        self._root = root
        self._caps_file = caps_file
        self.users = 0  # how many init calls are not yet followed by a shut down
        self._driver_loaded = driver_loaded
        self._own: dict[str, Any] = {}  # what was set, where no file is shared

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
        return told | watts | {"power_limit": round(self.cap_w(gpu) * 1_000_000)}

    def amdsmi_get_power_cap_info(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        gpu = _asked(processor_handle)
        cap_uw = round(self.cap_w(gpu) * 1_000_000)
        most_uw = cap_uw if gpu.most_cap_w is None else round(gpu.most_cap_w * 1_000_000)
        least_uw = round(gpu.least_cap_w * 1_000_000)
        return {
            "power_cap": cap_uw,
            "default_power_cap": most_uw,
            "min_power_cap": least_uw,
            "max_power_cap": most_uw,
        }

    def amdsmi_set_power_cap(self, processor_handle: SimulatedAmdGpu, sensor_ind: int, cap: int) -> None:
        gpu = _asked(processor_handle)
        most_w = gpu.power_cap_w if gpu.most_cap_w is None else gpu.most_cap_w
        if not self._root:
            raise AmdSmiLibraryException(STATUS_NO_PERMISSION)
        if sensor_ind != 0 or not gpu.least_cap_w <= cap / 1_000_000 <= most_w:
            raise AmdSmiLibraryException(STATUS_INVALID)
        if self._caps_file is None:
            gpu.power_cap_w = cap / 1_000_000
        else:
            self._keep({gpu.uuid: cap / 1_000_000})

    def cap_w(self, gpu: SimulatedAmdGpu) -> float:
        """What GPU may draw, whoever set it."""
        return float(self._kept().get(gpu.uuid, gpu.power_cap_w))

    def _kept(self) -> dict[str, Any]:
        """What was set, by whoever shares the file: caps by UUID, clocks by UUID and "/clocks"."""
        if self._caps_file is None or not self._caps_file.exists():
            return dict(self._own)
        kept: dict[str, Any] = json.loads(self._caps_file.read_text())
        return kept

    def _keep(self, values: dict[str, Any]) -> None:
        if self._caps_file is None:
            self._own |= values
            return
        fresh = self._caps_file.with_suffix(f".{os.getpid()}")
        fresh.write_text(json.dumps(self._kept() | values))
        fresh.replace(self._caps_file)

    def amdsmi_get_clk_freq(self, processor_handle: SimulatedAmdGpu, clk_type: IntEnum) -> dict[str, Any]:
        _must_be(clk_type, AmdSmiClkType)
        _asked(processor_handle)
        levels_hz = [round(mhz * 1_000_000) for mhz in CLOCKS_MHZ]
        return {"num_supported": len(levels_hz), "current": 1, "frequency": levels_hz}

    def amdsmi_get_gpu_perf_level(self, processor_handle: SimulatedAmdGpu) -> str:
        kept = self._kept().get(f"{_asked(processor_handle).uuid}/level", "AUTO")
        return f"AMDSMI_DEV_PERF_LEVEL_{kept}"

    def amdsmi_set_gpu_perf_level(self, processor_handle: SimulatedAmdGpu, perf_lvl: IntEnum) -> None:
        gpu = _asked(processor_handle)
        _must_be(perf_lvl, AmdSmiDevPerfLevel)
        if not self._root:
            raise AmdSmiLibraryException(STATUS_NO_PERMISSION)
        self._keep({f"{gpu.uuid}/level": perf_lvl.name, f"{gpu.uuid}/clocks": list(CLOCKS_MHZ)})

    def amdsmi_set_gpu_clk_limit(
        self, processor_handle: SimulatedAmdGpu, clk_type: str, limit_type: str, value: int
    ) -> None:
        gpu = _asked(processor_handle)
        if not self._root:
            raise AmdSmiLibraryException(STATUS_NO_PERMISSION)
        least_mhz, most_mhz = self.clocks_mhz(gpu)
        wanted = (value, most_mhz) if limit_type == "min" else (least_mhz, value)
        if clk_type != "sclk" or limit_type not in ("min", "max") or not CLOCKS_MHZ[0] <= value <= CLOCKS_MHZ[1]:
            raise AmdSmiLibraryException(STATUS_INVALID)
        if wanted[0] > wanted[1]:
            raise AmdSmiLibraryException(STATUS_INVALID)
        self._keep({f"{gpu.uuid}/level": "MANUAL", f"{gpu.uuid}/clocks": list(wanted)})

    def clocks_mhz(self, gpu: SimulatedAmdGpu) -> tuple[int, int]:
        """Least and most of GPU's clock, whoever set them."""
        least, most = self._kept().get(f"{gpu.uuid}/clocks", CLOCKS_MHZ)
        return int(least), int(most)

    def amdsmi_get_gpu_device_uuid(self, processor_handle: SimulatedAmdGpu) -> str:
        return _asked(processor_handle).uuid

    def amdsmi_get_gpu_process_list(self, processor_handle: SimulatedAmdGpu) -> list[dict[str, Any]]:
        return [{"name": NOT_TOLD, "pid": pid} for pid in _asked(processor_handle).process_ids]

    def amdsmi_get_gpu_activity(self, processor_handle: SimulatedAmdGpu) -> dict[str, Any]:
        busy = round(_asked(processor_handle).busy_ratio * 100)
        return {"gfx_activity": busy, "umc_activity": busy // 2, "mm_activity": NOT_TOLD}

    def amdsmi_get_gpu_memory_usage(self, processor_handle: SimulatedAmdGpu, mem_type: IntEnum) -> int:
        _must_be(mem_type, AmdSmiMemoryType)
        return _asked(processor_handle).memory_used_bytes

    def amdsmi_get_clock_info(self, processor_handle: SimulatedAmdGpu, clock_type: IntEnum) -> dict[str, Any]:
        _must_be(clock_type, AmdSmiClkType)
        _asked(processor_handle)
        if clock_type is AmdSmiClkType.GFX:
            least_mhz, most_mhz = self.clocks_mhz(processor_handle)
            return {"clk": most_mhz, "min_clk": least_mhz, "max_clk": most_mhz, "clk_locked": False}
        return {"clk": 1_300, "min_clk": 132, "max_clk": 1_300, "clk_locked": False}

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


def write_module(folder: Path, *, most_cap_w: float = 750.0) -> SimulatedAmdSmi:
    """Write a module `amdsmi` of one GPU into FOLDER, for a process's PYTHONPATH; gives the same machine here."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "amdsmi.py").write_text(
        "from pathlib import Path\n"
        "from wattsmith.sim.amdsmi import one_gpu\n"
        f"_machine = one_gpu(Path({str(folder.resolve())!r}), {most_cap_w})\n"
        "globals().update({name: getattr(_machine, name) for name in dir(_machine) if not name.startswith('_')})\n"
    )
    return one_gpu(folder.resolve(), most_cap_w)


def one_gpu(folder: Path, most_cap_w: float) -> SimulatedAmdSmi:
    """A machine of one GPU, whose power cap is kept in FOLDER."""
    gpu = SimulatedAmdGpu(power_cap_w=most_cap_w, most_cap_w=most_cap_w)
    return SimulatedAmdSmi([gpu], caps_file=folder / "caps.json")


def _must_be(value: object, kind: type) -> None:
    if not isinstance(value, kind):
        raise AmdSmiParameterException(f"expected {kind.__name__}, got {type(value).__name__}")


def _asked(handle: SimulatedAmdGpu) -> SimulatedAmdGpu:
    _must_be(handle, SimulatedAmdGpu)
    if handle.failures:
        raise AmdSmiLibraryException(handle.failures.pop(0))
    return handle
