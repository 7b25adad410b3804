"""Protocols: the few shapes that more than one real thing has."""

from collections.abc import Iterator
from typing import Protocol, TypedDict, Unpack

from wattsmith.terms.energy import MeterCard, Readings
from wattsmith.terms.machine import GaugeReading
from wattsmith.terms.run import Device, Run, Status
from wattsmith.terms.work import Setting, Workload


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


class RunFilters(TypedDict, total=False):
    """Which runs are meant. What is left out or None leaves none out."""

    family: str | None
    kind: str | None
    precision: str | None
    mode: str | None
    status: Status | None
    device: str | None  # its name
    session: str | None
    min_batch: int | None
    max_batch: int | None


class RunStore(Protocol):
    """Something that remembers runs."""

    def add(self, run: Run) -> bool:
        """Remember RUN; False: this session has one of that workload on that device at that setting already.

        When it returns, the run is safe from a crash. Raises NotWritten, and then nothing has changed.
        """

    def has(self, workload: Workload, device: Device, setting: Setting, session: str | None = None) -> bool:
        """Whether there is a run of it, whatever came of it; from SESSION, or from any when None."""

    def runs(self, *, newest_first: bool = False, **only: Unpack[RunFilters]) -> Iterator[Run]:
        """The runs that pass every filter, in the order they were added, or by the time they were measured."""
