"""What happens to a pool, and what is to be done about it: events in, actions out."""

import math
from dataclasses import dataclass

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import Job, OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted:
    time_s: float
    job: Job


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnded:
    time_s: float
    job: str
    done: bool = True  # False: it failed and is to be tried again


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCancelled:
    time_s: float
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """What was measured of a running job, over all its devices. None: not known."""

    time_s: float
    job: str
    power_w: float | None = None
    rate: float | None = None
    steps: float | None = None  # done so far, and safe at a checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLost:
    time_s: float
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBack:
    time_s: float
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChanged:
    time_s: float
    budget_w: float

    def __post_init__(self) -> None:
        if math.isnan(self.budget_w) or self.budget_w <= 0:
            raise BadTerm(f"a power budget must be positive, got {self.budget_w} W")


Event = JobSubmitted | JobEnded | JobCancelled | Telemetry | NodeLost | NodeBack | BudgetChanged


@dataclass(frozen=True, slots=True, kw_only=True)
class StartJob:
    job: str
    node: str
    devices: tuple[int, ...]
    point: OperatingPoint
    steps: float  # that are left


@dataclass(frozen=True, slots=True, kw_only=True)
class SetPoint:
    """Change the setting of a running job."""

    job: str
    point: OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class PauseJob:
    """Stop it at its next checkpoint; it waits and goes on later."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RefuseJob:
    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MatchAgain:
    """What was measured is not what was predicted."""

    job: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OverBudget:
    """More is drawn than there may be, and nothing that may be done about it is left."""

    over_w: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PassedOver:
    """An event that makes no sense, and changes nothing."""

    why: str


Action = StartJob | SetPoint | PauseJob | RefuseJob | MatchAgain | OverBudget | PassedOver
