"""A real NVIDIA GPU; and, where there is none, the recording of one.

The recording was taken by `benchmarks/measure_gpu.py --json … --timeline …` on an NVIDIA H200. Replaying it needs no
GPU, and must give to the last digit what was measured then.
"""

import json
import time
from pathlib import Path

import pytest

from wattsmith.measure.nvml import find_nvml
from wattsmith.measure.replay import replay_windows
from wattsmith.measure.session import Session
from wattsmith.terms.clock import RealClock

RECORDINGS = Path(__file__).parents[1] / "recordings"


@pytest.fixture(scope="module")
def recorded():
    """The windows of the recorded run, by name."""
    windows = {}
    for window in replay_windows(RECORDINGS / "h200.parquet"):
        windows.setdefault(window.name, []).append(window)
    return windows


@pytest.fixture(scope="module")
def printed():
    """What the benchmark printed then, by its label."""
    return {row["what"]: row["value"] for row in json.loads((RECORDINGS / "h200.json").read_text())["rows"]}


def test_the_recording_replays_to_what_was_printed(recorded, printed):
    (steady,) = recorded["steady"]
    assert steady.power_w == printed["steady load, mean power"]
    (training,) = recorded["training"]
    assert {phase.name for phase in training.phases} == {"data", "compute", "rest"}
    for phase in training.phases:
        assert phase.energy_j["gpu:0"] == printed[f"training, {phase.name}: energy"]


def test_counter_and_integrated_power_of_a_real_card_agree(recorded):
    (steady,) = recorded["steady"]
    check = steady.domains[0].cross_check
    assert check.duration_s > 15
    assert check.agrees
    assert check.counter_j == pytest.approx(check.integrated_j, rel=0.03)


def test_short_windows_on_a_real_card_are_near_the_long_run_rate(recorded):
    (steady,) = recorded["steady"]
    for window in recorded["short"]:
        allowed = 0.03 if window.duration_s > 0.9 else 0.10
        assert window.power_w == pytest.approx(steady.power_w, rel=allowed)


def test_nothing_in_the_recording_is_simulated(recorded):
    assert not any(window.simulated for same_name in recorded.values() for window in same_name)


@pytest.mark.gpu
def test_a_real_card_is_found_and_its_idle_energy_is_plausible():
    found = find_nvml(RealClock())
    assert not any(gpu.simulated for gpu in found.gpus)
    with Session(found.meters, gauges=found.gauges) as session:
        with session.measure("idle") as window:
            time.sleep(5.0)
        result = window.result()
    for domain in result.domains:
        assert domain.complete
        assert 5 * 5 < domain.energy_j < 5 * 1000
        assert domain.cross_check.agrees


@pytest.mark.gpu
def test_windows_on_a_real_card_cost_microseconds():
    with Session(find_nvml(RealClock()).meters) as session:
        begin_s = time.perf_counter()
        for _ in range(1000):
            session.end(session.begin("step"))
        assert (time.perf_counter() - begin_s) / 1000 < 10e-6
