"""AMD GPUs through amdsmi: power cap and clock. Only root may turn them, and only outside of virtual machines."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from wattsmith.control.sysfs_knobs import ordered_writes
from wattsmith.terms.control import DeviceHeld, Knob, KnobCard, KnobLost, NotPermitted, Value, Verified
from wattsmith.terms.errors import BadTerm

IDENTITY = "amd-"  # and the GPU's UUID
_INVALID, _NOT_SUPPORTED, _NO_PERMISSION = 1, 2, 10
_PER_W = 1_000_000  # caps are counted in microwatts


def find_amd_knobs(first: int = 0) -> list[Knob]:
    """The knobs of every AMD GPU, numbered from FIRST on. Raises KnobLost when there is no driver."""
    with _library() as smi:
        return [knob for n, handle in enumerate(_handles(smi), start=first) for knob in _knobs(smi, handle, f"gpu:{n}")]


def knobs_of_amd_gpu(identity: str) -> list[Knob]:
    """The knobs of one GPU, whatever its number is now."""
    with _gpu(identity, identity) as (smi, handle):
        return _knobs(smi, handle, identity)


def check_nobody_else_on_amd(identity: str, own_pids: frozenset[int]) -> None:
    """Raise DeviceHeld when processes other than OWN_PIDS run on the GPU."""
    with _gpu(identity, identity) as (smi, handle):
        try:
            running = {each["pid"] for each in smi.amdsmi_get_gpu_process_list(handle)}
        except (smi.AmdSmiException, TypeError, KeyError) as silent:
            raise DeviceHeld(
                f"the driver does not tell who else uses {identity} ({_in_one_line(silent)}). Say that it may be "
                "shared (`--shared`) if you know."
            ) from silent
    if others := sorted(running - own_pids):
        raise DeviceHeld(
            f"{identity} is used by others: process {', '.join(map(str, others))}. Wait until they have ended, or say "
            "that it may be shared (`--shared`) if they are yours."
        )


@contextmanager
def _library() -> Iterator[Any]:
    try:
        with redirect_stdout(io.StringIO()):  # it prints when its library is missing
            import amdsmi
    except (ImportError, KeyError, OSError, AttributeError) as missing:
        raise KnobLost(f"AMD GPUs need the package amdsmi and its library ({missing})") from missing
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as absent:
        raise KnobLost(f"no AMD driver answers here ({_in_one_line(absent)})") from absent
    try:
        yield amdsmi
    finally:
        amdsmi.amdsmi_shut_down()


def _handles(smi: Any) -> list[Any]:
    try:
        return list(smi.amdsmi_get_processor_handles())
    except smi.AmdSmiException as failed:
        raise KnobLost(f"the AMD driver does not list its GPUs ({_in_one_line(failed)})") from failed


@contextmanager
def _gpu(identity: str, what: str) -> Iterator[tuple[Any, Any]]:
    """The library and the handle of a GPU, found by UUID; its errors in our terms."""
    with _library() as smi:
        try:
            uuid = identity.removeprefix(IDENTITY)
            handle = next((h for h in _handles(smi) if smi.amdsmi_get_gpu_device_uuid(h) == uuid), None)
            if handle is None:
                raise KnobLost(f"{what}: the GPU {identity} is not there any more")
            yield smi, handle
        except smi.AmdSmiException as failed:
            raise _as_ours(failed, what) from failed


def _as_ours(failed: Exception, what: str) -> NotPermitted | BadTerm | KnobLost:
    code = getattr(failed, "err_code", None)
    if code in (_NO_PERMISSION, _NOT_SUPPORTED):
        return NotPermitted(
            f"{what}: not permitted ({_in_one_line(failed)}); only root may, and not on a virtual GPU. Run as root, or "
            "go through `wattsmith control serve`."
        )
    if code == _INVALID:
        return BadTerm(f"{what}: the driver refuses this value ({_in_one_line(failed)})")
    return KnobLost(f"{what} does not answer ({_in_one_line(failed)})")


def _in_one_line(failed: Exception) -> str:
    return " ".join(str(failed).split())


def _knobs(smi: Any, handle: Any, device: str) -> list[Knob]:
    return [knob for knob in (_power_cap(smi, handle, device), _clock(smi, handle, device)) if knob is not None]


def _power_cap(smi: Any, handle: Any, device: str) -> Knob | None:
    """The power cap of one GPU; None where it tells none."""
    try:
        told = smi.amdsmi_get_power_cap_info(handle)
        title = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        identity = IDENTITY + smi.amdsmi_get_gpu_device_uuid(handle)
    except smi.AmdSmiException:
        return None
    default_w = told["default_power_cap"] / _PER_W
    if default_w <= 0:
        return None  # the second die of a pair has none of its own
    card = KnobCard(
        name=f"{device}/power_limit",
        device=device,
        identity=identity,
        title=title,
        unit="W",
        ends=(told["min_power_cap"] / _PER_W, min(told["max_power_cap"] / _PER_W, default_w)),
        default=default_w,
        simulated=bool(getattr(smi, "SIMULATED", False)),
    )
    return PowerCap(card)


class PowerCap:
    """What a GPU may draw."""

    def __init__(self, card: KnobCard) -> None:
        self.card = card

    def read(self) -> Value:
        with _gpu(self.card.identity, self.card.name) as (smi, handle):
            return float(smi.amdsmi_get_power_cap_info(handle)["power_cap"] / _PER_W)

    def set(self, value: Value) -> None:
        assert isinstance(value, float)
        with _gpu(self.card.identity, self.card.name) as (smi, handle):
            smi.amdsmi_set_power_cap(handle, 0, round(value * _PER_W))

    def verify(self, value: Value) -> Verified:
        assert isinstance(value, float)
        told_w = self.read()
        assert isinstance(told_w, float)
        taken = math.isclose(told_w, value, abs_tol=1.0)  # the driver keeps whole watts
        note = "" if taken else f"the driver keeps {told_w:g} W, though it did not refuse"
        return Verified(knob=self.card.name, asked=value, told=told_w, in_force=taken, note=note)


def _clock(smi: Any, handle: Any, device: str) -> Knob | None:
    """The clock of one GPU; None where it tells none, or where the binding is older than setting it."""
    if not hasattr(smi, "amdsmi_set_gpu_clk_limit"):
        return None
    try:
        levels_hz = sorted(map(float, smi.amdsmi_get_clk_freq(handle, smi.AmdSmiClkType.SYS)["frequency"]))
        title = str(smi.amdsmi_get_gpu_asic_info(handle)["market_name"])
        identity = IDENTITY + smi.amdsmi_get_gpu_device_uuid(handle)
    except (smi.AmdSmiException, KeyError, TypeError, ValueError):
        return None
    if len(levels_hz) < 2 or levels_hz[0] <= 0:
        return None
    card = KnobCard(
        name=f"{device}/clock",
        device=device,
        identity=identity,
        title=title,
        unit="Hz",
        ends=(levels_hz[0], levels_hz[-1]),
        pair=True,
        lockable=True,
        simulated=bool(getattr(smi, "SIMULATED", False)),
    )
    return ClockLimits(card)


class ClockLimits:
    """Least and most of a GPU's clock, or, unlocked, as the driver sees fit.

    Limits count while the driver's performance level is "manual", to which setting one takes it.
    """

    def __init__(self, card: KnobCard) -> None:
        self.card = card

    def read(self) -> Value:
        with _gpu(self.card.identity, self.card.name) as (smi, handle):
            level = str(smi.amdsmi_get_gpu_perf_level(handle)).rpartition("_")[2]
            if level == "AUTO":
                return None
            if level != "MANUAL":
                raise NotPermitted(
                    f"{self.card.name}: the GPU is at the performance level {level.lower()}, to which it could not be "
                    "put back with its clocks; set it to auto first"
                )
            return self._limits_hz(smi, handle)

    def set(self, value: Value) -> None:
        with _gpu(self.card.identity, self.card.name) as (smi, handle):
            if value is None:
                smi.amdsmi_set_gpu_perf_level(handle, smi.AmdSmiDevPerfLevel.AUTO)
                return
            assert isinstance(value, tuple)
            for end, clock_hz in ordered_writes(self._limits_hz(smi, handle), value):
                smi.amdsmi_set_gpu_clk_limit(handle, "sclk", "min" if end == "least" else "max", round(clock_hz / 1e6))

    def verify(self, value: Value) -> Verified:
        told = self.read()
        taken = told == value
        if isinstance(told, tuple) and isinstance(value, tuple):
            taken = all(abs(a - b) <= 1e6 for a, b in zip(told, value, strict=True))  # the driver keeps whole MHz
        note = "" if taken else f"the driver keeps {told}, though it did not refuse"
        return Verified(knob=self.card.name, asked=value, told=told, in_force=taken, note=note)

    def _limits_hz(self, smi: Any, handle: Any) -> tuple[float, float]:
        told = smi.amdsmi_get_clock_info(handle, smi.AmdSmiClkType.GFX)
        return float(told["min_clk"]) * 1e6, float(told["max_clk"]) * 1e6
