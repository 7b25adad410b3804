import socket
import struct
import threading
import time
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattsmith.measure.ntp import clock_offset_s
from wattsmith.terms.errors import BadInput, MeterUnavailable

EPOCH_S = 2_208_988_800


def told(asked, ahead_s):
    """The answer of a server whose clock is ahead."""
    now = time.time() + ahead_s + EPOCH_S
    stamp = struct.pack("!II", int(now), int(now % 1 * 2**32))
    return bytes([0b00_100_100, 2, 0, 0]) + bytes(20) + asked[40:48] + stamp + stamp


@contextmanager
def server(answer):
    """A time server that answers one question with what ANSWER makes of it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as here:
        here.bind(("127.0.0.1", 0))
        here.settimeout(2.0)

        def serve():
            asked, who = here.recvfrom(1024)
            here.sendto(answer(asked), who)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{here.getsockname()[1]}"
        thread.join()


@pytest.mark.parametrize("ahead_s", [0.0, 3.5, -120.0])
def test_the_offset_is_how_far_the_server_is_ahead(ahead_s):
    with server(lambda asked: told(asked, ahead_s)) as address:
        assert clock_offset_s(address) == pytest.approx(ahead_s, abs=0.2)


@pytest.mark.parametrize(
    "answer",
    [
        lambda _: b"",
        lambda asked: told(asked, 0.0)[:47],
        lambda _: told(bytes(48), 0.0),
        lambda asked: asked,
        lambda asked: bytes([0b00_100_100, 0]) + told(asked, 0.0)[2:],
    ],
)
def test_what_is_no_answer_to_this_question_is_refused(answer):
    with server(answer) as address, pytest.raises(MeterUnavailable, match="no time"):
        clock_offset_s(address)


@settings(max_examples=20, deadline=None)
@given(noise=st.binary(max_size=80))
def test_noise_is_refused(noise):
    with server(lambda _: noise) as address, pytest.raises(MeterUnavailable, match="no time"):
        clock_offset_s(address)


def test_nobody_there_is_named():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
        silent.bind(("127.0.0.1", 0))
        with pytest.raises(MeterUnavailable, match="does not answer"):
            clock_offset_s(f"127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.1)


@pytest.mark.parametrize("address", ["", "a b", "host:0", "host:70000", "host:x"])
def test_an_address_that_is_none_is_named(address):
    with pytest.raises(BadInput, match="time server"):
        clock_offset_s(address)
