"""The JSON Schema of a work schedule, from its facts: `python -m wattsmith.schedule.jsonschema > FILE` writes it."""

import dataclasses
import json
import sys
import types
from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints

from wattsmith.terms.work_schedule import VERSION, WorkSchedule

PUBLISHED = Path(__file__).with_name(f"work_schedule.v{VERSION}.schema.json")
_PLAIN = {float: "number", int: "integer", str: "string", bool: "boolean"}


def schema() -> dict[str, Any]:
    """The schema that every work schedule of this version keeps."""
    definitions: dict[str, Any] = {}
    top = _of(WorkSchedule, definitions)
    definitions["WorkSchedule"]["properties"]["version"] = {"const": VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:wattsmith:work-schedule:{VERSION}",
        "title": "WorkSchedule",
        **top,
        "$defs": dict(sorted(definitions.items())),
    }


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(member, definitions) for member in get_args(kind)]}
    if kind is type(None):
        return {"type": "null"}
    if dataclasses.is_dataclass(kind):
        return _of_fact(kind, definitions)
    if origin is tuple:
        return _of_tuple(get_args(kind), definitions)
    if origin is not None and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(get_args(kind)[1], definitions)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    return {"type": _PLAIN[kind]}


def _of_fact(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind.__name__ not in definitions:
        definitions[kind.__name__] = {}  # a fact may hold facts of its own kind
        hints = get_type_hints(kind)
        fields = dataclasses.fields(kind)
        definitions[kind.__name__] = {
            "type": "object",
            "description": (kind.__doc__ or "").strip().splitlines()[0],
            "properties": {field.name: _of(hints[field.name], definitions) for field in fields},
            "required": [
                field.name
                for field in fields
                if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
            ],
            "additionalProperties": False,
        }
    return {"$ref": f"#/$defs/{kind.__name__}"}


def _of_tuple(members: tuple[Any, ...], definitions: dict[str, Any]) -> dict[str, Any]:
    if len(members) == 2 and members[1] is Ellipsis:
        return {"type": "array", "items": _of(members[0], definitions)}
    return {
        "type": "array",
        "prefixItems": [_of(member, definitions) for member in members],
        "minItems": len(members),
        "maxItems": len(members),
    }


def schema_text() -> str:
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
