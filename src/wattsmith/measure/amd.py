"""AMD GPUs through amdsmi, the vendor's own binding."""

import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import ModuleType
from typing import Any

from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.machine import GaugeReading
from wattsmith.terms.ports import Clock, Gauge, Meter

_GONE = frozenset({20, 31, 32, 34, 51, 52})  # not found, not initialised, driver not loaded, file not found
_NOT_TOLD = 0xFFFF  # amdsmi marks an empty field with this, or with the largest number of a wider type
_PERIOD_S = 0.1  # the library may answer from a cache of this age (AMDSMI_GPU_METRICS_CACHE_MS)


def find_amd(clock: Clock, smi: Any = None, *, first: int = 0) -> list[Meter]:
    """A meter for each AMD GPU that tells its energy or power, numbered from FIRST on.

    SMI stands in for the module `amdsmi`.
    Raises MeterUnavailable when the binding, the driver or the GPU is missing.
    """
    smi = smi or load_amdsmi()
    library = _Library(smi)
    meters: list[Meter] = []
    silent: list[str] = []
    for number, handle in enumerate(library.handles(), start=first):
        domain = f"gpu:{number}"
        counts, gives_power = _counts(smi, handle), _gives_power(smi, handle)
        if counts or gives_power:
            meters.append(AmdMeter(clock, library, handle, domain, counts=counts, gives_power=gives_power))
        else:
            silent.append(domain)
    if not meters:
        raise MeterUnavailable(
            f"{len(silent)} AMD GPU(s) found ({', '.join(silent)}), but none tells energy or power. "
            "Passed-through and virtual GPUs often do not; measure the node with `--meters ipmi`."
        )
    return meters


def find_amd_gauges(clock: Clock, smi: Any = None, *, first: int = 0) -> list[Gauge]:
    """A gauge for each AMD GPU, numbered from FIRST on. Raises MeterUnavailable as `find_amd` does."""
    smi = smi or load_amdsmi()
    handles = _Library(smi).handles()
    return [AmdGauge(clock, smi, handle, f"gpu:{n}") for n, handle in enumerate(handles, start=first)]


def load_amdsmi() -> ModuleType:
    """The module `amdsmi`. Raises MeterUnavailable, telling the missing package from the missing library."""
    try:
        with redirect_stdout(io.StringIO()):  # it prints when its library is missing
            import amdsmi
    except ImportError as missing:
        raise MeterUnavailable(
            f"AMD GPUs need the package amdsmi, which cannot be imported ({missing}). Install it with "
            "`pip install 'wattsmith[amd]'`, in the version of the installed ROCm, or leave AMD GPUs out."
        ) from missing
    except (KeyError, OSError, AttributeError) as broken:
        raise MeterUnavailable(
            f"the package amdsmi is there, but the library libamd_smi.so is not, or is of another version "
            f"({broken}). Install `amd-smi-lib` of ROCm, set ROCM_PATH to where ROCm is, and keep "
            "`pip install amdsmi==X` at that ROCm's version."
        ) from broken
    module: ModuleType = amdsmi
    return module


class AmdMeter:
    """Energy accumulator and power of one GPU."""

    def __init__(
        self, clock: Clock, library: "_Library", handle: Any, domain: str, *, counts: bool, gives_power: bool
    ) -> None:
        self._clock, self._library, self._smi, self._handle = clock, library, library.smi, handle
        self._last_s: float | None = None
        self._lost_j = 0.0  # what was counted before the accumulator last went back
        self._last_j = 0.0
        self._open = True
        library.users += 1
        simulated = bool(getattr(self._smi, "SIMULATED", False))
        name = _name(self._smi, handle)
        self.card = MeterCard(
            domain=domain,
            name=f"{name} (simulated)" if simulated and "simulated" not in name else name,
            source=Source.COUNTER if counts else Source.POLLED,
            counter_period_s=_PERIOD_S if counts else None,
            power_period_s=_PERIOD_S if gives_power else None,
            simulated=simulated,
            note="a GPU of two dies tells the power of both on the first" if "MI2" in name else None,
        )

    def read(self, *, counter: bool) -> Readings:
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        try:
            power = self._power() if self.card.power_period_s is not None else ()
            if not (counter and self.card.counter_period_s is not None):
                return Readings(power=power)
            return self._with_counter(power)
        except self._smi.AmdSmiException as failed:
            raise _as_ours(failed, self.card.domain) from failed

    def close(self) -> None:
        if self._open:
            self._open = False
            self._library.leave()

    def _power(self) -> tuple[PowerSample, ...]:
        power_w = _watts(self._smi.amdsmi_get_power_info(self._handle))
        now_s = self._clock.now_s()
        if power_w is None:
            raise MeterMissed(f"{self.card.domain} told no power this time")
        if self._last_s is not None and now_s <= self._last_s:
            return ()
        self._last_s = now_s
        return (PowerSample(now_s, power_w),)

    def _with_counter(self, power: tuple[PowerSample, ...]) -> Readings:
        energy_j = _joules(self._smi.amdsmi_get_energy_count(self._handle))
        now_s = self._clock.now_s()
        if energy_j is None:
            raise MeterMissed(f"{self.card.domain} told no energy this time")
        before_j, self._last_j = self._last_j, energy_j
        went_back = energy_j < before_j
        if went_back:
            self._lost_j += before_j
        return Readings(
            power=power,
            counter=CounterReading(now_s, self._lost_j + energy_j),
            missed=int(went_back),
            why_missed=f"{self.card.domain} was reset: its energy counter began again" if went_back else None,
        )


class AmdGauge:
    """How one GPU is. What it does not tell is None."""

    def __init__(self, clock: Clock, smi: Any, handle: Any, domain: str) -> None:
        self.domain = domain
        self._clock, self._smi, self._handle = clock, smi, handle

    def look(self) -> GaugeReading:
        smi = self._smi
        activity = self._ask(smi.amdsmi_get_gpu_activity) or {}
        clock = self._ask(smi.amdsmi_get_clock_info, smi.AmdSmiClkType.GFX) or {}
        memory_clock = self._ask(smi.amdsmi_get_clock_info, smi.AmdSmiClkType.MEM) or {}
        cap = self._ask(smi.amdsmi_get_power_cap_info) or {}
        used = self._ask(smi.amdsmi_get_gpu_memory_usage, smi.AmdSmiMemoryType.VRAM)
        if not (activity or clock or memory_clock or cap) and used is None:
            raise MeterMissed(f"{self.domain} told nothing about itself this time")
        return GaugeReading(
            time_s=self._clock.now_s(),
            domain=self.domain,
            busy_ratio=_times(activity.get("gfx_activity"), 0.01),
            memory_busy_ratio=_times(activity.get("umc_activity"), 0.01),
            memory_used_bytes=used if isinstance(used, int) else None,
            clock_hz=_times(clock.get("clk"), 1e6),
            memory_clock_hz=_times(memory_clock.get("clk"), 1e6),
            temperature_c=self._temperature_c(),
            power_limit_w=_cap_w(cap.get("power_cap")),
        )

    def _temperature_c(self) -> float | None:
        kinds = self._smi.AmdSmiTemperatureType
        current = self._smi.AmdSmiTemperatureMetric.CURRENT
        for kind in (kinds.EDGE, kinds.HOTSPOT):  # the MI300 has no edge sensor
            told = _times(self._ask(self._smi.amdsmi_get_temp_metric, kind, current), 1.0)
            if told is not None:
                return told / 1_000 if told > 1_000 else told  # some versions tell thousandths of a degree
        return None

    def _ask(self, function: Any, *more: Any) -> Any:
        try:
            return function(self._handle, *more)
        except self._smi.AmdSmiException as failed:
            ours = _as_ours(failed, self.domain)
            if isinstance(ours, MeterLost):
                raise ours from failed
            return None


class _Library:
    """The started library. It does not count its users itself: the first shut down ends it for all."""

    def __init__(self, smi: Any) -> None:
        self.smi = smi
        self.users = 0
        try:
            smi.amdsmi_init()
        except smi.AmdSmiException as failed:
            raise MeterUnavailable(
                f"amdsmi found no working AMD driver ({_in_one_line(failed)}). Load it with `modprobe amdgpu`, and "
                "add this user to the groups `render` and `video`; or leave AMD GPUs out."
            ) from failed

    def handles(self) -> Sequence[Any]:
        try:
            handles: Sequence[Any] = self.smi.amdsmi_get_processor_handles()
        except self.smi.AmdSmiException as failed:
            raise MeterUnavailable(f"amdsmi cannot list GPUs ({_in_one_line(failed)}).") from failed
        if not handles:
            raise MeterUnavailable(
                "amdsmi works but lists no GPU. Check `amd-smi list`; in a container pass /dev/kfd and /dev/dri."
            )
        return handles

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            self.smi.amdsmi_shut_down()


def _counts(smi: Any, handle: Any) -> bool:
    try:
        return _joules(smi.amdsmi_get_energy_count(handle)) is not None
    except smi.AmdSmiException:
        return False


def _gives_power(smi: Any, handle: Any) -> bool:
    try:
        return _watts(smi.amdsmi_get_power_info(handle)) is not None
    except smi.AmdSmiException:
        return False


def _name(smi: Any, handle: Any) -> str:
    try:
        name = str(smi.amdsmi_get_gpu_asic_info(handle).get("market_name", "N/A"))
    except smi.AmdSmiException:
        name = "N/A"
    return "AMD GPU" if name in ("N/A", "") else name


def _joules(told: Mapping[str, Any]) -> float | None:
    """None for an accumulator at 0: it is one that does not count, as on the second die of a GPU."""
    counted, step_uj = told.get("energy_accumulator"), told.get("counter_resolution")
    if not isinstance(counted, int) or isinstance(counted, bool) or not 0 < counted < 2**64 - 1:
        return None
    if not isinstance(step_uj, int | float) or not 0 < step_uj < _NOT_TOLD:
        return None
    return counted * step_uj / 1_000_000


def _watts(told: Mapping[str, Any]) -> float | None:
    """The newest power a GPU tells; which key it fills depends on its kind. 0 W is no reading of a GPU."""
    keys = ("current_socket_power", "average_socket_power", "socket_power")
    return next((watts for key in keys if (watts := _times(told.get(key), 1.0))), None)


def _cap_w(told: Any) -> float | None:
    """Caps come in microwatts from some versions and in watts from others; no GPU has a cap of 10 kW."""
    if not isinstance(told, int) or told <= 0:
        return None
    return told / 1_000_000 if told >= 10_000 else float(told)


def _times(told: Any, factor: float) -> float | None:
    known = isinstance(told, int | float) and not isinstance(told, bool) and 0 <= told < _NOT_TOLD
    return told * factor if known else None


def _as_ours(failed: Exception, domain: str) -> MeterLost | MeterMissed:
    kind = MeterLost if getattr(failed, "err_code", None) in _GONE else MeterMissed
    return kind(f"{domain} did not answer ({_in_one_line(failed)})")


def _in_one_line(failed: Exception) -> str:
    return " ".join(str(failed).split())
