"""Facts as plain JSON values, the same everywhere: files, HTTP, command line."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any


def as_plain(fact: Any) -> Any:
    """FACT as dicts, lists, strings, numbers and None. A number that is not finite becomes None."""
    if dataclasses.is_dataclass(fact) and not isinstance(fact, type):
        plain = {f.name: as_plain(getattr(fact, f.name)) for f in dataclasses.fields(fact)}
        return plain | {name: as_plain(getattr(fact, name)) for name in _derived(type(fact))}
    if isinstance(fact, Mapping):
        return {str(key): as_plain(value) for key, value in fact.items()}
    if isinstance(fact, list | tuple | set | frozenset):
        return [as_plain(item) for item in fact]
    if isinstance(fact, float) and not math.isfinite(fact):
        return None
    if isinstance(fact, str):
        return str(fact)
    return fact


def _derived(kind: type) -> list[str]:
    """Properties that are figures, not whole facts again: they belong in the file beside the fields."""
    return [
        name
        for name, member in vars(kind).items()
        if isinstance(member, property)
        and member.fget is not None
        and member.fget.__annotations__.get("return") in (bool, float, float | None)
    ]
