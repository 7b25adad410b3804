"""What becomes of a job when an attempt at it has ended, or was lost."""

from dataclasses import replace
from typing import Any

from wattsmith.terms.jobs import JobResult
from wattsmith.terms.service import Attempt, JobState, ServedJob

MADE_ROOM = "it made room, for power was short"


def after_ending(job: ServedJob, attempt: Attempt, result: JobResult, now_s: float) -> tuple[Attempt, dict[str, Any]]:
    """ATTEMPT with how it ended, and what changes of its JOB."""
    ended = replace(attempt, ended_s=now_s, result=result)
    failures = 1 + sum(1 for one in job.attempts if one.id != attempt.id and _failed(one, job))
    if job.state is JobState.STOPPING:
        return ended, {"state": JobState.CANCELLED, "ended_s": now_s}
    if result.exit_code == 0 and not _cut_short(job, result):
        return ended, {"state": JobState.DONE, "ended_s": now_s, "reason": None, "steps": result.steps}
    if job.state is JobState.PAUSING:
        ended = replace(ended, result=replace(result, why=MADE_ROOM))
        return ended, {"state": JobState.WAITING, "reason": "it made room, and goes on when there is power"}
    if failures <= job.retries:
        return ended, {"state": JobState.WAITING, "reason": f"it runs again: {_failure(result)}", "steps": None}
    return ended, {"state": JobState.FAILED, "ended_s": now_s, "reason": _failure(result)}


def after_loss(job: ServedJob | None, attempt: Attempt, why: str, now_s: float) -> tuple[Attempt, dict[str, Any]]:
    """ATTEMPT, which went without a word, and what changes of its JOB: it runs again, unless it was to stop anyhow."""
    gone = replace(attempt, ended_s=now_s, lost=why)
    if job is not None and job.state is JobState.STOPPING:
        return gone, {"state": JobState.CANCELLED, "ended_s": now_s}
    return gone, {"state": JobState.WAITING, "reason": f"it runs again: {why}", "steps": None}


def _cut_short(job: ServedJob, result: JobResult) -> bool:
    """Whether it was told to end with steps to go: many programs then save what they have and leave with 0."""
    steps = None if job.predicted is None else job.predicted.steps
    told_all = steps is not None and result.steps is not None and result.steps >= steps
    return result.why is not None and not told_all


def _failed(attempt: Attempt, job: ServedJob) -> bool:
    """Whether it counts against the retries of its job: those that made room do not, nor those that were lost."""
    result = attempt.result
    if result is None or result.why == MADE_ROOM:
        return False
    return result.exit_code != 0 or _cut_short(job, result)


def _failure(result: JobResult) -> str:
    if result.exit_code is None:
        return result.why or "it could not be started"
    said = f"its command ended with {result.exit_code}"
    return f"{said}: {result.why}" if result.why else said
