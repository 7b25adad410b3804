"""Who is let in: bearer tokens, the cookie of the page, roles, and how often somebody may ask."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from datetime import UTC, datetime
from threading import Lock
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool

from wattsmith.flows.service import Service
from wattsmith.serve.failing import Failed
from wattsmith.serve.routing import Access, Plate
from wattsmith.terms.service import Role, Token

COOKIE = "wattsmith_token"
COOKIE_S = 14 * 86_400  # a page that is kept open asks for the token every other week
OWN_HEADER = "x-wattsmith"  # another site's page can send our cookie along with a form, but not this
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
LONGEST_TOKEN = 200
MOST_BUCKETS = 20_000  # callers that are remembered; who has not asked for longest is forgotten first


class Buckets:
    """How often each caller may still ask: RATE a second, and BURST at once after a pause."""

    def __init__(self, rate_hz: float, burst: float, now_s: Callable[[], float] = time.monotonic) -> None:
        self._rate_hz, self._burst, self._now_s = rate_hz, burst, now_s
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # by caller: what is left, and as of when
        self._lock = Lock()

    def wait_s(self, caller: str) -> float:
        """0 if CALLER may ask now, which counts; else how long to wait."""
        with self._lock:
            now_s = self._now_s()
            left, as_of_s = self._left.pop(caller, (self._burst, now_s))
            left = min(self._burst, left + (now_s - as_of_s) * self._rate_hz)
            allowed = left >= 1
            self._left[caller] = (left - 1 if allowed else left, now_s)
            if len(self._left) > MOST_BUCKETS:
                self._left.popitem(last=False)
            return 0.0 if allowed else (1 - left) / self._rate_hz


async def service_of(request: Request) -> Service:
    return request.app.state.service  # type: ignore[no-any-return]


def token_text(request: Request) -> tuple[str, bool] | None:
    """What the caller shows, and whether it came by cookie. None: nothing."""
    scheme, _, text = request.headers.get("authorization", "").partition(" ")
    if scheme:
        return (text.strip(), False) if scheme.lower() == "bearer" else ("", False)
    cookie = request.cookies.get(COOKIE)
    return None if cookie is None else (cookie, True)


def who_is(request: Request) -> Token | None:
    """Who asks, for pages that show something to everybody. None: nobody that is known."""
    shown = token_text(request)
    token = None if shown is None else _known(request, shown[0])
    return None if token is None or token.revoked_s is not None else token


def bearer(request: Request) -> Token | None:
    """Who asks, once that was found to be allowed by the plate of the route. None: a route that is open."""
    plate: Plate = request.scope["endpoint"].plate
    if plate.access is Access.OPEN:
        count(request, _peer(request))
        return None
    token = _holder(request)
    if token.role not in plate.access.roles:
        raise Failed(403, _needs(plate, token))
    client = request.path_params.get("name")
    if plate.access is Access.AGENT and token.role is Role.AGENT and token.name != client:
        raise Failed(403, f"this token is the agent's of client {token.name}, and not of {client!r:.120}")
    return token


def _holder(request: Request) -> Token:
    shown = token_text(request)
    if shown is None:
        count(request, _peer(request))
        raise Failed(401, "no token was sent: add the header `Authorization: Bearer ws_…`")
    text, by_cookie = shown
    token = checked(request, text)
    if by_cookie and request.method not in SAFE and request.headers.get(OWN_HEADER) != "1":
        raise Failed(
            403, "a request that changes something and is made with the cookie needs the header X-Wattsmith: 1"
        )
    return token


def checked(request: Request, text: str) -> Token:
    """The token that TEXT is, if it holds. Raises Failed, 401 that says why not, or 429."""
    token = _known(request, text)
    count(request, _peer(request) if token is None else f"token {token.id}")
    if token is None:
        raise Failed(401, "this token is not known here; ask an admin for one, or see `wattsmith serve token add`")
    if token.revoked_s is not None:
        when = datetime.fromtimestamp(token.revoked_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        raise Failed(401, f"this token was revoked at {when}; ask an admin for another")
    return token


def _known(request: Request, text: str) -> Token | None:
    service: Service = request.app.state.service
    if not 0 < len(text) <= LONGEST_TOKEN:
        return None
    shown, token = getattr(request.state, "known", ("", None))
    return token if token is not None and shown == text else service.whoami(text)


def _needs(plate: Plate, token: Token) -> str:
    if plate.access is Access.AGENT:
        return (
            f"only the agent of this client, or an admin, may do this; the role of token {token.name} is {token.role}"
        )
    return f"this needs the role {plate.access}, and the role of token {token.name} is {token.role}"


def _peer(request: Request) -> str:
    return f"peer {request.client.host}" if request.client else "peer unknown"


def count(request: Request, caller: str) -> None:
    """Raise Failed 429 where CALLER asks too often."""
    buckets: Buckets = request.app.state.buckets
    if (wait_s := buckets.wait_s(caller)) > 0:
        raise Failed(
            429, "too many requests; wait a moment and send fewer", headers={"Retry-After": str(math.ceil(wait_s))}
        )


async def body_of(request: Request) -> bytes:
    """The whole body. Only after `bearer`: nothing is read for who is not let in."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/json"):
        raise Failed(415, f"a body is JSON, sent with Content-Type: application/json; got {kind!r:.100}")
    packed = request.headers.get("content-encoding", "identity").strip().lower()
    if packed != "identity":
        raise Failed(415, f"a body is sent as it is, not packed; got Content-Encoding: {packed:.100}")
    return await request.body()


async def named(request: Request) -> Token:
    """Who asks, on routes that need a token. `bearer` has let them in."""
    token: Token = request.state.token
    return token


async def let_in(request: Request) -> None:
    """What every route depends on. Who was let in a moment ago is not worth a thread; others wait for the database."""
    shown, service = token_text(request), request.app.state.service
    known = None if shown is None else service.known(shown[0])
    if shown is None or known is None:
        request.state.token = await run_in_threadpool(bearer, request)
        return
    request.state.known = (shown[0], known)
    request.state.token = bearer(request)


Serving = Annotated[Service, Depends(service_of)]
By = Annotated[Token, Depends(named)]
Body = Annotated[bytes, Depends(body_of)]
LetIn: Any = Depends(let_in)
