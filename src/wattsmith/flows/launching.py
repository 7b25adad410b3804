"""What is kept beside a job for when its turn comes: what it needs, and how its command is run."""

from collections.abc import Mapping
from dataclasses import dataclass

from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import AttemptOrder
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.schedule import Job
from wattsmith.terms.service import Attempt, Document, ServedJob, ServiceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How a job's command is run."""

    environment: Mapping[str, str]
    cpus: float = 1.0
    data: str | None = None
    timeout_s: float | None = None
    meters: str = "auto"


def keep_work(store: ServiceStore, job: ServedJob, work: Job, launch: Launch, now_s: float) -> None:
    """Keep beside JOB what it needs and how it is run."""
    body = {"job": as_plain(work), "launch": as_plain(launch)}
    store.keep_document(Document(kind="work", key=job.id, serial=0, time_s=now_s, by=job.by, body=body))


def kept_work(store: ServiceStore, job_id: str) -> Job | None:
    """What the job needs; None: that was never kept."""
    kept = store.document("work", job_id)
    return None if kept is None else parse_fact(Job, kept.body["job"], job_id)


def order_of(store: ServiceStore, job: ServedJob, attempt: Attempt, kind: str) -> AttemptOrder:
    """What an engine needs to run ATTEMPT on devices of KIND."""
    kept = store.document("work", job.id)
    if kept is None:
        raise BadInput(f"nothing was kept of how {job.id} is run")
    launch = parse_fact(Launch, kept.body["launch"], job.id)
    return AttemptOrder(
        attempt=attempt.id,
        command=job.command,
        node=attempt.node,
        kind=kind,
        devices=() if kind == "cpu" else attempt.devices,
        cpus=launch.cpus,
        environment=launch.environment,
        files=store.job_files(job.id),
        data=launch.data,
        timeout_s=launch.timeout_s,
        meters=launch.meters,
    )
