"""A clock that moves only when it is told to."""


class SimulatedClock:
    """Time stands still until somebody sleeps or advances it."""

    def __init__(self, now_s: float = 0.0) -> None:
        self._now_s = now_s

    def now_s(self) -> float:
        return self._now_s

    def sleep_s(self, duration_s: float) -> None:
        self._now_s += duration_s
