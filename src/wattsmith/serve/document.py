"""The OpenAPI document, made from the plates of the routes: every status that can come stands in it."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

from wattsmith import __version__
from wattsmith.serve.bodies import ErrorTold, reader
from wattsmith.serve.failing import KINDS
from wattsmith.serve.routing import Access, Plate

ABOUT = "Estimates, schedules and jobs for a pool of machines. Quantities are in SI units, times in seconds since 1970."
_REF = "#/components/schemas/{model}"


def document(app: FastAPI, plates: Sequence[Plate]) -> dict[str, Any]:
    """The document of APP, whose routes bear PLATES."""
    made = get_openapi(title="Wattsmith", version=__version__, description=ABOUT, routes=app.routes)
    kinds, schemas = _schemas(plates)
    for plate in plates:
        operation = made["paths"][plate.path][plate.method.lower()]
        operation["summary"] = plate.says
        operation["x-access"] = plate.access.value
        operation["security"] = [] if plate.access is Access.OPEN else [{"bearer": []}, {"cookie": []}]
        operation["responses"] = _responses(plate, kinds)
        if plate.takes is not None:
            schema = kinds[plate.takes, "validation"]
            operation["requestBody"] = {"required": True, "content": {"application/json": {"schema": schema}}}
    made["components"] = {
        "schemas": schemas,
        "securitySchemes": {
            "bearer": {"type": "http", "scheme": "bearer"},
            "cookie": {"type": "apiKey", "in": "cookie", "name": "wattsmith_token"},
        },
    }
    return made


def _schemas(plates: Sequence[Plate]) -> tuple[dict[tuple[Any, JsonSchemaMode], Any], dict[str, Any]]:
    """By kind and way the schema that refers to it; and what it refers to."""
    taken: list[tuple[Any, JsonSchemaMode]] = [
        (plate.takes, "validation") for plate in plates if plate.takes is not None
    ]
    given: list[tuple[Any, JsonSchemaMode]] = [
        (plate.gives, "serialization") for plate in plates if plate.gives is not None
    ]
    wanted = dict.fromkeys([*taken, *given, (ErrorTold, "serialization")])
    found, rest = TypeAdapter.json_schemas([(kind, mode, reader(kind)) for kind, mode in wanted], ref_template=_REF)
    return found, rest["$defs"]


def _responses(plate: Plate, kinds: dict[tuple[Any, JsonSchemaMode], Any]) -> dict[str, Any]:
    wrong = {"application/json": {"schema": kinds[ErrorTold, "serialization"]}}
    return {
        str(plate.status): _answer(plate, kinds),
        **{str(status): {"description": "nothing has changed"} for status in plate.also},
        **{str(status): {"description": KINDS[status], "content": wrong} for status in plate.errors},
    }


def _answer(plate: Plate, kinds: dict[tuple[Any, JsonSchemaMode], Any]) -> dict[str, Any]:
    answer: dict[str, Any] = {"description": plate.says}
    if plate.headers:
        answer["headers"] = {name: {"schema": {"type": "string"}} for name in plate.headers}
    if plate.gives is not None:
        answer["content"] = {plate.media: {"schema": kinds[plate.gives, "serialization"]}}
    elif plate.media != "application/json":
        answer["content"] = {plate.media: {"schema": {"type": "string"}}}
    return answer
