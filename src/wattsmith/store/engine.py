"""Connections to SQLite and PostgreSQL, and what their errors mean to a user."""

import os
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

from sqlalchemy import URL, Connection, Engine, NullPool, QueuePool, create_engine, event, text
from sqlalchemy.exc import DBAPIError, DisconnectionError, OperationalError

from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten, WattsmithError

BUSY_S = 60.0  # how long to wait for another writer; one transaction of ours takes milliseconds, an import seconds
_WRITERS = 0x77617474  # the advisory lock on PostgreSQL that writers of a record take in turn


class Closes:
    """What works on an engine: closed once, or by a `with`."""

    _engine: Engine

    def close(self) -> None:
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def sqlite_engine(
    path: Path, *, writable: bool, must_exist: bool = False, busy_s: float = BUSY_S, **options: Any
) -> Engine:
    """An engine on the file at PATH. MUST_EXIST: a file that has gone is not made anew.

    BUSY_S: how long to wait for another writer. OPTIONS go to SQLAlchemy's create_engine.
    """
    connect = _connector(path, mode="ro" if not writable else "rw" if must_exist else "rwc", busy_s=busy_s)
    # A reader of a file that it may not write decides anew each time how to open it.
    engine = create_engine("sqlite://", creator=connect, poolclass=QueuePool if writable else NullPool, **options)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # A writer says so at once: a reader that turns writer midway is refused when another came first.
        writes = connection.get_execution_options().get("writes", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    if writable:
        _watch_file(engine, path)
    return engine


def _connector(path: Path, *, mode: str, busy_s: float) -> Callable[[], sqlite3.Connection]:
    def connect() -> sqlite3.Connection:
        where = f"file:{quote(str(path.absolute()))}?mode={mode}"
        # Without a log beside it no writer has the file open, and SQLite need not make files to read it.
        if mode == "ro" and not path.with_name(path.name + "-wal").exists():
            where += "&immutable=1"
        # SQLAlchemy's "begin" above opens transactions; the driver must not do so by itself.
        connection = sqlite3.connect(where, uri=True, timeout=busy_s, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA foreign_keys = ON")
        # What is committed outlives a power cut; with a write-ahead log NORMAL would only outlive the process.
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    return connect


def _watch_file(engine: Engine, path: Path) -> None:
    """Let no connection go on with a file that was deleted or replaced: what it wrote there nobody would ever see."""

    @event.listens_for(engine, "connect")
    def remember(_: Any, record: Any) -> None:
        record.info["file"] = _file_id(path)

    @event.listens_for(engine, "checkout")
    def check(_: Any, record: Any, __: Any) -> None:
        if record.info.get("file") != _file_id(path):
            raise DisconnectionError  # SQLAlchemy opens what is there now


def _file_id(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def use_write_ahead_log(engine: Engine, place: str) -> None:
    """Let readers read while a writer writes. The file remembers it; a file system that cannot stays without."""
    with errors_explained(place, unreachable=NotWritten), closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        if cursor.execute("PRAGMA journal_mode").fetchone() == ("wal",):
            return
        deadline_s = time.monotonic() + BUSY_S
        while True:
            try:
                cursor.execute("PRAGMA journal_mode = WAL")
                return
            except sqlite3.OperationalError as busy:  # two that make one file at once; SQLite does not wait here
                if busy.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                    raise
                time.sleep(0.01)


def is_writable(path: Path) -> bool:
    """Whether a database may be written at PATH: SQLite keeps files beside it, so its folder counts too."""
    return (not path.exists() or os.access(path, os.W_OK)) and os.access(path.parent, os.W_OK)


def postgres_engine(url: URL, **options: Any) -> Engine:
    """An engine on the server that URL names. OPTIONS go to SQLAlchemy's create_engine."""
    if url.drivername in ("postgres", "postgresql"):
        url = url.set(drivername="postgresql+psycopg")
    limits = {} if "connect_timeout" in url.query else {"connect_timeout": 10}
    try:
        return create_engine(url, pool_pre_ping=True, connect_args=limits, **options)
    except ImportError as missing:
        raise ExtraNeeded(
            f"a record on PostgreSQL needs the `postgres` extra ({missing}): pip install 'wattsmith[postgres]'"
        ) from missing


@contextmanager
def write_transaction(
    engine: Engine, place: str, *, lock: int = _WRITERS, busy_s: float = BUSY_S
) -> Iterator[Connection]:
    """A transaction that has the record at PLACE for writing to itself: all of it happens, or nothing.

    On PostgreSQL those that name the same LOCK take turns, and wait BUSY_S at most; SQLite knows one lock, and its
    engine how long to wait.
    """
    with errors_explained(place, unreachable=NotWritten), engine.execution_options(writes=True).begin() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text(f"SET LOCAL lock_timeout = '{busy_s * 1000:.0f}ms'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": lock})
        yield connection


@contextmanager
def read_transaction(engine: Engine, place: str) -> Iterator[Connection]:
    """A transaction that sees the record at PLACE as it is at one moment, and keeps no writer waiting."""
    with errors_explained(place, unreachable=BadInput), engine.connect() as connection:
        yield connection


@contextmanager
def errors_explained(place: str, *, unreachable: type[WattsmithError]) -> Iterator[None]:
    """What a database says, as an error that says what to do. UNREACHABLE: what to raise when it does not answer."""
    try:
        yield
    except (DBAPIError, sqlite3.Error) as failed:
        said = failed.orig if isinstance(failed, DBAPIError) else failed
        told = _sqlite_error(said) if isinstance(said, sqlite3.Error) else _postgres_error(failed, unreachable)
        if told is None:
            raise
        kind, advice = told
        first_line = str(said).strip().partition("\n")[0]
        raise kind(f"the record {place}: {first_line}. {advice}") from failed


_ANOTHER = (BadInput, "It is another database than the one that was opened. Put that one back, or start again.")


def _sqlite_error(error: sqlite3.Error) -> tuple[type[WattsmithError], str] | None:
    told: dict[int, tuple[type[WattsmithError], str]] = {
        sqlite3.SQLITE_FULL: (NotWritten, "Make room on that disk, then go on; what was written before is safe."),
        sqlite3.SQLITE_IOERR: (
            NotWritten,
            "The disk is full or refuses to be written. Make room, or choose another place; what was written before "
            "is safe.",
        ),
        sqlite3.SQLITE_READONLY: (NotWritten, "You may read it, but not write it. Copy it, or change its permissions."),
        sqlite3.SQLITE_CANTOPEN: (NotWritten, "Check that its folder exists and that you may write there."),
        sqlite3.SQLITE_BUSY: (
            NotWritten,
            "Another process keeps it. Let that one finish, then try again.",
        ),
        sqlite3.SQLITE_NOTADB: (BadInput, "Give the path of a record, or of a file that does not exist yet."),
        sqlite3.SQLITE_CORRUPT: (BadInput, "It is damaged. Restore it from a copy or an export."),
    }
    code = getattr(error, "sqlite_errorcode", None)  # sqlite3's own complaints have none
    if code == sqlite3.SQLITE_ERROR and str(error).startswith(("no such table", "no such column")):
        return _ANOTHER
    return None if code is None else told.get(code & 0xFF)


def _postgres_error(failed: Exception, unreachable: type[WattsmithError]) -> tuple[type[WattsmithError], str] | None:
    """By the five letters of SQLSTATE; a connection that failed has none."""
    state: str = getattr(getattr(failed, "orig", None), "sqlstate", None) or ""
    if (not state and isinstance(failed, OperationalError)) or state[:2] in ("08", "28", "3D", "57"):
        return unreachable, "Check that the server runs, and host, name and password in the URL."
    if state in ("42P01", "42703"):
        return _ANOTHER
    if state == "42P07":
        return BadInput, "A table of that name belongs to something else. Give the record a database of its own."
    if state[:2] in ("53", "58"):
        return NotWritten, "Make room on the server; what was written before is safe."
    if state == "55P03":
        return NotWritten, "Another process keeps it. Let that one finish, then try again."
    if state in ("42501", "25006"):
        return NotWritten, "This user may not write there. Ask for the right, or use another record."
    return None
