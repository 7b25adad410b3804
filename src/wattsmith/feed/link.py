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

    def receive(self) -> list[tuple[Any, bytearray | None]]:
        """The messages that have arrived whole, and the bytes behind each. Call it when there is something to read.

        Raises Gone where there is nothing but the end.
        """
        whole: list[tuple[Any, bytearray | None]] = []
        while True:
            if self._payload is not None:
                more = self._fill_payload()
            else:
                got = self._read()
                self._head += got
                more = len(got) == _READ_BYTES
            self._open(whole)
            # After a short read nothing is left, for now: whoever polls hears of more, and of the end.
            if whole or not more:
                return whole

    def _open(self, whole: list[tuple[Any, bytearray | None]]) -> None:
        """Append to WHOLE what is complete by now."""
        if self._payload is not None:
            if self._payload_at < len(self._payload):
                return
            whole.append((self._message, self._payload))
            self._message = self._payload = None
        while len(self._head) >= _LENGTHS.size:
            message_bytes, payload_bytes = _LENGTHS.unpack_from(self._head)
            end = _LENGTHS.size + message_bytes
            if len(self._head) < end:
                return
            message = pickle.loads(memoryview(self._head)[_LENGTHS.size : end])
            rest = self._head[end : end + payload_bytes]
            self._head = self._head[end + len(rest) :]
            if len(rest) < payload_bytes:
                self._message, self._payload, self._payload_at = message, rest.ljust(payload_bytes), len(rest)
                return
            whole.append((message, rest if payload_bytes else None))

    def _fill_payload(self) -> bool:
        """Read on into the payload. Whether more may be there to read."""
        assert self._payload is not None
        with memoryview(self._payload) as room, room[self._payload_at :] as left:
            try:
                got = self.socket.recv_into(left)
            except BlockingIOError:
                return False
            except OSError as broken:
                raise Gone from broken
        if not got:
            raise Gone
        self._payload_at += got
        return True

    def _read(self) -> bytes:
        try:
            got = self.socket.recv(_READ_BYTES)
        except BlockingIOError:
            return b""
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
        self._read = bytearray()
        self._whole: collections.deque[Any] = collections.deque()

    def receive(self) -> Any:
        while not self._whole:
            self._read_on(0)
        return self._whole.popleft()

    def arrived(self) -> list[Any]:
        """Messages that are there already."""
        self._read_on(socket.MSG_DONTWAIT)
        whole = list(self._whole)
        self._whole.clear()
        return whole

    def _read_on(self, how: int) -> None:
        try:
            got = self._socket.recv(_READ_BYTES, how)
        except BlockingIOError:
            return
        except OSError as broken:
            raise Gone from broken
        if not got:
            raise Gone
        self._read += got
        begin = 0
        while len(self._read) - begin >= _LENGTHS.size:
            message_bytes, _ = _LENGTHS.unpack_from(self._read, begin)
            end = begin + _LENGTHS.size + message_bytes
            if len(self._read) < end:
                break
            with memoryview(self._read) as read:
                self._whole.append(pickle.loads(read[begin + _LENGTHS.size : end]))
            begin = end
        del self._read[:begin]

    def send(self, message: Any, payload: list[memoryview] | None = None) -> None:
        pickled = pickle.dumps(message, protocol=5)
        pieces = payload or []
        lengths = _LENGTHS.pack(len(pickled), sum(piece.nbytes for piece in pieces))
        try:
            self._socket.sendall(b"".join((lengths, pickled, *pieces)))
        except OSError as broken:
            raise Gone from broken
