"""Runs: what was measured has figures, what was not has a reason."""

import pytest

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Consumption, Device, Provenance, Run, Status, StepTimes, Structure
from wattsmith.terms.work import Setting, Workload

TIMES = StepTimes(steps=20, mean_s=0.01, median_s=0.01, spread_s=0.0, error_ratio=0.0, first_s=1.0)


def run(**changes):
    facts = {
        "workload": Workload(family="matmul", kind="operator", parameters={"n": 64}, batch=1),
        "device": Device(name="NVIDIA H200", kind="cuda"),
        "setting": Setting(),
        "status": Status.MEASURED,
        "provenance": Provenance(measured_at="2026-11-16T12:00:00+00:00", session="s", hostname="h"),
        "times": TIMES,
        "consumption": Consumption(window_s=2.0),
    }
    return Run(**facts | changes)


def test_a_measured_run_has_times_and_consumption():
    with pytest.raises(BadTerm, match="must have times and consumption"):
        run(times=None)


def test_a_run_that_failed_says_why():
    with pytest.raises(BadTerm, match="ended as out of memory must say why"):
        run(status=Status.OUT_OF_MEMORY, times=None, consumption=None)
    assert run(status=Status.HUNG, reason="no answer in 60 s", times=None, consumption=None).reason


def test_a_step_takes_time():
    with pytest.raises(BadTerm, match="mean_s must be positive"):
        StepTimes(steps=1, mean_s=0.0, median_s=0.0, spread_s=0.0, error_ratio=0.0, first_s=1.0)
    with pytest.raises(BadTerm, match="steps must be at least 1"):
        StepTimes(steps=0, mean_s=1.0, median_s=1.0, spread_s=0.0, error_ratio=0.0, first_s=1.0)


def test_a_step_whose_device_waits_is_bound_by_the_host():
    facts = {"steps": 20, "mean_s": 0.010, "median_s": 0.010, "spread_s": 0.0, "error_ratio": 0.0, "first_s": 1.0}
    assert StepTimes(busy_s=0.002, **facts).host_bound
    assert StepTimes(busy_s=0.0099, **facts).host_bound is False
    assert StepTimes(**facts).host_bound is None


def test_intensity_is_operations_per_byte():
    facts = {"parameters": 1, "parameter_bytes": 4, "input_bytes": 4, "launches": 1, "peak_bytes": 8}
    assert Structure(flops=200.0, moved_bytes=100.0, **facts).intensity == 2
    assert Structure(flops=0.0, moved_bytes=0.0, **facts).intensity is None
