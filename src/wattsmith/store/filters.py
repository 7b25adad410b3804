"""Which runs are meant, decided on the runs themselves; and how many there are of each sort."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.ports import RunFilters
from wattsmith.terms.run import Run, Status

OF_WORKLOAD = ("family", "kind", "precision", "mode")


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How many runs of one family at one precision ended in one way."""

    family: str
    precision: str
    status: Status
    runs: int


def given(only: RunFilters) -> dict[str, Any]:
    """The filters that leave something out. A name that is no filter raises TypeError, no such status BadTerm."""
    if unknown := only.keys() - RunFilters.__annotations__.keys():
        raise TypeError(f"there is no filter {sorted(unknown)[0]!r}; there are {', '.join(RunFilters.__annotations__)}")
    filters: dict[str, Any] = {name: value for name, value in only.items() if value is not None}
    if "status" in filters:
        try:
            filters["status"] = Status(filters["status"])
        except ValueError as refused:
            raise BadTerm(f"{refused}; there are {', '.join(Status)}") from refused
    return filters


def passes(run: Run, filters: dict[str, Any]) -> bool:
    """Whether RUN passes all of FILTERS, which `given` has made."""
    seen = {name: getattr(run.workload, name) for name in OF_WORKLOAD}
    seen |= {"status": run.status, "device": run.device.name, "session": run.provenance.session}
    return (
        all(seen[name] == value for name, value in filters.items() if name in seen)
        and run.workload.batch >= filters.get("min_batch", 0)
        and run.workload.batch <= filters.get("max_batch", run.workload.batch)
    )


def coverage_of(runs: Iterable[Run]) -> list[Coverage]:
    """How many there are by family, precision and status, in that order."""
    counted = Counter((run.workload.family, run.workload.precision, run.status) for run in runs)
    return in_order(Coverage(family=f, precision=p, status=s, runs=n) for (f, p, s), n in counted.items())


def in_order(rows: Iterable[Coverage]) -> list[Coverage]:
    """By family, precision and status: a database's own order of text depends on its language."""
    return sorted(rows, key=lambda row: (row.family, row.precision, row.status.value))
