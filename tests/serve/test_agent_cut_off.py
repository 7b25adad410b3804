"""A client that is cut off from its service for longer than its work schedule holds, and comes back."""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import threading
import time

import pytest
from tests.serve.real_service import WATTSMITH, asking, served, until
from tests.serve.test_agent import machine, schedule  # noqa: F401

pytest.importorskip("fastapi", reason="A CLIENT THAT IS CUT OFF IS NOT TESTED: fastapi is not installed")
POOL = "nodes:\n  - {name: here, device: h200, count: 2}\n"
HOLDS_S = 6.0


class Cable:
    """Leads from a port of its own to that of a service, until it is cut."""

    def __init__(self, url):
        host, _, port = url.removeprefix("http://").partition(":")
        self._to = (host, int(port))
        self._listens = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listens.getsockname()[1]}"
        self.whole = True
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._lead, daemon=True)
        self._thread.start()

    def close(self):
        self._over.set()
        self._thread.join()
        self._listens.close()

    def _lead(self):
        with selectors.DefaultSelector() as ready:
            ready.register(self._listens, selectors.EVENT_READ)
            while not self._over.is_set():
                for key, _ in ready.select(0.05):
                    if key.fileobj is self._listens:
                        self._join(ready)
                    elif key.fileobj.fileno() >= 0:
                        self._pass_on(ready, key.fileobj, key.data)
                if not self.whole:
                    for key in list(ready.get_map().values()):
                        if key.data is not None:
                            self._hang_up(ready, key.fileobj)

    def _join(self, ready):
        near, _ = self._listens.accept()
        if not self.whole:
            near.close()
            return
        far = socket.create_connection(self._to)
        ready.register(near, selectors.EVENT_READ, far)
        ready.register(far, selectors.EVENT_READ, near)

    def _pass_on(self, ready, one, other):
        with contextlib.suppress(OSError):
            if some := one.recv(1 << 16):
                other.sendall(some)
                return
        self._hang_up(ready, one)
        self._hang_up(ready, other)

    def _hang_up(self, ready, one):
        with contextlib.suppress(KeyError, ValueError):
            ready.unregister(one)
        one.close()


def test_it_falls_to_its_safe_default_keeps_its_reports_and_takes_the_newest_schedule_when_it_is_back(
    machine,  # noqa: F811
    tmp_path,
):
    def limit_w():
        return machine.setting(0).power_limit_w

    with served(tmp_path / "home", POOL) as (url, admin, _), asking(url, admin) as api:
        token = api.post("/tokens", json={"name": "desk-3", "role": "agent"}).json()["text"]
        cable = Cable(url)
        command = ["agent", "--server", cable.url, "--name", "desk-3", "--every", "0.2s", "--state", tmp_path / "agent"]
        with subprocess.Popen([*WATTSMITH, *command], env=os.environ | {"WATTSMITH_TOKEN": token}) as process:
            try:
                until(lambda: api.get("/clients/desk-3").status_code == 200)
                given = schedule(400.0, now_s=time.time(), holds_s=HOLDS_S)  # and by default 600 W
                api.put("/clients/desk-3/schedule", json=given).raise_for_status()
                until(lambda: limit_w() == 400.0)
                cable.whole = False
                until(lambda: limit_w() == 600.0, within_s=HOLDS_S + 30)
                later = schedule(500.0, now_s=time.time(), holds_s=600.0)
                api.put("/clients/desk-3/schedule", json=later).raise_for_status()
                time.sleep(1.0)
                assert limit_w() == 600.0
                heard_s = api.get("/clients/desk-3").json()["last_seen_s"]
                cable.whole = True
                until(lambda: limit_w() == 500.0, within_s=45)  # it tries again every half minute at worst
                until(lambda: (api.get("/clients/desk-3").json()["latest"]["serial"]) == 2)
            finally:
                process.send_signal(signal.SIGTERM)
                process.wait(30)
        cable.close()
        assert limit_w() == 700.0
        known = api.get("/clients/desk-3").json()
        assert known["last_seen_s"] > heard_s + 1.0
        assert abs(known["skew_s"]) < 5.0  # what came late is no wrong clock
        kept = [one["report"] for one in api.get("/clients/desk-3/telemetry?limit=10000").json()["reports"]]
        assert sorted(one["number"] for one in kept) == list(range(1, len(kept) + 1))
        told = [(one["serial"], (one["in_force"].get("gpu:0") or {}).get("power_limit_w")) for one in kept]
        assert {(1, 400.0), (None, 600.0), (2, 500.0)} <= set(told)
