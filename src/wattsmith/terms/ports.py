"""Protocols: the few shapes that more than one real thing has."""

from typing import Protocol

from wattsmith.terms.energy import MeterCard, Readings
from wattsmith.terms.machine import GaugeReading


class Clock(Protocol):
    """Monotonic time, and a way to let it pass."""

    def now_s(self) -> float: ...

    def sleep_s(self, duration_s: float) -> None: ...


class Meter(Protocol):
    """Something that tells the energy of one domain."""

    @property
    def card(self) -> MeterCard: ...

    def read(self, *, counter: bool) -> Readings:
        """What is new since the last read. Asks for the energy counter, where there is one, only if COUNTER.

        Raises MeterMissed when this one reading failed, MeterLost when there will be no more.
        """

    def close(self) -> None:
        """Let go of the hardware. Reading afterwards is not allowed."""


class Gauge(Protocol):
    """Something that tells how a device is: utilisation, memory, clocks, temperature. Not energy."""

    domain: str

    def look(self) -> GaugeReading:
        """How it is now. Raises MeterMissed or MeterLost as a meter does."""
