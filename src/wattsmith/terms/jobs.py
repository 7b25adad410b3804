"""Jobs as processes: what is to be run, where it stands, what it took. And who runs them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import PoolNode


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What became of a command that was run. None: not known."""

    exit_code: int | None  # None: it was never started
    duration_s: float
    energy_j: float | None = None  # of its devices, while it ran
    energy_error_j: float | None = None
    energy_source: Source | None = None
    energy_why: str | None = None  # why the energy is not known
    power_w: float | None = None  # mean
    steps: float | None = None  # that it said it did
    step_s: float | None = None  # mean, without the first
    step_spread_s: float | None = None  # standard deviation
    first_step_s: float | None = None
    peak_memory_bytes: int | None = None  # of the fullest device
    device: str | None = None  # as its meter calls it
    simulated: bool = False
    why: str | None = None  # it was not started, was stopped, or took too long


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptOrder:
    """One attempt at a job, all that is needed to run it."""

    attempt: str  # "j-000017.1"; what is started twice under one name runs once
    command: tuple[str, ...]  # never through a shell
    node: str | None = None  # where to, if the engine has several; it may choose another
    kind: str = "cpu"  # of device: "h200", "cpu"
    devices: tuple[int, ...] = ()  # that the job is to see; an engine that places by itself takes their number
    cpus: float = 1.0
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)  # by relative path, put into its folder first
    data: str | None = None  # a folder of the pool's machines that it reads, as WATTSMITH_DATA
    timeout_s: float | None = None
    meters: str = "auto"

    def __post_init__(self) -> None:
        if not self.command:
            raise BadTerm("a job needs a command of at least one word")
        if self.timeout_s is not None and not 0 < self.timeout_s < math.inf:
            raise BadTerm(f"timeout_s must be positive and finite, got {self.timeout_s}")


class Stage(StrEnum):
    """Where an attempt stands."""

    UNKNOWN = "unknown"  # nobody has started it here
    STARTING = "starting"
    RUNNING = "running"
    ENDED = "ended"
    LOST = "lost"  # it was started, and where it ran has gone without a word


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptStatus:
    """What an engine knows of an attempt now."""

    stage: Stage
    node: str | None = None  # where it really runs
    devices: tuple[int, ...] | None = None  # that it really sees
    steps: float | None = None
    energy_j: float | None = None  # so far
    energy_source: Source | None = None
    energy_why: str | None = None  # why the energy is not known
    simulated: bool = False  # its meters are
    power_w: float | None = None  # just now
    duration_s: float | None = None  # it has run for so long, as energy_j and steps were told
    started_s: float | None = None
    result: JobResult | None = None  # once it has ended
    why: str | None = None  # it was lost


class JobEngine(Protocol):
    """Runs attempts somewhere, and still knows them after the process that started them was killed."""

    def nodes(self) -> tuple[PoolNode, ...]:
        """The machines that it can use now."""

    def start(self, order: AttemptOrder) -> None:
        """Start it; an attempt that was started before goes on as it is. Returns at once."""

    def look(self, attempt: str) -> AttemptStatus: ...

    def stop(self, attempt: str) -> None:
        """Ask it to end (SIGTERM), and end it after a while. Never raises for one that is not there."""

    def log(self, attempt: str, *, stream: str = "stdout", offset: int = 0, limit: int = 1 << 16) -> bytes:
        """What it has printed from OFFSET on, at most LIMIT bytes. STREAM is "stdout" or "stderr"."""

    def forget(self, attempt: str) -> None:
        """Remove its folder. Only for one that has ended or was lost."""

    def close(self) -> None:
        """Let go. What runs goes on."""
