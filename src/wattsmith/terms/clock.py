"""The real clock, and how far the wall's is ahead of one."""

import math
import time
from collections.abc import Callable

from wattsmith.terms.ports import Clock

_AT_ONCE_S = 20e-6  # two clocks that were looked at within this were looked at together
_LOOKS = 5


class RealClock:
    """The machine's monotonic clock."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_s(self, duration_s: float) -> None:
        time.sleep(duration_s)


def find_wall_ahead_s(clock: Clock, wall_s: Callable[[], float] = time.time) -> float:
    """By how much the wall clock is ahead of CLOCK."""
    # A process may be put aside between two clocks, for tens of milliseconds on a busy machine: look until it was not.
    ahead_s, apart_s = 0.0, math.inf
    for _ in range(_LOOKS):
        before_s, wall_now_s, after_s = clock.now_s(), wall_s(), clock.now_s()
        if after_s - before_s < apart_s:
            ahead_s, apart_s = wall_now_s - (before_s + after_s) / 2, after_s - before_s
        if apart_s <= _AT_ONCE_S:
            break
    return ahead_s
