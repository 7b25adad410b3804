"""The service's clock as an agent knows it: what it says of the time, and how long ago that was.

The agent's own wall clock may be wrong by hours or be set at any moment, so it is not asked. Time since this machine
was started goes on while it sleeps, and is the same in a process that is started anew.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DRIFT = 1e-4  # clocks of two machines go apart by less than that, in seconds a second
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NOTE_EVERY_S = 30.0


def since_boot_s() -> float:
    """Seconds since this machine was started."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def boot_id() -> str | None:
    """Names this start of the machine; None: it does not tell."""
    try:
        return BOOT_ID.read_text().strip() or None
    except OSError:
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """How far the service's clock was ahead of ours."""

    ahead_s: float
    error_s: float  # half the round trip: when it looked at its clock is not known better
    at_s: float


class ServerClock:
    """Tells the service's time. Every method may be called from any thread."""

    def __init__(
        self, path: Path | None = None, *, now_s: Callable[[], float] = since_boot_s, boot: str | None = None
    ) -> None:
        """PATH: where it is noted for the next agent on this machine; BOOT: which start of the machine this is."""
        self._path = path
        self._now_s = now_s
        self._boot = boot or boot_id()
        self._lock = threading.Lock()
        self._noted_s: float | None = None
        self._heard = self._read()

    def hear(self, server_time_s: float, sent_s: float, received_s: float) -> None:
        """The service said SERVER_TIME_S some time between SENT_S and RECEIVED_S of our clock."""
        new = Heard(
            ahead_s=server_time_s - (sent_s + received_s) / 2, error_s=(received_s - sent_s) / 2, at_s=received_s
        )
        with self._lock:
            old = self._heard
            if old is not None:
                aged_s = old.error_s + DRIFT * max(0.0, new.at_s - old.at_s)
                # One that came quickly is worth more than one that took long, unless the clock itself was set.
                if new.error_s > aged_s and abs(new.ahead_s - old.ahead_s) <= new.error_s + aged_s:
                    return
            self._heard = new
            self._note(new)

    def now_s(self) -> float | None:
        """The service's time, seconds since 1970; None: it was not heard since this machine was started."""
        with self._lock:
            return None if self._heard is None else self._now_s() + self._heard.ahead_s

    def _note(self, heard: Heard) -> None:
        if self._path is None or self._boot is None:
            return
        if self._noted_s is not None and heard.at_s - self._noted_s < NOTE_EVERY_S:
            return
        self._noted_s = heard.at_s
        fresh = self._path.with_name(f"{self._path.name}.new")
        told = {"boot": self._boot, "ahead_s": heard.ahead_s, "error_s": heard.error_s, "at_s": heard.at_s}
        with contextlib.suppress(OSError):  # without it an agent that starts while the service is away waits for it
            fresh.write_text(json.dumps(told))
            fresh.replace(self._path)

    def _read(self) -> Heard | None:
        if self._path is None or self._boot is None:
            return None
        try:
            told: Any = json.loads(self._path.read_text())
            if told["boot"] != self._boot:
                return None
            return Heard(**{name: float(told[name]) for name in ("ahead_s", "error_s", "at_s")})
        except (OSError, ValueError, KeyError, TypeError):
            return None
