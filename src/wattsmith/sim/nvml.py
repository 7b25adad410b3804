"""A simulated NVML driver: what nvidia-ml-py loads when there is no GPU, with the true joules known.

    machine = SimulatedNvml.create(folder, gpus=2)
    begin_s = machine.play(0, burst(high=1.0, period_s=0.4, duty_ratio=0.5))
    subprocess.run(command, env=os.environ | machine.environment())
    machine.true_energy_j(0, begin_s, time.monotonic())

The driver itself is C (nvml.c, nvml_power.c), compiled on first need; this file writes the state it answers from.
Power follows the load by

    power_w = min(idle_w + load * (sm_w * x * v² + memory_w * y), limit_w)

where x and y are the SM and memory clocks over their maxima and v = floor + (1 - floor) * x is the voltage over its
maximum, floor being `voltage_floor_ratio`. All times are seconds of time.monotonic().
"""

import argparse
import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

from wattsmith.sim import nvml_truth
from wattsmith.sim.nvml_driver import LIBRARY, function_index, function_names, library
from wattsmith.sim.nvml_entries import CHANGEABLE, as_ns, segment_entry, write_gpu, write_parameter
from wattsmith.sim.nvml_layout import (
    MAGIC,
    MAX_CHANGES,
    MAX_FAULTS,
    MAX_GPUS,
    MAX_PROCESSES,
    MAX_SEGMENTS,
    VERSION,
    ProcessEntry,
    State,
)
from wattsmith.sim.nvml_load import Curve, Segment, burst, constant, ramp, sawtooth, step
from wattsmith.sim.nvml_profile import PROFILES, GpuProfile
from wattsmith.terms.errors import BadTerm, MeterUnavailable, NotWritten

__all__ = [
    "PROFILES",
    "Curve",
    "GpuProcess",
    "GpuProfile",
    "GpuSetting",
    "Segment",
    "SettingCall",
    "SimulatedNvml",
    "burst",
    "constant",
    "library",
    "ramp",
    "sawtooth",
    "step",
]

STATE_VARIABLE = "WATTSMITH_SIM_NVML"
ORDINARY_USER_VARIABLE = "WATTSMITH_SIM_NVML_ORDINARY_USER"  # "1": setters called by this process are refused

SUCCESS = 0
NOT_SUPPORTED = 3
NO_PERMISSION = 4
TIMEOUT = 10
GPU_IS_LOST = 15
UNKNOWN = 999


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSetting:
    """What the setters have chosen. None: not set."""

    power_limit_w: float
    locked_clock_hz: tuple[float, float] | None
    locked_memory_clock_hz: tuple[float, float] | None
    application_clock_hz: float | None
    application_memory_clock_hz: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingCall:
    """One call of a setter, refused or not. Arguments as NVML takes them: milliwatts, megahertz."""

    time_s: float
    pid: int
    gpu: int
    function: str
    code: int
    arguments: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    """A process that NVML says is running on a GPU."""

    pid: int
    memory_bytes: int
    graphics: bool = False


class SimulatedNvml:
    """A machine with simulated GPUs. GPUs are named by index."""

    def __init__(self, state_file: Path) -> None:
        """The machine whose state is in STATE_FILE: made by `create`, here or in another process."""
        self.state_file = state_file
        with state_file.open("r+b") as file:
            if os.fstat(file.fileno()).st_size != ctypes.sizeof(State):
                raise BadTerm(f"{state_file} is not the state of a simulated NVML driver of this version")
            self._state = State.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(State)))

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        gpus: int | Sequence[GpuProfile] = 1,
        profile: str = "h200",
        root: bool = True,
        driver_version: str = "580.159.04",
        up_s: float = 10.0,
        **overrides: Any,
    ) -> Self:
        """A new machine, its state in FOLDER. It has been up, and idle, for up_s.

        GPUs are that many of a profile ("h200", "a100", "p100"), changed by OVERRIDES (fields of GpuProfile), or are
        given one by one. With root=False every setter is refused, as the driver does to ordinary users.
        """
        profiles = [_profile(profile, overrides)] * gpus if isinstance(gpus, int) else list(gpus)
        if len(profiles) > MAX_GPUS:
            raise BadTerm(f"at most {MAX_GPUS} GPUs can be simulated, got {len(profiles)}")
        state_file = _empty_state_file(folder)
        machine = cls(state_file)
        state = machine._state
        state.version, state.gpu_count, state.size = VERSION, len(profiles), ctypes.sizeof(State)
        state.boot_ns = time.monotonic_ns() - as_ns(up_s)
        state.realtime_offset_ns = time.time_ns() - time.monotonic_ns()
        state.refuses_setters = not root
        state.cuda_version = 13_000
        state.driver_version = f"{driver_version}-simulated".encode()
        state.nvml_version = f"13.{driver_version}-simulated".encode()
        for index, each in enumerate(profiles):
            write_gpu(state.gpus[index], each, index)
        state.magic = MAGIC  # last: before, the driver takes the file for none of its own
        return machine

    # -- letting programs see it

    def environment(self) -> dict[str, str]:
        """The variables that make a child process load the simulated driver: add them to its environment."""
        folder = library().parent
        return {
            "LD_LIBRARY_PATH": _with_folder_first("LD_LIBRARY_PATH", folder),
            "PATH": _with_folder_first("PATH", folder / "bin"),
            STATE_VARIABLE: str(self.state_file),
        }

    def load_here(self) -> None:
        """Make pynvml in this process use this machine, from the next nvmlInit on."""
        os.environ[STATE_VARIABLE] = str(self.state_file)
        ctypes.CDLL(str(library()), mode=ctypes.RTLD_GLOBAL)
        if not hasattr(ctypes.CDLL(LIBRARY), "wattsmith_simulated_nvml"):
            raise MeterUnavailable(
                "this process has already loaded the real NVML driver. "
                "Load the simulated one first, or run the work in a process of its own with environment()."
            )

    # -- what the GPUs do

    def play(self, gpu: int, curve: Curve | float, start_s: float | None = None) -> float:
        """Give GPU a load from start_s on (None: now), in place of what was planned after it; says when it starts.

        A number is a constant load. A start in the past rewrites what happened since, but the energy counter never
        goes back: do it before anyone reads.
        """
        entry = self._gpu(gpu)
        segments = constant(curve) if isinstance(curve, float | int) else curve
        with self._writing():
            start_ns = time.monotonic_ns() if start_s is None else as_ns(start_s)
            count = entry.segment_count
            if count + len(segments) > MAX_SEGMENTS:
                raise BadTerm(f"GPU {gpu} has room for {MAX_SEGMENTS} segments; a wave needs only one")
            # A planned segment is not taken away, as others may be reading: it begins and ends at the new start.
            for index in range(count - 1, -1, -1):
                if entry.segments[index].start_ns <= start_ns:
                    break
                entry.segments[index].start_ns = start_ns
            for offset, segment in enumerate(segments):
                entry.segments[count + offset] = segment_entry(segment, start_ns)
            entry.segment_count = count + len(segments)
        return start_ns / 1e9

    def true_power_w(self, gpu: int, time_s: float) -> float:
        """What GPU really draws at a moment."""
        return nvml_truth.power_w(self._gpu(gpu), as_ns(time_s))

    def true_energy_j(self, gpu: int, begin_s: float, end_s: float) -> float:
        """What GPU really used between two moments."""
        return nvml_truth.energy_j(self._gpu(gpu), as_ns(begin_s), as_ns(end_s))

    def use_memory(self, gpu: int, used_bytes: int) -> None:
        """Say that so much of the GPU's memory is in use."""
        self._gpu(gpu).memory_used_bytes = used_bytes

    def run_processes(self, gpu: int, processes: Sequence[GpuProcess]) -> None:
        """Say that these processes run on GPU, and no others."""
        entry = self._gpu(gpu)
        if len(processes) > MAX_PROCESSES:
            raise BadTerm(f"at most {MAX_PROCESSES} processes run on a simulated GPU, got {len(processes)}")
        entry.process_count = 0
        for index, each in enumerate(processes):
            entry.processes[index] = ProcessEntry(each.memory_bytes, each.pid, each.graphics)
        entry.process_count = len(processes)

    def change(self, gpu: int, **parameters: Any) -> None:
        """Change parameters of a GPU while it runs: has_*, *_read_s, sensor_gain, *_ratio.

        Others shape its past as well as its future, and are given to `create`.
        """
        entry = self._gpu(gpu)
        for name, value in parameters.items():
            if name not in CHANGEABLE:
                raise BadTerm(f"{name} cannot be changed while running; these can: {', '.join(CHANGEABLE)}")
            write_parameter(entry, name, value)

    def act_as_root(self, root: bool) -> None:
        """Whether setters are let through."""
        self._state.refuses_setters = not root

    # -- what goes wrong

    def fail(
        self,
        gpu: int | None,
        code: int,
        *,
        function: str | None = None,
        times: int | None = None,
        from_s: float | None = None,
        delay_s: float = 0.0,
    ) -> None:
        """Make calls return the NVML error CODE, each after delay_s.

        GPU None: calls on any GPU and on none; function None: every function; times None: for ever; from_s None: from
        now. Code 0 (SUCCESS) only delays. Faults stay until `heal`.
        """
        if gpu is not None:
            self._gpu(gpu)
        with self._writing():
            fault = next((each for each in self._state.faults if not each.active or each.remaining == 0), None)
            if fault is None:
                raise BadTerm(f"{MAX_FAULTS} faults are in force already; heal() some")
            fault.active = 0
            fault.from_ns = time.monotonic_ns() if from_s is None else as_ns(from_s)
            fault.delay_ns = as_ns(delay_s)
            fault.remaining = -1 if times is None else times
            fault.gpu = -1 if gpu is None else gpu
            fault.call = -1 if function is None else function_index(function)
            fault.code = code
            fault.active = 1

    def lose(self, gpu: int, from_s: float | None = None) -> None:
        """GPU falls off the bus: every call on it says so from then on."""
        self.fail(gpu, GPU_IS_LOST, from_s=from_s)

    def heal(self) -> None:
        """Take all faults away."""
        for fault in self._state.faults:
            fault.active = 0

    # -- what was done to it

    def calls(self, function: str) -> int:
        """How often a function was called, by whom ever. _v2 and the like count as the plain name."""
        return int(self._state.calls[function_index(function)])

    def all_calls(self) -> dict[str, int]:
        """Functions that were called, and how often."""
        counts = zip(function_names(), self._state.calls, strict=False)
        return {name: count for name, count in counts if count}

    def setting(self, gpu: int) -> GpuSetting:
        """What the setters have chosen so far."""
        entry = self._gpu(gpu)
        last = entry.settings[entry.setting_count - 1]
        return GpuSetting(
            power_limit_w=last.limit_mw / 1_000,
            locked_clock_hz=_range_hz(last.sm_lock_min_mhz, last.sm_lock_max_mhz),
            locked_memory_clock_hz=_range_hz(last.memory_lock_min_mhz, last.memory_lock_max_mhz),
            application_clock_hz=last.sm_application_mhz * 1e6 or None,
            application_memory_clock_hz=last.memory_application_mhz * 1e6 or None,
        )

    def setting_calls(self) -> list[SettingCall]:
        """Calls of setters, oldest first; the latest 4096."""
        count, names = self._state.change_count, function_names()
        kept = (self._state.changes[i % MAX_CHANGES] for i in range(max(0, count - MAX_CHANGES), count))
        return [
            SettingCall(
                time_s=each.time_ns / 1e9,
                pid=each.pid,
                gpu=each.gpu,
                function=names[each.call],
                code=each.code,
                arguments=(each.argument[0], each.argument[1]),
            )
            for each in kept
        ]

    @property
    def booted_s(self) -> float:
        """When the machine started, and its energy counters from zero."""
        return float(self._state.boot_ns / 1e9)

    def uuid(self, gpu: int) -> str:
        return str(self._gpu(gpu).uuid.decode())

    # -- inside

    def _gpu(self, gpu: int) -> Any:
        if not 0 <= gpu < self._state.gpu_count:
            raise BadTerm(f"there is no GPU {gpu}; this machine has {self._state.gpu_count}")
        return self._state.gpus[gpu]

    @contextmanager
    def _writing(self) -> Iterator[None]:
        with self.state_file.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)


def _with_folder_first(variable: str, folder: Path) -> str:
    return ":".join(filter(None, [str(folder), os.environ.get(variable)]))


def _profile(name: str, overrides: Mapping[str, Any]) -> GpuProfile:
    if name not in PROFILES:
        raise BadTerm(f"there is no profile {name!r}; there are {', '.join(PROFILES)}")
    known = [field.name for field in fields(GpuProfile)]
    if unknown := set(overrides) - set(known):
        raise BadTerm(f"a GPU has no {', '.join(sorted(unknown))}; it has {', '.join(known)}")
    return replace(PROFILES[name], **overrides)


def _empty_state_file(folder: Path) -> Path:
    state_file = folder / "nvml.state"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        state_file.unlink(missing_ok=True)  # who has the old one mapped keeps it
        with state_file.open("wb") as file:
            file.truncate(ctypes.sizeof(State))  # sparse: what is not used takes no room
    except OSError as failed:
        raise NotWritten(f"the simulated driver's state cannot be written to {state_file}: {failed}") from failed
    return state_file.resolve()


def _range_hz(least_mhz: int, most_mhz: int) -> tuple[float, float] | None:
    return (least_mhz * 1e6, most_mhz * 1e6) if most_mhz else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command on a simulated driver and say what its GPUs really used; gives the command's exit status."""
    parser = argparse.ArgumentParser(prog="python -m wattsmith.sim.nvml", description=main.__doc__)
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--profile", choices=sorted(PROFILES), default="h200")
    parser.add_argument("--load", type=float, default=0.0, help="0 … 1, on every GPU")
    parser.add_argument("command", nargs="+", metavar="-- COMMAND")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="wattsmith-sim-") as folder:
        machine = SimulatedNvml.create(Path(folder), gpus=options.gpus, profile=options.profile)
        begin_s = time.monotonic()
        for gpu in range(options.gpus):
            machine.play(gpu, options.load)
        finished = subprocess.run(options.command, env=os.environ | machine.environment(), check=False)
        end_s = time.monotonic()
        for gpu in range(options.gpus):
            energy_j = machine.true_energy_j(gpu, begin_s, end_s)
            sys.stderr.write(f"simulated gpu:{gpu} used {energy_j:.1f} J in {end_s - begin_s:.2f} s\n")
    return finished.returncode


if __name__ == "__main__":
    sys.exit(main())
