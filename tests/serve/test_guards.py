"""What stands before every route: hosts, sizes, headers."""

import asyncio
import socket
import time
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient
from tests.serve.serving_here import serving

from wattsmith.serve.access import Buckets
from wattsmith.serve.failing import Failed, failed_by
from wattsmith.serve.guards import LOOPBACK, Guard, host_in, is_loopback
from wattsmith.serve.running import known_hosts
from wattsmith.terms.errors import BadInput, NoSuch, NotRead, NotWritten

SMALL_BYTES = 1 << 20


async def _echo_length(request):
    return PlainTextResponse(str(len(await request.body())))


async def _failed(_, failed):
    return failed.answer()


def guarded(hosts=LOOPBACK, body_wait_s=5.0):
    app = Starlette(routes=[Route("/", _echo_length, methods=["GET", "POST"])], exception_handlers={Failed: _failed})
    return Guard(app, hosts=hosts, most_body_bytes=SMALL_BYTES, body_wait_s=body_wait_s)


@pytest.fixture
def client():
    return TestClient(guarded(), base_url="http://localhost")


@pytest.fixture
def here(tmp_path):
    with serving(tmp_path) as here:
        yield here


@pytest.mark.parametrize("host", ["localhost", "localhost:8711", "127.0.0.1:8711", "[::1]:8711", "LOCALHOST"])
def test_names_of_this_machine_are_let_in(client, host):
    assert client.get("/", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8711", "localhost.evil.example", "127.0.0.1.evil", ""])
def test_a_name_that_was_made_to_lead_here_is_refused(client, host):
    answer = client.get("/", headers={"Host": host})
    assert answer.status_code == 400
    assert "--allow-host" in answer.json()["error"]["message"]


def test_hosts_are_checked_on_loopback_and_where_names_were_given():
    assert known_hosts("127.0.0.1", []) == LOOPBACK
    assert known_hosts("127.0.0.1", ["power.example"]) == LOOPBACK | {"power.example"}
    assert known_hosts("0.0.0.0", []) is None
    assert known_hosts("0.0.0.0", ["power.example"]) == LOOPBACK | {"0.0.0.0", "power.example"}


def test_the_port_is_no_part_of_a_name():
    assert [host_in(text) for text in ("a:1", "A", "[::1]:80", "[::1]", "")] == ["a", "a", "::1", "::1", ""]
    assert [is_loopback(host) for host in ("127.0.0.1", "127.9.9.9", "::1", "localhost", "0.0.0.0", "a")] == [
        *(True, True, True, True),
        *(False, False),
    ]


def test_a_body_at_the_limit_is_taken_and_one_byte_more_is_not(client):
    assert client.post("/", content=b"x" * SMALL_BYTES).text == str(SMALL_BYTES)
    assert client.post("/", content=b"x" * (SMALL_BYTES + 1)).status_code == 413


def test_a_body_without_a_length_is_counted_as_it_comes(client):
    assert client.post("/", content=iter([b"x" * SMALL_BYTES])).text == str(SMALL_BYTES)
    too_much = client.post("/", content=iter([b"x" * SMALL_BYTES, b"x"]))
    assert too_much.status_code == 413
    assert too_much.json()["error"]["kind"] == "too large"


@pytest.mark.parametrize("length", ["-1", "1e3", "9" * 400, "½"])
def test_a_length_that_is_none_is_refused(length):
    headers = [(b"host", b"localhost"), (b"content-length", length.encode())]
    assert asked(guarded(), headers)["status"] == 413


def asked(app, headers, messages=None):
    """The first message of the answer to a request made of plain messages."""
    sent = []
    left = list(messages or [{"type": "http.request", "body": b"", "more_body": False}])

    async def receive():
        if left:
            return left.pop(0)
        return await asyncio.sleep(60)

    async def send(message):
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b"", "scheme": "http"}
    asyncio.run(app(scope | {"http_version": "1.1", "root_path": ""}, receive, send))
    return sent[0]


def test_a_body_that_never_ends_is_given_up_on():
    first = {"type": "http.request", "body": b"x", "more_body": True}
    assert asked(guarded(body_wait_s=0.1), [(b"host", b"localhost")], [first])["status"] == 408


@pytest.mark.parametrize("begun", [b"", b"GET /api/v1/health HTTP/1.1\r\nHost: localhost\r\nX-Slow: "])
def test_a_connection_on_which_no_request_comes_is_closed(here, begun):
    with here.listening(head_wait_s=0.2) as url:
        address = urlsplit(url)
        with socket.create_connection((address.hostname, address.port), timeout=30) as left:
            left.sendall(begun)
            assert left.recv(1) == b""


def test_a_request_that_is_waited_for_longer_than_a_head_is_answered(here):
    token = {"Authorization": f"Bearer {here.tokens['read']}"}
    with here.listening(head_wait_s=2.0) as url:
        began_s = time.monotonic()
        answer = httpx.get(f"{url}/api/v1/events?after=1000000&wait_s=4", headers=token, timeout=30)
        assert (answer.status_code, answer.json()["events"]) == (200, [])
        assert time.monotonic() - began_s > 3.0


def test_every_answer_bears_the_headers_that_browsers_need(client):
    for answer in (client.get("/"), client.get("/nothing"), client.get("/", headers={"Host": "evil.example"})):
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"


def test_a_caller_may_ask_in_bursts_and_then_at_a_rate():
    now_s = [0.0]
    buckets = Buckets(rate_hz=2.0, burst=3.0, now_s=lambda: now_s[0])
    assert [buckets.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert buckets.wait_s("b") == 0.0
    now_s[0] = 0.5
    assert [buckets.wait_s("a") for _ in range(2)] == [0.0, 0.5]
    now_s[0] = 1000.0
    assert [buckets.wait_s("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]


def test_errors_name_field_line_and_reason():
    wrong = failed_by(BadInput("job.yaml, line 3, deadline: is no time\nReport.number: missing\nand so on"))
    assert wrong.status == 422
    assert wrong.fields == [
        {"where": "deadline", "line": 3, "reason": "is no time"},
        {"where": "Report.number", "line": None, "reason": "missing"},
    ]
    told = failed_by(BadInput("2 are wrong", [("files[1]", 7, "is not there")]))
    assert told.fields == [{"where": "files[1]", "line": 7, "reason": "is not there"}]


def test_each_error_has_its_status():
    errors = (NoSuch("x"), NotWritten("x"), NotRead("x"), BadInput("x"))
    assert [failed_by(error).status for error in errors] == [404, 503, 503, 422]
    assert failed_by(NotWritten("x")).answer().headers["retry-after"] == "1"


def test_half_a_character_can_be_told():
    assert "?" in failed_by(BadInput("\ud800")).answer().body.decode()
