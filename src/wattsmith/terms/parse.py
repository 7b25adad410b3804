"""Facts out of plain JSON values: all that is wrong is found at once, each with the place where it stands."""

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from functools import cache
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from wattsmith.terms.errors import BadInput, BadTerm

Fact = TypeVar("Fact")


def parse_fact(kind: type[Fact], plain: Any, where: str = "") -> Fact:
    """PLAIN as a fact of KIND. Raises BadInput with a line for each problem.

    The figures that `as_plain` puts beside the fields are passed over.
    """
    problems: list[str] = []
    fact = _parse(kind, plain, where or kind.__name__, problems)
    if problems:
        raise BadInput("\n".join(problems))
    return fact  # type: ignore[no-any-return]


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _parse(kind: Any, plain: Any, where: str, problems: list[str]) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return plain
    if origin in (Union, types.UnionType):
        return _parse_union(kind, plain, where, problems)
    if dataclasses.is_dataclass(kind):
        return _parse_dataclass(kind, plain, where, problems)
    if origin is tuple:
        return _parse_tuple(kind, plain, where, problems)
    if origin is not None and issubclass(origin, Mapping):
        return _parse_mapping(kind, plain, where, problems)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return _parse_enum(kind, plain, where, problems)
    if kind is float and isinstance(plain, int) and not isinstance(plain, bool):
        return float(plain)
    if not isinstance(plain, kind) or (isinstance(plain, bool) and kind is not bool):
        problems.append(f"{where}: expected {kind.__name__}, got {_short(plain)}")
        return None
    return plain


def _parse_union(kind: Any, plain: Any, where: str, problems: list[str]) -> Any:
    members = get_args(kind)
    if plain is None and type(None) in members:
        return None
    rest = [member for member in members if member is not type(None)]
    if len(rest) == 1:
        return _parse(rest[0], plain, where, problems)
    exact = [member for member in rest if isinstance(member, type) and type(plain) is member]
    for member in [*exact, *rest]:
        tried: list[str] = []
        value = _parse(member, plain, where, tried)
        if not tried:
            return value
    names = " or ".join(getattr(member, "__name__", str(member)) for member in rest)
    problems.append(f"{where}: expected {names}, got {_short(plain)}")
    return None


def _parse_dataclass(kind: Any, plain: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(plain, Mapping):
        problems.append(f"{where}: expected an object, got {_short(plain)}")
        return None
    before = len(problems)
    fields = {f.name: f for f in dataclasses.fields(kind)}
    derived = {name for name, member in vars(kind).items() if isinstance(member, property)}
    problems += [f"{where}.{name}: not known here" for name in plain if name not in fields and name not in derived]
    values = {}
    for name, field in fields.items():
        if name in plain:
            values[name] = _parse(_hints(kind)[name], plain[name], f"{where}.{name}", problems)
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            problems.append(f"{where}.{name}: missing")
    if len(problems) > before:
        return None
    try:
        return kind(**values)
    except BadTerm as refused:
        problems.append(f"{where}: {refused}")
        return None


def _parse_tuple(kind: Any, plain: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(plain, list | tuple):
        problems.append(f"{where}: expected a list, got {_short(plain)}")
        return None
    kinds = get_args(kind)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        kinds = (kinds[0],) * len(plain)
    if len(kinds) != len(plain):
        problems.append(f"{where}: expected {len(kinds)} items, got {len(plain)}")
        return None
    return tuple(
        _parse(k, item, f"{where}[{i}]", problems) for i, (k, item) in enumerate(zip(kinds, plain, strict=True))
    )


def _parse_mapping(kind: Any, plain: Any, where: str, problems: list[str]) -> Any:
    if not isinstance(plain, Mapping):
        problems.append(f"{where}: expected an object, got {_short(plain)}")
        return None
    value_kind = get_args(kind)[1]
    return {str(key): _parse(value_kind, value, f"{where}.{key}", problems) for key, value in plain.items()}


def _parse_enum(kind: type[Enum], plain: Any, where: str, problems: list[str]) -> Any:
    try:
        return kind(plain)
    except ValueError:
        allowed = ", ".join(repr(member.value) for member in kind)
        problems.append(f"{where}: expected one of {allowed}, got {_short(plain)}")
        return None


def _short(plain: Any) -> str:
    text = repr(plain)
    return text if len(text) <= 60 else text[:57] + "..."
