"""A meter, its tape, and when it is to be read."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattsmith.measure.tape import Mark, Tape
from wattsmith.terms.energy import MeterCard, Readings
from wattsmith.terms.errors import MeterLost, MeterMissed
from wattsmith.terms.ports import Clock, Meter

COUNTER_EVERY_S = 1.0  # reading the counter of a large GPU takes 3 ms of a core, so seldom


@dataclass(frozen=True, slots=True, kw_only=True)
class Fed:
    """What went onto a tape in one go: enough to do it again later."""

    domain: str
    readings: Readings
    held_until_s: float | None = None
    lost: str | None = None


Listener = Callable[[Fed], None]


class Track:
    """Reads one meter onto one tape, from whichever thread asks."""

    def __init__(self, meter: Meter, clock: Clock, listeners: Sequence[Listener] = ()) -> None:
        self.meter = meter
        self.tape = Tape(meter.card)
        self.due_s = clock.now_s()
        self._clock = clock
        self._listeners = listeners
        self._reading = threading.Lock()  # held while the hardware answers, which may take long
        self._writing = threading.Lock()  # held for microseconds, while the tape changes
        self._counter_due_s = clock.now_s()
        self._read_s: float | None = None
        self._closed = False

    @property
    def card(self) -> MeterCard:
        return self.tape.card

    def read(self, *, covering_s: float | None = None) -> None:
        """Put what is new on the tape; with COVERING_S only if the tape does not reach that far yet."""
        with self._reading:
            if self._closed or self.tape.lost or (covering_s is not None and self.tape.end_s >= covering_s):
                return
            now_s = self._clock.now_s()
            wants_counter = self.card.counter_period_s is not None and (
                now_s >= self._counter_due_s or self._overflowed(now_s)
            )
            self.due_s = now_s + self.card.poll_period_s
            try:
                readings = self.meter.read(counter=wants_counter)
            except MeterMissed as missed:
                self._feed(Readings(missed=1, why_missed=str(missed)))
                return
            except MeterLost as lost:
                self._lose(str(lost))
                return
            self._feed(readings)
            self._read_s = now_s
            if wants_counter:
                self._counter_due_s = now_s + COUNTER_EVERY_S

    def hold_until(self, time_s: float) -> None:
        """Give up waiting: carry the last power on to TIME_S, in full doubt."""
        with self._reading, self._writing:
            if self.tape.lost is None and self.tape.end_s < time_s:
                self.tape.hold_until(time_s)
                self._tell(Fed(domain=self.card.domain, readings=Readings(), held_until_s=time_s))

    def mark(self, time_s: float, since_s: float | None) -> Mark:
        """The curve at TIME_S, and the peak power since SINCE_S."""
        with self._writing:
            return self.tape.mark(time_s, since_s)

    def forget_before(self, time_s: float, oldest_window_s: float) -> None:
        with self._writing:
            self.tape.forget_before(time_s, oldest_window_s)

    def close(self) -> None:
        with self._reading:
            if not self._closed:
                self._closed = True
                self.meter.close()

    def _overflowed(self, now_s: float) -> bool:
        """Whether the driver's history no longer reaches back to the last read: then the counter fills the gap."""
        if self.card.history_s is None or self._read_s is None:
            return False
        return now_s - self._read_s > self.card.history_s

    def _feed(self, readings: Readings) -> None:
        with self._writing:
            self.tape.feed(readings)
        self._tell(Fed(domain=self.card.domain, readings=readings))

    def _lose(self, why: str) -> None:
        with self._writing:
            self.tape.lose(why)
        self._tell(Fed(domain=self.card.domain, readings=Readings(), lost=why))

    def _tell(self, fed: Fed) -> None:
        for listener in self._listeners:
            listener(fed)
