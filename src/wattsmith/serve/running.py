"""The service as a process: its address, its lock, its first token, and how it stops."""

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import FrameType
from typing import IO, Any, cast

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from wattsmith.flows.service import Service
from wattsmith.serve.app import ServeOptions, make_app
from wattsmith.serve.guards import LOOPBACK, is_loopback
from wattsmith.terms.errors import BadInput, Conflict, NotWritten
from wattsmith.terms.service import Role

LOCK = "serve.lock"
ADMIN_TOKEN = "admin-token"
MOST_CONNECTIONS = 4_096  # beyond, the server answers 503 by itself
KEEP_ALIVE_S = 75  # agents that report every minute keep their connection
STOP_WITHIN_S = 20  # for requests that are in flight
BACKLOG = 1_024


@contextmanager
def only_one(home: Path) -> Iterator[None]:
    """Holds HOME for this process. Raises Conflict where another service runs on it."""
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (home / LOCK).open("a+", encoding="utf-8")
    except OSError as refused:
        raise NotWritten(f"the folder of the service, {home}, cannot be used: {refused.strerror}") from refused
    with lock:
        _lock(lock, home)
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _lock(lock: IO[str], home: Path) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read(20).strip() or "unknown"
        raise Conflict(
            f"another `wattsmith serve` (process {pid}) runs on {home}; stop it first, or give this one another --home"
        ) from None


def first_token(service: Service, home: Path) -> Path:
    """Where the first admin's token is. Made once, when there are no tokens yet; readable by this user alone."""
    path = home / ADMIN_TOKEN
    if not service.tokens():
        _, text = service.add_token("admin", Role.ADMIN, "wattsmith serve")
        write_secret(path, text)
    return path


def write_secret(path: Path, text: str) -> None:
    """TEXT in a file that nobody else could read at any time."""
    made = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            made.unlink()
        with open(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:  # noqa: PTH123
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        made.replace(path)
    except OSError as refused:
        raise NotWritten(f"the token cannot be written to {path}: {refused.strerror}") from refused


def listen(host: str, port: int) -> socket.socket:
    """A socket at HOST and PORT; port 0: any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listening = socket.create_server(address[:2], family=family, backlog=BACKLOG)
        # Connections inherit it. asyncio sets it itself only for sockets that state their protocol, and these do not;
        # without it the body of each answer waits some 40 ms for the acknowledgement of its head.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    except OSError as refused:
        why = refused.strerror or str(refused)
        raise BadInput(f"cannot listen at {host} port {port}: {why}. Give another --host or --port.") from refused
    return listening


def url_of(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def known_hosts(host: str, allowed: Sequence[str]) -> frozenset[str] | None:
    """Names by which a service that listens at HOST may be called. None: any, as others are to reach it."""
    if is_loopback(host):
        return LOOPBACK | {host.strip("[]"), *allowed}
    return LOOPBACK | {host.strip("[]"), *allowed} if allowed else None


def server(
    service: Service,
    options: ServeOptions,
    *,
    proxies: Sequence[str] = (),
    ready: Callable[[], None] = lambda: None,
) -> "Server":
    """A server that answers for SERVICE once it is run.

    PROXIES: addresses of reverse proxies, whose word on who called and by TLS is taken.
    """
    config = uvicorn.Config(
        make_app(service, options),
        http=cast(Any, partial(Connection, head_wait_s=options.head_wait_s)),
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        server_header=False,
        backlog=BACKLOG,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=STOP_WITHIN_S,
        proxy_headers=bool(proxies),
        forwarded_allow_ips=list(proxies),
    )
    return Server(config, ready)


def run(server: "Server", listening: socket.socket) -> None:
    """Answers at LISTENING until SIGTERM or SIGINT, or `stop`; then what is in flight is answered first."""
    with _signals_kept():
        asyncio.run(server.serve(sockets=[listening]))


@contextmanager
def _signals_kept() -> Iterator[None]:
    """The server raises again what stopped it, once it has; then there is still something to put in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda *_: None) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class Connection(H11Protocol):
    """Closed where the head of a request does not come within HEAD_WAIT_S: else a few thousand that are opened and left
    so, by somebody without a token, keep all others out.
    """

    def __init__(self, *args: Any, head_wait_s: float, **more: Any) -> None:
        super().__init__(*args, **more)
        self._head_wait_s = head_wait_s
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(self._head_wait_s, self._close_unless_asked, self.cycle)

    def _close_unless_asked(self, last: object) -> None:
        if self.cycle is last:  # no request has come since
            self.transport.close()


class Server(uvicorn.Server):
    """A server that says when it is ready, and lets go of those who wait for events when it is to stop."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready
        self._loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._loop = asyncio.get_running_loop()
            self._ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        super().handle_exit(sig, frame)
        self.stop()

    def stop(self) -> None:
        """From any thread, and from a handler of signals."""
        self.should_exit = True
        if self._loop is not None:
            app: Any = self.config.app
            self._loop.call_soon_threadsafe(app.state.bell.silence)
