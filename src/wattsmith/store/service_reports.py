"""Reports of many clients, kept in one transaction; and what is known of each client, kept beside them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, select, update
from sqlalchemy.dialects import postgresql, sqlite

from wattsmith.store import service_rows as rows
from wattsmith.store.identity import check_kept
from wattsmith.store.service_tables import clients, reports
from wattsmith.terms.service import KeptReport, Report, check_name

SET_BACK_S = 60.0  # posts do not wait so long to be written
AT_ONCE = 500  # values in one question: older SQLite takes no more than 999


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenReport:
    """A report, and the JSON that it is kept as."""

    client: str
    received_s: float
    report: Report
    json: rows.Written


def written(kept: Sequence[KeptReport]) -> list[WrittenReport]:
    """KEPT as it is written. Raises BadTerm for what cannot be kept."""
    for client in {one.client for one in kept}:
        check_name("client", client)
    check_kept([one.received_s for one in kept], "received_s")
    return [
        WrittenReport(
            client=one.client, received_s=one.received_s, report=one.report, json=rows.report_json(one.report)
        )
        for one in kept
    ]


def keep(connection: Connection, kept: Sequence[WrittenReport]) -> list[bool]:
    """Keep those of KEPT that are new; for each whether it was. The transaction has the tables to itself."""
    known = _clients_of(connection, kept)
    last = connection.execute(select(func.max(reports.c.id))).scalar() or 0
    ids = count(last + 1)
    new_rows = [
        {
            "id": next(ids),
            "client_id": known[one.client]["id"],
            "boot": one.report.boot,
            "number": one.report.number,
            "received_s": one.received_s,
            "report": one.json,
        }
        for one in kept
    ]
    connection.execute(_insert_new(connection, reports, "client_id", "boot", "number"), new_rows)
    # The database has dropped those that were there, and those that come twice in KEPT; what is left is new.
    there = set(connection.execute(select(reports.c.id).where(reports.c.id > last)).scalars())
    is_new = [row["id"] in there for row in new_rows]
    changed = list(_changed_clients(known, zip(kept, is_new, strict=True)))
    # The names of columns stand for the columns; those of values must differ.
    query = update(clients).where(clients.c.id == bindparam("client"))
    connection.execute(query.values({name: bindparam(f"new_{name}") for name in _CHANGES}), changed)
    return is_new


_CHANGES = ("last_seen_s", "skew_s", "latest", "reports")


def keep_about(connection: Connection, client: str, about: Any, now_s: float) -> None:
    check_kept(now_s, "now_s")
    _make_clients(connection, {client: now_s})
    c = clients.c
    seen_s = connection.execute(select(c.last_seen_s).where(c.name == client)).scalar_one()
    values = {"about": about, "last_seen_s": _last_s(seen_s, now_s)}
    connection.execute(update(clients).where(c.name == client).values(values))


def _clients_of(connection: Connection, kept: Sequence[WrittenReport]) -> dict[str, rows.Row]:
    """The rows of all clients in KEPT, by name; those that are new are made."""
    first_s: dict[str, float] = {}
    for one in kept:
        first_s[one.client] = min(one.received_s, first_s.get(one.client, one.received_s))
    known = _client_rows(connection, first_s)
    if missing := {name: seen_s for name, seen_s in first_s.items() if name not in known}:
        _make_clients(connection, missing)
        known |= _client_rows(connection, missing)
    return known


def _client_rows(connection: Connection, names: Iterable[str]) -> dict[str, rows.Row]:
    c = clients.c
    wanted = list(names)
    found: dict[str, rows.Row] = {}
    for first in range(0, len(wanted), AT_ONCE):
        query = select(c.id, c.name, c.last_seen_s, c.skew_s, c.latest, c.reports)
        asked = query.where(c.name.in_(wanted[first : first + AT_ONCE]))
        found |= {row["name"]: dict(row) for row in connection.execute(asked).mappings()}
    return found


def _make_clients(connection: Connection, first_s: Mapping[str, float]) -> None:
    made = [
        {"name": name, "first_seen_s": seen_s, "last_seen_s": seen_s, "reports": 0} for name, seen_s in first_s.items()
    ]
    connection.execute(_insert_new(connection, clients, "name"), made)


def _insert_new(connection: Connection, table: Table, *key: str) -> Any:
    """An insert that passes over rows whose KEY is there already."""
    insert = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return insert(table).on_conflict_do_nothing(index_elements=key)


def _changed_clients(known: Mapping[str, rows.Row], kept: Iterable[tuple[WrittenReport, bool]]) -> Iterator[rows.Row]:
    """What is known of the clients of KEPT now, as values of the update in `keep`."""
    now = {name: dict(row) for name, row in known.items()}
    for one, is_new in kept:
        client = now[one.client]
        client["last_seen_s"] = _last_s(client["last_seen_s"], one.received_s)
        if not is_new:
            continue
        client["reports"] += 1
        if _is_later(one.report, client["latest"]):
            client["latest"] = {"boot": one.report.boot, "number": one.report.number, "json": one.json}
            client["skew_s"] = one.report.time_s - one.received_s
    for client in now.values():
        latest = client["latest"]
        client["latest"] = latest["json"] if latest is not None and "json" in latest else latest
        yield {"client": client["id"]} | {f"new_{name}": client[name] for name in _CHANGES}


def _last_s(before_s: float, now_s: float) -> float:
    """The later of both, as posts may be written in another order; NOW_S where the service's clock was set back."""
    return now_s if before_s - now_s > SET_BACK_S else max(before_s, now_s)


def _is_later(report: Report, latest: Mapping[str, Any] | None) -> bool:
    """Whether REPORT, which came after LATEST, also tells of a later time.

    Within one start of the agent the numbers tell. Of two starts the one that came last counts: by its clock, which
    may have been set back in between, a client could stay at an old report for ever.
    """
    return latest is None or report.boot != latest["boot"] or report.number > latest["number"]
