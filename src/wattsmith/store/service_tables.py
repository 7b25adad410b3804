"""The tables of a service, beside those of the record: tokens, jobs, clients, what was decided, who changed what.

A flat field of a fact is a column of its name; a fact inside a fact is JSON.
"""

from collections.abc import Iterator
from typing import Any, get_type_hints

from sqlalchemy import JSON, BigInteger, Boolean, Column, ForeignKey, Index, LargeBinary, Table, Text
from sqlalchemy.schema import UniqueConstraint

from wattsmith.store.tables import RowId, column_of, flat_fields, metadata
from wattsmith.terms.service import SEEN_NOW, Attempt, AuditEntry, Client, Document, ServedJob, Token

__all__ = [
    "attempts",
    "audit",
    "clients",
    "columns_of",
    "documents",
    "job_files",
    "jobs",
    "metadata",
    "reports",
    "tokens",
]


def columns_of(kind: type, *, but: tuple[str, ...] = ()) -> tuple[str, ...]:
    """The flat fields of KIND that are columns under their own names."""
    return tuple(name for name in flat_fields(kind) if name not in but)


def _columns(kind: type, *, but: tuple[str, ...] = ()) -> Iterator[Column[Any]]:
    hints = get_type_hints(kind)
    return (column_of(name, hints[name]) for name in columns_of(kind, but=but))


def _json(name: str, *, optional: bool = False) -> Column[Any]:
    return Column(name, JSON(none_as_null=optional), nullable=optional)


tokens = Table(
    "tokens",
    metadata,
    Column("id", Text, primary_key=True),
    *_columns(Token, but=("id",)),
    Column("secret_hash", LargeBinary, nullable=False),
)
jobs = Table(
    "jobs",
    metadata,
    Column("number", RowId, primary_key=True),  # 17 is the job "j-000017"
    *_columns(ServedJob, but=("id", *SEEN_NOW)),
    _json("predicted", optional=True),
    UniqueConstraint("by", "once", name="one_job_of_a_submitter_and_a_word"),
    Index("jobs_by_state", "state", "number"),
    Index("jobs_by_submitter", "by", "number"),
)
job_files = Table(
    "job_files",
    metadata,
    Column("job_number", ForeignKey(jobs.c.number, ondelete="CASCADE"), primary_key=True),
    Column("path", Text, primary_key=True),
    Column("content", LargeBinary, nullable=False),
)
attempts = Table(
    "attempts",
    metadata,
    Column("job_number", ForeignKey(jobs.c.number, ondelete="CASCADE"), primary_key=True),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    *_columns(Attempt, but=("job", "number")),
    _json("setting"),
    _json("result", optional=True),
)
clients = Table(
    "clients",
    metadata,
    Column("id", RowId, primary_key=True),
    *_columns(Client),
    _json("about", optional=True),
    _json("latest", optional=True),  # its last report, once more: a thousand clients are looked at in one go
    UniqueConstraint("name", name="one_client_of_a_name"),
)
reports = Table(
    "reports",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("client_id", ForeignKey(clients.c.id, ondelete="CASCADE"), nullable=False),
    Column("boot", Text, nullable=False),
    Column("number", BigInteger, nullable=False),
    column_of("received_s", float),
    _json("report"),
    UniqueConstraint("client_id", "boot", "number", name="one_report_of_a_number"),
    Index("reports_by_client", "client_id", "received_s", "id"),
    Index("reports_by_time", "received_s"),  # to forget the oldest
)
documents = Table(
    "documents",
    metadata,
    Column("id", RowId, primary_key=True),
    *_columns(Document, but=("body",)),
    _json("body"),
    Column("holds", Boolean, nullable=False),  # it is the last of its kind and key
    UniqueConstraint("kind", "key", "serial", name="one_document_of_a_serial"),
    Index("documents_by_kind", "kind", "holds", "id"),
)
audit = Table(
    "audit",
    metadata,
    Column("id", RowId, primary_key=True),
    *_columns(AuditEntry),
    _json("detail"),
)
