"""One point: enough steps, the first apart, and no longer than it is worth."""

import math
import time

import pytest

from wattsmith.measure.session import Session
from wattsmith.record.bench import CpuStopwatch, Effort, bench, error_ratio


class Slept:
    """A program whose step sleeps; the first one longer."""

    def __init__(self, step_s, first_s=0.0):
        self._step_s = step_s
        self._first_s = first_s
        self.steps = 0

    def step(self):
        time.sleep(self._first_s if self.steps == 0 and self._first_s else self._step_s)
        self.steps += 1

    def close(self):
        pass


def benched(program, **effort):
    return bench(program, device="cpu", domains=(), windows=Session([], background=False), effort=Effort(**effort))


def test_activity_is_that_of_the_window():
    asked = []

    def count():
        asked.append(len(asked))
        return {"sm_ratio": 0.25, "tensor_ratio": 0.125} if len(asked) == 2 else {"sm_ratio": 0.9}

    program = Slept(0.001)
    windows = Session([], background=False)
    effort = Effort(window_s=0.01, point_s=1.0)
    seen = bench(program, device="cpu", domains=(), windows=windows, effort=effort, count=count).condition
    assert len(asked) == 2  # once to begin with, once at the end
    assert (seen.sm_ratio, seen.tensor_ratio, seen.dram_ratio) == (0.25, 0.125, None)


def test_the_first_step_is_kept_apart():
    measured = benched(Slept(0.01, first_s=0.3), window_s=0.3, point_s=1.0)
    assert measured.times.first_s >= 0.3
    assert measured.times.median_s < 0.1


def test_at_least_twenty_steps_are_counted():
    measured = benched(Slept(0.005), window_s=0.01, point_s=5.0, error_ratio=math.inf)
    assert measured.times.steps >= 20


def test_the_window_is_as_long_as_the_meter_needs():
    measured = benched(Slept(0.001), window_s=0.5, point_s=1.0)
    assert measured.consumption.window_s >= 0.5


def test_a_point_that_will_not_settle_ends_when_its_time_is_spent():
    program = Slept(0.01)
    begin_s = time.monotonic()
    benched(program, window_s=0.1, point_s=0.6, error_ratio=0.0)
    assert 0.6 <= time.monotonic() - begin_s < 3.0


def test_a_step_longer_than_the_points_time_is_still_measured_twice():
    program = Slept(0.4)
    measured = benched(program, window_s=0.1, point_s=0.2)
    assert measured.times.steps == 2
    assert math.isfinite(measured.times.error_ratio)
    assert program.steps == 5  # the first, one to see how long it is, two, and one that is watched


def test_very_short_steps_are_timed_several_at_once():
    measured = benched(Slept(0.0), window_s=0.1, point_s=0.3)
    assert measured.times.steps > 100
    assert measured.times.mean_s < 0.001


def test_energy_without_a_meter_is_unknown():
    measured = benched(Slept(0.001), window_s=0.05, point_s=0.2)
    assert measured.consumption.step_energy_j is None
    assert measured.consumption.power_w is None


def test_the_error_of_a_mean_shrinks_with_the_root_of_the_number():
    few, many = [1.0, 2.0] * 8, [1.0, 2.0] * 32
    assert error_ratio(few) / error_ratio(many) == pytest.approx(2, rel=0.05)
    assert error_ratio([1.0]) == math.inf


def test_a_cpu_step_is_over_when_it_returns():
    took_s, queued_s = CpuStopwatch().time_once(lambda: time.sleep(0.05))
    assert took_s >= 0.05
    assert queued_s is None  # there is no queue
    assert len(CpuStopwatch().time_groups(lambda: time.sleep(0.02), 1, 0.1)) >= 3
