"""The record in a database: SQLite or PostgreSQL, the same tables in both."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, Unpack

from sqlalchemy import Column, ColumnElement, Connection, Engine, Table, and_, func, insert, or_, select

from wattsmith.store import rows, tables
from wattsmith.store.engine import Closes, read_transaction, write_transaction
from wattsmith.store.filters import OF_WORKLOAD, Coverage, given, in_order
from wattsmith.store.identity import check_storable, point_key
from wattsmith.terms.ports import RunFilters
from wattsmith.terms.run import Device, Run, Status
from wattsmith.terms.work import Setting, Workload

_PAGE = 500  # runs that are read in one transaction


class SqlStore(Closes):
    """Runs in the database behind ENGINE, whose tables are up to date. PLACE names it in messages."""

    def __init__(self, engine: Engine, place: str) -> None:
        self._engine = engine
        self.place = place

    def add(self, run: Run) -> bool:
        return self.add_all([run])[0] == 1

    def add_all(self, runs: Iterable[Run]) -> tuple[int, int]:
        """Remember all of RUNS or, when anything goes wrong, none. How many were added, and were there already."""
        added = already_there = 0
        with write_transaction(self._engine, self.place) as connection:
            ids: dict[tuple[Table, str], int] = {}
            for run in runs:
                check_storable(run)
                if _add(connection, run, ids):
                    added += 1
                else:
                    already_there += 1
        return added, already_there

    def has(self, workload: Workload, device: Device, setting: Setting, session: str | None = None) -> bool:
        query = select(tables.runs.c.id).where(tables.runs.c.point == point_key(workload, device, setting)).limit(1)
        if session is not None:
            query = query.where(tables.runs.c.provenance_session == session)
        with read_transaction(self._engine, self.place) as connection:
            return connection.execute(query).first() is not None

    def runs(self, *, newest_first: bool = False, **only: Unpack[RunFilters]) -> Iterator[Run]:
        return self._pages(_conditions(only), newest_first=newest_first)

    def _pages(self, conditions: list[ColumnElement[bool]], *, newest_first: bool) -> Iterator[Run]:
        # Each page is a transaction of its own: a reader that dawdles between runs holds nothing open.
        c = tables.runs.c
        order = (c.measured_s.desc(), c.id.desc()) if newest_first else (c.id,)
        query = select(tables.runs).select_from(_JOINED).where(*conditions).order_by(*order).limit(_PAGE)
        after: ColumnElement[bool] | None = None
        while True:
            with read_transaction(self._engine, self.place) as connection:
                found = connection.execute(query if after is None else query.where(after)).mappings().all()
                page = list(_runs_of(connection, [dict(row) for row in found]))
            yield from page
            if len(found) < _PAGE:
                return
            last = found[-1]
            later = and_(c.measured_s == last["measured_s"], c.id < last["id"])
            after = or_(c.measured_s < last["measured_s"], later) if newest_first else c.id > last["id"]

    def coverage(self, **only: Unpack[RunFilters]) -> list[Coverage]:
        """How many runs there are by family, precision and status."""
        by = (tables.workloads.c.family, tables.workloads.c.precision, tables.runs.c.status)
        query = select(*by, func.count()).select_from(_JOINED).where(*_conditions(only)).group_by(*by)
        with read_transaction(self._engine, self.place) as connection:
            counted = connection.execute(query).all()
        return in_order(Coverage(family=f, precision=p, status=Status(s), runs=n) for f, p, s, n in counted)

    def count(self, **only: Unpack[RunFilters]) -> int:
        return sum(row.runs for row in self.coverage(**only))


_JOINED = tables.runs.join(tables.workloads).join(tables.devices)


def _conditions(only: RunFilters) -> list[ColumnElement[bool]]:
    columns: dict[str, Column[Any]] = {name: tables.workloads.c[name] for name in OF_WORKLOAD}
    columns |= {
        "status": tables.runs.c.status,
        "device": tables.devices.c.name,
        "session": tables.runs.c.provenance_session,
    }
    filters = given(only)
    conditions = [columns[name] == str(value) for name, value in filters.items() if name in columns]
    if "min_batch" in filters:
        conditions.append(tables.workloads.c.batch >= filters["min_batch"])
    if "max_batch" in filters:
        conditions.append(tables.workloads.c.batch <= filters["max_batch"])
    return conditions


def _add(connection: Connection, run: Run, ids: dict[tuple[Table, str], int]) -> bool:
    """Write RUN unless it is there. IDS: workloads and devices that this transaction has met."""
    row = rows.run_row(run)
    c = tables.runs.c
    same = and_(c.point == row["point"], c.provenance_session == row["provenance_session"])
    if connection.execute(select(c.id).where(same)).first() is not None:
        return False
    row["workload_id"] = _workload_id(connection, run.workload, ids)
    row["device_id"] = _id_of(connection, tables.devices, rows.device_row(run.device), ids)[0]
    run_id = _insert(connection, tables.runs, row)
    _insert_parts(connection, tables.operator_counts, "run_id", run_id, rows.operator_rows(run))
    _insert_parts(connection, tables.operator_calls, "run_id", run_id, rows.call_rows(run))
    _insert_parts(connection, tables.run_versions, "run_id", run_id, rows.version_rows(run))
    return True


def _workload_id(connection: Connection, workload: Workload, ids: dict[tuple[Table, str], int]) -> int:
    row_id, is_new = _id_of(connection, tables.workloads, rows.workload_row(workload), ids)
    if is_new:
        parameters = [rows.parameter_row(name, value) for name, value in workload.parameters.items()]
        _insert_parts(connection, tables.workload_parameters, "workload_id", row_id, parameters)
    return row_id


def _id_of(connection: Connection, table: Table, row: rows.Row, ids: dict[tuple[Table, str], int]) -> tuple[int, bool]:
    """The id of the row in TABLE with ROW's key, and whether it had to be written first."""
    known = ids.get((table, row["key"]))
    if known is None:
        known = connection.execute(select(table.c.id).where(table.c.key == row["key"])).scalar()
    is_new = known is None
    row_id = _insert(connection, table, row) if known is None else known
    ids[table, row["key"]] = row_id
    return row_id, is_new


def _insert(connection: Connection, table: Table, row: rows.Row) -> int:
    primary_key = connection.execute(insert(table), row).inserted_primary_key
    assert primary_key is not None
    return int(primary_key[0])


def _insert_parts(connection: Connection, table: Table, owner: str, owner_id: int, parts: list[rows.Row]) -> None:
    if parts:
        connection.execute(insert(table), [{owner: owner_id} | part for part in parts])


def _runs_of(connection: Connection, found: list[rows.Row]) -> Iterator[Run]:
    """The runs whose rows in `runs` are FOUND, in that order."""
    run_ids = [row["id"] for row in found]
    workload_ids = {row["workload_id"] for row in found}
    parameters = _parts(connection, tables.workload_parameters, "workload_id", workload_ids)
    operators = _parts(connection, tables.operator_counts, "run_id", run_ids)
    calls = _parts(connection, tables.operator_calls, "run_id", run_ids)
    versions = _parts(connection, tables.run_versions, "run_id", run_ids)
    workloads = {
        row["id"]: rows.workload_of(row, {p["name"]: rows.parameter_of(p) for p in parameters[row["id"]]})
        for row in _rows(connection, tables.workloads, "id", workload_ids)
    }
    device_ids = {row["device_id"] for row in found}
    devices = {row["id"]: rows.device_of(row) for row in _rows(connection, tables.devices, "id", device_ids)}
    for row in found:
        yield rows.run_of(
            row,
            workload=workloads[row["workload_id"]],
            device=devices[row["device_id"]],
            operators={one["operator"]: rows.operator_of(one) for one in operators[row["id"]]},
            calls=tuple(rows.call_of(one) for one in sorted(calls[row["id"]], key=itemgetter("position"))),
            versions={one["name"]: one["version"] for one in versions[row["id"]]},
        )


def _rows(connection: Connection, table: Table, column: str, values: Iterable[int]) -> list[rows.Row]:
    query = select(table).where(table.c[column].in_(list(values)))
    return [dict(row) for row in connection.execute(query).mappings()]


def _parts(connection: Connection, table: Table, owner: str, owner_ids: Iterable[int]) -> dict[int, list[rows.Row]]:
    """The rows of TABLE by the id of what they belong to."""
    grouped: dict[int, list[rows.Row]] = defaultdict(list)
    for row in _rows(connection, table, owner, owner_ids):
        grouped[row[owner]].append(row)
    return grouped
