"""A program on the simulated driver: slowed down by its clock, as the formula says."""

import os
import subprocess
import sys

import pytest

from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.sim.nvml_profile import GpuProfile
from wattsmith.sim.nvml_program import SimulatedProgram
from wattsmith.terms.errors import BadTerm, ExtraNeeded


def test_half_of_a_step_that_follows_the_clock_takes_twice_as_long_at_half_of_it():
    program = SimulatedProgram(load=1.0, bound=0.5, step_s=0.1)
    assert program.step_at_s(1.0) == pytest.approx(0.1)
    assert program.step_at_s(0.5) == pytest.approx(0.15)


def test_a_limit_above_its_draw_does_nothing_and_one_below_it_is_what_it_draws():
    program = SimulatedProgram(load=0.5, bound=1.0, step_s=0.1)
    assert program.under(GpuProfile(), 700.0) == (pytest.approx(0.1), pytest.approx(400.0))
    step_s, power_w = program.under(GpuProfile(), 300.0)
    assert power_w == 300.0
    assert step_s > 0.1


def test_a_load_beyond_all_is_refused():
    with pytest.raises(BadTerm, match="0 … 1"):
        SimulatedProgram(load=1.5, bound=0.5)


def test_it_takes_steps_as_fast_as_its_limit_lets_it(tmp_path):
    machine = SimulatedNvml.create(tmp_path / "nvml", limit_default_w=350.0)
    try:
        environment = os.environ | machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    command = [sys.executable, "-m", "wattsmith.sim.nvml_program", "--load", "0.9", "--bound", "0.8"]
    steps = tmp_path / "steps"
    subprocess.run([*command, "--seconds", "1.5", "--progress", str(steps)], env=environment, check=True)
    step_s, _ = SimulatedProgram(load=0.9, bound=0.8).under(GpuProfile(limit_default_w=350.0), 350.0)
    assert len(steps.read_text()) == pytest.approx(1.5 / step_s, rel=0.06)
