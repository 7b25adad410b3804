"""What a Feeder has done so far, in figures."""

import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from wattsmith.terms.energy import Source, Window

WAITING = "data"  # the phase of a window in which the trainer waits
SHOWN_S = 1.0  # between two live lines


class EnergyWindow(Protocol):
    """A stretch of work that is being measured, such as `wattsmith.measure` opens."""

    def phase(self, name: str) -> AbstractContextManager[None]: ...

    def so_far(self) -> Window | None: ...


def energy_of(window: EnergyWindow | None) -> tuple[float | None, float | None, str]:
    """Joules of WINDOW so far, and of those in which the trainer waited (None: not known), and what they are not."""
    measured = None if window is None else window.so_far()
    if measured is None or measured.energy_j is None:
        return None, None, ""
    waited = [phase.energy_j for phase in measured.phases if phase.name == WAITING]
    modelled = any(one.source is Source.MODELLED for one in measured.counted)
    marks = {"simulated": measured.simulated, "modelled": modelled}
    return (
        measured.energy_j,
        sum(energy_j[one.domain] for energy_j in waited for one in measured.counted),
        ", ".join(mark for mark, holds in marks.items() if holds),
    )


class LiveLine:
    """One line on standard error that is written over."""

    def __init__(self) -> None:
        self._shown_s = 0.0

    def show(self, report: "Callable[[], FeedReport]") -> None:
        now_s = time.monotonic()
        if now_s - self._shown_s >= SHOWN_S:
            self._shown_s = now_s
            sys.stderr.write(f"\r\x1b[2K{report()}")
            sys.stderr.flush()


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedReport:
    """One run of a Feeder, from the first batch that was asked for until now."""

    duration_s: float
    waiting_s: float  # of the trainer, for data
    batches: int
    bytes: int  # of tensors and arrays that workers sent
    workers: int  # now; once they have gone home: how many there were
    redone: int  # batches that were given out again since a worker was lost or late
    lost: int  # workers that died
    late: int  # workers that overran a lease
    dropped: int  # batches that arrived after another copy of them
    made_s: float | None  # mean of a worker for one batch; None: no worker made one
    energy_j: float | None  # None: no meter was given
    waiting_j: float | None  # of those, while the trainer waited
    energy_is: str = ""  # "simulated", "modelled": where it was not measured

    @property
    def waiting(self) -> float:
        """Share of the time in which the trainer waited for data."""
        return self.waiting_s / self.duration_s if self.duration_s > 0 else 0.0

    @property
    def bytes_per_s(self) -> float:
        return self.bytes / self.duration_s if self.duration_s > 0 else 0.0

    def __str__(self) -> str:
        energy = "" if self.energy_j is None else f", {self.energy_j:.0f} J ({self.waiting_j or 0:.0f} J waiting)"
        energy += f", {self.energy_is}" if self.energy_is else ""
        return (
            f"{self.batches} batches, {self.workers} workers, waiting {self.waiting:.0%}, "
            f"{self.bytes_per_s / 1e6:.0f} MB/s, {self.redone} redone{energy}"
        )


@dataclass(slots=True)
class Counts:
    """Adds up. Times are of one clock that only goes forward."""

    began_s: float | None = None
    ended_s: float | None = None
    waiting_s: float = 0.0  # of waits that are over
    waits_since_s: float | None = None  # None: the trainer does not wait now
    batches: int = 0
    bytes: int = 0
    made_s: float = 0.0
    made: int = 0
    blocked_s: float = 0.0
    redone: int = 0
    lost: int = 0
    late: int = 0
    dropped: int = 0
    workers: int = 0  # that went home when the last epoch ended

    def add_made(self, made_s: float, blocked_s: float, size_bytes: int) -> None:
        self.made_s += made_s - blocked_s
        self.blocked_s += blocked_s
        self.made += 1
        self.bytes += size_bytes

    def begin_wait(self, now_s: float) -> None:
        if self.began_s is None:
            self.began_s = now_s
        self.waits_since_s = now_s

    def end_wait(self, now_s: float) -> None:
        self.waiting_s = self.waiting_by_s(now_s)
        self.waits_since_s = None
        self.ended_s = now_s

    def waiting_by_s(self, now_s: float) -> float:
        """Seconds of waiting until NOW_S, the wait that may be under way included."""
        return self.waiting_s + (0.0 if self.waits_since_s is None else now_s - self.waits_since_s)

    def report(
        self, workers: int, energy_j: float | None = None, waiting_j: float | None = None, energy_is: str = ""
    ) -> FeedReport:
        began_s = time.perf_counter() if self.began_s is None else self.began_s
        return FeedReport(
            duration_s=max(0.0, (self.ended_s or began_s) - began_s),
            waiting_s=self.waiting_s,
            batches=self.batches,
            bytes=self.bytes,
            workers=workers,
            redone=self.redone,
            lost=self.lost,
            late=self.late,
            dropped=self.dropped,
            made_s=self.made_s / self.made if self.made else None,
            energy_j=energy_j,
            waiting_j=waiting_j,
            energy_is=energy_is,
        )
