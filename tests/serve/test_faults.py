"""A real `wattsmith serve` while its database is away, and agents whose clock, token or version is not what it was."""

import base64
import contextlib
import os
import shlex
import signal
import sqlite3
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import pytest
from tests.serve.real_service import asking, until
from tests.serve.real_service import served as a_service
from tests.store.postgres import postgres_for_tests

from wattsmith.store.opening import open_service_store

STILL_AWAY_S = 1.0  # after the first 503s, for which the service has waited 5 s and more where another keeps the file
POOL = "nodes:\n  - {name: here, device: h200, count: 2, power_limits: [200W, 700W]}\n"
JOB = "name: night\ncommand: [python, work.py]\nsteps: 40\nstep: 100ms\npower: 300W\nenvironment: {TRACES: %s}\n"
WORK = """
import os, time
with open(os.path.join(os.environ["TRACES"], os.path.basename(os.environ["WATTSMITH_ATTEMPT"])), "a") as trace:
    trace.write("x")
time.sleep(2)
"""


def served(folder, *more):
    return a_service(folder / "home", POOL, *more)


def report(number, time_s=None):
    return {"boot": "b1", "number": number, "time_s": time.time() if time_s is None else time_s}


class Agent(threading.Thread):
    """Posts a report every tenth of a second, and sends it again for as long as it is told to."""

    def __init__(self, url, name, token):
        super().__init__(daemon=True)
        self.api, self.path = asking(url, token), f"/clients/{name}/telemetry"
        self.over = threading.Event()
        self.put_off, self.waits, self.numbers, self.duplicates, self.strange = 0, set(), 0, 0, []
        self.start()

    def run(self):
        while not self.over.wait(0.1):
            self.numbers += 1
            while (answer := self.api.post(self.path, json={"reports": [report(self.numbers)]})).status_code == 503:
                self.put_off += 1
                self.waits.add(answer.headers.get("Retry-After"))
                time.sleep(0.3)
            if answer.status_code != 200:
                self.strange.append(answer.text)
                return
            self.duplicates += answer.json()["duplicates"]

    def end(self):
        self.over.set()
        self.join(30)
        self.api.close()


@contextlib.contextmanager
def sqlite_away(path):
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield
        other.execute("ROLLBACK")


@contextlib.contextmanager
def postgres_away(folder):
    """A server that is killed, and started again."""
    program, *options = shlex.split((Path(folder) / "data" / "postmaster.opts").read_text())
    owner = ["runuser", "-u", "postgres", "--"] if Path(folder).stat().st_uid else []
    control = [*owner, str(Path(program).with_name("pg_ctl")), "-D", f"{folder}/data", "--wait", "-s"]
    quiet = {"check": True, "cwd": "/", "stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    subprocess.run([*control, "stop", "--mode", "immediate"], **quiet)
    yield
    kept = " ".join(shlex.quote(one) for one in options if one not in ("-D", f"{folder}/data"))
    subprocess.run([*control, "start", "--options", kept, "--log", f"{folder}/data/log"], **quiet)


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request, tmp_path):
    """A database, and a way to take it away."""
    if request.param == "sqlite":
        path = tmp_path / "service.sqlite"
        yield str(path), lambda: sqlite_away(path)
        return
    with tempfile.TemporaryDirectory(prefix="pg-") as folder, postgres_for_tests(folder) as url:
        yield url, lambda: postgres_away(folder)


def test_while_the_database_is_away_nothing_is_lost_and_nothing_happens_twice(database, tmp_path):
    place, away = database
    traces = tmp_path / "traces"
    traces.mkdir()
    job = {"job": JOB % traces, "files": {"work.py": base64.b64encode(WORK.encode()).decode()}}
    with served(tmp_path, "--db", place) as (url, admin, _), asking(url, admin) as api:
        text = api.post("/tokens", json={"name": "rack-1", "role": "agent"}).json()["text"]
        agent = Agent(url, "rack-1", text)
        for number in range(3):  # on two cards, so that one waits; they end while the database is away
            assert api.post("/jobs", json=job | {"once": f"early-{number}"}).status_code == 201
        assert until(lambda: len(list(traces.iterdir())) == 2)
        with away():
            late = api.post("/jobs", json=job | {"once": "late"})
            assert (late.status_code, late.headers["Retry-After"]) == (503, "1")
            assert api.get("/health").status_code == 200
            assert until(lambda: agent.put_off > 0)
            time.sleep(STILL_AWAY_S)
            assert len(list(traces.iterdir())) == 2  # nothing is begun that cannot be written down
        assert until(lambda: api.post("/jobs", json=job | {"once": "late"}).status_code == 201)

        def over():
            jobs = api.get("/jobs").json()["jobs"]
            return jobs if all(one["state"] == "done" for one in jobs) else None

        jobs = until(over)
        assert [(one["state"], one["reason"], len(one["attempts"])) for one in jobs] == 4 * [("done", None, 1)]
        agent.end()
        assert agent.strange == []
        assert agent.waits == {"1"}
        kept = api.get("/clients/rack-1/telemetry", params={"limit": 10_000}).json()["reports"]
        assert [one["report"]["number"] for one in kept] == list(range(1, agent.numbers + 1))
    assert sorted(one.read_text() for one in traces.iterdir()) == 4 * ["x"]


def test_clocks_tokens_and_versions_that_are_not_what_they_were(tmp_path):
    place = str(tmp_path / "service.sqlite")
    with served(tmp_path, "--db", place) as (url, admin, _), asking(url, admin) as api:
        made = api.post("/tokens", json={"name": "rack-1", "role": "agent"}).json()
        with asking(url, made["text"]) as agent:
            # Its clock is an hour ahead: the report counts, by when it came, and the difference is told.
            sent = {"reports": [report(1, time.time() + 3600)]}
            answer = agent.post("/clients/rack-1/telemetry", json=sent).json()
            assert (answer["accepted"], answer["duplicates"]) == (1, 0)
            assert answer["server_time_s"] == pytest.approx(time.time(), abs=5)
            known = api.get("/clients/rack-1").json()
            assert known["skew_s"] == pytest.approx(3600, abs=5)
            assert known["last_seen_s"] == pytest.approx(time.time(), abs=5)
            # It is older than the service: it is told so, what it does not know to send is not known, the rest is kept.
            greeting = agent.post("/clients/rack-1/hello", json={"version": "0.0.7", "host": "rack-1"})
            assert "0.0.7" in greeting.json()["note"]
            old = {"reports": [{"boot": "b1", "number": 2, "time_s": 5.0, "fan_hz": 30.0}]}
            assert agent.post("/clients/rack-1/telemetry", json=old).json()["accepted"] == 1
            assert api.get("/clients/rack-1").json()["about"]["version"] == "0.0.7"
            # Its token is revoked here: at once.
            assert api.delete(f"/tokens/{made['token']['id']}").status_code == 204
            refused = agent.post("/clients/rack-1/telemetry", json={"reports": [report(3)]})
            assert refused.status_code == 401
            assert "was revoked at" in refused.json()["error"]["message"]
        # A token that another process revokes: within a second.
        other = api.post("/tokens", json={"name": "rack-2", "role": "agent"}).json()
        with asking(url, other["text"]) as agent:
            assert agent.get("/whoami").status_code == 200
            with open_service_store(place) as store:
                assert store.revoke(other["token"]["id"], time.time())
            began_s = time.monotonic()
            assert until(lambda: agent.get("/whoami").status_code == 401, within_s=5.0)
            assert time.monotonic() - began_s < 1.5
        assert [one["report"]["number"] for one in api.get("/clients/rack-1/telemetry").json()["reports"]] == [1, 2]


def test_a_database_that_is_away_when_it_is_killed_and_started_again(tmp_path):
    place = tmp_path / "service.sqlite"
    with served(tmp_path, "--db", str(place)) as (url, admin, process), asking(url, admin) as api:
        text = api.post("/tokens", json={"name": "rack-1", "role": "agent"}).json()["text"]
        with asking(url, text) as agent:
            agent.post("/clients/rack-1/telemetry", json={"reports": [report(1)]}).raise_for_status()
        with sqlite_away(place):
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
    with served(tmp_path, "--db", str(place)) as (url, _, _), asking(url, text) as agent:
        answer = agent.post("/clients/rack-1/telemetry", json={"reports": [report(1), report(2)]}).json()
        assert (answer["accepted"], answer["duplicates"]) == (1, 1)
