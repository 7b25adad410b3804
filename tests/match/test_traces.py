"""Traces are cut where work changes, steps are timed, and what is typical is told without units."""

import random

import pytest
from tests.match.programs import series, telemetry, wave

from wattsmith.match.features import FEATURES, fingerprint_of, layer_features
from wattsmith.match.period import step_period_s
from wattsmith.match.stretches import stretches_of
from wattsmith.terms.run import OperatorCount, Structure
from wattsmith.terms.telemetry import Series


def noisy(level, spread=5.0, seed=1):
    chance = random.Random(seed)
    return lambda at_s: (level(at_s) if callable(level) else level) + chance.gauss(0, spread)


def test_idle_and_work_are_told_apart():
    found = stretches_of(telemetry(noisy(lambda at_s: 80.0 if at_s < 5 else 400.0)))
    assert [one.kind for one in found] == ["idle", "steady"]
    assert found[1].begin_s == pytest.approx(5.0, abs=0.2)
    assert found[1].power_w == pytest.approx(400, abs=2)


def test_what_comes_before_the_steady_part_is_loading():
    found = stretches_of(telemetry(noisy(lambda at_s: 80.0 if at_s < 3 else 200.0 if at_s < 7 else 400.0)))
    assert [one.kind for one in found] == ["idle", "load", "steady"]


def test_steady_work_is_not_cut():
    assert [one.kind for one in stretches_of(telemetry(noisy(300.0)))] == ["steady"]


def test_the_swing_of_steps_is_no_change_of_work():
    found = stretches_of(telemetry(noisy(wave(150, 450, 0.5))))
    assert [one.kind for one in found] == ["steady"]


@pytest.mark.parametrize("period_s", [0.3, 0.5, 1.0, 2.0])
def test_the_period_of_steps_is_found(period_s):
    seen = series(noisy(wave(150, 450, period_s), 20.0))
    assert step_period_s(seen.time_s, seen.values, 0.02) == pytest.approx(period_s, rel=0.02)


def test_noise_has_no_period():
    seen = series(noisy(300.0, 30.0))
    assert step_period_s(seen.time_s, seen.values) is None


def test_a_flat_line_has_no_period():
    seen = series(lambda _: 300.0)
    assert step_period_s(seen.time_s, seen.values) is None


def test_a_period_below_what_the_sensor_resolves_is_not_told():
    seen = series(wave(150, 450, 0.3))
    assert step_period_s(seen.time_s, seen.values, sensor_s=0.1) is None


def test_the_fingerprint_is_of_the_steady_part():
    found = fingerprint_of(telemetry(lambda at_s: 80.0 if at_s < 5 else 400.0))
    assert found.power_w == pytest.approx(400.0)
    assert found.features["power_mean"] == pytest.approx(0.8)
    assert found.features["power_swing"] == pytest.approx(0.0)
    assert found.features["share_near_limit"] == 0.0


def test_what_is_not_read_is_missing_and_said_so():
    found = fingerprint_of(telemetry())
    assert set(found.features) == set(FEATURES)
    assert "sm" in found.missing
    assert "power_mean" in found.known


def test_every_channel_has_its_feature():
    channels = {
        "busy_ratio": series(lambda _: 0.9, every_s=1.0),
        "memory_used_bytes": series(lambda _: 40.0 * 2**30, every_s=1.0),
        "clock_hz": series(lambda _: 1e9, every_s=1.0),
        "sm_ratio": series(lambda _: 0.25, every_s=0.2),
        "instructions": series(lambda at_s: 3e9 * at_s, every_s=0.2),
        "cycles": series(lambda at_s: 2e9 * at_s, every_s=0.2),
        "steps": series(lambda at_s: 10 * at_s, every_s=0.2),
    }
    found = fingerprint_of(telemetry(channels=channels))
    wanted = {"busy": 0.9, "memory_used": 0.5, "clock": 0.5, "sm": 0.25, "per_cycle": 1.5, "progress": 1.0}
    assert {name: found.features[name] for name in wanted} == pytest.approx(wanted)
    assert found.steps_per_s == pytest.approx(10.0)


def test_without_a_power_limit_power_is_told_by_its_swing_alone():
    from dataclasses import replace

    found = fingerprint_of(replace(telemetry(), power_limit_w=None))
    assert found.features["power_mean"] is None
    assert found.features["power_swing"] == 0.0


def test_layers_are_told_by_their_shares():
    structure = Structure(
        parameters=1, parameter_bytes=4, input_bytes=4, flops=100.0, moved_bytes=10.0, launches=4, peak_bytes=1,
        operators={
            "conv": OperatorCount(calls=3, flops=80.0, moved_bytes=5.0),
            "norm": OperatorCount(calls=1, flops=20.0, moved_bytes=5.0),
        },
    )  # fmt: skip
    found = layer_features(structure)
    assert (found["conv_flops"], found["conv_calls"], found["norm_calls"], found["matmul_flops"]) == (
        0.8,
        0.75,
        0.25,
        0,
    )
    assert found["intensity"] == 1.0


def test_one_long_channel_without_power_is_enough():
    from wattsmith.terms.telemetry import Telemetry

    found = fingerprint_of(Telemetry(series={"busy_ratio": Series(time_s=tuple(range(10)), values=(0.5,) * 10)}))
    assert found.features["busy"] == 0.5
