"""Activity counters, on the simulated driver."""

import time

import pytest

from wattsmith.measure.gpm import GpmReader
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import ExtraNeeded, MeterLost, MeterMissed, MeterUnavailable


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(**options):
        made = SimulatedNvml.create(tmp_path, **options)
        try:
            made.load_here()
        except ExtraNeeded as no_compiler:
            pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
        return made

    return make


def test_activity_follows_the_load_since_the_last_read(machine):
    card = machine()
    card.play(0, 0.5, start_s=card.booted_s)
    reader = GpmReader()
    time.sleep(0.02)
    found = reader.read()
    assert found == pytest.approx(
        {"engine_ratio": 0.5, "sm_ratio": 0.475, "occupancy_ratio": 0.07, "tensor_ratio": 0.45, "dram_ratio": 0.08}
    )
    reader.close()
    reader.close()  # twice does no harm
    with pytest.raises(MeterLost, match="closed"):
        reader.read()


def test_a_card_without_counters_says_so(machine):
    machine(has_gpm=False)
    with pytest.raises(MeterUnavailable, match="gpu:0"):
        GpmReader()


def test_one_reading_that_fails_is_missed_and_a_card_that_goes_is_lost(machine):
    card = machine()
    reader = GpmReader()
    card.fail(0, 999, function="nvmlGpmSampleGet", times=1)
    with pytest.raises(MeterMissed):
        reader.read()
    time.sleep(0.01)
    assert reader.read()["engine_ratio"] == 0.0
    card.lose(0)
    with pytest.raises(MeterLost):
        reader.read()
    card.heal()
    reader.close()
