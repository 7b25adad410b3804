"""The work schedule: one document per client that says what runs there, when, at which settings, and how long it holds.

All times are seconds since 1970, UTC. None: left as found, or not known.
"""

import math
from dataclasses import dataclass, field
from enum import StrEnum

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import SettingSource, Shape
from wattsmith.terms.work import Interval, Setting

VERSION = 1


class Phase(StrEnum):
    """What a program is doing."""

    LOAD = "load"
    WARM_UP = "warm-up"
    STEADY = "steady"
    COMMUNICATION = "communication"
    EVALUATION = "evaluation"
    CHECKPOINT = "checkpoint"
    IDLE = "idle"


class Rollback(StrEnum):
    """What a client does when a setting turns out wrong."""

    DEFAULT = "default"  # to the safe default
    PREVIOUS = "previous"  # to what it had before this schedule
    KEEP = "keep"


def _check(fact: object, names: tuple[str, ...], *, zero: bool = True) -> None:
    for name in names:
        value = getattr(fact, name)
        if value is not None and not (0 <= value < math.inf and (zero or value > 0)):
            least = "not negative" if zero else "positive"
            raise BadTerm(f"{name} must be finite and {least}, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceIdentity:
    """A device of the client, and its power limits as they were read."""

    device: str  # "gpu:0"
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    clock_range_hz: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        _check(self, ("memory_bytes", "power_limit_w"))


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidencePoint:
    """A point of the record that a match rests on."""

    point: str  # its key in the record
    weight: float
    distance: float

    def __post_init__(self) -> None:
        _check(self, ("weight", "distance"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the settings rest on, and how far to trust it."""

    source: SettingSource
    record: str | None = None  # by name and version
    points: tuple[EvidencePoint, ...] = ()
    confidence: float | None = None  # from 0 to 1
    rejected: bool = False  # nothing in the record was near enough, so that defaults stand
    why: str | None = None

    def __post_init__(self) -> None:
        if self.confidence is not None and not 0 <= self.confidence <= 1:
            raise BadTerm(f"confidence must be from 0 to 1, got {self.confidence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseSetting:
    """How one device is set in one phase, and what to expect of it."""

    device: str
    phase: Phase
    setting: Setting
    from_s: float | None = None  # None: whenever the phase comes
    until_s: float | None = None
    steps: float | None = None  # to be done at this setting; None: all of the phase
    power_w: Interval | None = None  # mean
    p99_w: float | None = None
    peak_w: float | None = None  # at any instant
    step_s: Interval | None = None
    source: SettingSource = SettingSource.DEFAULT

    def __post_init__(self) -> None:
        _check(self, ("steps", "p99_w", "peak_w"))
        if self.from_s is not None and self.until_s is not None and not self.from_s < self.until_s:
            raise BadTerm(f"a phase must end after it begins, got {self.from_s} … {self.until_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """From one moment to another."""

    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.from_s) and self.from_s < self.until_s < math.inf):
            raise BadTerm(f"a span must end after it begins, got {self.from_s} … {self.until_s}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalWindow:
    """How dirty or dear energy is for a while."""

    span: Span
    kind: str  # "carbon", in g/kWh, or "tariff", in money/kWh
    value: float

    def __post_init__(self) -> None:
        if self.kind not in ("carbon", "tariff") or not math.isfinite(self.value):
            raise BadTerm(f"a signal is a finite carbon or tariff, got {self.kind!r} {self.value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """When the work may begin, must have ended, and may pause."""

    earliest_start_s: float | None = None
    latest_start_s: float | None = None
    deadline_s: float | None = None
    runs: tuple[Span, ...] = ()  # what was planned; between them it pauses
    pausable: bool = False
    pause_every_s: float | None = None  # checkpoints, the points at which it may pause, are so far apart
    signals: tuple[SignalWindow, ...] = ()

    def __post_init__(self) -> None:
        _check(self, ("pause_every_s",), zero=False)
        first_s, last_s = self.earliest_start_s, self.latest_start_s
        if first_s is not None and last_s is not None and first_s > last_s:
            raise BadTerm(f"the latest start, {self.latest_start_s}, is before the earliest")


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Which devices the work has, and which it must not have."""

    node: str
    devices: tuple[str, ...]
    excluded: tuple[str, ...] = ()
    shared: bool = False  # with other work

    def __post_init__(self) -> None:
        if both := set(self.devices) & set(self.excluded):
            raise BadTerm(f"{sorted(both)[0]} is both given and excluded")


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLimits:
    """How fast power may change, and between which ends it stays."""

    ramp_up_w_per_s: float | None = None
    ramp_down_w_per_s: float | None = None
    stagger_s: float | None = None  # between the starts of two devices
    floor_w: float | None = None
    headroom_w: float | None = None  # kept above the caps for instants
    max_temperature_c: float | None = None

    def __post_init__(self) -> None:
        _check(self, ("ramp_up_w_per_s", "ramp_down_w_per_s"), zero=False)
        _check(self, ("stagger_s", "floor_w", "headroom_w"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """When to look, when to match again, and what to do when this schedule is over or wrong."""

    sample_s: float = 1.0
    power_drift_ratio: float = 0.1  # off by more than that: match again
    step_drift_ratio: float = 0.1
    drift_for_s: float = 30.0  # for so long
    rollback: Rollback = Rollback.DEFAULT
    lease_s: float = 300.0  # settings come back by themselves when it is not renewed

    def __post_init__(self) -> None:
        _check(self, ("sample_s", "power_drift_ratio", "step_drift_ratio", "lease_s"), zero=False)
        _check(self, ("drift_for_s",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One piece of work of a client."""

    job: str
    phases: tuple[PhaseSetting, ...]
    shape: Shape
    timing: Timing
    site: Site
    evidence: Evidence


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkSchedule:
    """What one client does, and until when that holds."""

    client: str
    issued_s: float
    valid_from_s: float
    valid_until_s: float
    serial: int  # a later one takes the place of an earlier one
    devices: tuple[DeviceIdentity, ...]
    works: tuple[Work, ...]
    limits: PowerLimits = field(default_factory=PowerLimits)
    watch: Watch = field(default_factory=Watch)
    safe_default: tuple[PhaseSetting, ...] = ()  # once it is over; empty: settings as they were found
    version: int = VERSION

    def __post_init__(self) -> None:
        if self.version != VERSION:
            raise BadTerm(f"this is version {self.version} of a work schedule, and {VERSION} is what is known here")
        if not self.client:
            raise BadTerm("a work schedule needs the name of its client")
        if not (math.isfinite(self.valid_from_s) and self.valid_from_s < self.valid_until_s < math.inf):
            raise BadTerm(f"it must hold until after it begins, got {self.valid_from_s} … {self.valid_until_s}")
        if self.serial < 0:
            raise BadTerm(f"serial must not be negative, got {self.serial}")
        known = {device.device for device in self.devices}
        for phase in (*self.safe_default, *(each for work in self.works for each in work.phases)):
            if phase.device not in known:
                raise BadTerm(f"{phase.device} is set, and is not among the devices {sorted(known)}")
