"""Power of the pool over the last hour, as the page has seen it."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from wattsmith.terms.errors import WattsmithError

EVERY_S = 5.0
KEPT_S = 3600.0
GAP_S = 4 * EVERY_S  # readings farther apart than this have something unknown between them
Reading = tuple[float, float | None]  # when, and W


class History:
    """Readings of the last hour. The service itself keeps only what is now."""

    def __init__(self, read: Callable[[], Reading]) -> None:
        self._read = read
        self._kept: deque[Reading] = deque()
        self._lock = threading.Lock()

    def look(self) -> None:
        """Take a reading, unless there is one that is hardly older."""
        time_s, power_w = self._read()
        with self._lock:
            if self._kept and time_s - self._kept[-1][0] < 0.8 * EVERY_S:
                return
            self._kept.append((time_s, power_w))
            while self._kept[0][0] < time_s - KEPT_S:
                self._kept.popleft()

    def points(self) -> list[Reading]:
        """The oldest first, with an unknown reading wherever nobody looked for a while."""
        with self._lock:
            kept = list(self._kept)
        points: list[Reading] = []
        for time_s, power_w in kept:
            if points and time_s - points[-1][0] > GAP_S:
                points.append((points[-1][0] + EVERY_S, None))
            points.append((time_s, power_w))
        return points

    @contextmanager
    def looking(self) -> Iterator[None]:
        """Look every few seconds, until left."""
        done = threading.Event()

        def look_on() -> None:
            while not done.is_set():
                with suppress(WattsmithError):  # the database does not answer: a gap in the line says so
                    self.look()
                done.wait(EVERY_S)

        thread = threading.Thread(target=look_on, name="wattsmith-page-history", daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join(timeout=2 * EVERY_S)
