"""Many that wait for news, and one thread that listens for them all."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from wattsmith.flows.service import Service

LISTEN_S = 1.0  # at most so long until a closed bell is silent


class Bell:
    """Rings when the service has events. Waiting costs no thread."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._rung = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="events", daemon=True)
        self._thread.start()

    async def events(self, after: int, wait_s: float) -> Sequence[dict[str, Any]]:
        """Events with numbers above AFTER, as soon as there are any; none after WAIT_S, or when the service stops."""
        until_s = self._loop.time() + wait_s
        while True:
            rung = self._rung  # taken before looking, so that what happens in between is not missed
            found = self._service.events(after, 0.0)
            left_s = until_s - self._loop.time()
            if found or left_s <= 0 or self._over.is_set():
                return found
            try:
                await asyncio.wait_for(rung.wait(), left_s)
            except TimeoutError:
                continue

    def silence(self) -> None:
        """Let everybody who waits go. From the thread of the loop."""
        self._over.set()
        self._ring()

    def close(self) -> None:
        self.silence()
        self._thread.join()

    def _ring(self) -> None:
        self._rung.set()
        self._rung = asyncio.Event()

    def _listen(self) -> None:
        after = max((event["number"] for event in self._service.events(0, 0.0)), default=0)
        while not self._over.is_set():
            if found := self._service.events(after, LISTEN_S):
                after = max(event["number"] for event in found)
                try:
                    self._loop.call_soon_threadsafe(self._ring)
                except RuntimeError:  # the loop has ended
                    return
