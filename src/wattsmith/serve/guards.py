"""What stands before every route: the Host header, the size of bodies and how long they take, headers of answers."""

import asyncio
import ipaddress
from collections.abc import Collection

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from wattsmith.serve.failing import Failed

LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; font-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
UNLESS_SAID = {"cache-control": "no-store"}  # answers are of this moment, and some are secret


def is_loopback(host: str) -> bool:
    """Whether who listens at HOST is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def host_in(header: str) -> str:
    """The name or address in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if ":" in header else header.lower()


class Guard:
    """Refuses what should reach no route, and puts headers on every answer."""

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str] | None, most_body_bytes: int, body_wait_s: float
    ) -> None:
        self._app = app
        self._hosts = None if hosts is None else frozenset(host.lower().strip("[]") for host in hosts)  # None: any
        self._most_body_bytes = most_body_bytes
        self._body_wait_s = body_wait_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with_headers = _adding_headers(send)
        try:
            self._check(scope)
        except Failed as refused:
            await refused.answer()(scope, receive, with_headers)
            return
        await self._app(scope, self._limited(receive), with_headers)

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        # A page of a stranger whose name was made to lead here carries the stranger's name.
        if self._hosts is not None and host_in(host) not in self._hosts:
            raise Failed(
                400, f"this service is not called {host!r:.120}; start it with --allow-host NAME if it should be"
            )
        length = headers.get(b"content-length")
        if length is not None and (not length.isdecimal() or int(length[:20]) > self._most_body_bytes):
            raise self._too_large()

    def _too_large(self) -> Failed:
        # The rest of the body is not read, so that the connection cannot be used again.
        return Failed(
            413,
            f"a body may have {self._most_body_bytes >> 20} MiB at most; send less",
            headers={"Connection": "close"},
        )

    def _limited(self, receive: Receive) -> Receive:
        """RECEIVE, for a body that is neither too large, whatever its headers say, nor too slow."""
        had_bytes = 0
        whole = False
        until_s: float | None = None

        async def limited() -> Message:
            nonlocal had_bytes, whole, until_s
            if whole:
                return await receive()
            now_s = asyncio.get_running_loop().time()
            until_s = now_s + self._body_wait_s if until_s is None else until_s
            try:
                message = await asyncio.wait_for(receive(), max(0.0, until_s - now_s))
            except TimeoutError:
                wait = f"{self._body_wait_s:g} s"
                raise Failed(408, f"the body did not come within {wait}", headers={"Connection": "close"}) from None
            had_bytes += len(message.get("body", b""))
            whole = message["type"] != "http.request" or not message.get("more_body", False)
            if had_bytes > self._most_body_bytes:
                raise self._too_large()
            return message

        return limited


def _adding_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            have = {name.lower() for name, _ in message["headers"]}
            own = [(name, value) for name, value in HEADERS.items() if name.encode() not in have]
            own += [(name, value) for name, value in UNLESS_SAID.items() if name.encode() not in have]
            message = {**message, "headers": [*message["headers"], *((n.encode(), v.encode()) for n, v in own)]}
        await send(message)

    return sending
