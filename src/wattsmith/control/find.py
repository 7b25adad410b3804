"""Which knobs this machine has."""

from pathlib import Path

from wattsmith.control.nvml_knobs import find_nvml_knobs, knobs_of_gpu
from wattsmith.control.sysfs_knobs import SYSFS, find_sysfs_knobs
from wattsmith.terms.control import Knob, KnobLost


def find_knobs(sysfs: Path = SYSFS) -> dict[str, Knob]:
    """Every knob by name. A machine without GPUs has those of its CPU; one in a container may have none."""
    try:
        gpus = find_nvml_knobs()
    except KnobLost:
        gpus = []
    return {knob.card.name: knob for knob in [*gpus, *find_sysfs_knobs(sysfs)]}


def knobs_of(identity: str, sysfs: Path = SYSFS) -> dict[str, Knob]:
    """The knobs of one device by kind ("power_limit"), whatever its number is now. Raises KnobLost when it is gone."""
    if identity.startswith("GPU-"):
        found = knobs_of_gpu(identity)
    else:
        found = [knob for knob in find_sysfs_knobs(sysfs) if knob.card.identity == identity]
    if not found:
        raise KnobLost(f"{identity} is not there any more (looked under {sysfs})")
    return {knob.card.kind: knob for knob in found}
