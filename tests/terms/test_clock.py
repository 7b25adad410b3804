"""The real clock goes forward, and waits as long as it is told."""

from wattsmith.terms.clock import RealClock


def test_sleeping_lets_at_least_that_much_time_pass():
    clock = RealClock()
    before_s = clock.now_s()
    clock.sleep_s(0.02)
    assert clock.now_s() - before_s >= 0.02
