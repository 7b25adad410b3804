"""Simulated machines whose settings this process, and those that it starts, can change."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.errors import ExtraNeeded


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., SimulatedNvml]]:
    """Makes a machine with simulated GPUs, seen by this process and by watchdogs."""
    before = dict(os.environ)

    def make(**options: Any) -> SimulatedNvml:
        machine = SimulatedNvml.create(tmp_path / "nvml", **options)
        try:
            for name, value in machine.environment().items():
                monkeypatch.setenv(name, value)
        except ExtraNeeded as no_compiler:
            pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
        machine.load_here()
        return machine

    yield make
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture
def tree(tmp_path: Path) -> SimulatedSysfs:
    """A machine with one CPU package (limits 250 W and 300 W), one clock policy (0.8 … 3 GHz) and a Jetson's clocks."""
    made = SimulatedSysfs(tmp_path / "sys")
    made.add_cpufreq(0, min_hz=800e6, max_hz=3e9)
    made.add_zone("intel-rapl:0", "package-0")
    made.add_power_limits("intel-rapl:0", {"long_term": 250.0, "short_term": 300.0}, max_w=250.0)
    made.add_devfreq("17000000.gpu", [306e6, 612e6, 918e6])
    made.add_emc(min_hz=204e6, max_hz=3_199e6)
    return made


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"
