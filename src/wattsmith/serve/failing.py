"""What went wrong, as the body and the status of an answer."""

import re
from collections.abc import Sequence
from typing import Any

from starlette.responses import JSONResponse

from wattsmith.terms.errors import (
    BadInput,
    BadTerm,
    Conflict,
    ExtraNeeded,
    NoSuch,
    NotAllowed,
    NotRead,
    NotWritten,
    WattsmithError,
)
from wattsmith.terms.schedule import NoPlan

KINDS = {
    400: "not understood",
    401: "who are you",
    403: "not allowed",
    404: "no such thing",
    405: "no such method",
    408: "too slow",
    409: "conflict",
    413: "too large",
    415: "not JSON",
    422: "bad input",
    429: "too often",
    500: "our fault",
    501: "not installed",
    503: "not now",
}
RETRY_AFTER_S = 1
MOST_FIELDS = 100  # that are told of one request
LONGEST_TEXT = 2_000  # of a message; what was sent may be repeated in it
_STATUSES: Sequence[tuple[type[WattsmithError], int]] = (
    (NoSuch, 404),
    (NotAllowed, 403),
    (Conflict, 409),
    (NotRead, 503),
    (NotWritten, 503),
    (ExtraNeeded, 501),
    (BadTerm, 422),
    (BadInput, 422),
    (NoPlan, 422),
)
# "job.yaml, line 3, deadline: is no time", "job.yaml, line 3: is no YAML", "Report.number: missing"
_LOCATED = re.compile(r"(?P<file>[^\s,:]+), line (?P<line>\d+)(?:, (?P<place>[^:]+))?: (?P<reason>.+)", re.DOTALL)
_PLACED = re.compile(r"(?P<place>[\w/-]+(?:[.\[][\w/\]-]*)+): (?P<reason>.+)", re.DOTALL)


class Failed(Exception):
    """An answer that is an error."""

    def __init__(
        self,
        status: int,
        message: str,
        fields: Sequence[dict[str, Any]] = (),
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.fields = list(fields)
        self.headers = headers or {}

    def answer(self) -> JSONResponse:
        said = {"kind": KINDS.get(self.status, "failed"), "message": _short(self.message), "fields": self.fields}
        headers = dict(self.headers)
        if self.status in (429, 503):
            headers.setdefault("Retry-After", str(RETRY_AFTER_S))
        if self.status == 401:
            headers.setdefault("WWW-Authenticate", "Bearer")
        return JSONResponse({"error": said}, status_code=self.status, headers=headers)


def field(where: str, reason: str, line: int | None = None) -> dict[str, Any]:
    """One thing that is wrong: WHERE in what was sent, on which LINE if it was a text, and why."""
    return {"where": _short(where), "line": line, "reason": _short(reason)}


def failed_by(error: WattsmithError) -> Failed:
    """The answer to ERROR."""
    status = next((status for kind, status in _STATUSES if isinstance(error, kind)), 500)
    fields = [] if status != 422 else _fields_of(error)
    return Failed(status, str(error), fields[:MOST_FIELDS])


def _fields_of(error: WattsmithError) -> list[dict[str, Any]]:
    if isinstance(error, BadInput) and error.problems:
        return [field(where or "the whole", reason, line) for where, line, reason in error.problems]
    return [found for line in str(error).splitlines() if (found := _field_in(line))]


def _field_in(line: str) -> dict[str, Any] | None:
    if located := _LOCATED.fullmatch(line.strip()):
        return field(located["place"] or located["file"], located["reason"], int(located["line"]))
    if placed := _PLACED.fullmatch(line.strip()):
        return field(placed["place"], placed["reason"])
    return None


def _short(text: str) -> str:
    # A lone half of a character cannot be sent.
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= LONGEST_TEXT else text[: LONGEST_TEXT - 1] + "…"
