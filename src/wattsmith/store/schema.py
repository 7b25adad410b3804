"""Brings a database to the schema of this version, or says why it cannot."""

import logging
import sqlite3
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, inspect

from wattsmith.store.engine import BUSY_S, read_transaction, write_transaction
from wattsmith.store.service_tables import metadata
from wattsmith.terms.errors import BadInput, NotWritten

NEWEST = "0007"  # the last step in migrations/versions
_VERSION_TABLE = "wattsmith_schema"
_log = logging.getLogger("wattsmith")


def prepare(engine: Engine, place: str, *, file: Path | None, writable: bool, must_exist: bool) -> None:
    """Make the tables at PLACE, or bring them up to date. FILE is what to copy before old tables are changed."""
    with read_transaction(engine, place) as connection:
        found = _version(connection, place)
    if found == NEWEST:
        return
    if found is None and must_exist:
        raise BadInput(f"there is no record at {place}")
    if not writable:
        state = "holds no record yet" if found is None else f"has the older schema {found}"
        raise NotWritten(f"{place} {state} and cannot be written. Copy it to where you may write, and open the copy.")
    with write_transaction(engine, place) as connection:
        found = _version(connection, place)  # another process may have come first
        if found is not None and found != NEWEST and file is not None:
            copy = _back_up(file, found)
            _log.warning(
                "%s had schema %s and is brought to %s; it is kept as it was in %s", place, found, NEWEST, copy
            )
        upgrade(connection, NEWEST)


def upgrade(connection: Connection, to: str) -> None:
    """Take the steps that lead from the schema that is there to the one called TO."""
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
    steps = list(_steps().iterate_revisions(to, context.get_current_revision() or "base"))
    with Operations.context(context):
        for step in reversed(steps):
            step.module.upgrade()
            context.stamp(_steps(), step.revision)


@cache
def _steps() -> ScriptDirectory:
    return ScriptDirectory(str(Path(__file__).parent / "migrations"))


def _version(connection: Connection, place: str) -> str | None:
    """The schema at PLACE; None: nothing is there yet. Raises BadInput when it is not for us."""
    tables = set(inspect(connection).get_table_names())
    if _VERSION_TABLE not in tables:
        # A file belongs to one program; a server's database may hold other tables, as long as ours have room.
        theirs = tables if connection.dialect.name == "sqlite" else tables & metadata.tables.keys()
        if theirs:
            raise BadInput(
                f"{place} is a database of something else: it has the table {sorted(theirs)[0]!r} and no record. "
                "Choose another place."
            )
        return None
    context = MigrationContext.configure(connection, opts={"version_table": _VERSION_TABLE})
    found = context.get_current_revision()
    if found is not None and found not in {step.revision for step in _steps().walk_revisions()}:
        raise BadInput(
            f"{place} has schema {found}, and this version of wattsmith knows none after {NEWEST}. "
            "Install a newer wattsmith, or use the one that wrote it to export the runs."
        )
    return found


def _back_up(file: Path, version: str) -> Path:
    """Copy FILE as it was before this transaction, to a new name beside it."""
    names = (f"{file.name}.schema-{version}" + (f".{n}" if n else "") for n in range(1000))
    copy = next(path for path in map(file.with_name, names) if not path.exists())
    part = copy.with_name(copy.name + ".part")
    try:
        part.unlink(missing_ok=True)
        with closing(sqlite3.connect(file, timeout=BUSY_S)) as old, closing(sqlite3.connect(part)) as new:
            old.backup(new)
        part.replace(copy)
    except (OSError, sqlite3.Error) as failed:
        with suppress(OSError):
            part.unlink()
        raise NotWritten(
            f"{file} has the older schema {version}, and the copy {copy} that is made first failed: {failed}. "
            "Make room beside it, or move it to where there is."
        ) from failed
    return copy
