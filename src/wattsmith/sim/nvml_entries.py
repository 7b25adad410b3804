"""Profiles and load curves as entries of the simulated NVML driver's state file, in the units the driver wants."""

import re
from typing import Any

from wattsmith.sim.nvml_layout import BEFORE_ALL_NS, GpuEntry, SegmentEntry, SettingEntry
from wattsmith.sim.nvml_load import KINDS, Segment
from wattsmith.sim.nvml_profile import GpuProfile
from wattsmith.terms.errors import BadTerm


def as_ns(time_s: float) -> int:
    return round(time_s * 1e9)


def _mhz(clock_hz: float) -> int:
    return round(clock_hz / 1e6)


def _mw(power_w: float) -> int:
    return round(power_w * 1_000)


def write_gpu(entry: Any, profile: GpuProfile, index: int) -> None:
    entry.name = f"{profile.name} (simulated)".encode()
    entry.uuid = f"GPU-51b00000-0000-4000-8000-{index:012x}".encode()
    entry.serial = f"16500{index:08d}".encode()
    entry.vbios = b"00.00.00.00.00-simulated"
    entry.part_number = b"000-00000-0000-000"
    entry.pci_bus = 0x10 + index
    entry.pci_subsystem_id = 0x000010DE
    entry.persistence = 1
    entry.cuda_major, entry.cuda_minor = profile.cuda_capability
    entry.sm_clock_min_mhz, entry.sm_clock_max_mhz = _mhz(profile.clock_min_hz), _mhz(profile.clock_max_hz)
    entry.sm_clock_step_mhz = _mhz(profile.clock_step_hz)
    entry.memory_clock_count = len(profile.memory_clocks_hz)
    for place, clock_hz in enumerate(profile.memory_clocks_hz):
        entry.memory_clocks_mhz[place] = _mhz(clock_hz)
    entry.memory_total_bytes = profile.memory_bytes
    for name in _PARAMETERS:
        write_parameter(entry, name, getattr(profile, name))
    # Cards do not refresh in step with each other.
    entry.phase_ns = entry.counter_period_ns * (index * 37 % 100) // 100
    _write_migs(entry, profile, index)
    entry.settings[0] = SettingEntry(time_ns=BEFORE_ALL_NS, limit_mw=entry.limit_default_mw)
    entry.setting_count = 1


_PARAMETERS = (
    *("architecture", "brand", "pci_device_id", "cores", "multiprocessors", "memory_bus_bits", "memory_used_bytes"),
    *("limit_min_w", "limit_max_w", "limit_default_w", "idle_w", "sm_w", "memory_w", "voltage_floor_ratio"),
    *("ambient_c", "kelvin_per_w", "thermal_s", "sensor_period_s", "sensor_window_s", "sensor_jitter_s"),
    *("sensor_gain", "sensor_noise_w", "sample_capacity", "instant_period_s", "average_window_s", "counter_period_s"),
    *(
        "counter_read_s",
        "samples_read_s",
        "has_counter",
        "has_samples",
        "has_instant_field",
        "has_average_field",
        "has_gpm",
    ),
    *("sm_ratio", "occupancy_ratio", "tensor_ratio", "dram_ratio"),
)
CHANGEABLE = tuple(
    name
    for name in _PARAMETERS
    if name.startswith("has_") or name.endswith(("_read_s", "_ratio", "_gain", "_noise_w"))
    if name != "voltage_floor_ratio"
)


def write_parameter(entry: Any, name: str, value: Any) -> None:
    """Store a field of GpuProfile in the unit that the driver wants."""
    known = {each[0] for each in GpuEntry._fields_}
    if name in known:
        setattr(entry, name, value)
    elif name.endswith("_s"):
        setattr(entry, name[:-2] + "_ns", as_ns(value))
    else:
        setattr(entry, name[:-2] + "_mw", _mw(value))


def _write_migs(entry: Any, profile: GpuProfile, index: int) -> None:
    entry.mig_enabled, entry.mig_count = bool(profile.mig), len(profile.mig)
    for place, shape in enumerate(profile.mig):
        matched = re.fullmatch(r"(\d)g\.(\d+)gb", shape)
        if matched is None:
            raise BadTerm(f"{shape!r} is not the shape of a MIG device; write for instance 1g.18gb")
        slices, gigabytes = map(int, matched.groups())
        mig = entry.migs[place]
        mig.name = f"{profile.name} MIG {shape} (simulated)".encode()
        mig.uuid = f"MIG-51b00000-0000-4000-8{index:03x}-{place:012x}".encode()
        mig.memory_bytes = gigabytes * 2**30
        mig.gpu_instance, mig.compute_instance, mig.slices = place + 1, 0, slices
        mig.multiprocessors = profile.multiprocessors * slices // 8


def segment_entry(segment: Segment, start_ns: int) -> SegmentEntry:
    return SegmentEntry(
        start_ns=start_ns + as_ns(segment.start_s),
        duration_ns=as_ns(segment.duration_s),
        period_ns=as_ns(segment.period_s),
        load_begin=segment.load_begin,
        load_end=segment.load_end,
        duty_ratio=segment.duty_ratio,
        kind=KINDS.index(segment.kind),
    )
