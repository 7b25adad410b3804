"""What a client device tells of the work on it, and what it was recognised as."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Structure
from wattsmith.terms.work import Interval, Parameter

COUNTERS = ("energy_j", "instructions", "cycles", "steps")  # these only grow
ACTIVITIES = (
    *("engine_ratio", "sm_ratio", "occupancy_ratio", "tensor_ratio", "dram_ratio"),
    *("fp64_ratio", "fp32_ratio", "fp16_ratio", "integer_ratio"),
)
CHANNELS = (
    *("power_w", "busy_ratio", "memory_busy_ratio", "memory_used_bytes", "clock_hz", "memory_clock_hz"),
    *ACTIVITIES,
    *COUNTERS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One channel over time, as it was read: nothing says yet that its values make sense."""

    time_s: tuple[float, ...]
    values: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.time_s) != len(self.values):
            raise BadTerm(f"a series has {len(self.time_s)} times and {len(self.values)} values; they go in pairs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What was read of one device while a program ran on it. Any channel may be missing."""

    series: Mapping[str, Series]  # by names of CHANNELS
    domain: str = "gpu:0"
    device: str | None = None  # such as "NVIDIA H200"
    power_limit_w: float | None = None
    max_clock_hz: float | None = None
    memory_bytes: int | None = None
    steps_per_s: float | None = None  # progress, as the program itself counts it
    structure: Structure | None = None  # layer information: of a traced step, or from a hook
    sensor_s: float | None = None  # the finest time at which its power tells anything new
    simulated: bool = False
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if strange := sorted(set(self.series) - set(CHANNELS)):
            raise BadTerm(f"telemetry has no channel {', '.join(strange)}; there are {', '.join(CHANNELS)}")
        for name in ("power_limit_w", "max_clock_hz", "memory_bytes", "steps_per_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadTerm(f"{name} must be positive and finite, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A part of a trace in which the device did one thing."""

    begin_s: float
    end_s: float
    power_w: float | None
    kind: str  # "steady", "load" before it, "idle", "other"

    @property
    def duration_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """What is typical of a program, without units. None: not known; which are known is part of it."""

    features: Mapping[str, float | None]
    period_s: float | None = None  # of a step; None: none is seen, or it lies below what the sensor resolves
    power_w: float | None = None  # the client's own level, which scales relative curves
    steps_per_s: float | None = None
    stretches: tuple[Stretch, ...] = ()
    duration_s: float = 0.0  # of the steady part
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.features.items() if value is not None)

    @property
    def missing(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.features.items() if value is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class RelativeResponse:
    """How time and power of a program react to a setting, all relative to the usual setting, which is 1."""

    settings: tuple[float, ...]  # ascending; a clock or limit over the usual one
    time_ratio: tuple[float, ...]
    power_ratio: tuple[float, ...]
    knob: str = "clock"  # or "power_limit"

    def __post_init__(self) -> None:
        if self.knob not in ("clock", "power_limit"):
            raise BadTerm(f"knob must be 'clock' or 'power_limit', got {self.knob!r}")
        if not len(self.settings) == len(self.time_ratio) == len(self.power_ratio) or len(self.settings) < 2:
            raise BadTerm("a response needs at least two settings, with a time and a power for each")
        if any(b <= a for a, b in zip(self.settings, self.settings[1:], strict=False)):
            raise BadTerm(f"settings must ascend, got {self.settings}")
        if any(not 0 < one < math.inf for one in (*self.settings, *self.time_ratio, *self.power_ratio)):
            raise BadTerm("settings, times and powers of a response must be positive and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class Benchmark:
    """A recorded program: what it looked like and, where it was run at several settings, how it reacts."""

    name: str
    group: str  # what it must be left out together with when something is learnt about it
    family: str
    features: Mapping[str, float | None]
    response: RelativeResponse | None = None
    parameters: Mapping[str, Parameter] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a short trial at another setting gave, over the usual one. None: not seen."""

    setting: float  # over the usual one
    time_ratio: float | None = None
    power_ratio: float | None = None

    def __post_init__(self) -> None:
        for name in ("setting", "time_ratio", "power_ratio"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise BadTerm(f"{name} of a probe must be positive and finite, got {value}")
        if self.time_ratio is None and self.power_ratio is None:
            raise BadTerm("a probe must have a time_ratio, a power_ratio, or both")


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """A recorded program that looks like the client's."""

    name: str
    family: str
    distance: float  # in the learnt measure; 1 is as far as a program of the record is usually from its next
    weight: float  # of its curve in the blend


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyGuess:
    """What kind of network it seems to be."""

    family: str
    share: float  # of the neighbours' weight
    others: Mapping[str, float] = field(default_factory=dict)
    parameters: Mapping[str, Parameter] = field(default_factory=dict)  # middle of the neighbours of that family


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseGuess:
    """How the client's program should react, at each setting with the range that holds it nine times of ten."""

    settings: tuple[float, ...]
    time_ratio: tuple[Interval, ...]
    power_ratio: tuple[Interval, ...]
    power_w: tuple[Interval, ...] | None = None  # scaled to the client's own level; None: that is not known
    from_points: int = 0
    probes: tuple[Probe, ...] = ()
    knob: str = "clock"  # or "power_limit": what the settings are of
    usual: float | None = None  # Hz or W: what a setting of 1 is; None: not known

    def at(self, setting: float) -> int:
        """The place of the setting that lies nearest."""
        return min(range(len(self.settings)), key=lambda place: abs(self.settings[place] - setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """What a client's work was recognised as, and on which evidence."""

    fingerprint: Fingerprint
    neighbours: tuple[Neighbour, ...]  # nearest first
    family: FamilyGuess | None
    response: ResponseGuess | None  # None: refused, or the record has no curves
    nearest: float  # distance of the nearest one
    farthest_known: float  # beyond which nothing in the record is near
    refused: str | None = None  # why nothing is near, and what to add; None: it was recognised
    record: str | None = None
    used: tuple[str, ...] = ()  # features that were compared
    simulated: bool = False
    notes: tuple[str, ...] = ()

    @property
    def recognised(self) -> bool:
        return self.refused is None
