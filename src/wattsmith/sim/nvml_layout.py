"""The state file of the simulated NVML driver, as nvml_state.h lays it out."""

import ctypes
from typing import Any

MAX_GPUS, MAX_MIGS, MAX_SEGMENTS, MAX_SETTINGS = 16, 7, 4096, 2048
MAX_PROCESSES, MAX_MEMORY_CLOCKS, MAX_FAULTS, MAX_CALLS, MAX_CHANGES = 32, 8, 64, 192, 4096
MAX_NAME = 96
BEFORE_ALL_NS = -(2**62)


class SegmentEntry(ctypes.Structure):
    _fields_ = [
        ("start_ns", ctypes.c_int64),
        ("duration_ns", ctypes.c_int64),
        ("period_ns", ctypes.c_int64),
        ("load_begin", ctypes.c_double),
        ("load_end", ctypes.c_double),
        ("duty_ratio", ctypes.c_double),
        ("kind", ctypes.c_uint32),
        ("unused", ctypes.c_uint32),
    ]


def _uints(*names: str) -> list[tuple[str, Any]]:
    return [(name, ctypes.c_uint32) for name in names]


class SettingEntry(ctypes.Structure):
    _fields_ = [
        ("time_ns", ctypes.c_int64),
        *_uints("limit_mw", "sm_lock_min_mhz", "sm_lock_max_mhz", "memory_lock_min_mhz", "memory_lock_max_mhz"),
        *_uints("sm_application_mhz", "memory_application_mhz", "unused"),
    ]


class MigEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * MAX_NAME),
        ("uuid", ctypes.c_char * MAX_NAME),
        ("memory_bytes", ctypes.c_uint64),
        *_uints("gpu_instance", "compute_instance", "slices", "multiprocessors"),
    ]


class ProcessEntry(ctypes.Structure):
    _fields_ = [("memory_bytes", ctypes.c_uint64), *_uints("pid", "graphics")]


class GpuEntry(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * MAX_NAME),
        ("uuid", ctypes.c_char * MAX_NAME),
        ("serial", ctypes.c_char * 32),
        ("vbios", ctypes.c_char * 32),
        ("part_number", ctypes.c_char * 80),
        *_uints("pci_bus", "pci_device_id", "pci_subsystem_id"),
        *_uints("brand", "architecture", "cuda_major", "cuda_minor", "cores", "multiprocessors", "memory_bus_bits"),
        *_uints("persistence", "compute_mode"),
        *_uints("sm_clock_min_mhz", "sm_clock_max_mhz", "sm_clock_step_mhz", "memory_clock_count"),
        ("memory_clocks_mhz", ctypes.c_uint32 * MAX_MEMORY_CLOCKS),
        *_uints("limit_min_mw", "limit_max_mw", "limit_default_mw"),
        *_uints("has_counter", "has_samples", "has_instant_field", "has_average_field", "has_gpm", "sample_capacity"),
        *_uints("mig_enabled", "mig_count", "process_count", "segment_count", "setting_count", "unused"),
        *[(name, ctypes.c_double) for name in ("idle_w", "sm_w", "memory_w", "voltage_floor_ratio")],
        *[
            (name, ctypes.c_double)
            for name in ("ambient_c", "kelvin_per_w", "thermal_s", "sensor_gain", "sensor_noise_w")
        ],
        *[(name, ctypes.c_double) for name in ("sm_ratio", "occupancy_ratio", "tensor_ratio", "dram_ratio")],
        *[(name, ctypes.c_int64) for name in ("phase_ns", "sensor_period_ns", "sensor_window_ns")],
        *[(name, ctypes.c_int64) for name in ("sensor_jitter_ns", "instant_period_ns", "average_window_ns")],
        *[(name, ctypes.c_int64) for name in ("counter_period_ns", "counter_read_ns", "samples_read_ns")],
        *[(name, ctypes.c_uint64) for name in ("memory_total_bytes", "memory_used_bytes", "counter_floor_mj")],
        ("migs", MigEntry * MAX_MIGS),
        ("processes", ProcessEntry * MAX_PROCESSES),
        ("segments", SegmentEntry * MAX_SEGMENTS),
        ("settings", SettingEntry * MAX_SETTINGS),
    ]


class FaultEntry(ctypes.Structure):
    _fields_ = [
        ("from_ns", ctypes.c_int64),
        ("delay_ns", ctypes.c_int64),
        ("remaining", ctypes.c_int64),
        ("gpu", ctypes.c_int32),
        ("call", ctypes.c_int32),
        *_uints("code", "active"),
    ]


class ChangeEntry(ctypes.Structure):
    _fields_ = [
        ("time_ns", ctypes.c_int64),
        *_uints("pid", "gpu", "call", "code"),
        ("argument", ctypes.c_uint32 * 2),
    ]


class State(ctypes.Structure):
    _fields_ = [
        ("magic", ctypes.c_char * 8),
        *_uints("version", "gpu_count"),
        ("size", ctypes.c_uint64),
        ("boot_ns", ctypes.c_int64),
        ("realtime_offset_ns", ctypes.c_int64),
        ("refuses_setters", ctypes.c_uint32),
        ("cuda_version", ctypes.c_int32),
        ("driver_version", ctypes.c_char * 80),
        ("nvml_version", ctypes.c_char * 80),
        ("calls", ctypes.c_uint64 * MAX_CALLS),
        ("faults", FaultEntry * MAX_FAULTS),
        ("change_count", ctypes.c_uint64),
        ("changes", ChangeEntry * MAX_CHANGES),
        ("gpus", GpuEntry * MAX_GPUS),
    ]


MAGIC, VERSION = b"WSNVML", 1
