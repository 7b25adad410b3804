"""Frames over a socket: a header that is checked before anything is believed, a short message, and a body of bytes.

Both ends prove that they hold the job's token before either says more than a greeting. From then on every header
carries a keyed tag over its lengths, its place in the stream and the sum of its message, so that no frame can be
forged, repeated or left out unseen. A body is summed in lanes, which costs a small part of moving it: that finds
damage, not a clever forger. Nothing is encrypted: where the network is not trusted, use a tunnel.
"""

import contextlib
import hmac
import select
import socket
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from wattsmith.terms.errors import BadInput, BadTerm, WattsmithError

MAGIC = b"WSFD"
VERSION = 1
GREETING_BYTES = 1 << 14  # the longest message before the token is proved
MESSAGE_BYTES = 1 << 30
BODY_BYTES = 1 << 40
READ_BYTES = 1 << 20  # a piece that is still in the cache when it is summed
STALL_S = 30.0  # how long the other end may take for the next piece of a frame that has begun
LANES = 512
ROW_BYTES = 8 * LANES
MOST_PARTS = 512  # buffers that one system call takes

_FIELDS = struct.Struct("!4sBBHIQQ16s")  # magic, version, kind, nothing, message's length, body's, place, message's sum
_TAG_BYTES = 16
HEADER_BYTES = _FIELDS.size + _TAG_BYTES
_TRAILER = struct.Struct("!Q")

Buffer = bytes | bytearray | memoryview


class PeerLost(WattsmithError):
    """The other end has closed, or does not go on with what it began; connect again."""


class FrameRefused(WattsmithError):
    """What arrived is no frame of ours, or not the one that was sent; the connection is of no further use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The start of a frame: its kind, its message, and how many bytes of body follow."""

    kind: int
    message: bytes
    body_bytes: int


class Channel:
    """Frames over a connected socket, which becomes the channel's own. One thread at a time in each direction."""

    def __init__(self, connection: socket.socket, *, stall_s: float = STALL_S) -> None:
        if stall_s <= 0:
            raise BadTerm(f"stall_s must be positive, got {stall_s}")
        self._socket = connection
        self._stall_s = stall_s
        self._send_key, self._receive_key = b"", b""
        self._sent = self._received = 0
        self._message_bytes, self._body_bytes = GREETING_BYTES, 0
        connection.settimeout(None)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _span(stall_s))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _span(stall_s))
        if connection.family in (socket.AF_INET, socket.AF_INET6):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads
        self._socket.close()

    def send(self, kind: int, message: bytes = b"", body: Sequence[Buffer] = ()) -> None:
        """Send one frame. The buffers of BODY go out as they lie, one behind the other. Raises PeerLost."""
        views = [view for view in (memoryview(part).cast("B") for part in body) if view.nbytes]
        body_bytes = sum(view.nbytes for view in views)
        fields = _FIELDS.pack(
            MAGIC, VERSION, kind, 0, len(message), body_bytes, self._sent, _tag(self._send_key, message)
        )
        self._sent += 1
        out, lanes = [memoryview(fields + _tag(self._send_key, fields) + message)], LaneSum()
        for view in views:
            for begin in range(0, view.nbytes, READ_BYTES):
                piece = view[begin : begin + READ_BYTES]
                lanes.add(piece)  # which leaves it in the cache for whoever copies it
                out.append(piece)
                if sum(part.nbytes for part in out) >= READ_BYTES:
                    self._send_all(out)
                    out = []
        if views:
            out.append(memoryview(_TRAILER.pack(lanes.value())))
        self._send_all(out)

    def receive(self, timeout_s: float | None = None) -> Head | None:
        """The head of the next frame; None when none began within TIMEOUT_S. Its body must be taken or skipped next."""
        if not self._begins(timeout_s):
            return None
        header = bytearray(HEADER_BYTES)
        self._fill(memoryview(header))
        fields, tag = bytes(header[: _FIELDS.size]), bytes(header[_FIELDS.size :])
        magic, version, kind, _, message_bytes, body_bytes, place, message_tag = _FIELDS.unpack(fields)
        if magic != MAGIC:
            raise FrameRefused(f"a frame begins with {MAGIC!r}, got {magic!r}; is this the address of a feeder?")
        if version != VERSION:
            raise FrameRefused(f"the other end speaks version {version} of the frames, this one {VERSION}; update one")
        if not hmac.compare_digest(tag, _tag(self._receive_key, fields)):
            raise FrameRefused("a header was damaged or forged")
        if place != self._received:
            raise FrameRefused(f"frame {self._received} was due, got {place}: one was left out or repeated")
        self._received += 1
        if message_bytes > self._message_bytes or body_bytes > self._body_bytes:
            raise FrameRefused(
                f"a frame announces {message_bytes} + {body_bytes} bytes; at most {self._message_bytes} + "
                f"{self._body_bytes} are taken here"
            )
        message = self._take(message_bytes)
        if not hmac.compare_digest(message_tag, _tag(self._receive_key, message)):
            raise FrameRefused("a message was damaged or forged")
        return Head(kind=kind, message=message, body_bytes=body_bytes)

    def receive_body(self, head: Head, into: memoryview) -> None:
        """Put the body of HEAD into INTO, which must be as long. Raises FrameRefused where it was damaged."""
        view = into.cast("B")
        if view.nbytes != head.body_bytes:
            raise BadInput(f"a body of {head.body_bytes} bytes needs as much room, got {view.nbytes}")
        if view.nbytes:
            self._check_body(head, lambda lanes: self._fill(view, lanes.add))

    def take_body(self, head: Head) -> bytes:
        """The body of HEAD in memory of its own, which grows as bytes arrive."""
        if not head.body_bytes:
            return b""
        taken: list[bytes] = []
        self._check_body(head, lambda lanes: taken.append(self._take(head.body_bytes, lanes.add)))
        return taken[0]

    def skip_body(self, head: Head) -> None:
        """Read the body of HEAD and forget it."""
        left = head.body_bytes + (_TRAILER.size if head.body_bytes else 0)
        room = memoryview(bytearray(min(left, READ_BYTES)))
        while left:
            part = room[: min(left, READ_BYTES)]
            self._fill(part)
            left -= part.nbytes

    def trust(
        self, send_key: bytes, receive_key: bytes, *, body_bytes: int = BODY_BYTES, patient: bool = False
    ) -> None:
        """From here on frames are tagged with these keys, and may be long.

        PATIENT: the other end may take what is sent whenever it likes, such as a trainer that validates for an hour.
        """
        if patient:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _span(0))
        self._send_key, self._receive_key = send_key, receive_key
        self._message_bytes, self._body_bytes = MESSAGE_BYTES, body_bytes

    def _check_body(self, head: Head, fill: "Callable[[LaneSum], None]") -> None:
        lanes, trailer = LaneSum(), bytearray(_TRAILER.size)
        fill(lanes)
        self._fill(memoryview(trailer))
        if lanes.value() != _TRAILER.unpack(trailer)[0]:
            raise FrameRefused(f"a body of {head.body_bytes} bytes was damaged on its way")

    def _begins(self, timeout_s: float | None) -> bool:
        try:
            waiting = select.poll()
            waiting.register(self._socket, select.POLLIN)
            return bool(waiting.poll(None if timeout_s is None else timeout_s * 1000))
        except (OSError, ValueError) as closed:  # closed here, by another thread
            raise PeerLost("the connection is closed") from closed

    def _take(self, count: int, seen: Callable[[memoryview], None] | None = None) -> bytes:
        """COUNT bytes, in memory that grows with what has arrived and not with what was announced."""
        taken = bytearray()
        while len(taken) < count:
            begun = len(taken)
            taken += bytes(min(count - begun, max(READ_BYTES, begun)))
            with memoryview(taken) as view, view[begun:] as part:
                self._fill(part, seen)
        return bytes(taken)

    def _fill(self, view: memoryview, seen: Callable[[memoryview], None] | None = None) -> None:
        """Fill VIEW from the socket, and show each piece to SEEN while it is warm."""
        filled = 0
        while filled < view.nbytes:
            piece = view[filled : filled + READ_BYTES]
            try:
                got = self._socket.recv_into(piece, 0, socket.MSG_WAITALL)
            except BlockingIOError as late:
                raise PeerLost(f"the other end stopped in the middle of a frame for {self._stall_s:g} s") from late
            except OSError as lost:
                raise PeerLost(f"the connection broke: {lost}") from lost
            if not got:
                raise PeerLost("the other end has closed the connection")
            if seen is not None:
                seen(piece[:got])
            filled += got

    def _send_all(self, views: list[memoryview]) -> None:
        try:
            while views:
                sent = self._socket.sendmsg(views[:MOST_PARTS])
                while views and sent >= views[0].nbytes:
                    sent -= views.pop(0).nbytes
                if sent:
                    views[0] = views[0][sent:]
        except BlockingIOError as late:
            raise PeerLost(f"the other end took nothing for {self._stall_s:g} s") from late
        except OSError as lost:
            raise PeerLost(f"the connection broke: {lost}") from lost


class LaneSum:
    """A sum over bytes, the same however they are cut into pieces: lanes of 64-bit words, then a CRC of the lanes."""

    __slots__ = ("_bytes", "_lanes", "_rest")

    def __init__(self) -> None:
        import numpy as np

        self._lanes: Any = np.zeros(LANES, np.uint64)
        self._rest = b""  # what does not fill a row yet
        self._bytes = 0

    def add(self, view: memoryview) -> None:
        import numpy as np

        self._bytes += view.nbytes
        if self._rest:
            need = ROW_BYTES - len(self._rest)
            self._rest += bytes(view[:need])
            view = view[need:]
            if len(self._rest) < ROW_BYTES:
                return
            self._lanes += np.frombuffer(self._rest, "<u8")
        whole = view.nbytes // ROW_BYTES * ROW_BYTES
        if whole:
            # Whole numbers of 64 bits wrap around, on every machine alike.
            self._lanes += np.add.reduce(np.frombuffer(view[:whole], "<u8").reshape(-1, LANES), axis=0)
        self._rest = bytes(view[whole:])

    def value(self) -> int:
        crc = zlib.crc32(self._rest, zlib.crc32(self._lanes.astype("<u8").tobytes()))
        return crc << 32 | self._bytes & 0xFFFFFFFF


def _span(duration_s: float) -> bytes:
    """As the socket options for time want it; 0: without end."""
    return struct.pack("ll", int(duration_s), int(duration_s % 1 * 1e6))


def _tag(key: bytes, content: bytes) -> bytes:
    """Before keys are agreed on, a sum that finds damage; afterwards, one that only a holder of the key can make."""
    return blake2b(content, key=key, digest_size=_TAG_BYTES, person=b"wattsmith-frame").digest()
