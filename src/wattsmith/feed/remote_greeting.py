"""How two ends of a feeder's connection prove to each other that they hold the job's token.

The worker greets with a number used once, the trainer answers with another, and each proves by a keyed hash of both
that it knows the token, which itself never crosses. The keys of the connection come from the same three.
"""

import hmac
import json
import os
import secrets
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from wattsmith.feed.wire import Channel, FrameRefused, Head, PeerLost
from wattsmith.terms.errors import BadInput, NotWritten, WattsmithError

GREETING, CHALLENGE, PROOF, WELCOME, REFUSED = range(1, 6)
NONCE_BYTES = 32
LEAST_TOKEN = 16  # characters: what nobody guesses
GREETING_S = 10.0  # how long the other end may take to prove itself


class TokenRefused(WattsmithError):
    """The other end does not hold the job's token, or is no part of the job."""


def new_token() -> str:
    return secrets.token_hex(32)


def write_token(path: Path, token: str) -> None:
    """Keep TOKEN in a file that nobody else may read."""
    try:
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token + "\n")
    except OSError as refused:
        raise NotWritten(f"the token could not be written to {path}: {refused.strerror}") from refused


def read_token(path: Path) -> str:
    try:
        token = path.read_text().strip()
    except (OSError, UnicodeDecodeError) as unreadable:
        raise BadInput(
            f"no token can be read from {path}: {unreadable}. Copy the file from where it was made, by a trainer, a "
            "pool or `wattsmith feed token FILE`."
        ) from unreadable
    return checked_token(token, str(path))


def checked_token(token: str, where: str) -> str:
    if len(token) < LEAST_TOKEN:
        raise BadInput(
            f"{where}: a token has at least {LEAST_TOKEN} characters, got {len(token)}; "
            "`wattsmith feed token FILE` makes one"
        )
    return token


def greet(
    channel: Channel, token: str, facts: Mapping[str, Any], *, within_s: float | None = None
) -> Mapping[str, Any]:
    """The worker's side. FACTS are told once both are sure. What the trainer tells in return. Raises TokenRefused.

    WITHIN_S: the first answer must come; None: whenever there is a place.
    """
    mine = secrets.token_bytes(NONCE_BYTES)
    channel.send(GREETING, mine)
    theirs = _expect(channel, CHALLENGE, within_s).message
    _check_nonce(theirs)
    channel.send(PROOF, _proof(token, b"worker", mine, theirs))
    if not hmac.compare_digest(_expect(channel, WELCOME).message, _proof(token, b"trainer", mine, theirs)):
        raise TokenRefused("the trainer does not hold the job's token; is this the right address and token file?")
    keys = (_key(token, way, mine, theirs) for way in (b"from worker", b"from trainer"))
    channel.trust(*keys, patient=True)
    channel.send(GREETING, json.dumps(facts).encode())
    return _facts(_expect(channel, WELCOME))


def admit(channel: Channel, token: str, body_bytes: int, within_s: float = GREETING_S) -> Mapping[str, Any]:
    """The trainer's side: the worker's facts. The caller answers with `welcome` or `refuse`. Raises TokenRefused."""
    theirs = _expect(channel, GREETING, within_s).message
    _check_nonce(theirs)
    mine = secrets.token_bytes(NONCE_BYTES)
    channel.send(CHALLENGE, mine)
    if not hmac.compare_digest(_expect(channel, PROOF).message, _proof(token, b"worker", theirs, mine)):
        refuse(channel, "the worker does not hold the job's token")
        raise TokenRefused("a worker without the job's token was refused")
    channel.send(WELCOME, _proof(token, b"trainer", theirs, mine))
    channel.trust(
        _key(token, b"from trainer", theirs, mine), _key(token, b"from worker", theirs, mine), body_bytes=body_bytes
    )
    return _facts(_expect(channel, GREETING))


def welcome(channel: Channel, facts: Mapping[str, Any]) -> None:
    channel.send(WELCOME, json.dumps(facts).encode())


def refuse(channel: Channel, why: str) -> None:
    channel.send(REFUSED, why.encode())


def _expect(channel: Channel, kind: int, within_s: float | None = GREETING_S) -> Head:
    head = channel.receive(within_s)
    if head is None:
        raise PeerLost(f"the other end did not go on with its greeting for {within_s} s")
    if head.kind == REFUSED:
        raise TokenRefused(f"refused by the trainer: {head.message.decode(errors='replace')}")
    if head.kind != kind or head.body_bytes:
        raise FrameRefused(f"a greeting of kind {kind} was due, got kind {head.kind}")
    return head


def _check_nonce(nonce: bytes) -> None:
    if len(nonce) != NONCE_BYTES:
        raise FrameRefused(f"a greeting has {NONCE_BYTES} bytes, got {len(nonce)}")


def _facts(head: Head) -> Mapping[str, Any]:
    try:
        facts = json.loads(head.message)
    except (ValueError, RecursionError) as odd:
        raise FrameRefused(f"a greeting is not JSON: {odd}") from odd
    if not isinstance(facts, dict):
        raise FrameRefused("a greeting is not a JSON object")
    return facts


def _proof(token: str, role: bytes, worker_nonce: bytes, trainer_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), b"wattsmith feed proof " + role + worker_nonce + trainer_nonce, sha256)


def _key(token: str, way: bytes, worker_nonce: bytes, trainer_nonce: bytes) -> bytes:
    return hmac.digest(token.encode(), b"wattsmith feed key " + way + worker_nonce + trainer_nonce, sha256)
