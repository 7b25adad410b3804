"""AMD GPUs through amdsmi: the power cap. Only root may turn it, and only outside of virtual machines."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

from wattsmith.terms.control import DeviceHeld, Knob, KnobCard, KnobLost, NotPermitted, Value, Verified
from wattsmith.terms.errors import BadTerm

IDENTITY = "amd-"  # and the GPU's UUID
_INVALID, _NOT_SUPPORTED, _NO_PERMISSION = 1, 2, 10
_PER_W = 1_000_000  # caps are counted in microwatts


def find_amd_knobs(first: int = 0) -> list[Knob]:
    """The power cap of every AMD GPU, numbered from FIRST on. Raises KnobLost when there is no driver."""
    with _library() as smi:
        knobs = [_power_cap(smi, handle, f"gpu:{n}") for n, handle in enumerate(_handles(smi), start=first)]
    return [knob for knob in knobs if knob is not None]


def knobs_of_amd_gpu(identity: str) -> list[Knob]:
    """The knobs of one GPU, whatever its number is now."""
    with _gpu(identity, identity) as (smi, handle):
        knob = _power_cap(smi, handle, identity)
    return [] if knob is None else [knob]


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
