"""client.json and server.json: what the two sides of a session wrote down about it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.report.formats.lines import Source, bad, decoded, encoded, name_of, whole

REQUIRED = ("version", "timezone", "modules", "sources", "messages", "uuid", "session_name", "results", "phases")
SIMULATED = "simulated"  # what a stand-in for the daemon has in its identity, and no analyzer has
MOST_BYTES = 1 << 26
PHASES = ("ranging", "testing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A command and its answer, between client and server or between server and daemon."""

    command: str
    reply: str
    command_s: float | None = None
    reply_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Descriptor:
    """One of the two files. `text` is the file itself, `body` its JSON with all fields that we do not know."""

    name: str  # for messages
    text: str
    body: Mapping[str, Any]

    def encode(self) -> bytes:
        return encoded(self.text)

    def changed(self, **fields: Any) -> "Descriptor":
        """The same with other values of some fields, written in the manner of the official client and server."""
        body = {**self.body, **fields}
        return Descriptor(name=self.name, text=as_text(body), body=body)

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that every such file has, and this one has not."""
        return tuple(field for field in REQUIRED if field not in self.body)

    @property
    def session(self) -> str:
        return str(self.body.get("session_name", ""))

    @property
    def timezone_s(self) -> float:
        """Seconds to add to local times to reach UTC; counts in v1.0 alone."""
        return _number(self.body.get("timezone")) or 0.0

    @property
    def results(self) -> Mapping[str, str]:
        """SHA-1 by path; what is no text is left out."""
        return {path: sha1 for path, sha1 in _mapping(self.body.get("results")).items() if isinstance(sha1, str)}

    @property
    def sources(self) -> Mapping[str, Any]:
        return _mapping(self.body.get("sources"))

    @property
    def uuids(self) -> tuple[str, str]:
        """Of client and server, in small letters; "" where there is none."""
        uuid = _mapping(self.body.get("uuid"))
        return str(uuid.get("client", "")).lower(), str(uuid.get("server", "")).lower()

    @property
    def debug(self) -> bool:
        return self.body.get("debug", False) is not False

    @property
    def messages(self) -> tuple[Message, ...]:
        return _messages(self.body.get("messages"))

    @property
    def ptd_messages(self) -> tuple[Message, ...]:
        return _messages(self.body.get("ptd_messages"))

    @property
    def analyzers(self) -> tuple[Mapping[str, Any], ...]:
        """How each daemon was started; one up to v4.1, a list from v5.0 on."""
        found = self.body.get("ptd_config")
        if isinstance(found, dict):
            return (found,)
        return tuple(one for one in found if isinstance(one, dict)) if isinstance(found, list) else ()

    def phases(self, phase: str) -> tuple[tuple[float, float | None], ...]:
        """Wall clock and monotonic clock, in seconds, at the steps of ranging or testing."""
        found = _mapping(self.body.get("phases")).get(phase)
        pairs = [one for one in found if isinstance(one, list) and one] if isinstance(found, list) else []
        steps = [(_number(one[0]), _number(one[1]) if len(one) > 1 else None) for one in pairs]
        return tuple((wall_s, monotonic_s) for wall_s, monotonic_s in steps if wall_s is not None)

    @property
    def identities(self) -> tuple[str, ...]:
        """The daemons' answers to Identify."""
        return tuple(one.reply for one in self.ptd_messages if one.command == "Identify")


def read_descriptor(source: Source, name: str | None = None) -> Descriptor:
    """Raises BadInput, with file and line, when this is no JSON object."""
    name = name_of(source, name)
    text = decoded(whole(source, name, MOST_BYTES))
    try:
        body = json.loads(text)
    except json.JSONDecodeError as wrong:
        raise bad(name, wrong.lineno, f"this is no JSON: {wrong.msg}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise bad(name, 1, f"this JSON cannot be read: {wrong}") from wrong
    if not isinstance(body, dict):
        raise bad(name, 1, "there should be an object in braces")
    return Descriptor(name=name, text=text, body=body)


def write_descriptor(path: Path, body: Mapping[str, Any]) -> None:
    """Write a new file in the manner of the official client and server."""
    path.write_bytes(encoded(as_text(body)))


def as_text(body: Mapping[str, Any]) -> str:
    return json.dumps(body, indent=4)


def _mapping(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _number(found: Any) -> float | None:
    try:
        return float(found)
    except (TypeError, ValueError, OverflowError):
        return None


def _messages(found: Any) -> tuple[Message, ...]:
    entries: Sequence[Any] = found if isinstance(found, list) else ()
    return tuple(
        Message(
            command=str(one.get("cmd", "")),
            reply=str(one.get("reply", "")),
            command_s=_number(one.get("cmd_time")),
            reply_s=_number(one.get("reply_time")),
        )
        for one in entries
        if isinstance(one, dict)
    )
