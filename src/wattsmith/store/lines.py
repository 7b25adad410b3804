"""The record as a plain file of JSON lines, for machines without a database: it is only ever appended to."""

import fcntl
import gzip
import logging
import os
import shutil
import threading
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import IO, Self, Unpack

from wattsmith.store.filters import Coverage, coverage_of, given, passes
from wattsmith.store.identity import check_storable, measured_s, point_key
from wattsmith.store.jsonlines import header_line, read_header, read_run, run_line
from wattsmith.terms.clock import RealClock
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.ports import Clock, RunFilters
from wattsmith.terms.run import Device, Run
from wattsmith.terms.work import Setting, Workload

LOCKED_S = 60.0  # how long to wait for another writer
_log = logging.getLogger("wattsmith")


class LinesStore:
    """Runs in the file at PATH, which need not exist yet. Compressed (`.gz`), it can only be read."""

    def __init__(self, path: Path, *, clock: Clock | None = None) -> None:
        self._path = path.resolve()
        self.place = str(path)
        self._clock = clock or RealClock()
        self._compressed = path.suffix == ".gz"
        self._index_lock = threading.Lock()
        self._sessions: dict[str, set[str]] = defaultdict(set)  # by point: the sessions that have a run of it
        self._indexed_bytes = self._indexed_lines = 0
        self._report_torn()

    def add(self, run: Run) -> bool:
        check_storable(run)
        point, session = _identity(run)
        with self._writing() as file:
            if session in self._sessions[point]:
                return False
            line = run_line(run)
            self._append(file, line if self._indexed_bytes else header_line(None) + line)
            self._sessions[point].add(session)
        return True

    def add_all(self, runs: Iterable[Run]) -> tuple[int, int]:
        """Remember all of RUNS or, when anything goes wrong, none. How many were added, and were there already."""
        added = already_there = 0
        part = self._path.with_name(self._path.name + ".part")
        with self._writing() as file:
            new: set[tuple[str, str]] = set()
            try:
                # A whole new file takes the old one's place at once: a crash midway leaves the old.
                with self._not_written(), part.open("wb") as copy:
                    _copy(file, copy, self._indexed_bytes)
                    if not self._indexed_bytes:
                        copy.write(header_line(None))
                    for run in runs:
                        check_storable(run)
                        point, session = _identity(run)
                        if session in self._sessions[point] or (point, session) in new:
                            already_there += 1
                            continue
                        copy.write(run_line(run))
                        new.add((point, session))
                        added += 1
                    copy.flush()
                    os.fsync(copy.fileno())
                    shutil.copymode(self._path, part)
                    part.replace(self._path)
                    self._sync_folder()
            finally:
                with suppress(OSError):
                    part.unlink()
        return added, already_there

    def has(self, workload: Workload, device: Device, setting: Setting, session: str | None = None) -> bool:
        with self._index_lock:
            self._refresh()
            sessions = self._sessions.get(point_key(workload, device, setting), set())
        return bool(sessions) if session is None else session in sessions

    def runs(self, *, newest_first: bool = False, **only: Unpack[RunFilters]) -> Iterator[Run]:
        filters = given(only)
        found = (run for run in self._all() if passes(run, filters))
        return _newest_first(found) if newest_first else found

    def coverage(self, **only: Unpack[RunFilters]) -> list[Coverage]:
        """How many runs there are by family, precision and status."""
        return coverage_of(self.runs(**only))

    def count(self, **only: Unpack[RunFilters]) -> int:
        return sum(1 for _ in self.runs(**only))

    def close(self) -> None:
        """Nothing is held between two calls."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _all(self) -> Iterator[Run]:
        for number, line in self._lines():
            if number > 1 and line.strip():
                yield self._run_on(number, line)

    def _lines(self, skip_bytes: int = 0, skip_lines: int = 0) -> Iterator[tuple[int, bytes]]:
        """Number and content of each whole line behind those skipped. The header must be ours."""
        try:
            with gzip.open(self._path, "rb") if self._compressed else self._path.open("rb") as file:
                file.seek(skip_bytes)
                for number, line in enumerate(file, skip_lines + 1):
                    if not line.endswith(b"\n"):
                        return  # half a line: its writer was stopped, or has not finished yet
                    if number == 1:
                        self._check_header(line)
                    yield number, line
        except FileNotFoundError:
            return
        except (OSError, EOFError, zlib.error) as failed:
            raise BadInput(
                f"the record {self.place} cannot be read: {failed}. Check it, or restore a copy."
            ) from failed

    def _check_header(self, line: bytes) -> None:
        try:
            read_header(line)
        except BadInput as refused:
            raise BadInput(f"{self.place}, line 1: {refused}") from refused

    def _run_on(self, number: int, line: bytes) -> Run:
        try:
            return read_run(line)
        except BadInput as broken:
            first, _, rest = str(broken).partition("\n")
            more = f" (and {len(rest.splitlines())} more)" if rest else ""
            raise BadInput(
                f"{self.place}, line {number}: {first}{more}. Remove that line, or restore a copy."
            ) from broken

    def _refresh(self) -> None:
        """Index what was appended since the last look."""
        for number, line in self._lines(self._indexed_bytes, self._indexed_lines):
            if number > 1 and line.strip():
                point, session = _identity(self._run_on(number, line))
                self._sessions[point].add(session)
            self._indexed_bytes += len(line)
            self._indexed_lines = number

    @contextmanager
    def _writing(self) -> Iterator[IO[bytes]]:
        """The file, locked against other writers, with everything in it indexed."""
        if self._compressed:
            raise NotWritten(f"{self.place} is compressed and only read. Import it into another record to add to it.")
        with self._not_written():
            self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._index_lock, self._locked() as file:
            self._refresh()
            yield file

    @contextmanager
    def _locked(self) -> Iterator[IO[bytes]]:
        deadline_s = self._clock.now_s() + LOCKED_S
        while True:
            with self._not_written():
                file = os.fdopen(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o666), "r+b", buffering=0)
            with file:
                if _try_lock(file) and self._is_current(file):
                    yield file
                    return
            if self._clock.now_s() >= deadline_s:
                raise NotWritten(f"another process has kept {self.place} for {LOCKED_S:.0f} s. Let it finish first.")
            self._clock.sleep_s(0.005)

    def _is_current(self, file: IO[bytes]) -> bool:
        """Whether FILE is still what the path leads to: an import puts a new file there."""
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file.fileno()), self._path.stat())
        return False

    def _append(self, file: IO[bytes], content: bytes) -> None:
        """One write and one fsync, behind the last whole line; on failure the file is as before."""
        before_bytes = self._indexed_bytes
        with self._not_written():
            try:
                os.ftruncate(file.fileno(), before_bytes)  # half a line, if a writer was stopped in the middle
                file.seek(before_bytes)
                written_bytes = file.write(content)
                if written_bytes != len(content):
                    file.write(content[written_bytes:])  # says why it cannot
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    os.ftruncate(file.fileno(), before_bytes)
                raise
            if before_bytes == 0:
                self._sync_folder()
        self._indexed_bytes += len(content)
        self._indexed_lines += content.count(b"\n")

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @contextmanager
    def _not_written(self) -> Iterator[None]:
        try:
            yield
        except OSError as refused:
            raise NotWritten(
                f"the record {self.place} cannot be written: {refused.strerror}. Make room or choose another place; "
                "what was written before is safe."
            ) from refused

    def _report_torn(self) -> None:
        if self._compressed or not self._path.is_file():
            return
        with suppress(OSError), self._path.open("rb") as file:
            ends_well = not file.seek(0, os.SEEK_END) or (file.seek(-1, os.SEEK_END) and file.read(1) == b"\n")
            if not ends_well and _try_lock(file, fcntl.LOCK_SH):  # nobody is writing that line just now
                _log.warning("%s ends in half a line: a writer was stopped there; that run is left out", self.place)


def _newest_first(runs: Iterable[Run]) -> Iterator[Run]:
    ordered = sorted(runs, key=measured_s)
    return reversed(ordered)  # of two that were measured at once, the one added later is newer


def _identity(run: Run) -> tuple[str, str]:
    return point_key(run.workload, run.device, run.setting), run.provenance.session


def _try_lock(file: IO[bytes], kind: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _copy(source: IO[bytes], target: IO[bytes], size_bytes: int) -> None:
    source.seek(0)
    while size_bytes > 0 and (chunk := source.read(min(size_bytes, 1 << 20))):
        target.write(chunk)
        size_bytes -= len(chunk)
