"""MLPerf's own client and director, from the user's copy of mlcommons/power-dev, driving our stand-in for the daemon.

Nothing of it is kept. It asks an NTP server on port 123 for the time, so a small one answers on loopback meanwhile;
that needs root.
"""

import os
import shlex
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REVISION = "c4b3ad8"
NTP_EPOCH_S = 2_208_988_800  # of NTP's seconds, which begin in 1900, at the beginning of 1970
LOOPBACK = "127.0.0.1"


class NotPossible(Exception):
    """The official workflow cannot be run here."""


def official_session(repository: Path, scratch: Path, workload: str, logs: Path, watts: float) -> Path:
    """A whole session under the official client and director; the folder with its power, ranging and run_1."""
    home = scratch / "workflow"
    home.mkdir()
    told = subprocess.run(
        ["git", "-C", str(repository), "archive", REVISION, "ptd_client_server"], capture_output=True, check=True
    )
    subprocess.run(["tar", "x", "-C", str(home)], input=told.stdout, check=True)
    port, ptd_port = free_port(), free_port()
    config = home / "server.conf"
    config.write_text(
        f"[server]\nntpServer: {LOOPBACK}\nlisten: {LOOPBACK} {port}\n"
        f"[ptd]\nptd: {stand_in(home, watts)}\n"
        f"[analyzer1]\nnetworkPort: {ptd_port}\ndeviceType: 0\ninterfaceFlag:\ndevicePort: simulated\n"
    )
    environment = os.environ | {"PYTHONPATH": str(home)}
    with ntp_answers(), (scratch / "director.txt").open("w") as said:
        director = subprocess.Popen(
            [sys.executable, "ptd_client_server/server.py", "-c", str(config)],
            cwd=home,
            env=environment,
            stdout=said,
            stderr=said,
        )
        try:
            wait_for_port(port)
            client = [sys.executable, "ptd_client_server/client.py", "-a", LOOPBACK, "-p", str(port), "-n", LOOPBACK]
            client += ["-w", workload, "-L", str(logs), "-o", str(scratch / "out"), "-T", "-f", "-S"]
            subprocess.run(client, cwd=home, env=environment, check=True, capture_output=True, text=True, timeout=600)
            director.wait(timeout=30)
        except subprocess.CalledProcessError as failed:
            raise NotPossible(f"the official client failed: {failed.stderr[-600:]}") from failed
        finally:
            if director.poll() is None:
                director.terminate()
                director.wait()
    return scratch / "out"


def stand_in(folder: Path, watts: float) -> Path:
    """A program that can be started as the daemon."""
    path = folder / "simulated-ptd"
    path.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m wattsmith.sim.ptd --watts {watts} "$@"\n')
    path.chmod(0o755)
    return path


def free_port() -> int:
    with socket.create_server((LOOPBACK, 0)) as server:
        return int(server.getsockname()[1])


def wait_for_port(port: int, patience_s: float = 30.0) -> None:
    deadline_s = time.monotonic() + patience_s
    while time.monotonic() < deadline_s:
        with socket.socket() as probe:
            if probe.connect_ex((LOOPBACK, port)) == 0:
                return
        time.sleep(0.2)
    raise NotPossible(f"the official director did not listen within {patience_s:g} s")


@contextmanager
def ntp_answers() -> Iterator[None]:
    """This machine's own clock, told as NTP on loopback."""
    server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        server.bind((LOOPBACK, 123))
    except OSError as refused:
        server.close()
        raise NotPossible(
            f"port 123 cannot be had ({refused.strerror}): run as root, without an NTP server"
        ) from refused
    server.settimeout(0.1)
    stop = threading.Event()

    def answer() -> None:
        while not stop.is_set():
            try:
                asked, who = server.recvfrom(1024)
            except TimeoutError:
                continue
            now = time.time() + NTP_EPOCH_S
            stamp = struct.pack("!II", int(now), int(now % 1 * 2**32))
            head = struct.pack("!BBbb", 0b00_100_100, 2, 0, -20) + b"\0" * 8 + b"LOCL"
            server.sendto(head + stamp + asked[40:48] + stamp + stamp, who)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
        server.close()
