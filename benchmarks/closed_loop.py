"""The whole way on a simulated driver: a program is watched and probed, recognised, scheduled, and its promise checked.

    python benchmarks/closed_loop.py [--loads N] [--json FILE]

A program plays a load on a SIMULATED H200 and gets slower as its power limit bites. `wattsmith match --pid` watches and
probes it beside a record of other simulated programs at seven limits; a work schedule with least energy within 5 % of
slowdown is made from the match, and `wattsmith control follow` carries it out under a lease. Measured are the true
joules and steps while it is in force, against the intervals that the schedule states; beside it what the program does
with no schedule, and under one limit for all (70 %). The record's own programs are never the ones tried.

Exits with 1 when a measured figure lies outside its stated interval, when nothing was recognised, or when the limit is
not put back.
"""

import argparse
import json
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from results.shape import bar, table
from wattsmith.flows.matched_schedules import schedule_for
from wattsmith.schedule.documents import write_schedule
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.sim.nvml_profile import GpuProfile
from wattsmith.sim.nvml_program import SimulatedProgram
from wattsmith.store.lines import LinesStore
from wattsmith.terms.control import KnobLost
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Condition, Consumption, Device, Provenance, Run, Status, StepTimes
from wattsmith.terms.telemetry import Match
from wattsmith.terms.work import Setting, Workload
from wattsmith.terms.work_schedule import Watch, WorkSchedule

GPU = GpuProfile(sensor_noise_w=2.0)
LIMITS_W = (700.0, 630.0, 560.0, 490.0, 420.0, 350.0, 280.0)
COMMON = 0.7  # of the limit, for all
SLOWDOWN = 0.05
NOISE = 0.01  # relative, of the record's times and powers
WATCH_S, LOOK_S, SETTLE_S = 4.0, 3.0, 0.7
WATTSMITH = (sys.executable, "-c", "from wattsmith.cli import main; main()")
TRIED = (
    SimulatedProgram(load=0.95, bound=0.35),
    SimulatedProgram(load=0.85, bound=0.85),
    SimulatedProgram(load=0.70, bound=0.15),
    SimulatedProgram(load=0.60, bound=0.60),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure that a schedule states, and what was measured."""

    name: str
    low: float
    value: float
    high: float
    measured: float

    @property
    def kept(self) -> bool:
        return self.low <= self.measured <= self.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """One program, all the way round."""

    load: float
    bound: float
    limit_w: float
    confidence: float
    figures: tuple[Figure, ...]
    energy_ratio: float  # of a step, over that with no schedule
    common_energy_ratio: float  # the same under one limit for all
    common_slowdown: float
    put_back: bool

    @property
    def kept(self) -> bool:
        return self.put_back and all(one.kept for one in self.figures)


# ---- The record


def record_into(path: Path, seed: int = 1) -> int:
    """Simulated programs at every limit, with some noise, as a record; how many programs."""
    chance = random.Random(seed)
    programs = [
        SimulatedProgram(load=load, bound=bound, step_s=0.005 * 16 ** chance.random())
        for load in (0.45, 0.55, 0.65, 0.75, 0.8, 0.9, 1.0)
        for bound in (0.05, 0.25, 0.45, 0.7, 0.95)
    ]
    with LinesStore(path) as store:
        for program in programs:
            for limit_w in LIMITS_W:
                store.add(_run(program, limit_w, chance))
    return len(programs)


def _run(program: SimulatedProgram, limit_w: float, chance: random.Random) -> Run:
    step_s, power_w = program.under(GPU, limit_w)
    step_s *= math.exp(chance.gauss(0.0, NOISE))
    power_w *= math.exp(chance.gauss(0.0, NOISE))
    return Run(
        workload=Workload(
            family="cnn" if program.bound > 0.5 else "light-chain",
            parameters={"load": program.load, "bound": program.bound},
            batch=1,
            precision="bf16",
        ),
        device=Device(name=GPU.name, kind="cuda", memory_bytes=GPU.memory_bytes, simulated=True),
        setting=Setting(power_limit_w=limit_w),
        status=Status.MEASURED,
        provenance=Provenance(measured_at="2026-11-16T00:00:00+00:00", session="closed loop", hostname="simulated"),
        times=StepTimes(steps=100, mean_s=step_s, median_s=step_s, spread_s=0.0, error_ratio=NOISE, first_s=step_s),
        consumption=Consumption(window_s=2.0, power_w=power_w, step_energy_j=power_w * step_s, simulated=True),
        condition=Condition(busy_ratio=program.load, clock_hz=GPU.clock_max_hz, power_limit_w=LIMITS_W[0]),
    )


# ---- The loop


@contextmanager
def running(
    program: SimulatedProgram, environment: dict[str, str], progress: Path
) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, "-m", "wattsmith.sim.nvml_program", "--load", str(program.load)]
    command += ["--bound", str(program.bound), "--step", str(program.step_s), "--seconds", "120"]
    process = subprocess.Popen([*command, "--progress", str(progress)], env=environment)
    try:
        while not progress.exists() or not progress.stat().st_size:
            time.sleep(0.05)
        yield process
    finally:
        process.terminate()
        process.wait()


def measured(machine: SimulatedNvml, progress: Path, seconds_s: float = LOOK_S) -> tuple[float, float]:
    """True watts, and seconds of a step."""
    begin_s, before = time.monotonic(), progress.stat().st_size
    time.sleep(seconds_s)
    end_s, after = time.monotonic(), progress.stat().st_size
    return machine.true_energy_j(0, begin_s, end_s) / (end_s - begin_s), (end_s - begin_s) / max(1, after - before)


def recognised(pid: int, record: Path, progress: Path, environment: dict[str, str]) -> Match:
    """What `wattsmith match` says of process PID, probed at another limit."""
    done = subprocess.run(
        [*WATTSMITH, "match", "--pid", str(pid), "--seconds", f"{WATCH_S:g}s", "--record", str(record), "--progress",
         str(progress), "--probe-with", "gpu:0/power_limit", "--meters", "gpu", "--json"],
        env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode not in (0, 3):
        raise KnobLost(f"wattsmith match ended with {done.returncode}: {done.stderr}")
    return parse_fact(Match, json.loads(done.stdout.splitlines()[-1]), "match")


@contextmanager
def followed(schedule: WorkSchedule, path: Path, progress: Path, environment: dict[str, str]) -> Iterator[None]:
    """SCHEDULE in force, by `wattsmith control follow`; at the end it is interrupted, as Ctrl-C does."""
    write_schedule(schedule, path)
    process = subprocess.Popen(
        [*WATTSMITH, "control", "follow", str(path), "--progress", f"job={progress}", "--meters", "gpu", "--json"],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        process.stdout.readline()  # told when the first setting was made
        yield
    finally:
        process.send_signal(2)
        process.communicate(timeout=30)


def once_round(program: SimulatedProgram, folder: Path) -> Loop:
    record, progress = folder / "record.jsonl", folder / "steps.log"
    if not record.exists():
        record_into(record)
    progress.unlink(missing_ok=True)
    machine = SimulatedNvml.create(folder / "nvml", gpus=[GPU])
    environment = os.environ | machine.environment() | {"XDG_STATE_HOME": str(folder), "WATTSMITH_SYSFS": str(folder)}
    with running(program, environment, progress) as process:
        usual_w, usual_s = measured(machine, progress)
        found = recognised(process.pid, record, progress, environment)
        schedule = schedule_for(
            found, job="job", steps=60 / usual_s, slowdown=SLOWDOWN, watch=Watch(sample_s=0.5, lease_s=30.0)
        )
        with followed(schedule, folder / "here.json", progress, environment):
            time.sleep(SETTLE_S)
            power_w, step_s = measured(machine, progress)
            limit_w = machine.setting(0).power_limit_w
        put_back = machine.setting(0).power_limit_w == GPU.limit_default_w
    phase, evidence = schedule.works[0].phases[0], schedule.works[0].evidence
    assert phase.power_w is not None
    assert phase.step_s is not None
    power, step = phase.power_w, phase.step_s
    common_s, common_w = program.under(GPU, COMMON * GPU.limit_default_w)
    energy_j = usual_w * usual_s
    return Loop(
        load=program.load,
        bound=program.bound,
        limit_w=limit_w,
        confidence=evidence.confidence or 0.0,
        figures=(
            Figure(name="power_w", low=power.low, value=power.value, high=power.high, measured=power_w),
            Figure(name="step_s", low=step.low, value=step.value, high=step.high, measured=step_s),
            Figure(
                name="slowdown",
                low=step.low / usual_s - 1,
                value=step.value / usual_s - 1,
                high=step.high / usual_s - 1,
                measured=step_s / usual_s - 1,
            ),
            Figure(
                name="step_energy_j",
                low=power.low * step.low,
                value=power.value * step.value,
                high=power.high * step.high,
                measured=power_w * step_s,
            ),
        ),
        energy_ratio=power_w * step_s / energy_j,
        common_energy_ratio=common_w * common_s / energy_j,
        common_slowdown=common_s / usual_s - 1,
        put_back=put_back,
    )


def text_of(loops: list[Loop]) -> str:
    lines = ["SIMULATED H200; intervals as the schedule states them, nine in ten", ""]
    for one in loops:
        lines.append(
            f"load {one.load:.2f}, {one.bound:.0%} of a step follows the clock → limit {one.limit_w:.0f} W "
            f"(confidence {one.confidence:.2f}); put back: {'yes' if one.put_back else 'NO'}"
        )
        for figure in one.figures:
            state = "kept" if figure.kept else "OUTSIDE"
            lines.append(
                f"  {figure.name:14} {figure.low:9.4f} … {figure.value:9.4f} … {figure.high:9.4f}   "
                f"measured {figure.measured:9.4f}  {state}"
            )
        lines.append(
            f"  energy of a step: no schedule 1.000, ours {one.energy_ratio:.3f} ({_slowdown(one):+.1%} time), "
            f"one limit for all {one.common_energy_ratio:.3f} ({one.common_slowdown:+.1%} time, by formula)"
        )
    return "\n".join(lines)


def told_of(loops: list[Loop]) -> dict[str, Any]:
    heads = ["load", "follows the clock", "limit W", "figure", "stated", "measured", "kept"]
    rows = [
        [one.load, f"{one.bound:.0%}", one.limit_w, figure.name, f"{figure.low:.4f} … {figure.high:.4f}",
         f"{figure.measured:.4f}", "kept" if figure.kept else "OUTSIDE"]
        for one in loops
        for figure in one.figures
    ]  # fmt: skip
    beside = [
        [one.load, f"{one.bound:.0%}", f"{one.energy_ratio:.3f}", f"{_slowdown(one):+.1%}",
         f"{one.common_energy_ratio:.3f}", f"{one.common_slowdown:+.1%}"]
        for one in loops
    ]  # fmt: skip
    names = ["load", "follows the clock", "ours", "time", f"one limit of {COMMON:.0%} for all", "time"]
    kept = sum(figure.kept for one in loops for figure in one.figures)
    return {
        "loops": [asdict(one) | {"kept": one.kept} for one in loops],
        "tables": [
            table("What the schedule states, nine times in ten, and what was measured (simulated H200)", heads, rows),
            table("Energy of a step; with no schedule it is 1", names, beside),
        ],
        "bars": [
            bar("every measured figure lies in its stated interval", f"{kept} of {len(rows)}", kept == len(rows)),
            bar("the limit is put back", f"{sum(one.put_back for one in loops)} of {len(loops)}",
                all(one.put_back for one in loops)),
        ],
    }  # fmt: skip


def _slowdown(one: Loop) -> float:
    return next(figure.measured for figure in one.figures if figure.name == "slowdown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", type=int, default=len(TRIED), help="how many programs are tried")
    parser.add_argument("--json", type=Path, help="write the figures to FILE")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="wattsmith-loop-") as folder:
        loops = [once_round(program, Path(folder)) for program in TRIED[: options.loads]]
    print(text_of(loops))
    if options.json is not None:
        options.json.write_text(json.dumps(told_of(loops), indent=1) + "\n")
    return 0 if all(one.kept for one in loops) else 1


if __name__ == "__main__":
    sys.exit(main())
