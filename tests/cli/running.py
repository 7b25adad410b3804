"""Runs the command `wattsmith` as a user would."""

import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from fcntl import ioctl
from pathlib import Path

WATTSMITH = str(Path(sys.executable).with_name("wattsmith"))


def wattsmith(*arguments, environment=None, **more):
    """Run `wattsmith ARGUMENTS` to its end."""
    return subprocess.run(
        [WATTSMITH, *map(str, arguments)],
        env=os.environ | (environment or {}),
        capture_output=True,
        text=True,
        check=False,
        timeout=150,  # of a busy machine
        **more,
    )


def start_wattsmith(*arguments, environment=None):
    """Start `wattsmith ARGUMENTS` and go on."""
    return subprocess.Popen(
        [WATTSMITH, *map(str, arguments)],
        env=os.environ | (environment or {}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def measured(*arguments, environment=None):
    """The JSON that `wattsmith measure ARGUMENTS` gives, which must not fail on its own account."""
    done = wattsmith("measure", "--json", "-", *arguments, environment=environment)
    assert "Traceback" not in done.stderr, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def python(program):
    """A command that runs PROGRAM."""
    return [sys.executable, "-c", program]


class Terminal:
    """A terminal with `wattsmith ARGUMENTS` in it. Its screen is 80 × 24."""

    def __init__(self, *arguments, environment=None):
        self.output = ""
        pid, self._terminal = pty.fork()
        if pid == 0:
            os.execve(
                WATTSMITH, [WATTSMITH, *map(str, arguments)], os.environ | {"TERM": "xterm"} | (environment or {})
            )
        self.pid = pid
        ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))

    def type(self, text):
        os.write(self._terminal, text.encode())

    def read_until(self, pattern, timeout_s=30.0):
        """Wait until the output holds PATTERN."""
        deadline_s = time.monotonic() + timeout_s
        while not re.search(pattern, self.output):
            assert time.monotonic() < deadline_s, f"no {pattern!r} in: {self.output!r}"
            if not self._read_some():
                break
        assert re.search(pattern, self.output), f"no {pattern!r} in: {self.output!r}"

    def finish(self, timeout_s=30.0):
        """Read to the end; the exit code."""
        deadline_s = time.monotonic() + timeout_s
        while self._read_some():
            if time.monotonic() > deadline_s:
                os.kill(self.pid, signal.SIGKILL)
                raise AssertionError(f"it did not end; so far: {self.output!r}")
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def _read_some(self):
        if not select.select([self._terminal], [], [], 0.2)[0]:
            return True
        try:
            got = os.read(self._terminal, 65536).decode(errors="replace")
        except OSError:  # how Linux says that nobody has the terminal open any more
            return False
        self.output += got
        return bool(got)
