"""What routes share: facts as answers, and parameters that mean the same everywhere."""

from typing import Annotated, Any

from fastapi import Path, Query
from starlette.responses import JSONResponse, Response

from wattsmith.serve.bodies import LARGEST, NAME_PATTERN
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import parse_quantity

Limit = Annotated[int, Query(ge=1, le=1000)]
Offset = Annotated[int, Query(ge=0, le=LARGEST)]
Named = Annotated[str, Path(pattern=NAME_PATTERN)]
Word = Annotated[str | None, Query(max_length=200, pattern=r"^[^\x00]*$")]


def told(fact: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """FACT as an answer."""
    return JSONResponse(as_plain(fact), status_code=status, headers=headers)


def power_w(budget: str | float | None) -> float | None:
    """A budget as it was sent, in watts."""
    watts = parse_quantity(budget, "power") if isinstance(budget, str) else budget
    if watts is not None and watts <= 0:
        raise BadTerm(f"a power budget must be positive, got {budget!r}")
    return watts
