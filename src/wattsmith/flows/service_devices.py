"""Devices as a service knows them from its record, read anew beside when that has grown, so that nobody waits."""

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from wattsmith.terms.errors import WattsmithError

Device = TypeVar("Device")
RELEARN_S = 60.0  # at least between two times that the record is read: that takes seconds of a core


class Learned(Generic[Device]):
    """What LEARN tells of a device by its name, kept. When the record has grown, what it told before goes on to be
    told until LEARN has told anew. RELEARNED is called then. All may be called from any thread.
    """

    def __init__(
        self, learn: Callable[[str], Device], *, relearned: Callable[[], None], pause_s: float = RELEARN_S
    ) -> None:
        self._learn = learn
        self._relearned = relearned
        self._pause_s = pause_s
        self._lock = threading.Lock()
        self._known: dict[str, Device] = {}
        self._grown = False
        self._began_s = -pause_s
        self._thread: threading.Thread | None = None

    def device(self, name: str) -> Device:
        """Waits for LEARN where nothing is known of it yet."""
        with self._lock:
            known = self._known.get(name)
        if known is None:
            known = self._learn(name)
            with self._lock:
                self._known[name] = known
        return known

    def record_has_grown(self) -> None:
        self._grown = True

    def refresh(self) -> None:
        """Learn anew beside where the record has grown, unless that is under way or was done just now."""
        with self._lock:
            soon = time.monotonic() - self._began_s < self._pause_s or self._thread is not None
            if self._grown and self._known and not soon:
                self._grown, self._began_s = False, time.monotonic()
                self._thread = threading.Thread(target=self._anew, name="learning", daemon=True)
                self._thread.start()

    def _anew(self) -> None:
        try:
            anew = {name: self._learn(name) for name in list(self._known)}
            with self._lock:
                self._known.update(anew)
            self._relearned()
        except WattsmithError:  # a database that is away: later
            self._grown = True
        finally:
            self._thread = None
