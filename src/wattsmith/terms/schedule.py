"""How work answers to settings, the jobs and devices of a plan, and the plan itself."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wattsmith.terms.errors import BadTerm, WattsmithError
from wattsmith.terms.feed import plain_target
from wattsmith.terms.work import Setting

MOST_NAMED = 3
NINE_IN_TEN = 1.6449  # standard deviations from the middle to either end of a 90 % interval
ROUNDING = 1e-9
MOST_W = 1e9  # of one device; whoever writes more has mistaken a unit
MOST_MADE_S = 86400.0  # for one batch; likewise


class NoPlan(WattsmithError):
    """What is asked cannot be done with what there is; the message says what would do."""


class SettingSource(StrEnum):
    """Where the figures at a setting come from."""

    MEASURED = "measured"
    PROBED = "probed"
    MATCHED = "matched"
    ESTIMATED = "estimated"
    STATED = "stated"  # by the user, in a file
    DEFAULT = "default"


class Objective(StrEnum):
    """What a plan makes least."""

    ENERGY = "energy"
    TIME = "time"
    CARBON = "carbon"
    COST = "cost"


def _positive(fact: object, *names: str) -> None:
    for name in names:
        value = getattr(fact, name)
        if value is not None and not 0 < value < math.inf:
            raise BadTerm(f"{name} must be positive and finite, got {value}")


def _not_negative(fact: object, *names: str) -> None:
    for name in names:
        value = getattr(fact, name)
        if value is not None and not 0 <= value < math.inf:
            raise BadTerm(f"{name} must be finite and not negative, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWork:
    """What the batches of one device cost, as `Feeder.report()` measures it."""

    made_s: float  # of a worker for what one device takes in one step of the job
    worker_w: float | None = None  # one data worker; None: not known

    def __post_init__(self) -> None:
        _positive(self, "made_s", "worker_w")
        if self.made_s > MOST_MADE_S or (self.worker_w or 0.0) > MOST_W:
            raise BadTerm(f"{self.made_s:g} s for a batch, or {self.worker_w} W, is of no worker; check the units")


@dataclass(frozen=True, slots=True, kw_only=True)
class DataWorkers:
    """The data workers of one device at one setting."""

    count: int
    needed: float  # that keep the device busy if nothing varies
    power_w: float | None = None  # of all of them; None: not known

    def __post_init__(self) -> None:
        _positive(self, "count", "needed", "power_w")

    @property
    def wanted(self) -> int:
        """With room for times that vary; there are fewer where the node has no more cores."""
        return int(plain_target(self.needed))

    @property
    def data_bound(self) -> bool:
        """Whether the device waits for them."""
        return self.count < self.needed * (1 - ROUNDING)


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingPoint:
    """How one device does a piece of work at one setting."""

    setting: Setting
    rate: float  # steps per second
    power_w: float  # of the device, mean
    p99_w: float | None = None  # None: not known
    peak_w: float | None = None
    source: SettingSource = SettingSource.MEASURED
    data_workers: DataWorkers | None = None  # None: nothing is said of its data

    def __post_init__(self) -> None:
        _positive(self, "rate", "power_w", "p99_w", "peak_w")
        if self.power_w > MOST_W:
            raise BadTerm(f"power_w is {self.power_w:g} W, which no device draws")

    @property
    def step_s(self) -> float:
        return 1 / self.rate

    @property
    def known_w(self) -> float:
        """Of the device and, where that is known, of its data workers."""
        workers_w = None if self.data_workers is None else self.data_workers.power_w
        return self.power_w + (workers_w or 0.0)

    @property
    def step_energy_j(self) -> float:
        return self.known_w / self.rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Relative standard errors of predicted figures."""

    power_ratio: float = 0.0  # of errors that differ from device to device and from setting to setting
    common_ratio: float = 0.0  # of the error of power that all devices share: a meter, a hot day
    time_ratio: float = 0.0

    def __post_init__(self) -> None:
        _not_negative(self, "power_ratio", "common_ratio", "time_ratio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """How a piece of work answers to the settings of one device."""

    points: tuple[OperatingPoint, ...]
    idle_w: float = 0.0  # of the device while the work pauses
    doubt: Doubt = field(default_factory=Doubt)
    # False: nobody knows; the figures only stand in, and nothing may be judged by them or told.
    time_known: bool = True
    power_known: bool = True

    def __post_init__(self) -> None:
        if not self.points:
            raise BadTerm("a response needs at least one point: a setting with its rate and power")
        _not_negative(self, "idle_w")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolNode:
    """A machine of the pool, with devices of one kind."""

    name: str
    kind: str  # of device: "a100"
    count: int = 1
    memory_bytes: int | None = None  # of each device; None: not known
    idle_w: float | None = None  # of each device; None: not known
    base_w: float = 0.0  # of the rest of the machine, always drawn
    power_limits_w: tuple[float, float] | None = None  # least and most that may be set; None: whatever a job asks for
    excluded: tuple[int, ...] = ()  # devices that must not be used
    cores: int | None = None  # of its processors, that data workers may use; None: not known, no limit

    def __post_init__(self) -> None:
        if self.count < 1:
            raise BadTerm(f"{self.name}: count must be at least 1, got {self.count}")
        _positive(self, "memory_bytes", "cores")
        _not_negative(self, "idle_w", "base_w")
        if any(not 0 <= one < self.count for one in self.excluded):
            raise BadTerm(f"{self.name}: excluded names devices 0 to {self.count - 1}, got {list(self.excluded)}")

    @property
    def usable(self) -> int:
        """Devices that may be used."""
        return self.count - len(set(self.excluded))

    @property
    def known_idle_w(self) -> float:
        """What is known of its draw while nothing runs: `idle_unknown_of` says what is missing."""
        return self.base_w + self.count * (self.idle_w or 0.0)

    @property
    def cores_each(self) -> int | None:
        """Cores for the data workers of one device, whatever the others do; None: no limit."""
        return None if self.cores is None else self.cores // max(1, self.usable)

    def allows(self, point: OperatingPoint) -> bool:
        """Whether its devices may be set so, and have as many data workers as its cores give them."""
        workers, limit_w = point.data_workers, point.setting.power_limit_w
        if workers is not None and workers.count != workers_within(self.cores_each, workers.wanted):
            return False
        if limit_w is None or self.power_limits_w is None:
            return True
        return self.power_limits_w[0] <= limit_w <= self.power_limits_w[1]


def workers_within(cores: int | None, wanted: int) -> int:
    """Data workers where so many are WANTED: one for each of CORES at most; None: no limit."""
    return wanted if cores is None else min(wanted, cores)


def idle_unknown_of(nodes: Iterable[PoolNode]) -> str | None:
    """What a power budget does not count, and what to do; None: the idle power of all NODES is known."""
    unknown = [f"{node.name} ({node.count} × {node.kind})" for node in nodes if node.idle_w is None]
    if not unknown:
        return None
    named = ", ".join(unknown[:MOST_NAMED]) + (f" and {len(unknown) - MOST_NAMED} more" if unknown[MOST_NAMED:] else "")
    return (
        f"what devices of {named} draw while they idle is not known, and not counted; "
        "state it in the pool file, such as idle: 75W"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What a job needs of one kind of device, on a number of them."""

    kind: str
    devices: int
    response: Response  # of one device; rates are those of the job as a whole
    memory_bytes: float | None = None  # of each device, the upper end; None: not known
    steps_each: float = 1.0  # steps of the job that are done in one on these devices: each has a batch of its own
    data_work: DataWork | None = None  # of each device; None: nothing is said of it

    def __post_init__(self) -> None:
        _positive(self, "steps_each")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How the work is cut: what can be turned without any privilege. None: left as it is."""

    batch: int | None = None
    micro_batch: int | None = None
    concurrency: int | None = None
    replicas: int | None = None
    precision: str | None = None
    loader_workers: int | None = None
    duty_ratio: float | None = None  # share of the time in which it works
    pacing_gap_s: float | None = None  # between steps

    def __post_init__(self) -> None:
        _positive(self, "batch", "micro_batch", "concurrency", "replicas", "duty_ratio")
        _not_negative(self, "loader_workers", "pacing_gap_s")
        if self.duty_ratio is not None and self.duty_ratio > 1:
            raise BadTerm(f"duty_ratio must be at most 1, got {self.duty_ratio}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Work to be done. Times are seconds since 1970, UTC."""

    name: str
    steps: float
    needs: tuple[Need, ...]  # ways to run it; one of them is chosen
    release_s: float | None = None  # not before; None: at once
    deadline_s: float | None = None  # None: whenever
    pausable: bool = False
    pause_every_s: float | None = None  # checkpoints are so far apart; None: it can stop at any step
    resume_s: float = 0.0  # lost each time it goes on after a pause
    after: tuple[str, ...] = ()  # jobs that must have ended
    fewest_devices: bool = False  # as few as possible, even where more would be better
    weight: float = 1.0
    shape: Shape = field(default_factory=Shape)

    def __post_init__(self) -> None:
        if not self.name:
            raise BadTerm("a job needs a name")
        if not self.needs:
            raise BadTerm(f"job {self.name!r} has no way to run: no need is given")
        _positive(self, "steps", "weight", "pause_every_s")
        _not_negative(self, "resume_s")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A job runs on some devices at one setting, from one moment to another."""

    job: str
    node: str
    devices: tuple[int, ...]
    from_s: float
    until_s: float
    point: OperatingPoint  # of one device
    steps: float  # done in it

    def __post_init__(self) -> None:
        if not self.from_s < self.until_s:
            raise BadTerm(f"{self.job}: a stretch must end after it begins, got {self.from_s} … {self.until_s}")

    @property
    def power_w(self) -> float:
        """Of all its devices and, where that is known, of their data workers, mean."""
        return self.point.known_w * len(self.devices)

    @property
    def data_workers(self) -> int | None:
        """Of all its devices; None: nothing is said of its data."""
        workers = self.point.data_workers
        return None if workers is None else workers.count * len(self.devices)

    @property
    def energy_j(self) -> float:
        return self.power_w * (self.until_s - self.from_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Who runs where, when and on how much power."""

    objective: Objective
    stretches: tuple[Stretch, ...]
    begin_s: float
    end_s: float  # the last job ends
    energy_j: float  # of the jobs, without idle devices
    emitted_g: float | None  # None: no carbon series was given
    cost: float | None  # in the currency of the tariff; None: none was given
    peak_w: float  # the most that is drawn at any time, idle devices included
    budget_w: float | None  # None: unlimited
    guard_w: float  # of the budget, kept free for the doubt of the predictions
    bound: float | None  # the objective cannot be less than this; None: not known
    value: float  # of the objective: J, s, g, or money
    method: str
    missed: Mapping[str, str] = field(default_factory=dict)  # job → why it is not planned
    notes: tuple[str, ...] = ()

    @property
    def gap_ratio(self) -> float | None:
        """How much above the bound the plan is at most."""
        return None if self.bound is None or self.bound <= 0 else self.value / self.bound - 1
