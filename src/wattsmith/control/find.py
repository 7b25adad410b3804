"""Which knobs this machine has."""

from pathlib import Path

from wattsmith.control.amd_knobs import IDENTITY as AMD
from wattsmith.control.amd_knobs import check_nobody_else_on_amd, find_amd_knobs, knobs_of_amd_gpu
from wattsmith.control.nvml_knobs import check_nobody_else_on_nvidia, find_nvml_knobs, knobs_of_gpu
from wattsmith.control.nvpmodel_knobs import find_nvpmodel_knobs
from wattsmith.control.sysfs_knobs import SYSFS, find_sysfs_knobs
from wattsmith.terms.control import Knob, KnobLost

NVIDIA = "GPU-"  # how the driver's UUIDs begin


def find_knobs(sysfs: Path = SYSFS) -> dict[str, Knob]:
    """Every knob by name. A machine without GPUs has those of its CPU; one in a container may have none."""
    try:
        nvidia = find_nvml_knobs()
    except KnobLost:
        nvidia = []
    try:
        amd = find_amd_knobs(first=len({knob.card.identity for knob in nvidia}))
    except KnobLost:
        amd = []
    return {knob.card.name: knob for knob in [*nvidia, *amd, *find_nvpmodel_knobs(sysfs), *find_sysfs_knobs(sysfs)]}


def knobs_of(identity: str, sysfs: Path = SYSFS) -> dict[str, Knob]:
    """The knobs of one device by kind ("power_limit"), whatever its number is now. Raises KnobLost when it is gone."""
    if identity.startswith(NVIDIA):
        found = knobs_of_gpu(identity)
    elif identity.startswith(AMD):
        found = knobs_of_amd_gpu(identity)
    else:
        others = [*find_nvpmodel_knobs(sysfs), *find_sysfs_knobs(sysfs)]
        found = [knob for knob in others if knob.card.identity == identity]
    if not found:
        raise KnobLost(f"{identity} is not there any more (looked under {sysfs})")
    return {knob.card.kind: knob for knob in found}


def check_nobody_else(identity: str, own_pids: frozenset[int]) -> None:
    """Raise DeviceHeld when a GPU is used by processes other than OWN_PIDS, or split. Other devices are everybody's."""
    if identity.startswith(NVIDIA):
        check_nobody_else_on_nvidia(identity, own_pids)
    elif identity.startswith(AMD):
        check_nobody_else_on_amd(identity, own_pids)
