"""What makes two runs the same, and what a run must be so that every store gives it back unchanged."""

import dataclasses
import hashlib
import json
import math
import re
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import cache
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


def check_kept(fact: Any, where: str) -> None:
    """Raise BadTerm, with a line for each problem, when some database could not give FACT back as it is."""
    if problems := list(_problems(fact, where)):
        raise BadTerm("\n".join(problems))


def can_be_kept(text: str) -> bool:
    """Whether a database can hold TEXT; nothing is kept under any other."""
    return not _NOT_STORABLE.search(text)


def _problems(value: Any, where: str, *, any_size: bool = False) -> Iterator[str]:
    """What is wrong with VALUE and all in it. ANY_SIZE: whole numbers in it are kept as text, and may be large."""
    complaint = _complaint(value, any_size=any_size)
    if complaint:
        yield f"{where}: {complaint}"
    for place, item in _members(value):
        # The parameters of a workload are kept as text too, where a number may be of any size.
        free = any_size or (place == ".parameters" and isinstance(value, Workload))
        if type(item) not in _PLAIN:
            yield from _problems(item, where + place, any_size=free)
        elif complaint := _complaint(item, any_size=free):  # a run has thousands of these: no generator for each
            yield f"{where}{place}: {complaint}"


def _members(value: Any) -> Iterator[tuple[str, Any]]:
    """What VALUE is made of, each with its place in it."""
    if dataclasses.is_dataclass(value):
        kind: type = type(value)
        yield from ((f".{name}", getattr(value, name)) for name in _names(kind))
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield "", name
            yield f".{name}", item
    elif isinstance(value, tuple | list):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))


@cache
def _names(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


_PLAIN = {bool, int, float, str, type(None)}
_NOT_STORABLE = re.compile("[\0\ud800-\udfff]")


def _complaint(value: Any, *, any_size: bool) -> str | None:
    """What is wrong with VALUE itself; None: nothing."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} is not a finite number; leave out what is unknown"
    if isinstance(value, int) and not any_size and abs(value) > LARGEST_INT:
        return f"{value} does not fit in 64 bits"
    if isinstance(value, str) and _NOT_STORABLE.search(value):
        return f"{value!a} holds a NUL or half a surrogate pair, which no database keeps; remove it"
    return None
