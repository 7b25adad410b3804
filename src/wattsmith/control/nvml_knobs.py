"""NVIDIA GPUs through NVML: power limit, locked clocks, application clocks. Only root may turn them."""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from wattsmith.terms.control import DeviceHeld, Knob, KnobCard, KnobLost, NotPermitted, Value, Verified
from wattsmith.terms.errors import BadTerm

ASK_ROOT = (
    "Run as root (in a container with CAP_SYS_ADMIN), or have an administrator run `wattsmith control serve` and go "
    "through its socket."
)


def find_nvml_knobs() -> list[Knob]:
    """The knobs of every GPU that answers. Raises KnobLost when there is no driver."""
    found: list[Knob] = []
    with _driver() as nvml:
        for index in range(nvml.nvmlDeviceGetCount()):
            with suppress(nvml.NVMLError, KnobLost):  # one that fell off the bus takes nothing from the others
                uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
                found += knobs_of_gpu(uuid, f"gpu:{index}")
    return found


def knobs_of_gpu(uuid: str, device: str | None = None) -> list[Knob]:
    """The knobs of one GPU; DEVICE is its name, by default as the driver numbers it now."""
    with _gpu(uuid) as (nvml, handle):
        device = device or f"gpu:{nvml.nvmlDeviceGetIndex(handle)}"
        makers = (_power_limit, _locked_clock, _locked_memory_clock, _application_clocks)
        return [knob for make in makers if (knob := make(nvml, handle, device, uuid)) is not None]


def check_nobody_else_on_nvidia(uuid: str, own_pids: frozenset[int]) -> None:
    """Raise DeviceHeld when the GPU is split by MIG, or processes other than OWN_PIDS run on it."""
    with _gpu(uuid) as (nvml, handle):
        name = nvml.nvmlDeviceGetName(handle)
        mig = _asked(nvml, nvml.nvmlDeviceGetMigMode, handle)
        if mig is not None and mig[0] == nvml.NVML_DEVICE_MIG_ENABLE:
            raise DeviceHeld(
                f"{name} ({uuid}) is split by MIG, and its clocks and limit belong to all who have a part. "
                "Say that it may be shared (`--shared`) if all parts are yours."
            )
        asked = (nvml.nvmlDeviceGetComputeRunningProcesses, nvml.nvmlDeviceGetGraphicsRunningProcesses)
        told = [_asked(nvml, call, handle) for call in asked]
    if told[0] is None:
        raise DeviceHeld(
            f"the driver does not tell who else uses {name} ({uuid}). Say that it may be shared (`--shared`) if you "
            "know that nobody does."
        )
    running = {process.pid for processes in told for process in processes or ()}
    if others := sorted(running - own_pids):
        raise DeviceHeld(
            f"{name} ({uuid}) is used by others: process {', '.join(map(str, others))}. Wait until they have ended, or "
            "say that it may be shared (`--shared`) if they are yours."
        )


@contextmanager
def _driver() -> Iterator[Any]:
    """The driver, initialised. NVML counts: while somebody in this process keeps it open this costs nothing."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as absent:
        raise KnobLost(f"no NVIDIA driver answers here ({absent}); see what `nvidia-smi` says") from absent
    try:
        yield pynvml
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def _gpu(uuid: str, knob: str | None = None) -> Iterator[tuple[Any, Any]]:
    """The driver and the handle of a GPU, found by UUID each time: its index may change, another GPU is never meant."""
    what = knob or uuid
    with _driver() as nvml:
        try:
            yield nvml, nvml.nvmlDeviceGetHandleByUUID(uuid)
        except nvml.NVMLError_NoPermission as denied:
            raise NotPermitted(f"{what}: not permitted; the driver lets only root change it. {ASK_ROOT}") from denied
        except nvml.NVMLError_NotSupported as unknown:
            raise NotPermitted(f"{what}: this GPU does not let itself be set so (not supported)") from unknown
        except nvml.NVMLError_InvalidArgument as refused:
            raise BadTerm(f"{what}: the driver refuses this value (invalid argument)") from refused
        except nvml.NVMLError as failed:
            raise KnobLost(f"{what}: GPU {uuid} does not answer: the driver says {failed}") from failed


def _asked(nvml: Any, call: Callable[..., Any], *args: Any) -> Any:
    """What the driver answers; None when this card does not tell."""
    try:
        return call(*args)
    except (nvml.NVMLError_NotSupported, nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NoPermission):
        return None


def _card(nvml: Any, handle: Any, device: str, uuid: str, kind: str, **facts: Any) -> KnobCard:
    title = nvml.nvmlDeviceGetName(handle)
    simulated = "simulated" in title.lower()
    return KnobCard(name=f"{device}/{kind}", device=device, identity=uuid, title=title, simulated=simulated, **facts)


# ---- power limit


def _power_limit(nvml: Any, handle: Any, device: str, uuid: str) -> Knob | None:
    ends_mw = _asked(nvml, nvml.nvmlDeviceGetPowerManagementLimitConstraints, handle)
    default_mw = _asked(nvml, nvml.nvmlDeviceGetPowerManagementDefaultLimit, handle)
    if ends_mw is None or default_mw is None:
        return None
    ends_w = (ends_mw[0] / 1e3, min(ends_mw[1], default_mw) / 1e3)  # never above the default
    return PowerLimit(_card(nvml, handle, device, uuid, "power_limit", unit="W", ends=ends_w, default=default_mw / 1e3))


class PowerLimit:
    """What a GPU may draw."""

    def __init__(self, card: KnobCard) -> None:
        self.card = card

    def read(self) -> Value:
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            return float(nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3)

    def set(self, value: Value) -> None:
        assert isinstance(value, float)
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            nvml.nvmlDeviceSetPowerManagementLimit(handle, round(value * 1e3))

    def verify(self, value: Value) -> Verified:
        assert isinstance(value, float)
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            told_w = nvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3
            enforced_mw = _asked(nvml, nvml.nvmlDeviceGetEnforcedPowerLimit, handle)
            power_mw = _asked(nvml, nvml.nvmlDeviceGetPowerUsage, handle)
            capped = _has_reason(nvml, handle, "SwPowerCap")
        taken = math.isclose(told_w, value, abs_tol=0.5)
        note = "" if taken else f"the driver reports {told_w:g} W"
        if taken and enforced_mw is not None and enforced_mw / 1e3 < value - 0.5:
            note = f"another limit of {enforced_mw / 1e3:g} W is the one enforced, so this one has no effect"
        elif taken and capped is False and power_mw is not None:
            note = f"the GPU draws {power_mw / 1e3:.0f} W now, so this limit has no effect at the present load"
        return Verified(
            knob=self.card.name,
            asked=value,
            told=told_w,
            in_force=taken,
            achieved=None if power_mw is None else power_mw / 1e3,
            note=note,
        )


# ---- locked clocks


def _locked_clock(nvml: Any, handle: Any, device: str, uuid: str) -> Knob | None:
    architecture = _asked(nvml, nvml.nvmlDeviceGetArchitecture, handle) or 0
    levels_hz = _clock_levels_hz(nvml, handle)
    if architecture < nvml.NVML_DEVICE_ARCH_VOLTA or not levels_hz:
        return None
    card = _card(nvml, handle, device, uuid, "clock", unit="Hz", pair=True, lockable=True, readable=False,
                 ends=(levels_hz[0], levels_hz[-1]), levels=levels_hz)  # fmt: skip
    return LockedClock(card, "Gpu", nvml.NVML_CLOCK_SM)


def _locked_memory_clock(nvml: Any, handle: Any, device: str, uuid: str) -> Knob | None:
    architecture = _asked(nvml, nvml.nvmlDeviceGetArchitecture, handle) or 0
    levels_hz = _memory_levels_hz(nvml, handle)
    if architecture < nvml.NVML_DEVICE_ARCH_AMPERE or len(levels_hz) < 2:
        return None  # with one level there is nothing to choose
    card = _card(nvml, handle, device, uuid, "memory_clock", unit="Hz", pair=True, lockable=True, readable=False,
                 ends=(levels_hz[0], levels_hz[-1]), levels=levels_hz)  # fmt: skip
    return LockedClock(card, "Memory", nvml.NVML_CLOCK_MEM)


def _memory_levels_hz(nvml: Any, handle: Any) -> tuple[float, ...]:
    told = _asked(nvml, nvml.nvmlDeviceGetSupportedMemoryClocks, handle) or ()
    return tuple(sorted(mhz * 1e6 for mhz in told))


def _clock_levels_hz(nvml: Any, handle: Any) -> tuple[float, ...]:
    memory_hz = _memory_levels_hz(nvml, handle)
    if not memory_hz:
        return ()
    told = _asked(nvml, nvml.nvmlDeviceGetSupportedGraphicsClocks, handle, round(memory_hz[-1] / 1e6)) or ()
    return tuple(sorted(mhz * 1e6 for mhz in told))


class LockedClock:
    """Least and most of a clock. NVML does not tell what is locked: `read` knows nothing, and None means a reset."""

    def __init__(self, card: KnobCard, which: str, nvml_domain: int) -> None:
        self.card = card
        self._which = which  # "Gpu" or "Memory", as in the names of NVML's functions
        self._nvml_domain = nvml_domain

    def read(self) -> Value:
        return None

    def set(self, value: Value) -> None:
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            if value is None:
                getattr(nvml, f"nvmlDeviceReset{self._which}LockedClocks")(handle)
            else:
                least_mhz, most_mhz = (round(each_hz / 1e6) for each_hz in self._levels_below(value))
                getattr(nvml, f"nvmlDeviceSet{self._which}LockedClocks")(handle, least_mhz, most_mhz)

    def _levels_below(self, value: Value) -> tuple[float, float]:
        """Each end on the highest level that is not above it: so the card does what we say it was told."""
        assert isinstance(value, tuple)
        low_hz, high_hz = (
            max(
                (level for level in self.card.levels if isinstance(level, float) and level <= end_hz + 1),
                default=end_hz,
            )
            for end_hz in value
        )
        return low_hz, high_hz

    def verify(self, value: Value) -> Verified:
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            clock_mhz = _asked(nvml, nvml.nvmlDeviceGetClockInfo, handle, self._nvml_domain)
            idle = _has_reason(nvml, handle, "GpuIdle")
            capped = _has_reason(nvml, handle, "SwPowerCap")
        achieved_hz = None if clock_mhz is None else clock_mhz * 1e6
        if value is None:
            return Verified(knob=self.card.name, asked=None, told=None, in_force=None, achieved=achieved_hz)
        low_hz, high_hz = self._levels_below(value)
        in_force, note = _judged_clock(achieved_hz, low_hz, high_hz, idle=bool(idle), capped=bool(capped))
        return Verified(
            knob=self.card.name, asked=value, told=(low_hz, high_hz), in_force=in_force, achieved=achieved_hz, note=note
        )


def _judged_clock(
    clock_hz: float | None, least_hz: float, most_hz: float, *, idle: bool, capped: bool
) -> tuple[bool | None, str]:
    """Whether a clock that is reached shows that it was locked, and what to say about it."""
    if clock_hz is None:
        return None, "the GPU does not tell its clock"
    if clock_hz > most_hz + 1e6:
        return False, f"the GPU runs at {clock_hz / 1e6:.0f} MHz all the same"
    if idle:
        return None, "the GPU is idle, so the clock that it reaches under load is not seen yet"
    if clock_hz < least_hz - 1e6 or clock_hz < most_hz - 20e6:
        why = " (its power limit holds it there)" if capped else ""
        return True, f"the GPU reaches {clock_hz / 1e6:.0f} MHz{why}, so a cap above that has no effect"
    return True, ""


def _has_reason(nvml: Any, handle: Any, reason: str) -> bool | None:
    reasons = _asked(nvml, nvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle)
    return None if reasons is None else bool(reasons & getattr(nvml, f"nvmlClocksThrottleReason{reason}"))


# ---- application clocks


def _application_clocks(nvml: Any, handle: Any, device: str, uuid: str) -> Knob | None:
    defaults_mhz = [
        _asked(nvml, nvml.nvmlDeviceGetDefaultApplicationsClock, handle, each)
        for each in (nvml.NVML_CLOCK_MEM, nvml.NVML_CLOCK_SM)
    ]
    levels_hz = _clock_levels_hz(nvml, handle)
    if (
        None in defaults_mhz
        or not levels_hz
        or _asked(nvml, nvml.nvmlDeviceGetApplicationsClock, handle, nvml.NVML_CLOCK_SM) is None
    ):
        return None
    card = _card(nvml, handle, device, uuid, "application_clock", unit="Hz", levels=levels_hz,
                 ends=(levels_hz[0], levels_hz[-1]), default=defaults_mhz[1] * 1e6)  # fmt: skip
    return ApplicationClock(card)


class ApplicationClock:
    """The clock that applications ask for, beside the memory clock that is set. Newer drivers retire it."""

    def __init__(self, card: KnobCard) -> None:
        self.card = card

    def read(self) -> Value:
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            return float(nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_SM) * 1e6)

    def set(self, value: Value) -> None:
        assert isinstance(value, float)
        with _gpu(self.card.identity, self.card.name) as (nvml, handle):
            memory_mhz = nvml.nvmlDeviceGetApplicationsClock(handle, nvml.NVML_CLOCK_MEM)
            default_mhz = nvml.nvmlDeviceGetDefaultApplicationsClock(handle, nvml.NVML_CLOCK_MEM)
            if value == self.card.default and memory_mhz == default_mhz:
                nvml.nvmlDeviceResetApplicationsClocks(handle)  # a reset takes the memory's clock along
            else:
                nvml.nvmlDeviceSetApplicationsClocks(handle, memory_mhz, round(value / 1e6))

    def verify(self, value: Value) -> Verified:
        told = self.read()
        return Verified(knob=self.card.name, asked=value, told=told, in_force=told == value)
