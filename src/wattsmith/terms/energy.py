"""What meters say, and what a stretch of work cost."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.quantity import format_quantity

REST = "rest"  # the part of a window that lies in none of its phases


class Source(StrEnum):
    """Where an energy figure comes from, best first."""

    COUNTER = "counter"  # the device's own cumulative energy counter
    POLLED = "polled"  # power readings, integrated by us
    EXTERNAL = "external"  # a meter outside the device: BMC, plug, analyzer
    MODELLED = "modelled"  # computed from a stated model; nothing was measured


@dataclass(frozen=True, slots=True)
class PowerSample:
    """Power at one moment of the monotonic clock."""

    time_s: float
    power_w: float


@dataclass(frozen=True, slots=True)
class CounterReading:
    """Joules since some fixed past moment, as read at one moment of the monotonic clock."""

    time_s: float
    energy_j: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Readings:
    """What a meter gave since it was last read. Samples are in order of time."""

    power: tuple[PowerSample, ...] = ()
    counter: CounterReading | None = None
    missed: int = 0  # readings that should be here and are not
    why_missed: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MeterCard:
    """What one meter is and how far to trust it."""

    domain: str  # "gpu:0", "cpu-package:1", "dram:0", "soc:VDD_IN", "node:0"
    name: str  # what a person would call it: "NVIDIA H200", "package-0"
    source: Source
    counter_period_s: float | None = None  # how often the energy counter moves; None: it has none
    power_period_s: float | None = None  # how often a new power value appears; None: it gives no power
    power_window_s: float | None = None  # each power value is a mean over so long; None: not known
    history_s: float | None = None  # how far back one read reaches; None: it gives the present value alone
    poll_period_s: float = 0.1  # how often it is to be read
    accuracy_ratio: float | None = None  # the sensor's own accuracy as its vendor states it; None: not stated
    encloses: tuple[str, ...] = ()  # kinds of domain whose energy this one contains: ("gpu", "cpu-package")
    simulated: bool = False
    note: str | None = None  # what a reader of the figure must know

    def __post_init__(self) -> None:
        if self.counter_period_s is None and self.power_period_s is None:
            raise BadTerm(f"meter {self.domain} gives neither a counter nor power")

    @property
    def kind(self) -> str:
        """The domain without its number: "gpu" of "gpu:0"."""
        return self.domain.partition(":")[0]

    @property
    def resolution_s(self) -> float:
        """The finest step in time at which this meter tells anything new."""
        if self.power_period_s is not None:
            return self.sample_period_s
        return max(self.counter_period_s or 0.0, self.poll_period_s)

    @property
    def sample_period_s(self) -> float:
        """How far apart its power samples are expected to lie."""
        period_s = self.power_period_s or 0.0
        return period_s if self.history_s is not None else max(period_s, self.poll_period_s)

    @property
    def unseen_ratio(self) -> float:
        """The share of time in which its power sensor does not look; 1 when its averaging is not known."""
        if self.power_period_s is None:
            return 0.0
        return 1.0 - min(1.0, (self.power_window_s or 0.0) / self.sample_period_s)

    @property
    def uneven_ratio(self) -> float:
        """How unevenly its power sensor weighs one moment and another: those it does not see, or sees twice."""
        if self.power_period_s is None:
            return 0.0
        return min(1.0, abs(1.0 - (self.power_window_s or 0.0) / self.sample_period_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The counter and the integrated power over the same stretch, side by side."""

    duration_s: float
    counter_j: float
    integrated_j: float
    joint_error_j: float

    @property
    def agrees(self) -> bool:
        return abs(self.counter_j - self.integrated_j) <= self.joint_error_j


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainEnergy:
    """Energy of one domain over one window, with its source, resolution and error bound."""

    domain: str
    name: str
    source: Source
    energy_j: float | None  # None: unknown; `why` says why and what to do
    error_j: float | None  # the true reading lies within energy_j ± error_j; None with unknown energy
    resolution_s: float | None
    accuracy_ratio: float | None = None  # of the sensor itself, on top of error_j; None: its vendor states none
    simulated: bool = False
    complete: bool = True  # False: the meter was lost inside the window; energy_j holds what came before
    why: str | None = None  # why it is unknown, incomplete or to be read with care
    readings: int = 0  # power samples and counter readings that fell inside
    missed: int = 0  # readings that should have been there
    peak_w: float | None = None  # largest power sample inside
    cross_check: CrossCheck | None = None  # None: only one way to measure, or too short to compare
    encloses: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.energy_j is None and self.why is None:
            raise BadTerm(f"unknown energy of {self.domain} must say why")
        if self.energy_j is not None and self.energy_j < 0:
            raise BadTerm(f"energy of {self.domain} is negative: {self.energy_j} J")

    @property
    def kind(self) -> str:
        return self.domain.partition(":")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """The share of a window spent on one kind of activity. `energy_j` leaves out domains that are unknown."""

    name: str
    duration_s: float
    energy_j: Mapping[str, float]  # by domain


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """What one stretch of work cost."""

    name: str
    began_at: str  # wall-clock date, ISO 8601 with zone
    duration_s: float
    domains: tuple[DomainEnergy, ...]
    phases: tuple[Phase, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)  # kind of meter → why it is not there, what to do

    def __post_init__(self) -> None:
        if self.duration_s < 0:
            raise BadTerm(f"duration_s must not be negative, got {self.duration_s}")

    @property
    def counted(self) -> tuple[DomainEnergy, ...]:
        """The domains that add up to `energy_j`: none of them lies inside another."""
        return not_enclosed(self.domains)

    @property
    def energy_j(self) -> float | None:
        """Joules of all `counted` domains; None when one of them is unknown, or there is none."""
        return _sum_or_none(domain.energy_j for domain in self.counted)

    @property
    def error_j(self) -> float | None:
        """Bound on the error of `energy_j`."""
        return _sum_or_none(domain.error_j for domain in self.counted)

    @property
    def power_w(self) -> float | None:
        """Mean over the window. None: not known, or it took no time."""
        energy_j = self.energy_j
        return None if energy_j is None or self.duration_s == 0 else energy_j / self.duration_s

    def __str__(self) -> str:
        """In a line: how long, how much energy within which bound from which source, or why that is unknown."""
        return f"{self.name}: {format_quantity(self.duration_s, 'time')}, {self._energy_text()}"

    def _energy_text(self) -> str:
        if self.energy_j is None:
            reasons = [domain.why for domain in self.counted if domain.energy_j is None]
            return f"energy unknown: {reasons[0] if reasons else 'no meter was found; `wattsmith machine` says why'}"
        bound = f"{format_quantity(self.energy_j, 'energy')} ± {format_quantity(self.error_j, 'energy', 2)}"
        return f"{bound} ({'; '.join(_source_text(one) for one in self.counted)})"

    @property
    def simulated(self) -> bool:
        return any(domain.simulated for domain in self.domains)

    @property
    def complete(self) -> bool:
        """Whether every meter lasted to the end. An unknown domain is not complete."""
        return all(domain.complete and domain.energy_j is not None for domain in self.domains)

    def domain(self, name: str) -> DomainEnergy:
        for domain in self.domains:
            if domain.domain == name:
                return domain
        known = ", ".join(d.domain for d in self.domains) or "none"
        raise BadTerm(f"window {self.name!r} has no domain {name!r}; it has: {known}")


def _source_text(one: DomainEnergy) -> str:
    marks = {"simulated": one.simulated, "incomplete": not one.complete}
    return ", ".join([one.domain, str(one.source), *(mark for mark, holds in marks.items() if holds)])


def not_enclosed(domains: Iterable[DomainEnergy]) -> tuple[DomainEnergy, ...]:
    """The domains that lie inside no other: with a whole-node meter that is the node alone.

    An enclosing domain whose energy is unknown or incomplete does not count, so that its parts do.
    """
    all_domains = tuple(domains)
    whole = {d.domain: d.energy_j is not None and d.complete for d in all_domains}
    hidden = {kind for d in all_domains if whole[d.domain] for kind in d.encloses}
    parts_known = {d.kind for d in all_domains if d.energy_j is not None}
    return tuple(
        d for d in all_domains if d.kind not in hidden and (whole[d.domain] or not parts_known & set(d.encloses))
    )


def _sum_or_none(values: Iterable[float | None]) -> float | None:
    known = list(values)
    if not known or any(value is None for value in known):
        return None
    return sum(value for value in known if value is not None)
