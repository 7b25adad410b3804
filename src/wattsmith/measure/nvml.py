"""NVIDIA GPUs through NVML: energy counter, the driver's own power samples, and how the card is."""

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from wattsmith.measure.visible import visible_gpus
from wattsmith.terms.clock import find_wall_ahead_s
from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.machine import GaugeReading, Gpu
from wattsmith.terms.ports import Clock

COUNTER_PERIOD_S = 0.1  # the counter of an H200 moves so often
POWER_PERIOD_S = 0.1  # and so does the power that one asks for, as opposed to the driver's samples
HISTORY_SAMPLES = 100  # the driver keeps 119
DRAIN_PERIOD_S = 0.5  # several times before the history runs over
WALL_CLOCK_STEP_S = 0.05  # what adjusting a clock does not do between two reads, but setting it does
FIELD_POWER_INSTANT = 186

# Over how long the sensor averages, so that a sample can be placed in the middle of what it saw. On an H200
# samples come 12 ms behind the load; on the A100 and H100 others found the same 25 ms.
SENSOR_WINDOW_S = {"H200": 0.025, "H100": 0.025, "A100": 0.025}
AVERAGED_POWER_WINDOW_S = 1.0  # nvmlDeviceGetPowerUsage, from Ampere on

# NVML says in which member of its union a value lies.
_VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal"}

_REASONS = {
    "idle": "GpuIdle",
    "application clocks": "ApplicationsClocksSetting",
    "power limit": "SwPowerCap",
    "hardware slowdown": "HwSlowdown",
    "sync boost": "SyncBoost",
    "heat": "SwThermalSlowdown",
    "heat (hardware)": "HwThermalSlowdown",
    "power brake": "HwPowerBrakeSlowdown",
    "display clocks": "DisplayClockSetting",
}


@dataclass(frozen=True, slots=True)
class Nvml:
    """The driver, initialised, and the GPUs in it that this process may see."""

    driver: str
    gpus: tuple[Gpu, ...]
    meters: tuple["NvmlMeter", ...]
    gauges: tuple["NvmlGauge", ...]


def find_nvml(
    clock: Clock,
    *,
    wall_s: Callable[[], float] = time.time,
    visible: str | None = None,
    use_counter: bool = True,
) -> Nvml:
    """The NVIDIA GPUs of this machine. VISIBLE as in CUDA_VISIBLE_DEVICES, which is taken by default."""
    nvml = _start_driver()
    try:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES") if visible is None else visible
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        instances = {i: _mig_instances(nvml, handle) for i, handle in enumerate(handles)}
        chosen = _choose(nvml, handles, instances, visible)
        gpus = [gpu for i in chosen for gpu in _describe(nvml, handles[i], i, instances[i])]
        meters = [
            NvmlMeter(
                nvml, handles[i], i, clock=clock, wall_s=wall_s, use_counter=use_counter, instances=len(instances[i])
            )
            for i in chosen
        ]
        gauges = [NvmlGauge(nvml, handles[i], i, clock) for i in chosen]
        return Nvml(nvml.nvmlSystemGetDriverVersion(), tuple(gpus), tuple(meters), tuple(gauges))
    except nvml.NVMLError as failed:
        raise MeterUnavailable(
            f"the NVIDIA driver does not describe its GPUs: {failed}. See what `nvidia-smi` says."
        ) from failed
    finally:
        nvml.nvmlShutdown()  # each meter holds the driver open for itself


def _choose(
    nvml: Any, handles: list[Any], instances: dict[int, list[tuple[str, str]]], visible: str | None
) -> list[int]:
    parents = {uuid: i for i, found in instances.items() for uuid, _ in found}
    chosen = visible_gpus(visible, [nvml.nvmlDeviceGetUUID(handle) for handle in handles], parents)
    if not chosen:
        why = (
            "has no GPU" if not handles else f"shows none of its {len(handles)} GPUs: CUDA_VISIBLE_DEVICES={visible!r}"
        )
        raise MeterUnavailable(f"the NVIDIA driver {why}")
    return chosen


def _start_driver() -> Any:
    import pynvml

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded) as absent:
        raise MeterUnavailable(
            f"no NVIDIA driver answers here ({absent}). Where there is a card: install the driver and check that "
            "`nvidia-smi` works; in a container, pass the GPU through."
        ) from absent
    except pynvml.NVMLError as refused:
        raise MeterUnavailable(
            f"the NVIDIA driver refused to start NVML: {refused}. See what `nvidia-smi` says."
        ) from refused
    return pynvml


def _is_simulated(name: str) -> bool:
    return "simulated" in name.lower()


def _mig_instances(nvml: Any, handle: Any) -> list[tuple[str, str]]:
    """UUID and name of each MIG instance of a card; none when MIG is off or unknown to the card."""
    found = []
    try:
        if nvml.nvmlDeviceGetMigMode(handle)[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        for i in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            try:
                instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, i)
            except nvml.NVMLError_NotFound:
                continue  # a slot without an instance
            found.append((nvml.nvmlDeviceGetUUID(instance), nvml.nvmlDeviceGetName(instance)))
    except nvml.NVMLError:
        return found
    return found


def _describe(nvml: Any, handle: Any, index: int, instances: list[tuple[str, str]]) -> list[Gpu]:
    """The card, and the MIG instances on it."""

    def ask(call: Callable[..., Any], *args: Any) -> Any:
        return _asked(nvml, call, handle, *args)

    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    limit_mw = ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
    range_mw = ask(nvml.nvmlDeviceGetPowerManagementLimitConstraints)
    clock_mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_SM)
    memory_clock_mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    name = nvml.nvmlDeviceGetName(handle)
    card = Gpu(
        domain=f"gpu:{index}",
        name=name,
        uuid=nvml.nvmlDeviceGetUUID(handle),
        memory_bytes=None if memory is None else memory.total,
        power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        power_limit_range_w=None if range_mw is None else (range_mw[0] / 1e3, range_mw[1] / 1e3),
        max_clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
        max_memory_clock_hz=None if memory_clock_mhz is None else memory_clock_mhz * 1e6,
        simulated=_is_simulated(name),
    )
    return [
        card,
        *(
            Gpu(domain=f"gpu:{index}/mig:{i}", name=name, uuid=uuid, simulated=_is_simulated(name))
            for i, (uuid, name) in enumerate(instances)
        ),
    ]


def _asked(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """What the driver answers; None when this card does not tell."""
    try:
        return call(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


@contextmanager
def _translated(nvml: Any, domain: str) -> Iterator[None]:
    """The driver's errors in our terms."""
    try:
        yield
    except (nvml.NVMLError_GpuIsLost, nvml.NVMLError_Uninitialized, nvml.NVMLError_ResetRequired) as gone:
        raise MeterLost(f"{domain}: the driver says {gone}") from gone
    except nvml.NVMLError as failed:
        raise MeterMissed(f"{domain}: the driver says {failed}") from failed


class NvmlMeter:
    """Energy of one GPU: its counter, and the finest power readings that its driver gives."""

    def __init__(
        self,
        nvml: Any,
        handle: Any,
        index: int,
        *,
        clock: Clock,
        wall_s: Callable[[], float],
        use_counter: bool = True,
        instances: int = 0,
    ) -> None:
        self._nvml = nvml
        self._handle = handle
        self._clock = clock
        self._wall_s = wall_s
        self._closed = False
        self._ahead_s = find_wall_ahead_s(clock, wall_s)
        self._seen_us = 0  # time stamp of the newest sample taken
        nvml.nvmlInit()  # counted by the driver; undone in close()
        name = nvml.nvmlDeviceGetName(handle)
        window_s = next((w for part, w in SENSOR_WINDOW_S.items() if part in name), None)
        counts = use_counter and _asked(nvml, nvml.nvmlDeviceGetTotalEnergyConsumption, handle) is not None
        spacing_s = self._sample_spacing_s()
        self._ask_power_mw, asked_window_s = self._power_source(window_s)
        if spacing_s is None and self._ask_power_mw is None and not counts:
            raise MeterUnavailable(f"gpu:{index} ({name}) tells neither its energy nor its power")
        buffered = spacing_s is not None
        self.card = MeterCard(
            domain=f"gpu:{index}",
            name=name,
            source=Source.COUNTER if counts else Source.POLLED,
            counter_period_s=COUNTER_PERIOD_S if counts else None,
            power_period_s=spacing_s if buffered else (POWER_PERIOD_S if self._ask_power_mw else None),
            power_window_s=window_s if buffered else asked_window_s,
            history_s=HISTORY_SAMPLES * spacing_s if spacing_s is not None else None,
            poll_period_s=DRAIN_PERIOD_S if buffered or not self._ask_power_mw else POWER_PERIOD_S,
            simulated=_is_simulated(name),
            note=f"the whole card, which {instances} MIG instances share" if instances else None,
        )
        # A value that is a mean over the last moments, and may have stood for a while, belongs where its middle was.
        stood_s = 0.0 if buffered else POWER_PERIOD_S / 2
        self._behind_s = stood_s + (self.card.power_window_s or 0.0) / 2

    def _sample_spacing_s(self) -> float | None:
        """How far apart the driver's own samples lie; None when it keeps none."""
        for _ in range(5):
            try:
                stamps_us = [stamp_us for stamp_us, _ in self._samples(0)]
            except (self._nvml.NVMLError_NotSupported, self._nvml.NVMLError_FunctionNotFound):
                return None
            if len(stamps_us) >= 4:
                gaps_us = [b - a for a, b in pairwise(stamps_us) if b > a]
                return statistics.median(gaps_us) / 1e6 if gaps_us else None
            self._clock.sleep_s(0.05)  # a driver that has only just started has an empty history
        return None

    def _power_source(self, window_s: float | None) -> tuple[Callable[[], int] | None, float | None]:
        """How to ask for the present power in milliwatts, and over how long it is a mean."""
        nvml, handle = self._nvml, self._handle

        def instant_mw() -> int:
            value = nvml.nvmlDeviceGetFieldValues(handle, [FIELD_POWER_INSTANT])[0]
            nvml._nvmlCheckReturn(value.nvmlReturn)
            return int(value.value.uiVal)

        if _asked(nvml, instant_mw) is not None:
            return instant_mw, window_s
        if _asked(nvml, nvml.nvmlDeviceGetPowerUsage, handle) is None:
            return None, None
        architecture = _asked(nvml, nvml.nvmlDeviceGetArchitecture, handle) or 0
        averaged = architecture >= nvml.NVML_DEVICE_ARCH_AMPERE
        return (lambda: int(nvml.nvmlDeviceGetPowerUsage(handle))), AVERAGED_POWER_WINDOW_S if averaged else None

    def _samples(self, since_us: int) -> list[tuple[int, float]]:
        """The driver's own samples after SINCE_US, as its time stamp in microseconds and watts."""
        nvml = self._nvml
        try:
            kind, samples = nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_TOTAL_POWER_SAMPLES, since_us)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InsufficientSize):
            return []  # none newer; or one came between the driver's count and its copy, and waits for the next read
        member = _VALUE_MEMBERS[kind]
        return [(s.timeStamp, getattr(s.sampleValue, member) / 1e3) for s in samples if s.timeStamp > since_us]

    def read(self, *, counter: bool) -> Readings:
        if self._closed:
            raise MeterLost(f"{self.card.domain}: this meter was closed")
        with _translated(self._nvml, self.card.domain):
            readings = self._drain() if self.card.history_s is not None else Readings(power=self._ask())
            return replace(readings, counter=self._count()) if counter else readings

    def _drain(self) -> Readings:
        ahead_s = find_wall_ahead_s(self._clock, self._wall_s)  # the driver stamps its samples with the wall clock
        now_s = self._clock.now_s()
        stepped_s = ahead_s - self._ahead_s
        self._ahead_s = ahead_s
        if abs(stepped_s) > WALL_CLOCK_STEP_S:
            self._seen_us = 0  # stamps may have gone back: take all, and the tape keeps those that are new to it
        samples = self._samples(self._seen_us)
        if samples:
            self._seen_us = samples[-1][0]
        behind_s = ahead_s + self._behind_s
        power = [PowerSample(stamp_us / 1e6 - behind_s, power_w) for stamp_us, power_w in samples]
        if abs(stepped_s) > WALL_CLOCK_STEP_S:
            why = f"the wall clock was set by {stepped_s:+.2f} s, and samples around that moment may be misplaced"
            return Readings(power=tuple(s for s in power if s.time_s <= now_s), missed=1, why_missed=why)
        return Readings(power=tuple(power))

    def _ask(self) -> tuple[PowerSample, ...]:
        if self._ask_power_mw is None:
            return ()
        power_w = self._ask_power_mw() / 1e3
        return (PowerSample(self._clock.now_s() - self._behind_s, power_w),)

    def _count(self) -> CounterReading | None:
        if self.card.counter_period_s is None:
            return None
        energy_j = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle) / 1e3
        return CounterReading(self._clock.now_s(), energy_j)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._nvml.nvmlShutdown()


class NvmlGauge:
    """How one GPU is."""

    def __init__(self, nvml: Any, handle: Any, index: int, clock: Clock) -> None:
        self.domain = f"gpu:{index}"
        self._nvml = nvml
        self._handle = handle
        self._clock = clock

    def _ask(self, call: Callable[..., Any], *args: Any) -> Any:
        return _asked(self._nvml, call, self._handle, *args)

    def look(self) -> GaugeReading:
        nvml = self._nvml
        with _translated(nvml, self.domain):
            busy = self._ask(nvml.nvmlDeviceGetUtilizationRates)
            memory = self._ask(nvml.nvmlDeviceGetMemoryInfo)
            clock_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_SM)
            memory_clock_mhz = self._ask(nvml.nvmlDeviceGetClockInfo, nvml.NVML_CLOCK_MEM)
            limit_mw = self._ask(nvml.nvmlDeviceGetEnforcedPowerLimit)
            temperature = self._ask(nvml.nvmlDeviceGetTemperature, nvml.NVML_TEMPERATURE_GPU)
            reasons = self._ask(nvml.nvmlDeviceGetCurrentClocksThrottleReasons)
        return GaugeReading(
            time_s=self._clock.now_s(),
            domain=self.domain,
            busy_ratio=None if busy is None else busy.gpu / 100,
            memory_busy_ratio=None if busy is None else busy.memory / 100,
            memory_used_bytes=None if memory is None else memory.used,
            clock_hz=None if clock_mhz is None else clock_mhz * 1e6,
            memory_clock_hz=None if memory_clock_mhz is None else memory_clock_mhz * 1e6,
            temperature_c=None if temperature is None else float(temperature),
            throttled_by=None if reasons is None else self._reasons(reasons),
            power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        )

    def _reasons(self, bits: int) -> tuple[str, ...]:
        named = {word: getattr(self._nvml, f"nvmlClocksThrottleReason{name}") for word, name in _REASONS.items()}
        return tuple(word for word, bit in named.items() if bits & bit)
