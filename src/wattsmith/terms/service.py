"""What a service that a team keeps running remembers: who may do what, jobs, client devices, and what was decided."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.work import Interval, Setting

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # of jobs, clients and tokens: they become names of folders


def check_name(what: str, name: str) -> None:
    """Raise BadTerm unless NAME can be the name of a file everywhere."""
    if not NAME.fullmatch(name):
        raise BadTerm(f"the name of a {what} has up to 100 letters, digits, '.', '_' and '-', got {name!r:.80}")


class Role(StrEnum):
    """What the bearer of a token may do. Each but AGENT may also do what those before it may."""

    READ = "read"  # look at everything but tokens and the audit log, and ask for estimates
    SUBMIT = "submit"  # submit jobs and cancel their own, match, plan
    ADMIN = "admin"  # tokens, budget, audit log, schedules, everybody's jobs
    AGENT = "agent"  # send telemetry of one client, and fetch its work schedule; nothing else


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A token without its secret."""

    id: str
    name: str  # of the person, program or client that bears it; an agent's token is good for the client of that name
    role: Role
    created_s: float
    revoked_s: float | None = None

    def __post_init__(self) -> None:
        check_name("token", self.name)


class JobState(StrEnum):
    """Where a job stands."""

    WAITING = "waiting"
    STARTING = "starting"  # an attempt is written down; nothing says yet that it runs
    RUNNING = "running"
    STOPPING = "stopping"  # it was cancelled, and has not ended yet
    PAUSING = "pausing"  # it was told to make room, and will go on later
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    REFUSED = "refused"  # the pool can never run it

    @property
    def is_over(self) -> bool:
        return self in (JobState.DONE, JobState.FAILED, JobState.CANCELLED, JobState.REFUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What a job should need, as it was said before it ran. None: not known."""

    duration_s: Interval | None = None
    energy_j: Interval | None = None
    power_w: Interval | None = None  # of all its devices
    memory_bytes: Interval | None = None  # of each
    step_s: Interval | None = None
    steps: float | None = None
    device: str | None = None
    devices: int | None = None
    standing: str | None = None  # inside or outside of what was measured
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One time that a job was started."""

    job: str
    number: int  # from 1
    node: str
    devices: tuple[int, ...]
    setting: Setting
    started_s: float
    ended_s: float | None = None
    result: JobResult | None = None  # None: it runs, or it was lost
    lost: str | None = None  # why it never ended, such as that its node was lost; None: it was not

    @property
    def id(self) -> str:
        return f"{self.job}.{self.number}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedJob:
    """A job as the service has it."""

    id: str  # "j-000017"
    name: str
    by: str  # the name of the token that submitted it
    written: str  # the job as it was written, in YAML
    state: JobState
    submitted_s: float
    command: tuple[str, ...]
    structure: str | None = None  # key of the traced step; None: plain figures were given
    once: str | None = None  # sent twice with the same word, it is one job
    deadline_s: float | None = None
    retries: int = 0  # further attempts after one that failed; attempts that were lost do not count
    predicted: Predicted | None = None
    attempts: tuple[Attempt, ...] = ()
    steps: float | None = None  # done so far, as far as it says
    reason: str | None = None  # why it was refused or failed, or what it waits for
    ended_s: float | None = None
    run: str | None = None  # session under which its run joined the record
    # As it is seen at this moment: a store keeps none of these. None: not known, or it does not apply.
    waits_because: str | None = None  # with figures
    ends_s: float | None = None  # when it should end, by its own pace or else as predicted
    late_by_s: float | None = None  # so long after its deadline it ended, or will end at the earliest
    progress_ratio: float | None = None
    duration_so_far_s: float | None = None  # of the attempt that runs
    energy_so_far_j: float | None = None  # of that attempt
    energy_source: Source | None = None
    simulated: bool = False  # its meters are
    energy_why: str | None = None
    power_so_far_w: float | None = None  # mean of that attempt
    power_now_w: float | None = None
    trouble: str | None = None  # what went wrong beside it, such as that its run did not join the record

    def __post_init__(self) -> None:
        check_name("job", self.name)


SEEN_NOW = (
    *("waits_because", "ends_s", "late_by_s", "progress_ratio", "duration_so_far_s", "energy_so_far_j"),
    *("energy_source", "simulated", "energy_why", "power_so_far_w", "power_now_w", "trouble"),
)  # fields of a ServedJob that are worked out when somebody asks


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainReport:
    """One device of a client, over the time since the report before. None: it does not tell."""

    power_w: float | None = None  # mean
    energy_j: float | None = None  # a counter that only grows while the agent runs
    busy_ratio: float | None = None
    memory_busy_ratio: float | None = None
    memory_used_bytes: int | None = None
    clock_hz: float | None = None
    memory_clock_hz: float | None = None
    temperature_c: float | None = None
    power_limit_w: float | None = None
    activity: Mapping[str, float] = field(default_factory=dict)  # by names of telemetry.ACTIVITIES

    def __post_init__(self) -> None:
        for name in ("power_w", "energy_j", "busy_ratio", "memory_used_bytes", "clock_hz", "power_limit_w"):
            value = getattr(self, name)
            if value is not None and not 0 <= value < math.inf:
                raise BadTerm(f"{name} must be finite and not negative, got {value}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What an agent saw of its machine at one time. (boot, number) names it: sent twice, it counts once."""

    boot: str  # anew each time the agent starts
    number: int  # from 1, without gaps
    time_s: float  # by the agent's own clock, since 1970
    domains: Mapping[str, DomainReport] = field(default_factory=dict)
    steps: float | None = None  # of the program on it, as far as it counts them
    serial: int | None = None  # of the work schedule that it follows; None: none, or an expired one
    in_force: Mapping[str, Setting] = field(default_factory=dict)  # by device
    refused: tuple[str, ...] = ()  # what it may not set, and why

    def __post_init__(self) -> None:
        if self.number < 1:
            raise BadTerm(f"reports are numbered from 1, got {self.number}")
        if not math.isfinite(self.time_s):
            raise BadTerm(f"time_s must be finite, got {self.time_s}")
        check_name("boot", self.boot)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceAbout:
    """A device of a client as it was found."""

    domain: str  # "gpu:0"
    name: str
    uuid: str | None = None
    memory_bytes: int | None = None
    power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    max_clock_hz: float | None = None
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientAbout:
    """What a client tells of itself when its agent starts."""

    version: str  # of wattsmith there
    host: str
    devices: tuple[DeviceAbout, ...] = ()
    knobs: tuple[str, ...] = ()  # that it may turn
    simulated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """A client device as the service knows it. Times are the service's own."""

    name: str
    first_seen_s: float
    last_seen_s: float
    about: ClientAbout | None = None
    skew_s: float | None = None  # its clock is so far ahead of the service's
    latest: Report | None = None
    reports: int = 0  # that were kept


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptReport:
    """A report with when it came."""

    client: str
    received_s: float
    report: Report


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEntry:
    """Who changed what."""

    time_s: float
    who: str
    what: str  # "submit", "cancel", "revoke", "budget", …
    on: str
    detail: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """A match, a plan, a traced step or a work schedule, kept as JSON."""

    kind: str  # "structure", "match", "plan", "schedule", "setting"
    key: str
    serial: int  # of those with this kind and key; the last one holds
    time_s: float
    by: str
    body: Any


class ServiceStore(Protocol):
    """Something that remembers for a service. What a call has returned from is safe from a crash.

    Where the database does not answer, changing raises NotWritten, and nothing has changed; reading raises NotRead.
    Both may be tried again. Raises BadTerm for what no database can keep: NUL in texts, numbers that are not finite.
    """

    # Who may do what
    def add_token(self, token: Token, secret_hash: bytes) -> None: ...

    def token(self, token_id: str) -> tuple[Token, bytes] | None:
        """A token, revoked ones too, with the hash of its secret."""

    def tokens(self) -> list[Token]: ...

    def revoke(self, token_id: str, now_s: float) -> bool:
        """False: there is none, or it was revoked before."""

    # Jobs
    def add_job(self, job: ServedJob, files: Mapping[str, bytes]) -> ServedJob:
        """Keep JOB under a new id (its own is passed over), or find the one of that submitter with the same `once`."""

    def job(self, job_id: str) -> ServedJob | None: ...

    def job_files(self, job_id: str) -> dict[str, bytes]: ...

    def jobs(
        self, *, states: Sequence[JobState] = (), by: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[ServedJob]:
        """The newest first. STATES empty: all."""

    def count_jobs(self) -> dict[JobState, int]: ...

    def change_job(self, job_id: str, *, among: Sequence[JobState], **changes: Any) -> ServedJob | None:
        """Change fields of a job whose state is one of AMONG, in one go; None: its state is another by now."""

    def begin_attempt(self, attempt: Attempt) -> bool:
        """Keep ATTEMPT and let its job be STARTING. False: that job has one of this number, or is not WAITING."""

    def place_attempt(self, attempt: Attempt) -> bool:
        """Keep where it really runs, its node and devices. False: it has ended, or never began."""

    def end_attempt(self, attempt: Attempt, *, state: JobState, **changes: Any) -> ServedJob | None:
        """Keep how it ended, and in the same go the new STATE of its job and further CHANGES of it.

        None: it was known to have ended, and nothing has changed.
        """

    # Client devices
    def keep_reports(self, kept: Sequence[KeptReport]) -> list[bool]:
        """Keep those that are new, of however many clients, in one go; for each whether it was new."""

    def keep_about(self, client: str, about: ClientAbout, now_s: float) -> None: ...

    def client(self, name: str) -> Client | None: ...

    def clients(self) -> list[Client]: ...

    def reports(
        self, client: str, *, since_s: float | None = None, until_s: float | None = None, limit: int = 10_000
    ) -> list[KeptReport]:
        """By when they came, the oldest first; the last LIMIT of them."""

    def drop_reports(self, before_s: float, *, most: int | None = None) -> int:
        """Forget some thousand reports that came earlier, then those beyond the newest MOST; 0: all have gone."""

    # What was decided
    def keep_document(self, document: Document) -> Document:
        """Keep it as the latest of its kind and key: the serial is given here."""

    def document(self, kind: str, key: str) -> Document | None:
        """The latest of that kind and key."""

    def documents(self, kind: str, *, limit: int = 100) -> list[Document]:
        """The latest of each key, the newest first."""

    def drop_documents(self, kind: str, before_s: float, *, last_too: bool = False) -> int:
        """Forget some thousand documents of KIND that are older and of which there is a later one; 0: all have gone.

        LAST_TOO: also the last of each key.
        """

    def audit(self, entry: AuditEntry) -> None: ...

    def audit_log(self, *, limit: int = 100, offset: int = 0) -> list[AuditEntry]:
        """The newest first."""

    # The record beside it
    def record_version(self) -> int:
        """Grows whenever a run joins the record in the same database."""

    # Who works with it
    def hold(self) -> None:
        """Be the one service that works with it, until it is closed; hold on where that was lost meanwhile.

        Raises Conflict where another does.
        """

    def close(self) -> None: ...
