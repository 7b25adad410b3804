"""The JSON Schema of facts, from the facts themselves: what `as_plain` writes of them, or what may be given."""

import ast
import dataclasses
import inspect
import tokenize
import types
from collections.abc import Iterator, Mapping
from enum import Enum
from functools import cache
from io import StringIO
from pathlib import PurePath
from textwrap import dedent
from typing import Any, Union, get_args, get_origin, get_type_hints

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import derived_figures

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_PLAIN = {float: "number", int: "integer", str: "string", bool: "boolean", type(None): "null"}


def schema_of(kind: Any, *, name: str, title: str, told: bool = True) -> dict[str, Any]:
    """The schema of KIND, a fact or a type made of facts, published as NAME.

    Told, it is what `as_plain` makes of one: every field is there, with the figures that follow from them. Otherwise
    it is what may be given for one: what has a default may be left out.
    """
    known: dict[str, Any] = {}
    definitions: dict[str, Any] = {}
    top = _of(kind, _Kept(known, definitions, told))
    return {
        "$schema": DIALECT,
        "$id": f"urn:wattsmith:{name}",
        "title": title,
        **top,
        **({"$defs": dict(sorted(definitions.items()))} if definitions else {}),
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    """What was met so far: kinds and their definitions by name."""

    kinds: dict[str, Any]
    definitions: dict[str, Any]
    told: bool


def _of(kind: Any, kept: _Kept) -> dict[str, Any]:
    origin = get_origin(kind)
    if kind is Any:
        return {}
    if origin in (Union, types.UnionType):
        return _of_union(get_args(kind), kept)
    if dataclasses.is_dataclass(kind):
        return _of_fact(kind, kept)
    if origin is tuple:
        return _of_tuple(get_args(kind), kept)
    if origin is list:
        return {"type": "array", "items": _of(get_args(kind)[0], kept)}
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(get_args(kind)[1], kept)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if isinstance(kind, type) and issubclass(kind, PurePath):
        return {"type": "string"}
    return {"type": _PLAIN[kind]}


def _of_union(members: tuple[Any, ...], kept: _Kept) -> dict[str, Any]:
    found = [_of(member, kept) for member in members]
    names = [one["type"] for one in found if set(one) == {"type"}]
    others = [one for one in found if set(one) != {"type"}]
    if not others:
        return {"type": names}
    return {"anyOf": [*others, *({"type": name} for name in names)]}


def _of_fact(kind: Any, kept: _Kept) -> dict[str, Any]:
    name = kind.__name__
    if kept.kinds.setdefault(name, kind) is not kind:
        raise BadTerm(f"{kind} and {kept.kinds[name]} have one name; a schema that holds both would mix them up")
    if name not in kept.definitions:
        kept.definitions[name] = {}  # a fact may hold facts of its own kind
        hints = get_type_hints(kind)
        fields = dataclasses.fields(kind)
        figures = derived_figures(kind)
        says = _comments(kind)
        properties = {one.name: _of(hints[one.name], kept) | says.get(one.name, {}) for one in fields}
        if kept.told:
            properties |= {one: _of(hint, kept) | _docstring(kind, one) for one, hint in figures.items()}
        kept.definitions[name] = {
            "type": "object",
            "description": _in_json((kind.__doc__ or "").strip().splitlines()[0]),
            "properties": properties,
            "required": list(properties) if kept.told else [one.name for one in fields if not _has_default(one)],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{name}"}


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _of_tuple(members: tuple[Any, ...], kept: _Kept) -> dict[str, Any]:
    if len(members) == 2 and members[1] is Ellipsis:
        return {"type": "array", "items": _of(members[0], kept)}
    return {
        "type": "array",
        "prefixItems": [_of(member, kept) for member in members],
        "minItems": len(members),
        "maxItems": len(members),
    }


@cache
def _comments(kind: type) -> dict[str, dict[str, str]]:
    """What is said behind the fields of KIND in its source: one wording for readers of the code and of the schema."""
    text = dedent(inspect.getsource(kind))
    behind = dict(_trailing(text))
    (top,) = ast.parse(text).body
    return {
        line.target.id: {"description": behind[line.end_lineno]}
        for line in getattr(top, "body", ())
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.end_lineno in behind
    }


def _trailing(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(StringIO(text).readline):
        words = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not words.startswith(("noqa", "type:", "fmt:")):
            yield token.start[0], _in_json(words)


def _docstring(kind: type, figure: str) -> dict[str, str]:
    said = (getattr(kind, figure).__doc__ or "").strip()
    return {"description": _in_json(said.splitlines()[0])} if said else {}


def _in_json(words: str) -> str:
    return words.replace("None", "null")
