"""Moving settings while a service runs."""

import itertools

import pytest

from wattsmith.terms.errors import BadInput
from wattsmith.tune.live import LiveTuner, Seen


def world(levels, rate_hz=10.0):
    """Lower clocks cost less and take longer; larger batches too. Twice the rate takes twice as long."""
    clock, batch = levels["clock"], levels["batch"]
    latency_s = (0.02 + 0.01 * (4 - clock) + 0.005 * batch) * rate_hz / 10.0
    return Seen(latency_s=latency_s, energy_per_query_j=1.0 + clock - 0.3 * batch, rate_hz=rate_hz)


def tuned(limit_s=0.05, windows=60, rate_hz=10.0, tuner=None):
    tuner = tuner or LiveTuner({"clock": 5, "batch": 4}, {"clock": 4, "batch": 0}, limit_s)
    seen = []
    for _ in range(windows):
        seen.append(world(tuner.setting, rate_hz))
        tuner.observe(seen[-1])
    return tuner, seen


def test_it_finds_less_energy_within_the_limit():
    tuner, _ = tuned()
    found = world(tuner.best)
    assert found.latency_s <= 0.05
    assert found.energy_per_query_j < world({"clock": 4, "batch": 0}).energy_per_query_j


def test_a_step_moves_one_knob_by_one_level():
    tuner = LiveTuner({"clock": 5, "batch": 4}, {"clock": 4, "batch": 0}, 0.05)
    before = tuner.setting
    for _ in range(40):
        after = tuner.observe(world(tuner.setting))
        moved = sum(abs(after[name] - before[name]) for name in after)
        back = after in (tuner.best, {"clock": 4, "batch": 0})
        assert moved <= 1 or back
        before = after


def test_a_broken_limit_is_left_at_once_and_not_tried_again():
    _tuner, seen = tuned(windows=80)
    over = [one.latency_s > 0.05 for one in seen]
    assert not any(a and b for a, b in itertools.pairwise(over))
    assert sum(over) <= 4


def test_a_change_of_load_starts_from_the_safe_setting():
    tuner, _ = tuned()
    assert tuner.observe(world(tuner.setting, rate_hz=20.0)) != {}
    tuner, _seen = tuned(rate_hz=20.0, tuner=tuner, limit_s=0.05)
    assert world(tuner.best, 20.0).latency_s <= 0.05 or tuner.best == {"clock": 4, "batch": 0}


def test_without_energy_nothing_is_moved():
    tuner = LiveTuner({"clock": 5}, {"clock": 4}, 1.0)
    for _ in range(5):
        assert tuner.observe(Seen(latency_s=0.1, energy_per_query_j=None, rate_hz=1.0)) == {"clock": 4}


def test_a_safe_setting_must_be_one():
    with pytest.raises(BadInput, match="levels 0 to 4"):
        LiveTuner({"clock": 5}, {"clock": 5}, 1.0)
    with pytest.raises(BadInput, match="limit"):
        LiveTuner({"clock": 5}, {"clock": 1}, 0.0)


def test_what_broke_the_limit_before_the_load_changed_is_not_held_against_the_safe_setting():
    tuner, _ = tuned()
    moved = tuner.setting
    assert tuner.observe(Seen(latency_s=9.0, energy_per_query_j=1.0, rate_hz=90.0)) == {"clock": 4, "batch": 0} != moved
    for _ in range(4):  # it is safe, so that steps are tried from there again
        tuner.observe(world(tuner.setting))
    assert tuner.setting != {"clock": 4, "batch": 0}


def test_it_goes_on_where_a_plan_says_and_is_safe_when_that_breaks():
    tuner = LiveTuner({"clock": 5, "batch": 4}, {"clock": 4, "batch": 0}, 0.05)
    tuner.start_again({"clock": 2, "batch": 3})
    assert tuner.setting == {"clock": 2, "batch": 3}
    assert tuner.observe(Seen(latency_s=0.06, energy_per_query_j=1.0, rate_hz=10.0)) == {"clock": 4, "batch": 0}
