"""A real `wattsmith serve` as a process, and how tests ask it."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx

WATTSMITH = [sys.executable, "-c", "from wattsmith.cli import main; main()"]


@contextlib.contextmanager
def served(home, pool, *more, environment=None):
    """A service on a free port with the machines of the text POOL: its URL, its admin's token and its process."""
    written = home.parent / "pool.yaml"
    written.write_text(pool)
    command = [*WATTSMITH, "serve", "--json", "--port", "0", "--home", str(home), "--pool", str(written), *more]
    with subprocess.Popen(command, env=os.environ | (environment or {}), stdout=subprocess.PIPE, text=True) as process:
        try:
            said = json.loads(process.stdout.readline())
            yield said["url"], Path(said["admin_token"]).read_text().strip(), process
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def asking(url, token):
    return httpx.Client(base_url=f"{url}/api/v1", headers={"Authorization": f"Bearer {token}"}, timeout=30)


def until(done, within_s=60.0):
    """What DONE gives, as soon as it is something."""
    deadline_s = time.monotonic() + within_s
    while not (found := done()) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    assert found, f"not within {within_s:g} s"
    return found
