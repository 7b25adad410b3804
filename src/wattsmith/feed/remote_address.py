"""Where a feeder listens and workers connect: HOST:PORT, or unix:PATH on one machine."""

import contextlib
import socket
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.errors import BadInput, WattsmithError

KEEPALIVE_S = 5  # a machine that lost its power says nothing; after four such times it is taken for gone
BACKLOG = 128  # workers that may wait for a place


class NotListening(WattsmithError):
    """The address cannot be listened at; choose another, or end what uses it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Host and port, or the path of a Unix socket."""

    host: str
    port: int
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str) -> Address:
    if text.startswith("unix:"):
        path = text.removeprefix("unix:")
        if not 0 < len(path.encode()) < 108:
            raise BadInput(f"a Unix socket's path has 1 to 107 bytes, got {path!r}")
        return Address("", 0, path)
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadInput(f"an address is HOST:PORT, [HOST]:PORT or unix:PATH, got {text!r}")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadInput(f"a host with colons is written in brackets, such as [::1]:{port}, got {text!r}")
    return Address(host, int(port))


def listen(address: Address) -> tuple[socket.socket, Address]:
    """A listening socket and where it really listens: port 0 asks for any that is free."""
    try:
        if address.path is not None:
            _sweep(address.path)
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address.path)
            listener.listen(BACKLOG)
            return listener, address
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        listener = socket.create_server((address.host, address.port), family=family, backlog=BACKLOG)
    except OSError as refused:
        raise NotListening(
            f"cannot listen at {address}: {refused.strerror or refused}; choose another address, or port 0 for any"
        ) from refused
    return listener, Address(address.host, int(listener.getsockname()[1]))


def connect(address: Address, timeout_s: float) -> socket.socket:
    """A socket connected to ADDRESS. Raises OSError."""
    if address.path is None:
        connection = socket.create_connection((address.host, address.port), timeout=timeout_s)
    else:
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(timeout_s)
        try:
            connection.connect(address.path)
        except OSError:
            connection.close()
            raise
    stay_awake(connection)
    return connection


def stay_awake(connection: socket.socket) -> None:
    """Notice within half a minute when the other machine is not there any more."""
    if connection.family == socket.AF_UNIX:
        return
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_S)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def _sweep(path: str) -> None:
    """Remove a socket that nobody listens at any more."""
    with contextlib.suppress(FileNotFoundError), socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink()
