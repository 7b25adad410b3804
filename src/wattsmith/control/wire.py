"""What the daemon and its clients say to each other: one JSON object a line, over a Unix socket."""

import json
import socket
from collections.abc import Mapping
from typing import Any

from wattsmith.terms import control as terms
from wattsmith.terms.control import KnobCard, Verified, value_from_plain
from wattsmith.terms.errors import BadInput, BadTerm, NotWritten, WattsmithError

MOST_BYTES = 1 << 20
_ERRORS: Mapping[str, type[WattsmithError]] = {
    kind.__name__: kind
    for kind in (
        *(terms.NotPermitted, terms.KnobLost, terms.DeviceHeld, terms.LeaseOver, terms.JournalDamaged),
        *(terms.NoWatchdog, BadInput, BadTerm, NotWritten),
    )
}


class Line:
    """Messages over a connected socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pending = b""

    def send(self, message: Mapping[str, Any]) -> None:
        self._connection.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[dict[str, Any]] | None:
        """The messages that are whole after one more read; None when the other end has closed. Raises BadInput."""
        got = self._connection.recv(65536)
        if not got:
            return None
        *lines, self._pending = (self._pending + got).split(b"\n")
        if len(self._pending) > MOST_BYTES:
            raise BadInput(f"a message is longer than {MOST_BYTES} bytes")
        return [_message(line) for line in lines]


def _message(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError) as odd:
        raise BadInput(f"a message is not JSON: {odd}") from odd
    if not isinstance(message, dict):
        raise BadInput("a message is not a JSON object")
    return message


def told_error(error: WattsmithError) -> dict[str, Any]:
    return {"error": type(error).__name__, "says": str(error)}


def as_error(message: Mapping[str, Any]) -> WattsmithError:
    """The error that the daemon told of, as if it had happened here."""
    return _ERRORS.get(str(message["error"]), WattsmithError)(str(message["says"]))


def card_from_plain(plain: Mapping[str, Any]) -> KnobCard:
    facts = dict(plain)
    ends = value_from_plain(facts["ends"])
    return KnobCard(
        **facts
        | {
            "ends": ends if isinstance(ends, tuple) else None,
            "levels": tuple(facts["levels"]),
            "default": value_from_plain(facts["default"]),
        }
    )


def verified_from_plain(plain: Mapping[str, Any]) -> Verified:
    values = {name: value_from_plain(plain[name]) for name in ("asked", "told")}
    return Verified(**dict(plain) | values)
