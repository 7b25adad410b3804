"""What a demo is told to do, and what its stages come to."""

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.errors import ExtraNeeded
from wattsmith.terms.estimate import Estimate
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.work import Interval

Tell = Callable[[str], object]

INSTALL = "pip install 'wattsmith[torch,estimate,split,tune]'"
DONE, LEFT_OUT, BROKE = "done", "left out", "broke"


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A number, where it comes from, and how far to trust it."""

    name: str
    text: str  # as people read it, with its unit and interval; "unknown" where nobody can say
    source: str
    trust: str
    value: float | None = None  # in the SI unit of what it is; None: unknown, or not a number
    low: float | None = None  # of its 90 % interval; None: none is stated
    high: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """One stage, as it came out."""

    name: str
    title: str
    status: str  # "done", "left out" or "broke"
    means: str  # in one sentence
    took_s: float
    why: str | None = None  # it was left out, or broke
    figures: tuple[Figure, ...] = ()
    pictures: tuple[str, ...] = ()  # SVG, to stand in a page
    notes: tuple[str, ...] = ()
    tile: tuple[str, str] | None = None  # the figure to remember, and what it is
    yourself: str = ""  # the command, or the lines of Python, that do the same on one's own work


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """All of a demo."""

    version: str
    began_at: str  # wall-clock date, ISO 8601 with zone
    took_s: float
    quick: bool
    stages: tuple[Stage, ...]
    page: Path

    @property
    def broken(self) -> bool:
        return any(stage.status == BROKE for stage in self.stages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a stage that ran has to say."""

    means: str
    figures: tuple[Figure, ...] = ()
    tile: tuple[str, str] | None = None
    pictures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is, and how long it is looked at."""

    preset: str | None = "smoke"  # of the record; None: none, only the networks that are like the one in question
    alike: int | None = None  # networks that are like the one in question; None: all of them
    record_window_s: float = 0.3  # for each point
    image: int = 224  # of the network in question, each way
    batch: int = 2
    steps: int = 5  # measured, after one that warms up
    steps_s: float = 15.0  # but no longer than this
    trial_s: float = 1.5
    trials: int = 9
    fed_s: float = 5.0  # each way of feeding is watched for so long
    settle_s: float = 3.0  # before that, for workers to start


QUICK = Scale(
    preset=None,
    alike=5,
    record_window_s=0.1,
    image=64,
    batch=1,
    steps=2,
    steps_s=4.0,
    trial_s=0.3,
    trials=4,
    fed_s=1.0,
    settle_s=1.0,
)


@dataclass(slots=True, kw_only=True)
class Found:
    """What stages leave for those that come after them."""

    folder: Path
    scale: Scale
    threads: int
    record: str | None = None  # where the record of this CPU is
    here: Estimate | None = None  # what was estimated for this machine
    has_cpu_meter: bool = False
    is_simulated: bool = False  # that meter
    busy_with: float = 0.0  # programs that wanted a core when the demo began, at the mean of a minute


def need_torch(doing: str) -> None:
    """Raise ExtraNeeded where there is no PyTorch."""
    if importlib.util.find_spec("torch") is None:
        raise ExtraNeeded(f"{doing} needs PyTorch: {INSTALL}")


def interval_figure(name: str, one: Interval | None, kind: str, *, source: str, trust: str) -> Figure:
    """ONE as a figure; of KIND as in `format_quantity`."""
    if one is None:
        return Figure(name=name, text="unknown", source=source, trust=trust)
    text = interval_text(one, kind)
    return Figure(name=name, text=text, source=source, trust=trust, value=one.value, low=one.low, high=one.high)


def interval_text(one: Interval | None, kind: str) -> str:
    """ONE with its range, for people."""
    if one is None:
        return "unknown"
    low, high = (format_quantity(edge, kind, 2) for edge in (one.low, one.high))
    return f"{format_quantity(one.value, kind, 3)} ({low} … {high})"


def count_text(value: float) -> str:
    """VALUE without a unit: three digits, and thousands with commas."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
