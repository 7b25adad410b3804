"""The record of an NVIDIA H200 that comes with the package."""

import pytest

from wattsmith.store.shipped import RECORDS, open_shipped
from wattsmith.terms.energy import Source
from wattsmith.terms.run import Status


@pytest.fixture(scope="module")
def runs():
    with open_shipped("h200") as store:
        every = list(store.runs())
    failed = [run for run in every if run.status is not Status.MEASURED]
    assert [run.status for run in failed] == 2 * [Status.OUT_OF_MEMORY]
    return [run for run in every if run not in failed]


def test_it_was_measured_on_a_real_card_with_its_energy(runs):
    assert sum(run.workload.kind == "network" for run in runs) >= 200
    assert sum(run.workload.kind == "operator" for run in runs) >= 600
    for run in runs:
        assert run.device.name == "NVIDIA H200"
        assert run.consumption.step_energy_j > 0
        assert run.consumption.energy_source is Source.COUNTER
        assert not run.consumption.simulated
        assert run.consumption.window_s >= (2.0 if run.workload.kind == "operator" else 0.4)


def test_the_newer_runs_say_where_the_time_went(runs):
    watched = [run for run in runs if run.calls]
    assert len(watched) >= 450
    for run in watched:
        # Kernels side by side count twice by call, as those of a recurrent layer do.
        assert sum(call.busy_s for call in run.calls) >= 0.94 * run.times.busy_s


def test_every_family_was_measured_in_fp32_or_tf32_and_in_a_short_precision(runs):
    for family in {run.workload.family for run in runs}:
        precisions = {run.workload.precision for run in runs if run.workload.family == family}
        assert precisions & {"fp32", "tf32"}
        assert precisions & {"bf16", "fp16"}


def test_compiled_networks_are_in_it(runs):
    assert sum(run.workload.compiled for run in runs) >= 6


def test_no_point_is_in_it_twice(runs):
    assert len({run.workload.key for run in runs}) == len(runs)


def test_a_device_is_not_busier_than_the_step_is_long(runs):
    """Kernels are profiled over three steps after the window, when clocks may have changed: one in fifty may differ."""
    ratios = [run.times.busy_s / run.times.mean_s for run in runs]
    assert sum(ratio > 1.1 for ratio in ratios) <= len(runs) / 50


def test_it_is_small(runs):
    assert runs
    assert (RECORDS / "h200.jsonl.gz").stat().st_size < 5_000_000
