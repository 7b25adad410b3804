"""A run tells how busy parts of the chip were, and its structure how many recurrent layers there are."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

PARTS = ("engine", "sm", "occupancy", "tensor", "dram", "fp64", "fp32", "fp16", "integer")


def upgrade() -> None:
    for part in PARTS:
        op.add_column("runs", sa.Column(f"condition_{part}_ratio", sa.Double(), nullable=True))
    op.add_column("runs", sa.Column("structure_recurrent_layers", sa.BigInteger(), nullable=True))
    op.execute("UPDATE runs SET structure_recurrent_layers = 0 WHERE structure_parameters IS NOT NULL")
    # Only the networks of one family had any, and as many as it was given.
    op.execute(
        "UPDATE runs SET structure_recurrent_layers = (SELECT CAST(p.number AS BIGINT) FROM workload_parameters p "
        "WHERE p.workload_id = runs.workload_id AND p.name = 'layers') WHERE structure_parameters IS NOT NULL "
        "AND workload_id IN (SELECT w.id FROM workloads w JOIN workload_parameters p ON p.workload_id = w.id "
        "WHERE w.family = 'lstm' AND p.name = 'layers')"
    )
