"""Where a service keeps what it has and what it may do; what agents send it, and what they are answered."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from wattsmith.terms.service import Report


class Post(Protocol):
    """What one agent sent at once."""

    @property
    def client(self) -> str: ...

    @property
    def reports(self) -> Sequence[Report]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class OnePost:
    """A post as a fact."""

    client: str
    reports: Sequence[Report]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What became of an agent's reports."""

    accepted: int
    duplicates: int
    serial: int | None  # of the work schedule that holds for the client; None: there is none


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceOptions:
    """Where a service keeps what it has, and what it may do."""

    db: str
    home: Path
    pool: Path | None = None  # None: this machine as it is found
    engine: str = "local"
    budget_w: float | None = None  # None: as it was set last
    data: Path | None = None
    allowed_commands: tuple[str, ...] = ("python", "python3")
    retention_s: float = 30 * 86_400.0  # of telemetry
    most_reports: int = 50_000_000  # of telemetry, however young
    keep_decided_s: float = 90 * 86_400.0  # matches, plans, and schedules that another took the place of
    meters: str = "auto"
    watch: bool = True  # measure this machine, and set it as its jobs need it; for engine local
    ray_address: str | None = None
