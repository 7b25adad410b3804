"""An agent of an ordinary user, who may set nothing: the control daemon does, on simulated GPUs, for a real service.

It runs as the user of the tests; that he may not set anything is the simulated driver's word to this process.
"""

import contextlib
import os
import signal
import subprocess
import time

import pytest
from tests.serve.real_service import WATTSMITH, asking, served, until
from tests.serve.test_agent import agent, machine, odd, schedule, told_and_ticked  # noqa: F401

from wattsmith.sim.nvml import ORDINARY_USER_VARIABLE

pytest.importorskip("fastapi", reason="THE AGENT AND THE DAEMON ARE NOT TESTED: fastapi is not installed")
POOL = "nodes:\n  - {name: here, device: h200, count: 2}\n"
ALLOW = """
[[allow]]
users = [%d]
knobs = ["gpu:*/power_limit"]
least = "300W"
longest = "10min"
shared = %s
"""


@contextlib.contextmanager
def running(*command, ready=None, **environment):
    """COMMAND of wattsmith as a process; READY: what is true once it works."""
    with subprocess.Popen([*WATTSMITH, *map(str, command)], env=os.environ | environment) as process:
        try:
            if ready is not None:
                until(ready)
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@contextlib.contextmanager
def daemon(folder, shared="true"):
    folder.mkdir(exist_ok=True)
    (folder / "allow.toml").write_text(ALLOW % (os.getuid(), shared))
    options = ("--socket", folder / "s", "--allow", folder / "allow.toml", "--state", folder / "journals")
    with running("control", "serve", *options, ready=(folder / "s").is_socket) as process:
        yield process


def started(tmp_path, url, token):
    options = ("--server", url, "--name", "desk-3", "--every", "0.2s", "--state", tmp_path / "agent")
    who = {ORDINARY_USER_VARIABLE: "1", "WATTSMITH_TOKEN": token}
    return running("agent", *options, "--socket", tmp_path / "daemon/s", **who)


def limit_w(cards):
    return cards.setting(0).power_limit_w


def latest(api):
    answer = api.get("/clients/desk-3")
    return (answer.json()["latest"] or {}) if answer.status_code == 200 else {}


def token_for(api):
    return api.post("/tokens", json={"name": "desk-3", "role": "agent"}).json()["text"]


def test_the_daemon_sets_what_the_schedule_says_and_takes_it_back_when_the_agent_is_killed(machine, tmp_path):  # noqa: F811
    with served(tmp_path / "home", POOL) as (url, admin, _), asking(url, admin) as api, daemon(tmp_path / "daemon"):
        token = token_for(api)
        with started(tmp_path, url, token) as first:
            until(lambda: latest(api))
            given = schedule(400.0, now_s=time.time(), holds_s=600.0)
            assert api.put("/clients/desk-3/schedule", json=given).status_code == 200
            until(lambda: limit_w(machine) == 400.0)
            followed = until(lambda: latest(api) if latest(api).get("in_force") else None)
            assert (followed["serial"], followed["in_force"]["gpu:0"]["power_limit_w"]) == (1, 400.0)
            assert followed["refused"] == []
            # Below what the daemon allows: refused with the reason, and the rest goes on.
            low = schedule(250.0, now_s=time.time(), holds_s=600.0)
            assert api.put("/clients/desk-3/schedule", json=low).status_code == 200
            refused = until(lambda: latest(api).get("refused"))
            assert "at least 300 W" in refused[0]
            good = schedule(350.0, now_s=time.time(), holds_s=600.0)
            assert api.put("/clients/desk-3/schedule", json=good).status_code == 200
            until(lambda: limit_w(machine) == 350.0)
            first.kill()
            first.wait()
            until(lambda: limit_w(machine) == 700.0, within_s=5.0)
        with started(tmp_path, url, token):  # which goes on with its schedule
            until(lambda: limit_w(machine) == 350.0)
        assert limit_w(machine) == 700.0


def test_a_daemon_that_does_not_let_cards_be_shared_is_told_of(agent, machine, odd, tmp_path):  # noqa: F811
    with daemon(tmp_path / "daemon", "false"):
        one, _, _, _ = agent(odd.url, socket=tmp_path / "daemon/s")
        odd.schedule = schedule(400.0, now_s=odd.now_s())
        assert "others use" in told_and_ticked(one).refused[0]
        assert limit_w(machine) == 700.0
        one.close()
