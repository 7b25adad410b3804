"""Simulated machines for tests."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from wattsmith.sim.nvml import STATE_VARIABLE, SimulatedNvml


@pytest.fixture
def nvml_machine(tmp_path: Path) -> Iterator[Callable[..., SimulatedNvml]]:
    """Makes simulated machines; pynvml in this process talks to the one made last."""
    pynvml = pytest.importorskip("pynvml")
    before = os.environ.get(STATE_VARIABLE)
    made: list[SimulatedNvml] = []

    def make(**options: Any) -> SimulatedNvml:
        if made:
            pynvml.nvmlShutdown()
        machine = SimulatedNvml.create(tmp_path / f"machine-{len(made)}", **options)
        machine.load_here()
        pynvml.nvmlInit()
        made.append(machine)
        return machine

    yield make
    if made:
        made[-1].heal()
        pynvml.nvmlShutdown()
    if before is None:
        os.environ.pop(STATE_VARIABLE, None)
    else:
        os.environ[STATE_VARIABLE] = before
