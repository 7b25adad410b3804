"""Reports on disk until the service has them: bounded, in order, and there after kill -9.

A report is one line of JSON in a segment; segments are numbered and go one after the other. What is read and not yet
acknowledged stays where it is. A report that arrives twice is dropped by the service, so no more is needed than never
to remove one too early.
"""

import contextlib
import fcntl
import json
import os
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.terms.errors import NotWritten

MOST_BYTES = 64_000_000
SEGMENT_BYTES = 1_000_000
MOST_IN_MEMORY = 10_000  # reports that a full disk did not take
SENT = "sent"  # how far the service has them
LOCK = "lock"


@dataclass(frozen=True, slots=True, order=True)
class Mark:
    """A place in the spool: everything before it was read."""

    segment: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Reports to be sent, the oldest first, and the mark to acknowledge them with."""

    reports: list[Any]
    until: Mark | None  # None: they are in memory alone
    taken: int = 0  # out of memory, before these


class Spool:
    """Reports that wait. Every method may be called from any thread; one process at a time has the folder."""

    def __init__(
        self,
        folder: Path,
        *,
        most_bytes: int = MOST_BYTES,
        segment_bytes: int = SEGMENT_BYTES,
        tell: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.dropped = 0  # reports that found no room, and were never sent
        self._folder = folder
        self._most_bytes = most_bytes
        self._segment_bytes = segment_bytes
        self._tell = tell
        self._lock = threading.Lock()
        self._unwritten: deque[bytes] = deque()
        self._taken = 0  # out of it, since the beginning
        self._out: int | None = None  # file of the segment that grows
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._held = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as refused:
            raise NotWritten(f"reports cannot be kept in {folder}: {refused}. Give another --state.") from refused
        try:
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as held:
            os.close(self._held)
            raise NotWritten(
                f"an agent keeps its reports in {folder} already; end it, or give another --state"
            ) from held
        self._sizes = {int(path.stem): path.stat().st_size for path in folder.glob("*.jsonl") if path.stem.isdecimal()}
        self._head = self._read_head()
        self._current = max([*self._sizes, self._head.segment], default=0) + 1
        self._remove_before(self._head)

    def _path(self, segment: int) -> Path:
        return self._folder / f"{segment:012d}.jsonl"

    def _read_head(self) -> Mark:
        first = min(self._sizes, default=0)
        try:
            segment, offset = map(int, (self._folder / SENT).read_text().split())
        except (OSError, ValueError):
            return Mark(first, 0)
        return max(Mark(segment, offset), Mark(first, 0))

    @property
    def size_bytes(self) -> int:
        return sum(self._sizes.values())

    # Reports that come

    def append(self, report: Any) -> None:
        """Keep REPORT. Never raises: where the disk takes nothing it is kept in memory, and tried again."""
        with self._lock:
            self._unwritten.append(json.dumps(report, separators=(",", ":")).encode() + b"\n")
            try:
                while self._unwritten:
                    self._write(self._unwritten[0])
                    self._take()
            except OSError as refused:
                self._close_segment()
                if len(self._unwritten) == 1:
                    self._tell(f"reports cannot be written to {self._folder} and are kept in memory: {refused}")
                if len(self._unwritten) > MOST_IN_MEMORY:
                    self._take()
                    self.dropped += 1

    def _take(self) -> None:
        self._unwritten.popleft()
        self._taken += 1

    def _write(self, line: bytes) -> None:
        if self._out is None:
            while self._current in self._sizes:
                self._current += 1
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
            self._out = os.open(self._path(self._current), flags, 0o600)
            self._sizes[self._current] = 0
        size_bytes = self._sizes[self._current]
        written = os.write(self._out, line)
        if written < len(line):  # what there is of it would be read as the beginning of the next one
            os.ftruncate(self._out, size_bytes)
            raise OSError("there is no room for a whole report")
        self._sizes[self._current] = size_bytes + written
        if self._sizes[self._current] >= self._segment_bytes:
            self._close_segment()
        while self.size_bytes > self._most_bytes and len(self._sizes) > 1:
            self._drop_oldest()

    def _close_segment(self) -> None:
        if self._out is not None:
            os.close(self._out)
            self._out = None
            self._current += 1

    def _drop_oldest(self) -> None:
        oldest = min(self._sizes)
        begin = self._head.offset if self._head.segment == oldest else 0
        with contextlib.suppress(OSError):
            self.dropped += self._path(oldest).read_bytes()[begin:].count(b"\n")
        self._tell(f"the service was away for too long: {self.dropped} reports found no room and are lost")
        self._remove(oldest)
        self._head = max(self._head, Mark(oldest + 1, 0))

    # Reports that go

    def waiting(self, most: int = 500, most_bytes: int = 1_000_000) -> Batch:
        """Up to MOST of the oldest reports that were not acknowledged yet."""
        with self._lock:
            found: list[Any] = []
            mark = self._head
            for segment in sorted(one for one in self._sizes if one >= self._head.segment):
                mark = max(mark, Mark(segment, 0))
                lines, mark = self._lines(mark, most - len(found), most_bytes)
                most_bytes -= sum(map(len, lines))
                found += [report for line in lines if (report := _report_in(line)) is not None]
                if len(found) >= most or most_bytes <= 0:
                    break
            if found or mark != self._head or not self._unwritten:
                return Batch(reports=found, until=mark)
            kept = [json.loads(line) for line in list(self._unwritten)[:most]]
            return Batch(reports=kept, until=None, taken=self._taken)

    def _lines(self, mark: Mark, most: int, most_bytes: int) -> tuple[list[bytes], Mark]:
        """Whole lines from MARK on, and the mark behind them. At least one, where there is one."""
        lines: list[bytes] = []
        offset = mark.offset
        with contextlib.suppress(FileNotFoundError), self._path(mark.segment).open("rb") as file:
            file.seek(offset)
            for line in file:
                # The last line of one that was killed has no end: it was never whole, and was never numbered again.
                if not line.endswith(b"\n") or len(lines) >= most or (lines and most_bytes < len(line)):
                    break
                lines.append(line)
                offset += len(line)
                most_bytes -= len(line)
        return lines, Mark(mark.segment, offset)

    def acknowledge(self, batch: Batch) -> None:
        """The service has BATCH."""
        with self._lock:
            if batch.until is None:
                for _ in batch.reports if batch.taken == self._taken else ():
                    self._take()
                return  # those that were written to disk meanwhile are sent again from there
            if batch.until <= self._head:
                return
            self._head = batch.until
            self._remove_before(self._head)
            fresh = self._folder / f"{SENT}.new"
            with contextlib.suppress(OSError):  # then some are sent twice after a restart, which does no harm
                fresh.write_text(f"{self._head.segment} {self._head.offset}\n")
                fresh.replace(self._folder / SENT)

    def _remove_before(self, mark: Mark) -> None:
        for segment in sorted(self._sizes):
            grows = self._out is not None and segment == self._current
            is_read = segment == mark.segment and mark.offset >= self._sizes[segment] and not grows
            if segment < mark.segment or is_read:
                self._remove(segment)

    def _remove(self, segment: int) -> None:
        if self._out is not None and segment == self._current:
            self._close_segment()
        self._sizes.pop(segment, None)
        with contextlib.suppress(OSError):
            self._path(segment).unlink()

    def close(self) -> None:
        """Let go of the folder. Twice is harmless."""
        with self._lock:
            self._close_segment()
            if self._held >= 0:
                os.close(self._held)
                self._held = -1


def _report_in(line: bytes) -> Any:
    """None: a disk that lost power may have left something else there."""
    try:
        report = json.loads(line)
    except ValueError:
        return None
    return report if isinstance(report, dict) else None
