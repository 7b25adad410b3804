"""A run says how many samples are in the data set that it stands for."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("runs", sa.Column("dataset_size", sa.BigInteger(), nullable=True))
