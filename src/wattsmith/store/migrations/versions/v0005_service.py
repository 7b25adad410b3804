"""What a service remembers: tokens, jobs and their attempts, client devices and their reports, documents, audit."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    _who()
    _jobs()
    _clients()
    _decided()


def _who() -> None:
    op.create_table(
        "tokens",
        sa.Column("id", sa.Text(), primary_key=True),
        _text("name"),
        _text("role"),
        _double("created_s"),
        _double("revoked_s", nullable=True),
        sa.Column("secret_hash", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "audit",
        _row_number("id"),
        _double("time_s"),
        _text("who"),
        _text("what"),
        _text("on"),
        _json("detail"),
    )


def _jobs() -> None:
    op.create_table(
        "jobs",
        _row_number("number"),
        _text("name"),
        _text("by"),
        _text("written"),
        _text("state"),
        _double("submitted_s"),
        _json("command"),
        _text("structure", nullable=True),
        _text("once", nullable=True),
        _double("deadline_s", nullable=True),
        _integer("retries"),
        _double("steps", nullable=True),
        _text("reason", nullable=True),
        _double("ended_s", nullable=True),
        _text("run", nullable=True),
        _json("predicted", nullable=True),
        sa.UniqueConstraint("by", "once", name="one_job_of_a_submitter_and_a_word"),
    )
    op.create_index("jobs_by_state", "jobs", ["state", "number"])
    op.create_index("jobs_by_submitter", "jobs", ["by", "number"])
    op.create_table(
        "job_files",
        _part_of("job_number", "jobs.number"),
        sa.Column("path", sa.Text(), primary_key=True),
        sa.Column("content", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "attempts",
        _part_of("job_number", "jobs.number"),
        sa.Column("number", sa.BigInteger(), primary_key=True, autoincrement=False),
        _text("node"),
        _json("devices"),
        _double("started_s"),
        _double("ended_s", nullable=True),
        _text("lost", nullable=True),
        _json("setting"),
        _json("result", nullable=True),
    )


def _clients() -> None:
    op.create_table(
        "clients",
        _row_number("id"),
        _text("name"),
        _double("first_seen_s"),
        _double("last_seen_s"),
        _double("skew_s", nullable=True),
        _integer("reports"),
        _json("about", nullable=True),
        _json("latest", nullable=True),
        sa.UniqueConstraint("name", name="one_client_of_a_name"),
    )
    op.create_table(
        "reports",
        _row_number("id"),
        sa.Column("client_id", _NUMBER, sa.ForeignKey("clients.id", ondelete="CASCADE"), nullable=False),
        _text("boot"),
        _integer("number"),
        _double("received_s"),
        _json("report"),
        sa.UniqueConstraint("client_id", "boot", "number", name="one_report_of_a_number"),
    )
    op.create_index("reports_by_client", "reports", ["client_id", "received_s", "id"])
    op.create_index("reports_by_time", "reports", ["received_s"])


def _decided() -> None:
    op.create_table(
        "documents",
        _row_number("id"),
        _text("kind"),
        _text("key"),
        _integer("serial"),
        _double("time_s"),
        _text("by"),
        _json("body"),
        sa.Column("holds", sa.Boolean(), nullable=False),
        sa.UniqueConstraint("kind", "key", "serial", name="one_document_of_a_serial"),
    )
    op.create_index("documents_by_kind", "documents", ["kind", "holds", "id"])


_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _row_number(name: str) -> sa.Column[Any]:
    return sa.Column(name, _NUMBER, primary_key=True)


def _part_of(name: str, owner: str) -> sa.Column[Any]:
    return sa.Column(name, _NUMBER, sa.ForeignKey(owner, ondelete="CASCADE"), primary_key=True)


def _text(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _double(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.Double(), nullable=nullable)


def _integer(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.BigInteger(), nullable=nullable)


def _json(name: str, *, nullable: bool = False) -> sa.Column[Any]:
    return sa.Column(name, sa.JSON(none_as_null=True), nullable=nullable)
