"""Runs as rows of the tables, and back."""

import json
from collections.abc import Mapping
from enum import Enum
from typing import Any

from wattsmith.store.identity import measured_s, point_key
from wattsmith.store.tables import PARTS, flat_fields
from wattsmith.terms.energy import Source
from wattsmith.terms.run import Device, OperatorCall, OperatorCount, Run, Status
from wattsmith.terms.work import Parameter, Workload

Row = dict[str, Any]

# A part is there exactly if this column of it is filled.
_TELLS = {"structure": "parameters", "times": "steps", "consumption": "window_s"}
_RUN_FIELDS = flat_fields(Run)
_CALL_FIELDS = flat_fields(OperatorCall)


def workload_row(workload: Workload) -> Row:
    return {"key": workload.key} | _values(workload)


def parameter_row(name: str, value: Parameter) -> Row:
    """One parameter: its text to the last digit, and a number to compare by where there is one."""
    if isinstance(value, str):
        return {"name": name, "type": "str", "number": None, "text": str(value)}
    kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
    return {"name": name, "type": kind, "number": _as_double(value), "text": json.dumps(value)}


def _as_double(value: float) -> float | None:
    try:
        return float(value)
    except OverflowError:  # an int beyond 10^308 is still kept as text
        return None


def device_row(device: Device) -> Row:
    values = _values(device)
    return {"key": json.dumps(list(values.values()))} | values


def run_row(run: Run) -> Row:
    """The row of RUN in `runs`, but for its workload and device."""
    row = {
        "point": point_key(run.workload, run.device, run.setting),
        "measured_s": measured_s(run),
        "has_condition": run.condition is not None,
    }
    row |= _values(run)
    for part, kind in PARTS.items():
        fact = getattr(run, part)
        values = dict.fromkeys(flat_fields(kind)) if fact is None else _values(fact)
        row |= {f"{part}_{name}": value for name, value in values.items()}
    return row


def operator_rows(run: Run) -> list[Row]:
    operators = run.structure.operators if run.structure else {}
    return [{"operator": name} | _values(count) for name, count in operators.items()]


def call_rows(run: Run) -> list[Row]:
    return [
        {"position": position, "options": dict(call.options)} | _values(call) for position, call in enumerate(run.calls)
    ]


def version_rows(run: Run) -> list[Row]:
    return [{"name": name, "version": version} for name, version in run.provenance.versions.items()]


def _values(fact: Any) -> Row:
    kind: type = type(fact)
    return {name: _value(getattr(fact, name)) for name in flat_fields(kind)}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value


def parameter_of(row: Mapping[str, Any]) -> Parameter:
    value: Parameter = row["text"] if row["type"] == "str" else json.loads(row["text"])
    return value


def workload_of(row: Mapping[str, Any], parameters: Mapping[str, Parameter]) -> Workload:
    return Workload(parameters=parameters, **{name: row[name] for name in flat_fields(Workload)})


def device_of(row: Mapping[str, Any]) -> Device:
    return Device(**{name: row[name] for name in flat_fields(Device)})


def operator_of(row: Mapping[str, Any]) -> OperatorCount:
    return OperatorCount(**{name: row[name] for name in flat_fields(OperatorCount)})


def call_of(row: Mapping[str, Any]) -> OperatorCall:
    fields = {name: row[name] for name in _CALL_FIELDS}
    fields["shapes"] = tuple(map(tuple, row["shapes"]))
    return OperatorCall(options=row["options"], **fields)


def run_of(
    row: Mapping[str, Any],
    *,
    workload: Workload,
    device: Device,
    operators: Mapping[str, OperatorCount],
    calls: tuple[OperatorCall, ...],
    versions: Mapping[str, str],
) -> Run:
    """The run whose row in `runs` is ROW."""
    beside: dict[str, Row] = {"structure": {"operators": operators}, "provenance": {"versions": versions}}
    parts = {part: _part(part, row, beside.get(part, {})) for part in PARTS}
    fields = {name: row[name] for name in _RUN_FIELDS}
    fields |= {"status": Status(row["status"]), "input_shape": tuple(row["input_shape"])}
    return Run(workload=workload, device=device, calls=calls, **fields, **parts)


def _part(part: str, row: Mapping[str, Any], beside: Row) -> Any:
    if (part == "condition" and not row["has_condition"]) or (part in _TELLS and row[f"{part}_{_TELLS[part]}"] is None):
        return None
    values = {name: row[f"{part}_{name}"] for name in flat_fields(PARTS[part])}
    if part == "consumption" and values["energy_source"] is not None:
        values["energy_source"] = Source(values["energy_source"])
    if part == "condition" and values["throttled_by"] is not None:
        values["throttled_by"] = tuple(values["throttled_by"])
    return PARTS[part](**values, **beside)
