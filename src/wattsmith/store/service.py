"""What a service remembers, in the database of its record: SQLite or PostgreSQL, the same tables in both."""

import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Select,
    Table,
    Text,
    and_,
    cast,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import TimeoutError as NoConnectionFree

from wattsmith.store import service_reports
from wattsmith.store import service_rows as rows
from wattsmith.store import service_tables as tables
from wattsmith.store import tables as run_tables
from wattsmith.store.engine import Closes, read_transaction, write_transaction
from wattsmith.store.identity import can_be_kept
from wattsmith.store.service_hold import hold_on
from wattsmith.terms.errors import BadInput, BadTerm, Conflict, NotRead, NotWritten
from wattsmith.terms.service import (
    SEEN_NOW,
    Attempt,
    AuditEntry,
    Client,
    ClientAbout,
    Document,
    JobState,
    KeptReport,
    ServedJob,
    Token,
)

_WRITERS = 0x77617476  # the advisory lock on PostgreSQL; not the record's, whose imports may take long
_FORGOTTEN = 5_000  # reports that one transaction drops: telemetry must not wait long meanwhile
_GIVEN = {field.name for field in fields(ServedJob)} - {"id", "attempts", *SEEN_NOW}


class SqlServiceStore(Closes):
    """What a service remembers in the database behind ENGINE, whose tables are up to date. PLACE names it in messages.

    BUSY_S: how long a change waits for others. May be used by many threads at once, and by several processes.
    """

    def __init__(self, engine: Engine, place: str, *, busy_s: float) -> None:
        self._engine = engine
        self.place = place
        self._busy_s = busy_s
        self._held = hold_on(engine, place)
        # Threads of one process queue here: SQLite lets those that wait ask again and again, and some never get a turn.
        self._turn = threading.Lock()

    @contextmanager
    def _changing(self) -> Iterator[Connection]:
        """A transaction that changes something: all of it happens, or nothing. One at a time."""
        if not self._turn.acquire(timeout=self._busy_s):
            raise NotWritten(f"the record {self.place}: others have kept it for {self._busy_s:.0f} s. Try again.")
        try:
            with write_transaction(self._engine, self.place, lock=_WRITERS, busy_s=self._busy_s) as connection:
                yield connection
        except (BadInput, NoConnectionFree) as failed:
            raise NotWritten(str(failed)) from failed
        finally:
            self._turn.release()

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """A transaction that sees everything as it is at one moment."""
        engine = self._engine
        if engine.dialect.name == "postgresql":
            engine = engine.execution_options(isolation_level="REPEATABLE READ")
        try:
            with read_transaction(engine, self.place) as connection:
                yield connection
        except (BadInput, NotWritten, NoConnectionFree) as failed:
            raise NotRead(str(failed)) from failed

    def _found(self, query: Select[Any]) -> list[rows.Row]:
        with self._reading() as connection:
            return [dict(row) for row in connection.execute(query).mappings()]

    # Who may do what

    def add_token(self, token: Token, secret_hash: bytes) -> None:
        row = rows.token_row(token) | {"secret_hash": secret_hash}
        with self._changing() as connection:
            if connection.execute(select(tables.tokens.c.id).where(tables.tokens.c.id == token.id)).first():
                raise Conflict(f"there is a token {token.id} already; make another id")
            connection.execute(insert(tables.tokens), row)

    def token(self, token_id: str) -> tuple[Token, bytes] | None:
        if not can_be_kept(token_id):
            return None
        found = self._found(select(tables.tokens).where(tables.tokens.c.id == token_id))
        return (rows.token_of(found[0]), bytes(found[0]["secret_hash"])) if found else None

    def tokens(self) -> list[Token]:
        c = tables.tokens.c
        return [rows.token_of(row) for row in self._found(select(tables.tokens).order_by(c.created_s, c.id))]

    def revoke(self, token_id: str, now_s: float) -> bool:
        if not can_be_kept(token_id):
            return False
        c = tables.tokens.c
        query = update(tables.tokens).where(c.id == token_id, c.revoked_s.is_(None)).values(revoked_s=now_s)
        with self._changing() as connection:
            return connection.execute(query).rowcount == 1

    # Jobs

    def add_job(self, job: ServedJob, files: Mapping[str, bytes]) -> ServedJob:
        row = rows.job_row(job)
        if bad := [path for path in files if not can_be_kept(path)]:
            raise BadTerm(f"files: {bad[0]!a} holds a NUL or half a surrogate pair; give that file another name")
        c = tables.jobs.c
        with self._changing() as connection:
            if job.once is not None:
                known = _jobs(connection, and_(c.by == job.by, c.once == job.once))
                if known:
                    return known[0]
            number = _insert(connection, tables.jobs, row)
            if files:
                kept = [{"job_number": number, "path": path, "content": content} for path, content in files.items()]
                connection.execute(insert(tables.job_files), kept)
        return replace(job, id=rows.job_id(number), attempts=())

    def job(self, job_id: str) -> ServedJob | None:
        number = rows.job_number(job_id)
        if number is None:
            return None
        with self._reading() as connection:
            return _job(connection, number)

    def job_files(self, job_id: str) -> dict[str, bytes]:
        number = rows.job_number(job_id)
        c = tables.job_files.c
        query = select(tables.job_files).where(c.job_number == number).order_by(c.path)
        return {row["path"]: bytes(row["content"]) for row in self._found(query)} if number is not None else {}

    def jobs(
        self, *, states: Sequence[JobState] = (), by: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[ServedJob]:
        c = tables.jobs.c
        conditions: list[ColumnElement[bool]] = [c.state.in_([str(state) for state in states])] if states else []
        if by is not None:
            if not can_be_kept(by):
                return []
            conditions.append(c.by == by)
        with self._reading() as connection:
            return _jobs(connection, *conditions, limit=limit, offset=offset)

    def count_jobs(self) -> dict[JobState, int]:
        """All states, those of no job too."""
        c = tables.jobs.c
        found = self._found(select(c.state, func.count().label("jobs")).group_by(c.state))
        return dict.fromkeys(JobState, 0) | {JobState(row["state"]): row["jobs"] for row in found}

    def change_job(self, job_id: str, *, among: Sequence[JobState], **changes: Any) -> ServedJob | None:
        number = rows.job_number(job_id)
        _check_changes(changes)
        if number is None:
            return None
        with self._changing() as connection:
            job = _job(connection, number)
            if job is None or job.state not in among:
                return None
            return _change(connection, job, changes)

    def begin_attempt(self, attempt: Attempt) -> bool:
        number = rows.job_number(attempt.job)
        if number is None:
            return False
        row = rows.attempt_row(attempt) | {"job_number": number}
        c = tables.jobs.c
        waits = and_(c.number == number, c.state == JobState.WAITING.value)
        with self._changing() as connection:
            if connection.execute(select(tables.attempts.c.number).where(*_is(attempt, number))).first() is not None:
                return False
            if connection.execute(update(tables.jobs).where(waits).values(state=JobState.STARTING.value)).rowcount == 0:
                return False
            connection.execute(insert(tables.attempts), row)
        return True

    def place_attempt(self, attempt: Attempt) -> bool:
        number = rows.job_number(attempt.job)
        if number is None:
            return False
        row = rows.attempt_row(attempt)
        open_ = and_(*_is(attempt, number), tables.attempts.c.ended_s.is_(None))
        placed = update(tables.attempts).where(open_).values({name: row[name] for name in ("node", "devices")})
        with self._changing() as connection:
            return connection.execute(placed).rowcount == 1

    def end_attempt(self, attempt: Attempt, *, state: JobState, **changes: Any) -> ServedJob | None:
        if attempt.ended_s is None:
            raise BadTerm(f"attempt {attempt.id}: say when it ended, in ended_s")
        _check_changes(changes)
        number = rows.job_number(attempt.job)
        if number is None:
            return None
        row = rows.attempt_row(attempt)
        open_ = and_(*_is(attempt, number), tables.attempts.c.ended_s.is_(None))
        with self._changing() as connection:
            if connection.execute(update(tables.attempts).where(open_).values(row)).rowcount == 0:
                return None
            job = _job(connection, number)
            assert job is not None  # the table of attempts refers to it
            return _change(connection, job, {"state": state, **changes})

    # Client devices

    def keep_reports(self, kept: Sequence[KeptReport]) -> list[bool]:
        written = service_reports.written(kept)  # first, for others need not wait for that
        if not written:
            return []
        with self._changing() as connection:
            return service_reports.keep(connection, written)

    def keep_about(self, client: str, about: ClientAbout, now_s: float) -> None:
        plain = rows.about_plain(client, about)
        with self._changing() as connection:
            service_reports.keep_about(connection, client, plain, now_s)

    def client(self, name: str) -> Client | None:
        if not can_be_kept(name):
            return None
        found = self._found(_CLIENTS.where(tables.clients.c.name == name))
        return rows.client_of(found[0]) if found else None

    def clients(self) -> list[Client]:
        """By name."""
        found = [rows.client_of(row) for row in self._found(_CLIENTS)]
        return sorted(found, key=lambda client: client.name)  # a database's own order depends on its language

    def reports(
        self, client: str, *, since_s: float | None = None, until_s: float | None = None, limit: int = 10_000
    ) -> list[KeptReport]:
        if not can_be_kept(client):
            return []
        c = tables.reports.c
        its_id = select(tables.clients.c.id).where(tables.clients.c.name == client).scalar_subquery()
        query = select(c.received_s, c.report).where(c.client_id == its_id)
        if since_s is not None:
            query = query.where(c.received_s >= since_s)
        if until_s is not None:
            query = query.where(c.received_s < until_s)
        found = self._found(query.order_by(c.received_s.desc(), c.id.desc()).limit(_within(limit)))
        return [
            KeptReport(client=client, received_s=row["received_s"], report=rows.report_of(row["report"]))
            for row in reversed(found)
        ]

    def drop_reports(self, before_s: float, *, most: int | None = None) -> int:
        c = tables.reports.c
        old = select(c.id).where(c.received_s < before_s).order_by(c.received_s).limit(_FORGOTTEN)
        with self._changing() as connection:
            gone = connection.execute(delete(tables.reports).where(c.id.in_(old))).rowcount
            if gone or most is None:
                return gone
            # Ids count up, so that they tell how many came after one.
            beyond = select(c.id).where(c.id <= select(func.max(c.id) - most).scalar_subquery())
            few = beyond.order_by(c.id).limit(_FORGOTTEN)
            return connection.execute(delete(tables.reports).where(c.id.in_(few))).rowcount

    # What was decided

    def keep_document(self, document: Document) -> Document:
        row = rows.document_row(document)
        c = tables.documents.c
        same = and_(c.kind == document.kind, c.key == document.key)
        with self._changing() as connection:
            last = connection.execute(select(func.max(c.serial)).where(same)).scalar() or 0
            connection.execute(update(tables.documents).where(same, c.serial == last).values(holds=False))
            connection.execute(insert(tables.documents), row | {"serial": last + 1, "holds": True})
        return rows.document_of(row | {"serial": last + 1})

    def document(self, kind: str, key: str) -> Document | None:
        if not (can_be_kept(kind) and can_be_kept(key)):
            return None
        c = tables.documents.c
        query = select(tables.documents).where(c.kind == kind, c.key == key).order_by(c.serial.desc()).limit(1)
        found = self._found(query)
        return rows.document_of(found[0]) if found else None

    def documents(self, kind: str, *, limit: int = 100) -> list[Document]:
        if not can_be_kept(kind):
            return []
        c = tables.documents.c
        query = select(tables.documents).where(c.kind == kind, c.holds).order_by(c.id.desc()).limit(_within(limit))
        return [rows.document_of(row) for row in self._found(query)]

    def drop_documents(self, kind: str, before_s: float, *, last_too: bool = False) -> int:
        c = tables.documents.c
        # The oldest have the lowest ids; looking at those alone, no more is read than can be dropped.
        oldest = select(c.id, c.time_s).where(c.kind == kind).order_by(c.id).limit(_FORGOTTEN)
        with self._changing() as connection:
            found = connection.execute(oldest if last_too else oldest.where(~c.holds)).all()
            old = [one.id for one in found if one.time_s < before_s]
            for first in range(0, len(old), service_reports.AT_ONCE):
                some = old[first : first + service_reports.AT_ONCE]
                connection.execute(delete(tables.documents).where(c.id.in_(some)))
        return len(old)

    def audit(self, entry: AuditEntry) -> None:
        row = rows.audit_row(entry)
        with self._changing() as connection:
            connection.execute(insert(tables.audit), row)

    def audit_log(self, *, limit: int = 100, offset: int = 0) -> list[AuditEntry]:
        query = select(tables.audit).order_by(tables.audit.c.id.desc()).limit(_within(limit)).offset(_within(offset))
        return [rows.audit_of(row) for row in self._found(query)]

    # Who works with it

    def hold(self) -> None:
        self._held.take()

    # The record beside it

    def record_version(self) -> int:
        with self._reading() as connection:
            return connection.execute(select(func.max(run_tables.runs.c.id))).scalar() or 0

    def close(self) -> None:
        self._held.give_back()
        self._engine.dispose()


_CLIENTS = select(
    *(column for column in tables.clients.c if column.name != "about"),
    cast(tables.clients.c.about, Text).label("about"),
)


def _within(count: int) -> int:
    """COUNT where a database takes it: not negative, and in 64 bits."""
    return max(0, min(count, 2**62))


def _insert(connection: Connection, table: Table, row: rows.Row) -> int:
    primary_key = connection.execute(insert(table), row).inserted_primary_key
    assert primary_key is not None
    return int(primary_key[0])


def _is(attempt: Attempt, job_number: int) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    c = tables.attempts.c
    return c.job_number == job_number, c.number == attempt.number


def _job(connection: Connection, number: int) -> ServedJob | None:
    found = _jobs(connection, tables.jobs.c.number == number)
    return found[0] if found else None


def _jobs(connection: Connection, *conditions: ColumnElement[bool], limit: int = 1, offset: int = 0) -> list[ServedJob]:
    """The newest first, with their attempts."""
    query = select(tables.jobs).where(*conditions).order_by(tables.jobs.c.number.desc())
    found = connection.execute(query.limit(_within(limit)).offset(_within(offset))).mappings().all()
    attempts = _attempts(connection, [row["number"] for row in found])
    return [rows.job_of(dict(row), attempts[row["number"]]) for row in found]


def _attempts(connection: Connection, numbers: Iterable[int]) -> dict[int, list[Attempt]]:
    grouped: dict[int, list[Attempt]] = defaultdict(list)
    c = tables.attempts.c
    wanted = list(numbers)
    for first in range(0, len(wanted), service_reports.AT_ONCE):
        query = select(tables.attempts).where(c.job_number.in_(wanted[first : first + service_reports.AT_ONCE]))
        for row in connection.execute(query.order_by(c.job_number, c.number)).mappings():
            grouped[row["job_number"]].append(rows.attempt_of(dict(row)))
    return grouped


def _check_changes(changes: Mapping[str, Any]) -> None:
    if unknown := changes.keys() - _GIVEN:
        raise TypeError(f"a job has no {sorted(unknown)[0]!r} that can be changed; it has {', '.join(sorted(_GIVEN))}")


def _change(connection: Connection, job: ServedJob, changes: Mapping[str, Any]) -> ServedJob:
    changed = replace(job, **changes)
    row = rows.job_row(changed)
    new = {name: row[name] for name in changes}
    if new:
        number = rows.job_number(job.id)
        connection.execute(update(tables.jobs).where(tables.jobs.c.number == number).values(new))
    return changed
