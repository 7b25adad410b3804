"""The tables of the record, made from the facts in terms: the column of `run.times.mean_s` is `times_mean_s`.

Migrations spell the columns out; a test holds that they arrive at these tables.
"""

import dataclasses
import types
from collections.abc import Iterator
from enum import Enum
from functools import cache
from typing import Any, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
)

from wattsmith.terms.run import (
    Condition,
    Consumption,
    Device,
    OperatorCall,
    OperatorCount,
    Provenance,
    Run,
    StepTimes,
    Structure,
)
from wattsmith.terms.work import Setting, Workload

# SQLite counts by itself only in a column that is called INTEGER.
RowId = BigInteger().with_variant(Integer(), "sqlite")

# The parts of a run whose fields are columns of `runs`, each under its own prefix.
PARTS: dict[str, type] = {
    "setting": Setting,
    "provenance": Provenance,
    "structure": Structure,
    "times": StepTimes,
    "consumption": Consumption,
    "condition": Condition,
}
ALWAYS_THERE = {"setting", "provenance"}


def column_of(name: str, hint: Any, *, optional: bool = False) -> Column[Any]:
    """A column for values of type HINT; it may be empty when the type or OPTIONAL says so."""
    members = [member for member in get_args(hint) if member is not types.NoneType]
    if isinstance(hint, types.UnionType):
        return column_of(name, members[0], optional=True)
    if get_origin(hint) is tuple:
        return Column(name, JSON(none_as_null=True), nullable=optional)
    kinds = {bool: Boolean, int: BigInteger, float: Double, str: Text}
    return Column(name, Text if issubclass(hint, Enum) else kinds[hint], nullable=optional)


@cache
def flat_fields(kind: type) -> tuple[str, ...]:
    """The fields of KIND that are columns: all but facts, rows of facts and mappings, which have their own place."""
    hints = get_type_hints(kind)
    return tuple(f.name for f in dataclasses.fields(kind) if _is_flat(hints[f.name]))


def _is_flat(hint: Any) -> bool:
    origin = get_origin(hint)
    if isinstance(hint, types.UnionType):
        return all(_is_flat(member) for member in get_args(hint))
    if origin is tuple:
        return not any(dataclasses.is_dataclass(member) for member in get_args(hint))
    return origin is None and not dataclasses.is_dataclass(hint)


def _columns(kind: type, prefix: str = "", *, optional: bool = False) -> Iterator[Column[Any]]:
    hints = get_type_hints(kind)
    return (column_of(prefix + name, hints[name], optional=optional) for name in flat_fields(kind))


def _part_columns() -> Iterator[Column[Any]]:
    for part, kind in PARTS.items():
        yield from _columns(kind, f"{part}_", optional=part not in ALWAYS_THERE)


metadata = MetaData()

workloads = Table(
    "workloads",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    *_columns(Workload),
    Index("workloads_by_family", "family", "precision"),
)
workload_parameters = Table(
    "workload_parameters",
    metadata,
    Column("workload_id", ForeignKey(workloads.c.id, ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("type", Text, nullable=False),  # of the value: "bool", "int", "float" or "str"
    Column("number", Double),  # for comparing; NULL for text and for what is too large
    Column("text", Text, nullable=False),  # the value to its last digit
    Index("workload_parameters_by_name", "name", "number"),
)
devices = Table(
    "devices",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("key", Text, nullable=False, unique=True),
    *_columns(Device),
)
runs = Table(
    "runs",
    metadata,
    Column("id", RowId, primary_key=True),
    Column("point", Text, nullable=False),  # workload, device and setting in one
    Column("measured_s", Double, nullable=False),  # provenance_measured_at, as seconds since 1970
    Column("workload_id", ForeignKey(workloads.c.id), nullable=False, index=True),
    Column("device_id", ForeignKey(devices.c.id), nullable=False, index=True),
    *_columns(Run),
    Column("has_condition", Boolean, nullable=False),  # all of a condition may be unknown, and there still be one
    *_part_columns(),
    UniqueConstraint("point", "provenance_session", name="one_run_of_a_point_in_a_session"),
    Index("runs_by_time", "measured_s", "id"),
    Index("runs_by_session", "provenance_session"),
)
operator_counts = Table(
    "operator_counts",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("operator", Text, primary_key=True),
    *_columns(OperatorCount),
)
operator_calls = Table(
    "operator_calls",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("position", Integer, primary_key=True, autoincrement=False),  # in the step, from 0
    *_columns(OperatorCall),
    Column("options", JSON, nullable=False),
)
run_versions = Table(
    "run_versions",
    metadata,
    Column("run_id", ForeignKey(runs.c.id, ondelete="CASCADE"), primary_key=True),
    Column("name", Text, primary_key=True),
    Column("version", Text, nullable=False),
)
