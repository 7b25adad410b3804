"""Telemetry of many agents in few transactions: what is sent while one is written goes into the next, together.

An agent is answered once its reports are safe, and not before.
"""

import asyncio
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattsmith.flows.service import Kept
from wattsmith.serve.failing import Failed
from wattsmith.terms.errors import NotWritten
from wattsmith.terms.service import Report, Token

MOST_WAITING = 20_000  # reports that nobody has written down yet; about 20 MB
MOST_AT_ONCE = 2_000  # reports in one transaction, so that none takes long


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What one agent sent at once."""

    client: str
    reports: Sequence[Report]
    by: Token


@dataclass(frozen=True, slots=True)
class _Waiting:
    post: Post
    answer: "asyncio.Future[Kept]"
    loop: asyncio.AbstractEventLoop


class TelemetryWriter:
    """One thread that writes down what agents send. KEEP takes several posts in one transaction: all, or none."""

    def __init__(self, keep: Callable[[Sequence[Post]], Sequence[Kept]], *, most_waiting: int = MOST_WAITING) -> None:
        self._keep = keep
        self._most_waiting = most_waiting
        self._waiting = 0  # reports
        self._lock = threading.Lock()
        self._closed = False
        self._queue: queue.SimpleQueue[_Waiting | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="telemetry writer", daemon=True)
        self._thread.start()

    async def keep(self, post: Post) -> Kept:
        """Returns once POST is safe. Raises Failed 503 where too much waits, or what KEEP raised."""
        loop = asyncio.get_running_loop()
        waiting = _Waiting(post, loop.create_future(), loop)
        with self._lock:
            if self._closed:
                raise Failed(503, "the service is stopping; send this again in a moment")
            if self._waiting and self._waiting + len(post.reports) > self._most_waiting:
                raise Failed(
                    503, f"{self._waiting} reports wait to be written down already; send this again in a moment"
                )
            self._waiting += len(post.reports)
            self._queue.put(waiting)
        return await waiting.answer

    def close(self) -> None:
        """Writes down what waits, and ends."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._queue.put(None)
        self._thread.join()

    def _write(self) -> None:
        while (first := self._queue.get()) is not None:
            batch, last = self._together_with(first)
            self._write_down(batch)
            with self._lock:
                self._waiting -= sum(len(one.post.reports) for one in batch)
            if last:
                return

    def _together_with(self, first: _Waiting) -> tuple[list[_Waiting], bool]:
        """FIRST and what waits behind it; and whether nothing comes after that."""
        batch, reports = [first], len(first.post.reports)
        while reports < MOST_AT_ONCE:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                return batch, True
            batch.append(more)
            reports += len(more.post.reports)
        return batch, False

    def _write_down(self, batch: Sequence[_Waiting]) -> None:
        try:
            kept = self._keep([one.post for one in batch])
        except NotWritten as gone:  # the database is; one by one would only take longer
            _answer(batch, [gone] * len(batch))
        except Exception as refused:  # noqa: BLE001 - whatever it is, those who wait are told
            if len(batch) == 1:
                _answer(batch, [refused])
                return
            for one in batch:  # so that nobody fails for what another sent
                self._write_down([one])
        else:
            _answer(batch, kept)


def _answer(batch: Sequence[_Waiting], answers: Sequence[Kept | Exception]) -> None:
    for one, answer in zip(batch, answers, strict=True):
        try:
            one.loop.call_soon_threadsafe(_settle, one.answer, answer)
        except RuntimeError:  # the loop has ended, and nobody waits
            return


def _settle(future: "asyncio.Future[Kept]", answer: Kept | Exception) -> None:
    if future.done():  # who asked has hung up
        return
    if isinstance(answer, Exception):
        future.set_exception(answer)
    else:
        future.set_result(answer)
