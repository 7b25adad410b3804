"""What makes two runs the same, and what a run must be so that every store gives it back unchanged."""

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Device, Run
from wattsmith.terms.work import Setting, Workload

LARGEST_INT = 2**63 - 1  # what a database keeps in one column


def point_key(workload: Workload, device: Device, setting: Setting) -> str:
    """Names a workload on a type of device at a setting. A session has at most one run of each."""
    turned = {name: None if (value := getattr(setting, name)) is None else float(value) for name in _SETTING_FIELDS}
    text = json.dumps([workload.key, device.name, device.kind, turned], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


_SETTING_FIELDS = tuple(field.name for field in dataclasses.fields(Setting))


def measured_s(run: Run) -> float:
    """When RUN was measured, in seconds since 1970."""
    try:
        moment = datetime.fromisoformat(run.provenance.measured_at)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise BadTerm(
            f"Run.provenance.measured_at: expected a time like 2026-11-16T12:00:00+00:00, "
            f"got {run.provenance.measured_at!r}"
        )
    return moment.timestamp()


def check_storable(run: Run) -> None:
    """Raise BadTerm, with a line for each problem, when some store could not give RUN back as it is."""
    problems = list(_problems(run, "Run"))
    try:
        measured_s(run)
    except BadTerm as refused:
        problems.append(str(refused))
    if problems:
        raise BadTerm("\n".join(problems))


def _problems(value: Any, where: str, *, any_size: bool = False) -> Iterator[str]:
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            # The parameters of a workload are kept as text too, where a number may be of any size.
            free = isinstance(value, Workload) and field.name == "parameters"
            yield from _problems(getattr(value, field.name), f"{where}.{field.name}", any_size=free)
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _problems(name, where)
            yield from _problems(item, f"{where}.{name}", any_size=any_size)
    elif isinstance(value, tuple | list):
        for index, item in enumerate(value):
            yield from _problems(item, f"{where}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        yield f"{where}: {value} is not a finite number; leave out what is unknown"
    elif isinstance(value, int) and not any_size and abs(value) > LARGEST_INT:
        yield f"{where}: {value} does not fit in 64 bits"
    elif isinstance(value, str) and not _is_storable(value):
        yield f"{where}: {value!a} holds a NUL or half a surrogate pair, which no database keeps; remove it"


def _is_storable(text: str) -> bool:
    return "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
