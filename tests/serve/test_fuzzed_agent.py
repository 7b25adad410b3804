"""An agent that sends anything at all: the service writes nothing outside its folder, and runs nothing."""

import json
from pathlib import Path

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.serving_here import serving

WORDS = [
    *("boot", "number", "time_s", "domains", "power_w", "in_force", "refused", "serial", "version", "host", "devices"),
    *("command", "files", "../../escaped", "/tmp/escaped", "$(touch escaped)", "; touch escaped", "`touch escaped`"),
    *("gpu:0", "", "\x00", "a" * 300, "{{7*7}}", "%s%n", "C:\\escaped", "file:///escaped", "__class__"),
]
texts = st.sampled_from(WORDS) | st.text(max_size=20)
numbers = st.integers() | st.floats() | st.sampled_from([2**63, -(2**63) - 1, 1e308, 10**30])
values = st.recursive(
    st.none() | st.booleans() | numbers | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)
reports = st.fixed_dictionaries(
    {"boot": texts | st.just("b"), "number": st.integers(1, 50) | numbers, "time_s": st.just(1.0) | numbers},
    optional={
        "domains": st.dictionaries(texts, st.dictionaries(texts, values, max_size=3) | values, max_size=3) | values,
        "steps": numbers,
        "serial": numbers,
        "in_force": st.dictionaries(texts, values, max_size=2),
        "refused": st.lists(texts, max_size=3),
        "command": st.just(["touch", "escaped"]),
    },
)
devices = st.fixed_dictionaries({"domain": texts, "name": texts}, optional={"memory_bytes": numbers, "uuid": texts})
abouts = st.fixed_dictionaries(
    {"version": texts, "host": texts}, optional={"devices": st.lists(devices, max_size=3), "knobs": st.lists(texts)}
)
bodies = st.one_of(
    st.fixed_dictionaries({"reports": st.lists(reports, max_size=4)}).map(json.dumps).map(str.encode),
    abouts.map(json.dumps).map(str.encode),
    values.map(json.dumps).map(str.encode),
    st.binary(max_size=200),
)
names = st.just("rack-1") | st.sampled_from(
    ["..", "%2e%2e%2f%2e%2e%2fescaped", "rack-1%2f..%2f..%2fescaped", "rack-2", "%00"]
)


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    home = tmp_path_factory.mktemp("sandbox") / "home"
    home.mkdir()
    with serving(home, rate_hz=1e6, burst=1e6) as here:
        yield here


def listing(folder):
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if not path.name.startswith("service.sqlite")}


def test_whatever_an_agent_sends_stays_in_the_database(here):
    sandbox, work = here.home.parent, sorted(Path.cwd().iterdir())
    before = listing(sandbox)
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    statuses = set()

    @settings(max_examples=400, derandomize=True, database=None)
    @given(name=names, what=st.sampled_from(["telemetry", "hello", "schedule"]), body=bodies)
    def send(name, what, body):
        method = "GET" if what == "schedule" else "POST"
        headers = {"Content-Type": "application/json"}
        answer = here.ask("agent", method, f"/clients/{name}/{what}", content=body, headers=headers)
        assert answer.status_code in (200, 400, 403, 404, 422), answer.text
        statuses.add(answer.status_code)

    send()
    assert {200, 400, 422} <= statuses  # some of it was taken, too
    assert listing(sandbox) == before
    assert sorted(Path.cwd().iterdir()) == work
    assert {child.pid for child in psutil.Process().children(recursive=True)} == children
    assert here.ask("read", "GET", "/jobs").json()["jobs"] == []
    for client in here.ask("read", "GET", "/clients").json()["clients"]:
        assert client["name"] == "rack-1"
    assert here.ask("read", "GET", "/clients/rack-1/telemetry").status_code == 200
