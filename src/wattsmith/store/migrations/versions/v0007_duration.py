"""How long a job takes is duration_s, foretold and measured; it was time_s and wall_s."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

NEW = "duration_s"
OLD = (("jobs", "predicted", ("number",), "time_s"), ("attempts", "result", ("job_number", "number"), "wall_s"))


def upgrade() -> None:
    for table, column, keys, old in OLD:
        rows = sa.table(table, *(sa.column(key, sa.BigInteger()) for key in keys), sa.column(column, sa.JSON()))
        for row in op.get_bind().execute(sa.select(rows).where(rows.c[column].is_not(None))).mappings().all():
            told: dict[str, Any] = {NEW if name == old else name: value for name, value in row[column].items()}
            this_row = sa.and_(*(rows.c[key] == row[key] for key in keys))
            op.execute(sa.update(rows).where(this_row).values({column: told}))
