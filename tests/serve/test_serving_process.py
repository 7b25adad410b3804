"""`wattsmith serve` as a process: started, stopped, killed, and started twice."""

import json
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from tests.cli.keeping import keeps

import wattsmith.cli
from wattsmith.store.opening import open_service_store

WATTSMITH = [sys.executable, "-c", "from wattsmith.cli import main; main()"]
AGENTS = 20
SOON_S = 30.0


@contextmanager
def served(home, *options):
    """A service as a process of its own, and what it said when it was ready."""
    command = [*WATTSMITH, "serve", "--home", home, "--port", "0", "--json", *options]
    with subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            line = process.stdout.readline()
            assert line, process.stderr.read()
            keeps("serve", line)
            yield process, json.loads(line)
        finally:
            process.kill()


def client_of(said, token=None):
    token = token or Path(said["admin_token"]).read_text(encoding="ascii").strip()
    return httpx.Client(base_url=f"{said['url']}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=SOON_S)


def stopped(process):
    process.send_signal(signal.SIGTERM)
    assert process.wait(SOON_S) == 0
    return process.stderr.read()


def test_the_first_token_is_in_a_file_that_only_its_owner_reads_and_nowhere_else(tmp_path):
    with served(tmp_path / "home") as (process, said):
        with client_of(said) as client:
            assert client.get("/whoami").json()["role"] == "admin"
            secret = client.headers["Authorization"].rpartition("_")[2]
        path = tmp_path / "home" / "admin-token"
        assert said["admin_token"] == str(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert secret not in json.dumps(said)
        assert secret not in stopped(process)
    assert secret.encode() not in (tmp_path / "home" / "service.sqlite").read_bytes()


def test_a_second_service_on_the_same_home_is_refused_kindly(tmp_path):
    with served(tmp_path) as (process, _):
        command = [*WATTSMITH, "serve", "--home", str(tmp_path), "--port", "0"]
        second = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
        assert second.returncode == 2
        assert f"process {process.pid}" in second.stderr
        assert "Traceback" not in second.stderr


def test_a_port_that_is_taken_is_told(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [*WATTSMITH, "serve", "--home", str(tmp_path), "--port", port]
        refused = subprocess.run(command, capture_output=True, text=True, timeout=SOON_S, check=False)
    assert refused.returncode == 2
    assert f"port {port}" in refused.stderr


def test_what_was_acknowledged_before_kill_9_is_in_the_database(tmp_path):
    names = [f"rack-{index}" for index in range(AGENTS)]
    acknowledged = {name: set() for name in names}
    with served(tmp_path) as (process, said):
        with client_of(said) as admin:
            tokens = [admin.post("/tokens", json={"name": name, "role": "agent"}).json()["text"] for name in names]
        together = threading.Barrier(AGENTS + 1)

        def post(name, token):
            with client_of(said, token) as client:
                together.wait()
                for number in range(1, 100_000):
                    body = {"reports": [{"boot": "b", "number": number, "time_s": 1.0}]}
                    try:
                        answer = client.post(f"/clients/{name}/telemetry", json=body)
                    except httpx.TransportError:
                        return
                    if answer.status_code == 200:
                        acknowledged[name].add(number)

        threads = [threading.Thread(target=post, args=pair) for pair in zip(names, tokens, strict=True)]
        for thread in threads:
            thread.start()
        together.wait()
        time.sleep(2.0)
        os.kill(process.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(SOON_S)
    assert all(acknowledged.values())
    with open_service_store(str(tmp_path / "service.sqlite")) as store:
        kept = {name: {one.report.number for one in store.reports(name, limit=100_000)} for name in names}
    assert {name: sorted(acknowledged[name] - kept[name]) for name in names} == {name: [] for name in names}
    with served(tmp_path) as (_, said), client_of(said) as client:  # the lock went with its holder
        assert set(names) <= {one["name"] for one in client.get("/clients").json()["clients"]}


def test_who_is_in_flight_when_it_stops_is_answered(tmp_path):
    with served(tmp_path) as (process, said), client_of(said) as client:
        address = urlsplit(said["url"])
        body = json.dumps({"reports": [{"boot": "b", "number": 1, "time_s": 1.0}]}).encode()
        head = (
            "POST /api/v1/clients/rack-1/telemetry HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Authorization: {client.headers['Authorization']}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        news = {}
        waiting = threading.Thread(
            target=lambda: news.update(answer=client.get("/events", params={"after": 2**40, "wait_s": 25}))
        )
        waiting.start()
        with socket.create_connection((address.hostname, address.port), timeout=SOON_S) as half_sent:
            half_sent.sendall(head.encode() + body[:10])
            time.sleep(0.5)
            began_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            time.sleep(0.5)
            half_sent.sendall(body[10:])
            answer = half_sent.recv(4096).decode()
        waiting.join(SOON_S)
        assert process.wait(SOON_S) == 0
        assert time.monotonic() - began_s < 15
        assert " 200 " in answer.splitlines()[0]
        assert news["answer"].status_code == 200
    with open_service_store(str(tmp_path / "service.sqlite")) as store:
        assert [one.report.number for one in store.reports("rack-1")] == [1]


def test_tokens_are_made_and_revoked_beside_a_running_service(tmp_path, command):
    def token(*words):
        return json.loads(command("serve", "token", *words, "--home", tmp_path, "--json"))

    with served(tmp_path, "--host", "0.0.0.0") as (process, said), client_of(said, "ws_a_b") as client:
        made = token("add", "kim", "--role", "submit")
        header = {"Authorization": f"Bearer {made['text']}"}
        assert client.get("/whoami", headers=header).json()["name"] == "kim"
        assert [one["name"] for one in token("list")["tokens"]] == ["admin", "kim"]
        assert token("revoke", made["token"]["id"]) == {"revoked": made["token"]["id"]}
        time.sleep(1.0)  # what another process revokes is refused within a second
        assert "was revoked at" in client.get("/whoami", headers=header).json()["error"]["message"]
        assert "revoked before" in command("serve", "token", "revoke", made["token"]["id"], "--home", tmp_path, code=2)
        # It listens to the network, so that any name may lead to it; and it has said what that means.
        assert client.get("/health", headers={"Host": "power.example"}).status_code == 200
        assert "reached from other machines" in stopped(process)


@pytest.fixture
def command(capsys, monkeypatch):
    """Runs `wattsmith ARGUMENTS` in this process, which must exit with CODE: what it said."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["wattsmith", *map(str, arguments)])
        with pytest.raises(SystemExit) as exited:
            wattsmith.cli.main()
        out, err = capsys.readouterr()
        assert (exited.value.code or 0) == code, err
        return err if code else out

    return run


@pytest.mark.parametrize(
    "options", [["--budget", "10"], ["--retention", "soon"], ["--engine", "slurm"], ["--host", "no.such.host.invalid"]]
)
def test_an_option_that_makes_no_sense_is_told(tmp_path, command, options):
    assert options[1] in command("serve", "--home", tmp_path, "--port", "0", *options, code=2)


def test_tokens_need_a_name_and_a_role(tmp_path, command):
    assert "'boss'" in command("serve", "token", "add", "kim", "--role", "boss", "--home", tmp_path, code=2)
    assert "../x" in command("serve", "token", "add", "../x", "--role", "read", "--home", tmp_path, code=2)
    assert "no token" in command("serve", "--home", tmp_path, "token", "revoke", "x", code=2)
