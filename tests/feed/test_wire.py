"""Frames over sockets, and the proof of a token: what is whole arrives, what is not is refused, nothing hangs."""

import itertools
import socket
import threading
import time
import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from wattsmith.feed import wire
from wattsmith.feed.remote_greeting import (
    TokenRefused,
    admit,
    greet,
    new_token,
    read_token,
    refuse,
    welcome,
    write_token,
)
from wattsmith.feed.wire import BODY_BYTES, HEADER_BYTES, Channel, FrameRefused, LaneSum, PeerLost
from wattsmith.terms.errors import BadInput, BadTerm, WattsmithError

TOKEN = "a token that nobody guesses"
STALL_S = 0.2


@pytest.fixture
def strangers():
    """Two ends of one connection."""
    both = [Channel(end, stall_s=STALL_S) for end in socket.socketpair()]
    yield both
    for end in both:
        end.close()


@pytest.fixture
def ends(strangers):
    """Two ends that trust each other."""
    mine, theirs = strangers
    mine.trust(b"there", b"back")
    theirs.trust(b"back", b"there")
    return mine, theirs


def in_thread(work, *given_):
    """Runs WORK beside the test; what it returned or raised is the answer of the function that is returned."""
    outcome = []

    def run():
        try:
            outcome.append(work(*given_))
        except WattsmithError as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()

    def join():
        thread.join(10)
        return outcome[0]

    return join


def test_a_frame_arrives_as_it_was_sent(ends):
    mine, theirs = ends
    mine.send(7, b"message", [b"first ", b"", bytearray(b"second")])
    head = theirs.receive()
    room = bytearray(12)
    theirs.receive_body(head, memoryview(room))
    assert (head.kind, head.message, bytes(room)) == (7, b"message", b"first second")


def test_a_large_body_goes_straight_into_the_room_it_is_given(ends):
    mine, theirs = ends
    body = bytes(range(256)) * 20_000
    sending = in_thread(mine.send, 1, b"", [body])
    head, room = theirs.receive(), bytearray(len(body))
    theirs.receive_body(head, memoryview(room))
    assert sending() is None
    assert room == body


def test_a_body_can_be_taken_or_skipped(ends):
    mine, theirs = ends
    for _ in range(2):
        mine.send(1, b"", [b"x" * 1000])
    mine.send(2)
    assert theirs.take_body(theirs.receive()) == b"x" * 1000
    theirs.skip_body(theirs.receive())
    assert theirs.receive().kind == 2


def test_nothing_within_the_time_is_none(ends):
    assert ends[0].receive(timeout_s=0.01) is None


def test_a_closed_end_is_told_at_once(ends):
    mine, theirs = ends
    theirs.close()
    with pytest.raises(PeerLost, match="closed"):
        mine.receive()


def test_an_end_that_stops_in_the_middle_is_given_up(ends):
    mine, theirs = ends
    mine._socket.sendall(b"WSFD")
    with pytest.raises(PeerLost, match="middle of a frame"):
        theirs.receive()


def test_an_end_that_takes_nothing_is_given_up(ends):
    with pytest.raises(PeerLost, match="took nothing"):
        ends[0].send(1, b"", [bytes(1 << 24)])


def test_a_patient_end_waits_until_it_is_taken(strangers):
    mine, theirs = strangers
    mine.trust(b"there", b"back", patient=True)
    theirs.trust(b"back", b"there")
    sending = in_thread(mine.send, 1, b"", [bytes(1 << 22)])
    time.sleep(2 * STALL_S)
    theirs.skip_body(theirs.receive())
    assert sending() is None


def test_room_of_another_length_is_refused(ends):
    mine, theirs = ends
    mine.send(1, b"", [b"1234"])
    with pytest.raises(BadInput, match="4 bytes needs as much room, got 3"):
        theirs.receive_body(theirs.receive(), memoryview(bytearray(3)))


def test_a_stall_must_be_a_time():
    with socket.socket() as one, pytest.raises(BadTerm):
        Channel(one, stall_s=0)


def sent_bytes(kind=3, message=b"a message", body=(b"body" * 300,), key=b"there"):
    """The bytes of one frame as they cross."""
    mine, theirs = socket.socketpair()
    channel = Channel(mine)
    channel.trust(key, b"")
    channel.send(kind, message, body)
    mine.close()
    with theirs:
        return theirs.recv(1 << 20)


def read_one(raw, key=b"there"):
    """Kind, message and body of the frame in RAW, after which the other end closes."""
    mine, theirs = socket.socketpair()
    with mine:
        mine.sendall(raw)
    channel = Channel(theirs, stall_s=STALL_S)
    channel.trust(b"", key, body_bytes=1 << 20)
    try:
        head = channel.receive()
        return head.kind, head.message, channel.take_body(head)
    finally:
        channel.close()


def test_a_frame_made_with_another_key_is_refused():
    with pytest.raises(FrameRefused, match="forged"):
        read_one(sent_bytes(key=b"another"))


def test_a_frame_sent_twice_is_refused():
    mine, theirs = socket.socketpair()
    with mine:
        mine.sendall(sent_bytes() * 2)
    channel = Channel(theirs)
    channel.trust(b"", b"there")
    channel.skip_body(channel.receive())
    with pytest.raises(FrameRefused, match="frame 1 was due, got 0"):
        channel.receive()
    channel.close()


def test_what_is_no_frame_says_so():
    with pytest.raises(FrameRefused, match="is this the address of a feeder"):
        read_one(b"GET / HTTP/1.1\r\nHost: feeder\r\n\r\n" + bytes(HEADER_BYTES))


@given(place=some.integers(0, HEADER_BYTES + 9 + 1200 + 7), change=some.integers(1, 255))
def test_a_changed_byte_is_never_taken_for_the_frame(place, change):
    raw = bytearray(sent_bytes())
    raw[place] ^= change
    with pytest.raises((FrameRefused, PeerLost)):
        read_one(bytes(raw))


@given(cut=some.integers(0, HEADER_BYTES + 9 + 1200 + 7))
def test_a_frame_cut_short_is_a_lost_peer(cut):
    with pytest.raises(PeerLost):
        read_one(sent_bytes()[:cut])


@given(raw=some.binary(max_size=300))
@settings(deadline=1000)
def test_any_bytes_are_refused_or_lost(raw):
    with pytest.raises((FrameRefused, PeerLost)):
        read_one(raw)


@given(raw=some.binary(max_size=300))
@settings(deadline=1000)
def test_any_bytes_for_a_greeting_are_refused_or_lost(raw):
    mine, theirs = socket.socketpair()
    with mine:
        mine.sendall(raw)
    channel = Channel(theirs, stall_s=STALL_S)
    with pytest.raises((FrameRefused, PeerLost, TokenRefused)):
        admit(channel, TOKEN, 1 << 20)
    channel.close()


def test_no_memory_is_taken_for_a_length_that_is_only_announced(strangers):
    mine, theirs = strangers
    mine.trust(b"", b"")
    theirs.trust(b"", b"", body_bytes=BODY_BYTES)
    raw = bytearray(sent_bytes(body=(b"x",), key=b""))
    fields = list(wire._FIELDS.unpack(raw[: wire._FIELDS.size]))
    fields[5] = 1 << 38
    packed = wire._FIELDS.pack(*fields)
    mine._socket.sendall(packed + wire._tag(b"", packed) + raw[HEADER_BYTES:])
    mine.close()
    tracemalloc.start()
    with pytest.raises(PeerLost):
        theirs.take_body(theirs.receive())
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak_bytes < 1 << 23  # of 1 << 38


def test_before_the_token_is_proved_only_a_greeting_is_taken(strangers):
    mine, theirs = strangers
    mine.trust(b"", b"")
    mine.send(1, bytes(20_000))
    with pytest.raises(FrameRefused, match="announces 20000"):
        theirs.receive()


@given(
    content=some.binary(max_size=300).map(lambda few: few * 60), cuts=some.lists(some.integers(0, 18_000), max_size=5)
)
def test_a_sum_is_the_same_however_the_bytes_are_cut(content, cuts):
    whole, pieces = LaneSum(), LaneSum()
    whole.add(memoryview(content))
    edges = sorted({0, len(content), *(cut for cut in cuts if cut < len(content))})
    for begin, end in itertools.pairwise(edges):
        pieces.add(memoryview(content)[begin:end])
    assert pieces.value() == whole.value()


# The token


def test_two_that_hold_the_token_trust_each_other(strangers):
    worker, trainer = strangers
    greeting = in_thread(greet, worker, TOKEN, {"pid": 7})
    assert admit(trainer, TOKEN, 1 << 20) == {"pid": 7}
    welcome(trainer, {"job": "resnet"})
    assert greeting() == {"job": "resnet"}
    worker.send(9, b"", [b"body"])
    assert trainer.take_body(trainer.receive()) == b"body"


def test_a_worker_without_the_token_is_refused_and_told_so(strangers):
    worker, trainer = strangers
    greeting = in_thread(greet, worker, "another token entirely", {})
    with pytest.raises(TokenRefused, match="without the job's token"):
        admit(trainer, TOKEN, 1 << 20)
    assert isinstance(greeting(), TokenRefused)


def test_a_trainer_without_the_token_is_refused_by_the_worker(strangers):
    worker, impostor = strangers
    greeting = in_thread(greet, worker, TOKEN, {"secret": "facts"})
    theirs = impostor.receive().message
    impostor.send(2, bytes(32))
    impostor.receive()
    impostor.send(4, theirs)  # any 32 bytes will not do
    refused = greeting()
    assert isinstance(refused, TokenRefused)
    assert "trainer does not hold" in str(refused)


def test_a_proof_cannot_be_handed_back_as_the_trainers_own(strangers):
    worker, impostor = strangers
    greeting = in_thread(greet, worker, TOKEN, {})
    impostor.receive()
    impostor.send(2, bytes(32))
    impostor.send(4, impostor.receive().message)
    assert isinstance(greeting(), TokenRefused)


def test_a_refusal_says_why(strangers):
    worker, trainer = strangers
    greeting = in_thread(greet, worker, TOKEN, {})
    admit(trainer, TOKEN, 1 << 20)
    refuse(trainer, "another version")
    assert str(greeting()) == "refused by the trainer: another version"


def test_a_silent_caller_is_given_up(strangers):
    _caller, trainer = strangers
    began_s = time.monotonic()
    with pytest.raises(PeerLost, match=r"greeting for 0\.05 s"):
        admit(trainer, TOKEN, 1 << 20, within_s=0.05)
    assert time.monotonic() - began_s < 5


def test_a_token_is_kept_in_a_file_of_ones_own(tmp_path):
    path, token = tmp_path / "token", new_token()
    write_token(path, token)
    assert read_token(path) == token
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_short_token_is_refused(tmp_path):
    (tmp_path / "token").write_text("secret\n")
    with pytest.raises(BadInput, match="at least 16 characters, got 6"):
        read_token(tmp_path / "token")


def test_a_missing_token_file_is_named(tmp_path):
    with pytest.raises(BadInput, match="no-such-file"):
        read_token(tmp_path / "no-such-file")
