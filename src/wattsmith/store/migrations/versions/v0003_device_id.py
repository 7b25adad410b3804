"""A run names the very device it ran on: two cards of one type are not the same."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("runs", sa.Column("provenance_device_id", sa.Text(), nullable=True))
