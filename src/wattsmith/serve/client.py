"""The service as those see it who ask it: jobs that are submitted, agents that report."""

import base64
import ipaddress
import os
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

from wattsmith import __version__
from wattsmith.terms.errors import (
    BadInput,
    Conflict,
    ExtraNeeded,
    NoSuch,
    NotAllowed,
    NotWritten,
    WattsmithError,
)

DEFAULT_SERVER = "http://127.0.0.1:8711"
SERVER_VARIABLE = "WATTSMITH_SERVER"
TOKEN_VARIABLE = "WATTSMITH_TOKEN"
PREFIX = "/api/v1"
PATIENCE_S = 30.0  # how long a question is asked again before it is given up
FIRST_PAUSE_S = 0.25
LONGEST_PAUSE_S = 10.0
ANSWERS_WITHIN_S = 60.0
AGAIN = (429, 502, 503, 504)  # not now, but perhaps in a moment


class ServerAway(WattsmithError):
    """The service does not answer, or not now. `wait_s` is how long it asked to be left alone; None: it did not say."""

    def __init__(self, message: str, wait_s: float | None = None) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class NotKnown(NotAllowed):
    """The service does not know this token, or it was revoked."""


class TooLarge(BadInput):
    """More than the service takes at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What came back."""

    status: int
    body: Any  # out of JSON, or bytes
    headers: Mapping[str, str]
    sent_s: float  # by the clock of whoever asked
    received_s: float


def server_url(given: str | None) -> str:
    """Where the service is: GIVEN, $WATTSMITH_SERVER, or on this machine."""
    text = given or os.environ.get(SERVER_VARIABLE) or DEFAULT_SERVER
    url = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(url)
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise BadInput(f"{text!r} is no address of a service; write for instance {DEFAULT_SERVER}")
    return url.rstrip("/")


def token_file() -> Path:
    """Where a user's token is kept."""
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "wattsmith" / "token"


def find_token(path: Path | None) -> str:
    """The token in PATH, else $WATTSMITH_TOKEN, else that of `token_file`."""
    if path is None and (text := os.environ.get(TOKEN_VARIABLE, "").strip()):
        return _checked(text, f"${TOKEN_VARIABLE}")
    where = path or token_file()
    try:
        text = where.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        raise BadInput(
            f"there is no token in {where}: give --token-file FILE or ${TOKEN_VARIABLE}. Whoever runs the service "
            "makes one: `wattsmith serve token add`"
        ) from None
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"the token in {where} cannot be read: {refused}") from refused
    return _checked(text, str(where))


def _checked(text: str, where: str) -> str:
    if not text.isascii() or not text.isprintable() or " " in text or not text:
        raise BadInput(f"what stands in {where} is no token: one word that begins with ws_")
    return text


def _is_here(host: str | None) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


@dataclass(slots=True)
class Server:
    """A service and the token that it is asked with. Close it when done."""

    url: str
    token: str | None = None
    patience_s: float = PATIENCE_S  # 0: each question is asked once
    pause: Callable[[float], None] = time.sleep
    clock_s: Callable[[], float] = time.monotonic  # that answers are stamped with
    chance: random.Random = field(default_factory=random.Random)
    _http: Any = None

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, Any] | None = None,
        fine: Sequence[int] = (),
        within_s: float = ANSWERS_WITHIN_S,
        raw: bool = False,
    ) -> Answered:
        """What the service answers to METHOD PATH, asked again while it is away for as long as there is patience.

        So all that is asked must be harmless when it arrives twice. FINE are statuses that are no errors here.
        RAW: the body of the answer as bytes. Raises what the status means: see `_refusal`.
        """
        until_s = time.monotonic() + self.patience_s
        pause_s = FIRST_PAUSE_S
        while True:
            try:
                return self._once(method, path, body, dict(headers or {}), query, fine, within_s, raw)
            except ServerAway as away:
                wait_s = pause_s * self.chance.uniform(0.5, 1.0) if away.wait_s is None else away.wait_s
                if time.monotonic() + wait_s >= until_s:
                    raise
                self.pause(wait_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _once(
        self,
        method: str,
        path: str,
        body: Any,
        headers: dict[str, str],
        query: Mapping[str, Any] | None,
        fine: Sequence[int],
        within_s: float,
        raw: bool,
    ) -> Answered:
        httpx = _httpx()
        if self._http is None:
            # A proxy of the surroundings does not lead to this machine.
            here = _is_here(urlsplit(self.url).hostname)
            self._http = httpx.Client(trust_env=not here, headers={"User-Agent": f"wattsmith/{__version__}"})
        url = f"{self.url}{PREFIX}{path}"
        if self.token is not None:
            headers["Authorization"] = f"Bearer {self.token}"
        told = {name: value for name, value in (query or {}).items() if value is not None}
        sent_s = self.clock_s()
        try:
            answer = self._http.request(method, url, json=body, headers=headers, params=told, timeout=within_s)
        except httpx.TimeoutException as slow:
            raise ServerAway(f"{url} did not answer within {within_s:g} s; is the service overloaded?") from slow
        except httpx.TransportError as gone:
            raise ServerAway(
                f"no service answers at {self.url} ({gone}). Is `wattsmith serve` running there? Say where it is with "
                f"--server URL or ${SERVER_VARIABLE}."
            ) from gone
        except (httpx.InvalidURL, httpx.HTTPError, UnicodeError) as odd:
            raise BadInput(f"{url} cannot be asked: {odd}") from odd
        received_s = self.clock_s()
        if not (answer.is_success or answer.status_code in fine):
            raise _refusal(method, url, answer)
        plain = answer.content if raw or not answer.content else _json_of(answer, url)
        return Answered(
            status=answer.status_code, body=plain, headers=answer.headers, sent_s=sent_s, received_s=received_s
        )

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
            self._http = None

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # What is asked

    def whoami(self) -> Any:
        return self.ask("GET", "/whoami").body

    def keep_structure(self, structure: Mapping[str, Any]) -> str:
        """The key of a traced step."""
        return str(self.ask("POST", "/structures", structure).body["key"])

    def submit(
        self, job: str | Mapping[str, Any], files: Mapping[str, bytes], *, structure: str | None, once: str
    ) -> Any:
        """The job as the service has it. ONCE is a word of your own: sent again with it, it is the same job."""
        packed = {name: base64.b64encode(content).decode() for name, content in files.items()}
        return self.ask("POST", "/jobs", {"job": job, "files": packed, "structure": structure, "once": once}).body

    def job(self, job: str) -> Any:
        return self.ask("GET", f"/jobs/{_part(job)}").body

    def jobs(self, *, state: str | None = None, limit: int = 100) -> list[Any]:
        return list(self.ask("GET", "/jobs", query={"state": state, "limit": limit}).body["jobs"])

    def cancel(self, job: str) -> Any:
        return self.ask("POST", f"/jobs/{_part(job)}/cancel").body

    def power_of(self, job: str) -> float | None:
        """What the devices of a job draw just now; None: not known."""
        nodes = self.ask("GET", "/pool").body["nodes"]
        known = [one.get("power_w") for node in nodes for one in node["devices"] if one.get("job") == job]
        return sum(known) if known and None not in known else None

    def log(self, job: str, *, stream: str = "stdout", offset: int = 0, attempt: int | None = None) -> bytes:
        """What the job has printed from OFFSET on; not always all of it at once."""
        query = {"stream": stream, "offset": offset, "attempt": attempt}
        return bytes(self.ask("GET", f"/jobs/{_part(job)}/log", query=query, raw=True).body)


def _part(name: str) -> str:
    """NAME as one part of a path."""
    return quote(name, safe="")


def _httpx() -> Any:
    try:
        import httpx
    except ImportError as missing:
        raise ExtraNeeded("a service is asked with httpx: `pip install 'wattsmith[serve]'`") from missing
    return httpx


def _json_of(answer: Any, url: str) -> Any:
    try:
        return answer.json()
    except ValueError as odd:
        raise ServerAway(f"{url} answers, but not as a service of Wattsmith does: {answer.text[:80]!r}") from odd


def _refusal(method: str, url: str, answer: Any) -> WattsmithError:
    """What a status that is none of success means, and what to do."""
    status = int(answer.status_code)
    message, problems = _told(answer)
    said = f"{method} {url}: {message}"
    if status in AGAIN:
        return ServerAway(said, _retry_after_s(answer.headers.get("retry-after")))
    if status == 401:
        return NotKnown(f"{said}. Ask for a new token: `wattsmith serve token add`, where the service runs")
    if status == 403:
        return NotAllowed(said)
    if status == 404:
        return NoSuch(said)
    if status == 409:
        return Conflict(said)
    if status == 413:
        return TooLarge(said)
    if status in (400, 415, 422):
        return BadInput(said, problems)
    if status >= 500:
        return NotWritten(f"{said} (status {status}). The service's own log says more.")
    return BadInput(f"{said} (status {status}); is this the address of a service of Wattsmith?")


def _told(answer: Any) -> tuple[str, list[tuple[str, int | None, str]]]:
    try:
        error = answer.json()["error"]
        fields = [(str(one["where"]), one.get("line"), str(one["reason"])) for one in error.get("fields") or []]
        return str(error["message"]), fields
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"status {answer.status_code}, {answer.text[:200]!r}", []


def _retry_after_s(text: str | None) -> float | None:
    """How long to wait, as a header says it: seconds, or a date."""
    if not text:
        return None
    try:
        wait_s = float(text)
    except ValueError:
        try:
            wait_s = parsedate_to_datetime(text).timestamp() - time.time()
        except (ValueError, TypeError):
            return None
    return min(max(wait_s, 0.0), 300.0) if wait_s == wait_s else None
