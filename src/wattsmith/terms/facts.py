"""Facts as plain JSON values, the same everywhere: files, HTTP, command line."""

import dataclasses
import math
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import PurePath
from typing import Any, get_type_hints

from wattsmith.terms.errors import BadTerm

_FIGURES = (bool, int, float, bool | None, int | None, float | None)


def as_plain(fact: Any) -> Any:
    """FACT as dicts, lists, strings, numbers and None. A number that is not finite becomes None.

    A dataclass becomes its fields and, beside them, those of its properties that are figures or yes and no.
    """
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        plain = {f.name: as_plain(getattr(fact, f.name)) for f in dataclasses.fields(fact)}
        return plain | {name: as_plain(getattr(fact, name)) for name in derived_figures(type(fact))}
    if isinstance(fact, Enum):
        return as_plain(fact.value)
    if isinstance(fact, Mapping):
        return {str(key): as_plain(value) for key, value in fact.items()}
    if isinstance(fact, set | frozenset):
        return [as_plain(item) for item in sorted(fact, key=str)]  # two files of one fact must not differ
    if isinstance(fact, list | tuple):
        return [as_plain(item) for item in fact]
    if isinstance(fact, float) and not math.isfinite(fact):
        return None
    if fact is None or isinstance(fact, bool | int | float):
        return fact
    if isinstance(fact, str | PurePath):
        return str(fact)
    raise BadTerm(f"{fact!r} is a {type(fact).__name__}, which has no plain form; make it a number, a text or a fact")


@cache
def derived_figures(kind: type) -> Mapping[str, Any]:
    """By name the type of each property of KIND that is a figure, not a whole fact again: `as_plain` tells it too."""
    told = {
        name: get_type_hints(member.fget).get("return")
        for name, member in vars(kind).items()
        if isinstance(member, property) and member.fget is not None
    }
    return {name: hint for name, hint in told.items() if hint in _FIGURES}
