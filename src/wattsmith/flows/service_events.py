"""What has changed, for pages and programs that wait for it."""

import threading
import time
from collections import deque
from typing import Any

KEPT = 5000


class Events:
    """The last changes by number. Who falls behind further than that looks at everything anew."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._events: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self._number = 0

    def add(self, kind: str, key: str) -> None:
        with self._changed:
            self._number += 1
            self._events.append({"number": self._number, "kind": kind, "key": key, "time_s": time.time()})
            self._changed.notify_all()

    def after(self, number: int, wait_s: float) -> list[dict[str, Any]]:
        """Those after NUMBER, as soon as there are any, or none after WAIT_S. A NUMBER from before a restart: all."""
        deadline_s = time.monotonic() + wait_s
        with self._changed:
            if number > self._number:
                number = 0
            while self._number <= number and (left_s := deadline_s - time.monotonic()) > 0:
                self._changed.wait(left_s)
            return [event for event in self._events if event["number"] > number]

    @property
    def number(self) -> int:
        return self._number
