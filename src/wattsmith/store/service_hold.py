"""One service at a time works with a database: a second would take the first's jobs for lost, and run them again."""

import fcntl
import os
import threading
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from wattsmith.store.engine import errors_explained
from wattsmith.terms.errors import Conflict, NotWritten

_SERVICES = 0x77617473  # the advisory lock on PostgreSQL of the service that works with a database
_REFUSED = (
    "another service works with {place}. Stop that one first, or give this one a database of its own; "
    "what `wattsmith serve token` does needs neither."
)


class Hold(Protocol):
    """Whether this process may work with a database."""

    def take(self) -> None: ...

    def give_back(self) -> None: ...


def hold_on(engine: Engine, place: str) -> Hold:
    """Not taken yet. PLACE: the path of a SQLite file, or what to call a server."""
    return FileHold(Path(place)) if engine.dialect.name == "sqlite" else ServerHold(engine, place)


class FileHold:
    """A lock on a file beside the database. The kernel gives it back when the process ends in whatever way."""

    def __init__(self, path: Path) -> None:
        self._path = path.with_name(path.name + ".serving")
        self._file: int | None = None

    def take(self) -> None:
        if self._file is not None:
            return
        try:
            opened = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as refused:
            raise NotWritten(f"{self._path} cannot be made: {refused.strerror}. Choose another place.") from refused
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as taken:
            os.close(opened)
            raise Conflict(_REFUSED.format(place=self._path.with_suffix(""))) from taken
        self._file = opened

    def give_back(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


class ServerHold:
    """A lock that PostgreSQL keeps for as long as a connection lasts; taken again on a new one where that broke."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self._place = place
        self._connection: Connection | None = None
        self._turn = threading.Lock()

    def take(self) -> None:
        with self._turn:
            if self._connection is not None and _answers(self._connection):
                return
            self._drop()
            with errors_explained(self._place, unreachable=NotWritten):
                connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
                held = connection.execute(text("SELECT pg_try_advisory_lock(:lock)"), {"lock": _SERVICES}).scalar()
            if not held:
                connection.close()
                raise Conflict(_REFUSED.format(place=self._place))
            self._connection = connection

    def give_back(self) -> None:
        with self._turn:
            self._drop()

    def _drop(self) -> None:
        if self._connection is not None:
            self._connection.invalidate()  # closed in truth: back in the pool it would keep the lock
            self._connection.close()
            self._connection = None


def _answers(connection: Connection) -> bool:
    try:
        connection.execute(text("SELECT 1"))
    except SQLAlchemyError:
        return False
    return True
