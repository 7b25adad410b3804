"""Look at records and move them: this user's own, one in a file or database, or one shipped by its name."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

from wattsmith.report.record_plot import plot_record
from wattsmith.store.exchange import export_runs, import_runs
from wattsmith.store.filters import Coverage, coverage_of
from wattsmith.store.opening import open_store
from wattsmith.store.shipped import open_shipped, shipped_records
from wattsmith.terms.errors import BadInput
from wattsmith.terms.ports import RunFilters, RunStore
from wattsmith.terms.run import Run

__all__ = ["Coverage", "coverage_of", "export", "plot", "runs_of", "shipped_records", "take_in"]


@contextmanager
def opened(name: str | None) -> Iterator[RunStore]:
    """The record called NAME: shipped under that name, or at that path or URL; None: this user's own."""
    if name is not None and name in shipped_records():
        with open_shipped(name) as store_of_the_package:
            yield store_of_the_package
    else:
        try:
            store = open_store(name, must_exist=True)
        except BadInput as absent:
            shipped = ", ".join(shipped_records())
            hint = f"`wattsmith record run` takes one; shipped with the package: {shipped}"
            raise BadInput(f"{str(absent).rstrip('.')}; {hint}") from absent
        with store:
            yield store


def runs_of(name: str | None, **only: Unpack[RunFilters]) -> list[Run]:
    """The runs of a record that pass the filters."""
    with opened(name) as store:
        return list(store.runs(**only))


def plot(name: str | None, path: Path, **only: Unpack[RunFilters]) -> int:
    """Draw a record into PATH; how many runs it had."""
    runs = runs_of(name, **only)
    plot_record(runs, path)
    return len(runs)


def export(name: str | None, path: Path, progress: Callable[[int, int | None], None] | None = None) -> int:
    """Write a record to PATH as JSON lines; how many runs."""
    with opened(name) as store:
        return export_runs(store, path, progress=progress)


def take_in(path: Path, db: str | None, progress: Callable[[int, int | None], None] | None = None) -> tuple[int, int]:
    """Read JSON lines from PATH into a record: how many runs were new, and how many were there already."""
    if not path.is_file():
        raise BadInput(f"there is no file {path} to read runs from")
    with open_store(db) as store:
        return import_runs(store, path, progress=progress)
