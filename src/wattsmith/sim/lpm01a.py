"""A simulated LPM01A: a pseudo-terminal that answers as the monitor does, before a device that is not there."""

import os
import pty
import select
import threading
import time
import tty
from pathlib import Path
from typing import Self

FAILURES = ("silent", "refuses", "garbage")
RATE_HZ = 1000


class SimulatedLpm01a:
    """Serves while entered: energy of `power_w` a thousand times a second, once it is started."""

    def __init__(self, *, power_w: float = 0.01) -> None:
        self.power_w = power_w
        self.failure: str | None = None
        self.commands: list[str] = []
        self._ours, self._theirs = pty.openpty()
        tty.setraw(self._ours)
        tty.setraw(self._theirs)
        self._stop = threading.Event()
        self._sent: int | None = None  # samples so far; None: it is not started
        self._began_s = 0.0
        self._thread = threading.Thread(target=self._serve, name="simulated-lpm01a", daemon=True)

    @property
    def path(self) -> Path:
        return Path(os.ttyname(self._theirs))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        for file in {self._ours, self._theirs}:
            os.close(file)

    def _serve(self) -> None:
        waiting = b""
        while not self._stop.is_set():
            ready, _, _ = select.select([self._ours], [], [], 0.01)
            if ready:
                waiting += os.read(self._ours, 4096)
                *lines, waiting = waiting.split(b"\n")
                for line in lines:
                    self._answer(line.decode("ascii", "replace").strip())
            self._send_due()

    def _answer(self, command: str) -> None:
        self.commands.append(command)
        if self.failure == "silent":
            return
        if self.failure == "refuses":
            self._write(f"error {command}")
            return
        self._write(f"ack {command} (wattsmith-simulated)")
        if command == "start":
            self._sent, self._began_s = 0, time.monotonic()
        elif command == "stop":
            self._sent = None

    def _send_due(self) -> None:
        if self._sent is None or self.failure == "silent":
            return
        if self.failure == "garbage":
            os.write(self._ours, b"\xff\x00?!\n")
            return
        due = int((time.monotonic() - self._began_s) * RATE_HZ)
        lines = []
        while self._sent < due:
            if self._sent % RATE_HZ == 0:
                lines.append(f"timestamp {self._sent // RATE_HZ} s")
            lines.append(sample_text(self.power_w / RATE_HZ))
            self._sent += 1
        if lines:
            self._write("\n".join(lines))

    def _write(self, text: str) -> None:
        os.write(self._ours, text.encode() + b"\n")


def sample_text(energy_j: float) -> str:
    """A sample as the monitor writes it, to four digits: 1.234 µJ is "1234-09"."""
    exponent = -12
    while energy_j / 10.0**exponent >= 9999.5:
        exponent += 1
    return f"{round(energy_j / 10.0**exponent):04d}{exponent:+03d}"
