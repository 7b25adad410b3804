"""A service asked over HTTP: asked again while it is away, and errors that say what to do."""

import random

import pytest
from tests.serve.odd_server import OddServer

from wattsmith.serve.client import (
    NotKnown,
    Server,
    ServerAway,
    TooLarge,
    find_token,
    server_url,
)
from wattsmith.terms.errors import BadInput, Conflict, NoSuch, NotAllowed, NotWritten

pytest.importorskip("httpx", reason="THE CLIENT OF THE SERVICE IS NOT TESTED: httpx is not installed")

JOB = {"id": "j-000001"}


def failed(status, message="so it is", fields=(), **headers):
    return status, headers, {"error": {"kind": "x", "message": message, "fields": list(fields)}}


@pytest.fixture
def odd():
    with OddServer().running() as server:
        yield server


@pytest.fixture
def asked(odd):
    """The service behind ODD, and how long it was waited between questions."""
    waits = []
    with Server(odd.url, "ws_1_x", pause=waits.append, chance=random.Random(1)) as server:
        yield server, waits


def test_a_busy_service_is_asked_again_when_it_said_so(odd, asked):
    server, waits = asked
    odd.answers = [failed(503, **{"Retry-After": "2"}), failed(429, **{"Retry-After": "0.5"}), (200, {}, JOB)]
    assert server.job("j-000001") == JOB
    assert waits == [2.0, 0.5]


def test_pauses_grow_and_vary_where_it_does_not_say(odd, asked):
    server, waits = asked
    odd.answers = [None, None, (502, {}, b"bad gateway"), (200, {}, JOB)]
    assert server.job("j-000001") == JOB
    assert all(0.125 * 2**n <= wait_s <= 0.25 * 2**n for n, wait_s in enumerate(waits))
    assert len(waits) == 3


def test_patience_ends(odd, asked):
    server, waits = asked
    odd.answers = [failed(503, "the database is away", **{"Retry-After": "60"})]
    with pytest.raises(ServerAway, match="the database is away"):
        server.job("j-000001")
    assert waits == []


def test_a_submission_whose_answer_was_lost_is_sent_again_with_the_same_word(odd, asked):
    server, _ = asked
    odd.answers = [None, (201, {}, JOB)]
    assert server.submit("name: a", {"a.py": b"\x00\xff"}, structure=None, once="word") == JOB
    assert [body["once"] for _, _, body in odd.asked] == ["word", "word"]
    assert odd.asked[0][2]["files"] == {"a.py": "AP8="}


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (401, NotKnown, "this token was revoked.*Ask for a new token"),
        (403, NotAllowed, "this token was revoked"),
        (404, NoSuch, "GET http://.*/api/v1/jobs/j: this token"),
        (409, Conflict, "revoked"),
        (413, TooLarge, "revoked"),
        (400, BadInput, "revoked"),
        (500, NotWritten, "status 500.*own log"),
        (418, BadInput, "is this the address of a service"),
    ],
)
def test_what_is_refused_is_an_error_of_its_kind_and_is_not_asked_again(odd, asked, status, kind, says):
    odd.answers = [failed(status, "this token was revoked")]
    with pytest.raises(kind, match=says):
        asked[0].job("j")
    assert len(odd.asked) == 1


def test_fields_that_are_wrong_come_along(odd, asked):
    odd.answers = [failed(422, "no", [{"where": "deadline", "line": 3, "reason": "is no time"}])]
    with pytest.raises(BadInput) as told:
        asked[0].submit("name: a", {}, structure=None, once="a")
    assert told.value.problems == (("deadline", 3, "is no time"),)


def test_nobody_at_an_address_is_told_with_what_to_do():
    with Server("http://127.0.0.1:9", "ws_1_x", patience_s=0) as server, pytest.raises(ServerAway) as told:
        server.whoami()
    assert "no service answers at http://127.0.0.1:9" in str(told.value)
    assert "--server URL" in str(told.value)


def test_what_is_no_service_is_told(odd, asked):
    odd.answers = [(200, {}, b"<html>Please log in</html>")] * 1
    asked[0].patience_s = 0
    with pytest.raises(ServerAway, match="not as a service of Wattsmith does: '<html>"):
        asked[0].whoami()


def test_a_name_is_one_part_of_a_path(odd, asked):
    with pytest.raises(NoSuch):
        asked[0].job("../tokens?x=1")
    assert odd.asked[0][1] == "/api/v1/jobs/..%2Ftokens%3Fx%3D1"


def test_a_proxy_of_the_surroundings_does_not_lead_to_this_machine(odd, asked, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    odd.answers = [(200, {}, JOB)]
    assert asked[0].job("j") == JOB


@pytest.mark.parametrize(
    ("given", "url"),
    [
        (None, "http://127.0.0.1:8711"),
        ("pool:8711", "http://pool:8711"),
        ("https://pool/wattsmith/", "https://pool/wattsmith"),
        ("http://[::1]:8711", "http://[::1]:8711"),
    ],
)
def test_addresses(given, url, monkeypatch):
    monkeypatch.delenv("WATTSMITH_SERVER", raising=False)
    assert server_url(given) == url


@pytest.mark.parametrize("given", ["ftp://pool", "http://", "http://pool:notaport", "http://[::1"])
def test_what_is_no_address_is_refused(given):
    with pytest.raises(BadInput, match="is no address of a service"):
        server_url(given)


def test_a_token_is_looked_for_in_three_places(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv("WATTSMITH_TOKEN", raising=False)
    with pytest.raises(BadInput, match="--token-file FILE or"):
        find_token(None)
    (tmp_path / "wattsmith").mkdir()
    (tmp_path / "wattsmith/token").write_text("ws_3_home\n")
    assert find_token(None) == "ws_3_home"
    monkeypatch.setenv("WATTSMITH_TOKEN", "ws_2_variable")
    assert find_token(None) == "ws_2_variable"
    (tmp_path / "given").write_text("ws_1_given\n")
    assert find_token(tmp_path / "given") == "ws_1_given"
    (tmp_path / "given").write_text("two words")
    with pytest.raises(BadInput, match="is no token"):
        find_token(tmp_path / "given")
