"""Moves runs between records as JSON lines: lossless, all or nothing, and twice is the same as once."""

import gzip
import logging
import os
import shutil
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, BinaryIO, Protocol, Unpack

from wattsmith.store.jsonlines import header_line, read_header, read_run, run_line
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.ports import RunFilters, RunStore
from wattsmith.terms.run import Run

MOST_PROBLEMS = 20  # that are told at once
_log = logging.getLogger("wattsmith")
Progress = Callable[[int, int | None], None]  # runs done, and of how many; None: not known


class Taker(Protocol):
    """A store that takes many runs at once, or none of them."""

    def add_all(self, runs: Iterable[Run]) -> tuple[int, int]: ...


def export_runs(
    store: RunStore, target: str | Path | BinaryIO, *, progress: Progress | None = None, **only: Unpack[RunFilters]
) -> int:
    """Write the runs of STORE that pass the filters to TARGET, and give their number.

    TARGET: a path, compressed when it ends in `.gz`, which is there whole or not at all; or a stream of bytes.
    Two exports of the same runs are the same to the last byte.
    """
    with _not_written(target), tempfile.TemporaryFile() as spool:
        # The header says how many follow, and that is known at the end.
        count = 0
        for count, run in enumerate(store.runs(**only), 1):
            spool.write(run_line(run))
            if progress:
                progress(count, None)
        spool.seek(0)
        if isinstance(target, str | Path):
            with _replacing(Path(target)) as file:
                _write(file, spool, count)
        else:
            _write(target, spool, count)
    return count


def _write(file: IO[bytes], spool: IO[bytes], count: int) -> None:
    file.write(header_line(count))
    shutil.copyfileobj(spool, file)


@contextmanager
def _replacing(path: Path) -> Iterator[IO[bytes]]:
    """A file that takes PATH's place once it is whole and on the disk."""
    part = path.parent / f"{path.name}.part"
    try:
        with part.open("wb") as raw:
            if path.suffix == ".gz":
                with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as packed:
                    yield packed  # type: ignore[misc]
            else:
                yield raw
            raw.flush()
            os.fsync(raw.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def _not_written(target: str | Path | BinaryIO) -> Iterator[None]:
    try:
        yield
    except OSError as refused:
        name = target if isinstance(target, str | Path) else getattr(target, "name", "the stream")
        raise NotWritten(
            f"cannot export to {name}: {refused.strerror}. Make room or choose another place."
        ) from refused


def import_runs(store: Taker, path: str | Path, *, progress: Progress | None = None) -> tuple[int, int]:
    """Add the runs in the file at PATH to STORE: all, or none when anything in it is wrong.

    Gives how many were added and how many were there already. Raises BadInput with up to twenty problems, each with
    its line and field.
    """
    return store.add_all(read_runs(Path(path), progress=progress))


def read_runs(path: Path, *, progress: Progress | None = None) -> Iterator[Run]:
    """The runs in the file at PATH. After the first problem no more come; BadInput tells the problems at the end."""
    problems: list[str] = []
    expected, found = None, 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if number == 1:
                    expected = _expected(path, line)
                elif expected is None and not line.endswith(b"\n"):
                    _log.warning("%s ends in half a line: its writer was stopped there; that run is left out", path)
                elif line.strip():
                    found += 1
                    run = _run_on(line, f"{path}, line {number}", problems)
                    if run is not None and not problems:
                        yield run
                        if progress:
                            progress(found, expected)
                if len(problems) > MOST_PROBLEMS:
                    raise BadInput("\n".join([*problems[:MOST_PROBLEMS], "… and more"]))
            if file.tell() == 0:
                raise BadInput(f"{path}, line 1: the file is empty; it should begin with the header of a record")
    except (OSError, EOFError, zlib.error) as failed:
        raise BadInput(f"{path} cannot be read: {failed}. Check the file, or have it exported again.") from failed
    if expected is not None and found != expected:
        problems.append(
            f"{path}, line 1: runs: the header says {expected}, but {found} follow. "
            "The file was cut or joined; have it exported again."
        )
    if problems:
        raise BadInput("\n".join(problems))


def _expected(path: Path, line: bytes) -> int | None:
    try:
        return read_header(line)
    except BadInput as refused:
        raise BadInput(f"{path}, line 1: {refused}") from refused


def _run_on(line: bytes, where: str, problems: list[str]) -> Run | None:
    try:
        return read_run(line)
    except BadInput as broken:
        problems += [f"{where}: {problem}" for problem in str(broken).splitlines()]
        return None
