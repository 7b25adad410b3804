"""How far this machine's clock is from that of a time server. The clock is read, never set."""

import re
import socket
import struct
import time
from collections.abc import Callable

from wattsmith.terms.errors import BadInput, MeterUnavailable

PORT = 123
_EPOCH_S = 2_208_988_800  # NTP counts from 1900
_ASK = bytes([0b00_100_011]) + bytes(39)  # version 4, from a client
_LENGTH = 48


def clock_offset_s(server: str, *, timeout_s: float = 2.0, wall_s: Callable[[], float] = time.time) -> float:
    """Seconds that the clock of SERVER ("host" or "host:port") is ahead of ours, by one question over SNTP."""
    found = re.fullmatch(r"(?P<host>[^:\s]{1,253})(?::(?P<port>\d{1,5}))?", server)
    if found is None or not 0 < int(found["port"] or PORT) < 2**16:
        raise BadInput(f"{server!r} is no address of a time server; write host or host:port")
    sent_s = wall_s()
    ask = _ASK + _stamp(sent_s)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as question:
            question.settimeout(timeout_s)
            question.connect((found["host"], int(found["port"] or PORT)))
            question.send(ask)
            answer = question.recv(1024)
    except OSError as failed:
        raise MeterUnavailable(f"the time server {server} does not answer ({failed.strerror or failed})") from failed
    back_s = wall_s()
    # The answer repeats our own stamp: anything else is not an answer to this question.
    if len(answer) < _LENGTH or answer[24:32] != ask[40:48] or answer[0] & 0b111 != 4 or answer[1] == 0:
        raise MeterUnavailable(f"the time server {server} answers with something that is no time")
    got_s, gave_s = _seconds(answer[32:40]), _seconds(answer[40:48])
    return ((got_s - sent_s) + (gave_s - back_s)) / 2


def _stamp(wall_s: float) -> bytes:
    seconds = wall_s + _EPOCH_S
    return struct.pack("!II", int(seconds) % 2**32, int(seconds % 1 * 2**32))


def _seconds(stamp: bytes) -> float:
    whole, part = struct.unpack("!II", stamp)
    return float(whole - _EPOCH_S) + float(part) / 2**32
