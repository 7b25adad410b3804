"""A program on the simulated driver: it loads a GPU, takes steps, and is slowed down when its clock falls.

    python -m wattsmith.sim.nvml_program --load 0.8 --bound 0.7 --step 0.02 --seconds 30 --progress steps.log

The driver itself knows loads, which no setting slows down. Here a share of each step follows the SM clock, and the rest
(memory, host) does not: `step_s × (bound / x + 1 − bound)`, x being the clock over its maximum, as the driver tells it.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattsmith.sim.nvml import STATE_VARIABLE, SimulatedNvml
from wattsmith.sim.nvml_profile import GpuProfile
from wattsmith.terms.errors import BadTerm, MeterUnavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedProgram:
    """What a program asks of a GPU."""

    load: float  # of the GPU while it runs, 0 … 1
    bound: float  # share of a step that follows the clock
    step_s: float = 0.02  # at the highest clock

    def __post_init__(self) -> None:
        if not 0 <= self.load <= 1 or not 0 <= self.bound <= 1 or self.step_s <= 0:
            raise BadTerm(f"load and bound lie in 0 … 1, and a step takes time, got {self}")

    def step_at_s(self, clock_ratio: float) -> float:
        """How long a step takes at so much of the highest clock."""
        return self.step_s * (self.bound / clock_ratio + 1 - self.bound)

    def under(self, gpu: GpuProfile, limit_w: float) -> tuple[float, float]:
        """Step in seconds and power in watts under a power limit, by the driver's formulas."""
        clock_hz, memory_hz = gpu.clock_max_hz, gpu.memory_clocks_hz[0]
        room_w = limit_w - gpu.idle_w
        while clock_hz > gpu.clock_min_hz and self.load * gpu.full_load_w(clock_hz, memory_hz) > room_w + 1e-9:
            clock_hz -= gpu.clock_step_hz
        power_w = min(gpu.idle_w + self.load * gpu.full_load_w(gpu.clock_max_hz, memory_hz), limit_w)
        return self.step_at_s(clock_hz / gpu.clock_max_hz), power_w


def run(program: SimulatedProgram, machine: SimulatedNvml, gpu: int, seconds_s: float, progress: Path | None) -> int:
    """Take steps on GPU for SECONDS_S, a line in PROGRESS for each; gives how many."""
    import pynvml

    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
    most_mhz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM)
    steps, due_s = 0, time.monotonic()
    until_s = due_s + seconds_s
    machine.play(gpu, program.load)
    file = None if progress is None else progress.open("a", buffering=1)
    try:
        while due_s < until_s:
            clock_mhz = pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
            due_s += program.step_at_s(clock_mhz / most_mhz)
            time.sleep(max(0.0, due_s - time.monotonic()))
            steps += 1
            if file is not None:
                file.write("\n")
    finally:
        machine.play(gpu, 0.0)
        if file is not None:
            file.close()
        pynvml.nvmlShutdown()
    return steps


def main(arguments: Sequence[str] | None = None) -> int:
    """Play one program on the simulated driver that this process is given by its environment."""
    parser = argparse.ArgumentParser(prog="python -m wattsmith.sim.nvml_program", description=main.__doc__)
    parser.add_argument("--gpu", type=int, default=0)
    parser.add_argument("--load", type=float, required=True, help="0 … 1")
    parser.add_argument("--bound", type=float, required=True, help="share of a step that follows the clock")
    parser.add_argument("--step", type=float, default=0.02, help="seconds, at the highest clock")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--progress", type=Path, help="a line is added to this file after each step")
    options = parser.parse_args(arguments)
    if STATE_VARIABLE not in os.environ:
        raise MeterUnavailable("no simulated driver is given: run this under `python -m wattsmith.sim.nvml -- …`")
    program = SimulatedProgram(load=options.load, bound=options.bound, step_s=options.step)
    machine = SimulatedNvml(Path(os.environ[STATE_VARIABLE]))
    run(program, machine, options.gpu, options.seconds, options.progress)
    return 0


if __name__ == "__main__":
    sys.exit(main())
