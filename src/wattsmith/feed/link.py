"""Messages between the trainer and a worker process on the same machine, over a pair of Unix sockets.

A message is two lengths, a pickled tuple, and perhaps raw bytes behind it. Only a message that has arrived whole
is ever looked at, so a worker that is killed in the middle of one has said nothing.
"""

import collections
import os
import pickle
import socket
import struct
import weakref
from typing import Any

_LENGTHS = struct.Struct("!IQ")
_READ_BYTES = 1 << 16

# Trainer's ends of all links. A forked child closes them, or the workers would not see when the trainer is gone.
_trainers_ends: "weakref.WeakSet[socket.socket]" = weakref.WeakSet()


def _close_in_child() -> None:
    for end in list(_trainers_ends):
        end.close()


os.register_at_fork(after_in_child=_close_in_child)


class Gone(Exception):
    """The other end has closed."""


def pair() -> tuple["TrainerEnd", socket.socket]:
    """The two ends of a new link; the second is for `WorkerEnd` in the worker's process."""
    ours, theirs = socket.socketpair()
    return TrainerEnd(ours), theirs


class TrainerEnd:
    """Never blocks: what cannot be sent or read now waits for the next `flush` or `receive`."""

    def __init__(self, end: socket.socket) -> None:
        _trainers_ends.add(end)
        end.setblocking(False)
        self.socket = end
        self._out: collections.deque[memoryview] = collections.deque()
        self._head = bytearray()  # lengths and message, until both are whole
        self._payload: bytearray | None = None
        self._payload_at = 0
        self._message: Any = None

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    @property
    def pending(self) -> bool:
        """Whether something still waits to be sent."""
        return bool(self._out)

    def send(self, message: Any) -> None:
        pickled = pickle.dumps(message, protocol=5)
        self._out.append(memoryview(_LENGTHS.pack(len(pickled), 0) + pickled))
        self.flush()

    def flush(self) -> None:
        """Send what the other end takes now. A worker that is gone is noticed when it is read from."""
        try:
            while self._out:
                sent = self.socket.send(self._out[0], socket.MSG_NOSIGNAL)
                if sent < self._out[0].nbytes:
                    self._out[0] = self._out[0][sent:]
                else:
                    self._out.popleft()
        except BlockingIOError:
            pass
        except OSError:
            self._out.clear()

    def receive(self) -> tuple[Any, bytearray | None] | None:
        """The next message that has arrived whole, and the bytes behind it; None: none yet. Raises Gone."""
        while True:
            if self._payload is not None:
                if not self._fill_payload():
                    return None
                message, payload = self._message, self._payload
                self._message = self._payload = None
                return message, payload
            if not self._fill_head():
                return None
            if self._payload is None:
                message, self._message = self._message, None
                return message, None

    def _fill_head(self) -> bool:
        """Whether a message is whole now; the payload that follows it is only begun."""
        while True:
            if len(self._head) >= _LENGTHS.size:
                message_bytes, payload_bytes = _LENGTHS.unpack_from(self._head)
                end = _LENGTHS.size + message_bytes
                if len(self._head) >= end:
                    self._message = pickle.loads(memoryview(self._head)[_LENGTHS.size : end])
                    if payload_bytes:
                        rest = self._head[end : end + payload_bytes]
                        self._payload = bytearray(payload_bytes)
                        self._payload[: len(rest)] = rest
                        self._payload_at = len(rest)
                        self._head = self._head[end + len(rest) :]
                    else:
                        self._head = self._head[end:]
                    return True
            got = self._read(_READ_BYTES)
            if got is None:
                return False
            self._head += got

    def _fill_payload(self) -> bool:
        assert self._payload is not None
        while self._payload_at < len(self._payload):
            with memoryview(self._payload) as room:
                try:
                    got = self.socket.recv_into(room[self._payload_at :])
                except BlockingIOError:
                    return False
                except OSError as broken:
                    raise Gone from broken
            if not got:
                raise Gone
            self._payload_at += got
        return True

    def _read(self, count: int) -> bytes | None:
        try:
            got = self.socket.recv(count)
        except BlockingIOError:
            return None
        except OSError as broken:
            raise Gone from broken
        if not got:
            raise Gone
        return got


class WorkerEnd:
    """Blocks until a message is there or has been sent. Raises Gone when the trainer is not there any more."""

    def __init__(self, end: socket.socket) -> None:
        end.setblocking(True)
        self._socket = end
        self._read = end.makefile("rb", buffering=_READ_BYTES)

    def receive(self) -> Any:
        try:
            lengths = self._read.read(_LENGTHS.size)
            if len(lengths) < _LENGTHS.size:
                raise Gone
            message_bytes, _ = _LENGTHS.unpack(lengths)
            pickled = self._read.read(message_bytes)
        except OSError as broken:
            raise Gone from broken
        if len(pickled) < message_bytes:
            raise Gone
        return pickle.loads(pickled)

    def send(self, message: Any, payload: list[memoryview] | None = None) -> None:
        pickled = pickle.dumps(message, protocol=5)
        pieces = payload or []
        lengths = _LENGTHS.pack(len(pickled), sum(piece.nbytes for piece in pieces))
        try:
            self._socket.sendall(b"".join((lengths, pickled, *pieces)))
        except OSError as broken:
            raise Gone from broken
