"""How jobs stand at this moment: what they wait for, how far they are, when they should end, what they have used."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from wattsmith.schedule.deciding import PoolState, Running
from wattsmith.schedule.waiting import why_it_waits
from wattsmith.terms.jobs import AttemptStatus, Stage
from wattsmith.terms.schedule import Job
from wattsmith.terms.service import JobState, ServedJob

FEWEST = 2  # steps that make a pace
ENOUGH_S = 5.0  # and so long must they have taken


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """A job that may not start yet, whatever room there is."""

    job: Job
    until_s: float | None
    after: tuple[str, ...]  # ids of jobs

    def too_early(self, now_s: float) -> bool:
        return self.until_s is not None and now_s < self.until_s

    def says(self, now_s: float) -> str:
        """That its time has not come. What changes every second is left out, so that it can be kept."""
        assert self.until_s is not None
        at = datetime.fromtimestamp(self.until_s, UTC)
        far = "" if self.until_s - now_s < 86_400 else f"{at:%Y-%m-%d} "
        return f"it may not start before {far}{at:%H:%M:%S} UTC"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Steps of an attempt as they were seen, from the first ones on: what came before may have been preparation."""

    began_s: float
    began: float
    seen_s: float
    steps: float

    def then(self, steps: float, now_s: float) -> "Pace":
        """With STEPS done by now. An attempt that begins anew has a pace of its own."""
        if steps < self.steps:
            return first_seen(steps, now_s)
        return self if steps == self.steps else replace(self, seen_s=now_s, steps=steps)

    def rate(self, now_s: float) -> float | None:
        """Steps a second; None: too few were seen. One that takes longer than those before slows it down."""
        done, took_s = self.steps - self.began, self.seen_s - self.began_s
        if done < FEWEST or took_s < ENOUGH_S:
            return None
        return min(done / took_s, (done + 1) / max(took_s, now_s - self.began_s))


def first_seen(steps: float, now_s: float) -> Pace:
    return Pace(began_s=now_s, began=steps, seen_s=now_s, steps=steps)


class JobsNow:
    """What is known of jobs beside what is kept. Written by the dispatcher's thread, read by any."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._status: dict[str, AttemptStatus] = {}
        self._paces: dict[str, Pace] = {}
        self.late: frozenset[str] = frozenset()  # jobs that will miss, or have missed, their deadlines

    def status(self, job_id: str) -> AttemptStatus | None:
        """As it was last seen; None: it does not run."""
        return self._status.get(job_id)

    def saw(self, job_id: str, status: AttemptStatus) -> None:
        self._status[job_id] = status
        if status.steps is not None:
            now_s = self._now_s()
            pace = self._paces.get(job_id)
            self._paces[job_id] = first_seen(status.steps, now_s) if pace is None else pace.then(status.steps, now_s)

    def set_anew(self, job_id: str) -> None:
        """Its setting has changed: what was seen of its pace says nothing any more."""
        self._paces.pop(job_id, None)

    def forget(self, job_id: str) -> None:
        """It does not run any more."""
        self._status.pop(job_id, None)
        self._paces.pop(job_id, None)

    # When they end

    def ends_s(self, one: Running) -> float | None:
        """When a running job should end: at its own pace, or else as predicted. None: nobody knows."""
        now_s = self._now_s()
        status, pace = self._status.get(one.job.name), self._paces.get(one.job.name)
        # As the job itself counts its steps.
        steps = one.job.steps / one.need.steps_each
        rate = one.point.rate / one.need.steps_each if one.need.response.time_known else None
        if pace is not None:
            rate = pace.rate(now_s) or rate
            return None if rate is None else max(now_s, pace.seen_s + max(0.0, steps - pace.steps) / rate)
        began_s = one.since_s if status is None or status.started_s is None else status.started_s
        return None if rate is None else max(now_s, began_s + steps / rate)

    def late_by_s(self, job: Job, ends_s: float | None, not_before_s: float | None = None) -> float | None:
        """How long after its deadline a job will end, at the earliest where it has not started; None: in time."""
        if job.deadline_s is None:
            return None
        now_s = self._now_s()
        if ends_s is None:
            ends_s = max(now_s, not_before_s or 0.0) + fastest_s(job)
        late_s = ends_s - job.deadline_s
        return late_s if late_s > 0 else None

    def newly_late(self, state: PoolState, held: Mapping[str, Waits]) -> Iterable[str]:
        """Jobs of which it shows now that they miss their deadlines."""
        due = [(name, one) for name, one in state.running.items() if one.job.deadline_s is not None]
        late = {
            *(name for name, one in due if self.late_by_s(one.job, self._ends_or_now(one))),
            *(name for name, one in state.waiting.items() if self.late_by_s(one.job, None)),
            *(name for name, one in held.items() if self.late_by_s(one.job, None, one.until_s)),
        }
        new = late - self.late
        self.late = frozenset(late)
        return sorted(new)

    def _ends_or_now(self, one: Running) -> float:
        ends_s = self.ends_s(one)
        return self._now_s() if ends_s is None else ends_s

    # All of it

    def seen(self, jobs: Sequence[ServedJob], state: PoolState, held: Mapping[str, Waits]) -> list[ServedJob]:
        """JOBS with what is known of them now."""
        places = {name: place for place, name in enumerate(state.waiting)}
        return [self._seen(job, state, held, places) for job in jobs]

    def _seen(
        self, job: ServedJob, state: PoolState, held: Mapping[str, Waits], places: Mapping[str, int]
    ) -> ServedJob:
        if job.state is JobState.DONE and job.deadline_s is not None and job.ended_s is not None:
            late_s = job.ended_s - job.deadline_s
            return replace(job, late_by_s=late_s if late_s > 0 else None)
        if job.state.is_over:
            return job
        waits, queued, one = held.get(job.id), state.waiting.get(job.id), state.running.get(job.id)
        if job.state is not JobState.WAITING and one is not None:
            ends_s = self.ends_s(one)
            late_by_s = self.late_by_s(one.job, self._ends_or_now(one))
            return self._running(replace(job, ends_s=ends_s, late_by_s=late_by_s, progress_ratio=_progress(job, one)))
        if waits is not None:
            early = waits.too_early(self._now_s())
            because = waits.says(self._now_s()) if early else job.reason
            return replace(job, waits_because=because, late_by_s=self.late_by_s(waits.job, None, waits.until_s))
        if queued is not None:
            because = why_it_waits(state, job.id, places[job.id])
            return replace(job, waits_because=because, late_by_s=self.late_by_s(queued.job, None))
        return self._running(job)

    def _running(self, job: ServedJob) -> ServedJob:
        status = self._status.get(job.id)
        if status is None:
            return job
        if status.stage is not Stage.RUNNING:
            return replace(job, waits_because=job.reason if job.state is JobState.STARTING else None)
        mean_w = None if status.energy_j is None or not status.duration_s else status.energy_j / status.duration_s
        return replace(
            job,
            duration_so_far_s=status.duration_s,
            energy_so_far_j=status.energy_j,
            energy_source=status.energy_source,
            simulated=status.simulated,
            energy_why=status.energy_why,
            power_so_far_w=mean_w,
            power_now_w=status.power_w,
        )


def _progress(job: ServedJob, one: Running) -> float | None:
    return None if job.steps is None else min(1.0, job.steps * one.need.steps_each / one.job.steps)


def fastest_s(job: Job) -> float:
    """The shortest time in which it can be done; 0 where nobody knows."""
    known = [need for need in job.needs if need.response.time_known]
    if len(known) < len(job.needs):
        return 0.0
    return min((job.steps / point.rate for need in known for point in need.response.points), default=math.inf)
