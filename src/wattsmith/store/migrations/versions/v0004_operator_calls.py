"""A run tells the operators that a step calls, with the time in their kernels, and how long the host queued a step."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    run_number = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table(
        "operator_calls",
        sa.Column("run_id", run_number, sa.ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True),
        sa.Column("position", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("operator", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("dtype", sa.Text(), nullable=False),
        sa.Column("shapes", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("options", sa.JSON(), nullable=False),
        sa.Column("calls", sa.BigInteger(), nullable=False),
        sa.Column("flops", sa.Double(), nullable=False),
        sa.Column("moved_bytes", sa.Double(), nullable=False),
        sa.Column("busy_s", sa.Double(), nullable=True),
    )
    op.add_column("runs", sa.Column("times_host_s", sa.Double(), nullable=True))
