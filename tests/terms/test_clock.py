"""The real clock goes forward, and waits as long as it is told."""

import pytest

from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.clock import RealClock, find_wall_ahead_s


def test_sleeping_lets_at_least_that_much_time_pass():
    clock = RealClock()
    before_s = clock.now_s()
    clock.sleep_s(0.02)
    assert clock.now_s() - before_s >= 0.02


@pytest.mark.parametrize("put_aside", [[0.0], [0.1, 0.0], [0.1, 0.3, 0.1, 0.0]])
def test_the_wall_clock_is_found_as_far_ahead_as_it_is_though_the_process_is_put_aside_between_the_two(put_aside):
    clock, asides_s = SimulatedClock(100.0), iter(put_aside)

    def wall_s() -> float:
        told_s = clock.now_s() + 1_000.0
        clock.sleep_s(next(asides_s))
        return told_s

    assert find_wall_ahead_s(clock, wall_s) == pytest.approx(1_000.0)


def test_where_the_process_is_always_put_aside_the_shortest_time_counts():
    clock, asides_s = SimulatedClock(100.0), iter([0.4, 0.2, 0.002, 0.4, 0.3])

    def wall_s() -> float:
        clock.sleep_s(next(asides_s))
        return clock.now_s() + 1_000.0

    assert find_wall_ahead_s(clock, wall_s) == pytest.approx(1_000.001)
