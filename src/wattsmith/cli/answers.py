"""What commands print as JSON beyond the facts of the flows: small facts of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.terms.energy import Window
from wattsmith.terms.schedule import Plan
from wattsmith.terms.service import Token
from wattsmith.terms.work_schedule import WorkSchedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """The windows of a recorded timeline, worked out again."""

    replayed: Path  # the timeline
    windows: tuple[Window, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """A plan, and a work schedule for each machine."""

    plan: Plan
    schedules: tuple[WorkSchedule, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Forgotten:
    """A journal that was removed; nothing was put back."""

    removed: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Serving:
    """Where a service is."""

    url: str
    home: Path
    admin_token: Path  # the file that holds the first admin's token
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenMade:
    """A new token with its secret, which is told this once."""

    token: Token
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenList:
    """All tokens of a service, without their secrets."""

    tokens: tuple[Token, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRevoked:
    """A token that holds no longer."""

    revoked: str  # its id


@dataclass(frozen=True, slots=True, kw_only=True)
class JobReady:
    """A job that was read, checked and traced, and was not sent."""

    name: str
    command: tuple[str, ...]
    files: tuple[str, ...]  # that would go along
    how: Mapping[str, Any] | None  # how its step was traced; None: the job states its figures
    notes: tuple[str, ...]  # what was assumed
