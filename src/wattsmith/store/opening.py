"""Opens a record wherever it is kept, and what a service keeps there. Loads SQLAlchemy only where it is needed."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from wattsmith.store.lines import LinesStore
from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine

    from wattsmith.store.service import SqlServiceStore
    from wattsmith.store.sql import SqlStore

_LINES = (".jsonl", ".jsonl.gz")
SERVICE_BUSY_S = 5.0  # how long a service waits for another writer: those who ask it wait too, and can ask again
_THREADS = 50  # of a service that may ask at once: FastAPI has 40, and there are its own


def default_path() -> Path:
    """Where the record of this user is kept."""
    home = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(home) / "wattsmith" / "record.sqlite"


def open_store(url: str | Path | None = None, *, must_exist: bool = False) -> "SqlStore | LinesStore":
    """The record at URL, made if it is not there and need not be; close it, or use it in a `with`.

    URL: None for this user's own, a path of a SQLite file, a path that ends in `.jsonl` for a plain file of JSON lines
    (`.jsonl.gz` to read an export), `sqlite:///…` or `postgresql://user@host/name`. A database of an older version is
    brought up to date, after a copy of a SQLite file has been made beside it.
    """
    place = _place(url)
    if isinstance(place, Path):
        return _open_file(place, must_exist=must_exist)
    return _open_postgres(place, must_exist=must_exist)


def open_service_store(url: str | Path | None = None, *, busy_s: float = SERVICE_BUSY_S) -> "SqlServiceStore":
    """What a service keeps in the database at URL, beside the record there; close it, or use it in a `with`.

    URL: as for `open_store`, but for files of JSON lines. BUSY_S: how long a change waits for others.
    """
    place = _place(url)
    if isinstance(place, Path) and place.name.endswith(_LINES):
        raise BadInput(f"a service keeps its jobs in a database, and {place} is a plain file; name a SQLite file")
    open_store(url).close()  # which makes it, or brings it up to date
    engine = _service_engine(place, busy_s)
    from wattsmith.store.service import SqlServiceStore

    name = str(place) if isinstance(place, Path) else place.render_as_string(hide_password=True)
    return SqlServiceStore(engine, name, busy_s=busy_s)


def _service_engine(place: "Path | URL", busy_s: float) -> "Engine":
    from wattsmith.store import engine as engines
    from wattsmith.store.service_rows import as_json

    if isinstance(place, Path):
        if not engines.is_writable(place):
            raise NotWritten(f"the record {place} may only be read, and a service must write it. Choose another place.")
        return engines.sqlite_engine(
            place,
            writable=True,
            must_exist=True,
            busy_s=busy_s,
            json_serializer=as_json,
            pool_size=_THREADS,
            pool_timeout=busy_s,
        )
    return engines.postgres_engine(place, json_serializer=as_json, max_overflow=10, pool_timeout=busy_s)


def _place(url: str | Path | None) -> "Path | URL":
    """The file, or the URL of a PostgreSQL server, that URL means."""
    given = str(default_path() if url is None else url)
    if "://" not in given:
        return Path(given).expanduser()
    _need_sqlalchemy()
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        parsed = make_url(given)
    except (ArgumentError, ValueError) as refused:
        # The text may hold a password, so it is not repeated here.
        raise BadInput("the URL of the record cannot be read; write postgresql://user@host/name") from refused
    scheme = parsed.drivername.partition("+")[0]
    if scheme == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise BadInput(f"{given} names no file; write sqlite:////absolute/path or sqlite:///relative/path")
        return Path(str(parsed.database))
    if scheme in ("postgres", "postgresql"):
        return parsed
    raise BadInput(f"a record is kept in SQLite, PostgreSQL or a .jsonl file, not in {scheme!r}")


def _open_file(path: Path, *, must_exist: bool) -> "SqlStore | LinesStore":
    if path.is_dir():
        raise BadInput(f"{path} is a folder; name a file in it")
    if must_exist and not path.exists():
        raise BadInput(f"there is no record at {path}")
    if path.name.endswith(_LINES):
        return LinesStore(path)
    return _open_sqlite(path, must_exist=must_exist)


def _open_sqlite(path: Path, *, must_exist: bool) -> "SqlStore":
    _need_sqlalchemy()
    from wattsmith.store import engine as engines
    from wattsmith.store.schema import prepare
    from wattsmith.store.sql import SqlStore

    _make_folder(path.parent)
    writable = engines.is_writable(path)
    if not writable and not path.exists():
        raise NotWritten(f"the record {path} cannot be made: you may not write in its folder. Choose another place.")
    engine = engines.sqlite_engine(path, writable=writable)
    try:
        if writable:
            engines.use_write_ahead_log(engine, str(path))
        prepare(engine, str(path), file=path, writable=writable, must_exist=must_exist)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(engine, str(path))


def _open_postgres(url: "URL", *, must_exist: bool) -> "SqlStore":
    from wattsmith.store.engine import postgres_engine
    from wattsmith.store.schema import prepare
    from wattsmith.store.sql import SqlStore

    place = url.render_as_string(hide_password=True)
    engine = postgres_engine(url)
    try:
        prepare(engine, place, file=None, writable=True, must_exist=must_exist)
    except BaseException:
        engine.dispose()
        raise
    return SqlStore(engine, place)


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise NotWritten(f"the folder {folder} cannot be made: {refused.strerror}. Choose another place.") from refused


def _need_sqlalchemy() -> None:
    try:
        import alembic  # noqa: F401
        import sqlalchemy  # noqa: F401
    except ImportError as missing:
        raise ExtraNeeded(
            f"a record in a database needs SQLAlchemy and Alembic ({missing}): pip install sqlalchemy alembic, or keep "
            "the record in a path that ends in .jsonl"
        ) from missing
