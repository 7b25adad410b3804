"""Jobs of a service on their way: waiting, started, watched, ended. Deciding is `schedule`'s, running an engine's.

Whatever is begun is written down first. So after kill -9 a new dispatcher finds in the store what there is, asks the
engine what became of it, and goes on.
"""

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from wattsmith.flows.job_endings import after_ending, after_loss
from wattsmith.flows.job_now import JobsNow, Waits
from wattsmith.flows.launching import Launch, keep_work, kept_work, order_of
from wattsmith.flows.pool_turns import PoolTurns
from wattsmith.schedule.deciding import PoolState, empty_pool
from wattsmith.schedule.resuming import moved, with_running
from wattsmith.terms.dispatch import (
    Action,
    BudgetChanged,
    JobCancelled,
    JobEnded,
    JobSubmitted,
    MatchAgain,
    OverBudget,
    PauseJob,
    RefuseJob,
    SetPoint,
    StartJob,
    Telemetry,
)
from wattsmith.terms.errors import Conflict, NoSuch, NotRead, NotWritten, WattsmithError
from wattsmith.terms.jobs import AttemptStatus, JobEngine, JobResult, Stage
from wattsmith.terms.schedule import Job
from wattsmith.terms.service import Attempt, JobState, Predicted, ServedJob, ServiceStore

OPEN = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.PAUSING)
AWAY = (NotWritten, NotRead)  # the database does not answer just now
LONG_START_S = 20.0  # what has not begun after so long waits for something


Predict = Callable[[Job, int, Any], Predicted | None]  # job, devices, point
Notice = Callable[[str, str], None]  # kind and key of what has changed


class Dispatcher:
    """Takes events, does what the pool's state machine says, and writes it all down. One thread at a time."""

    def __init__(
        self,
        store: ServiceStore,
        engine: JobEngine,
        *,
        now_s: Callable[[], float],
        predict: Predict,
        ended: Callable[[ServedJob, JobResult], None] = lambda _job, _result: None,
        notice: Notice = lambda _kind, _key: None,
    ) -> None:
        self._store = store
        self._engine = engine
        self._now_s = now_s
        self._predict = predict
        self._ended = ended
        self._notice = notice
        self._held: dict[str, Waits] = {}
        self._taken: dict[str, Waits] = {}  # jobs that were found waiting, and not refused when they came
        self._open: dict[str, Attempt] = {}  # by job: attempts that have not ended
        self._now = JobsNow(now_s)
        self._pending: dict[str, StartJob] = {}  # starts that have their devices, and are not written down yet
        self._to_pause: set[str] = set()  # jobs that make room as soon as that can be written down
        self._over_because: str | None = None  # as it was said last
        self._later: list[tuple[str, Sequence[JobState], dict[str, Any]]] = []  # changes that wait for the database
        self._turns = PoolTurns(now_s=now_s, do=self._do, is_open=self._open.__contains__)

    @property
    def state(self) -> PoolState:
        """What runs, what waits, and what there is."""
        return self._turns.state

    @state.setter
    def state(self, state: PoolState) -> None:
        self._turns.state = state

    # From the store

    def recover(self, budget_w: float = math.inf) -> None:
        """Find out what there is, and what became of it."""
        nodes = {node.name: node for node in self._engine.nodes()}
        self.state = replace(empty_pool(nodes, budget_w), time_s=self._now_s())
        for job in reversed(self._all(OPEN)):
            work = self._work(job.id)
            attempt = next((one for one in reversed(job.attempts) if one.ended_s is None), None)
            if attempt is None or work is None:
                self._change(
                    job.id, OPEN, state=JobState.FAILED, reason="nothing tells where it ran", ended_s=self._now_s()
                )
                continue
            self._open[job.id] = attempt
            self.state = with_running(
                self.state,
                work,
                node=attempt.node,
                devices=attempt.devices,
                setting=attempt.setting,
                since_s=attempt.started_s,
                steps_told=job.steps,
            )
            if job.state in (JobState.STOPPING, JobState.PAUSING):
                self._engine.stop(attempt.id)  # who wrote that down may not have come to it
        for job in reversed(self._all((JobState.WAITING,))):
            work = self._work(job.id)
            if work is None:
                self._change(job.id, (JobState.WAITING,), state=JobState.REFUSED, reason="what it needs was never kept")
            else:
                self._hold(job, work)
        self._taken = dict(self._held)
        if self.state.running:  # the budget may be another than when they started
            self._turns.happens(BudgetChanged, budget_w=budget_w)
        for job_id in list(self._held):
            self._release(job_id)

    def _all(self, states: Sequence[JobState]) -> list[ServedJob]:
        found: list[ServedJob] = []
        while some := self._store.jobs(states=states, limit=500, offset=len(found)):
            found += some
        return found

    def _work(self, job_id: str) -> Job | None:
        return kept_work(self._store, job_id)

    # What people ask for

    def submit(self, job: ServedJob, work: Job, launch: Launch) -> None:
        """JOB has been kept; its turn comes when there is room. WORK is called by the job's id."""
        self._hold(job, work)  # first: what fails on its way back is kept all the same
        keep_work(self._store, job, work, launch, self._now_s())
        with suppress(*AWAY):  # it is kept: the next tick looks again
            self._release(job.id)
        self._notice("job", job.id)

    def _hold(self, job: ServedJob, work: Job) -> None:
        free = replace(work, after=(), release_s=None)
        self._held[job.id] = Waits(job=free, until_s=work.release_s, after=work.after)

    def _release(self, job_id: str) -> None:
        """Into the queue, if it may start."""
        waits = self._held[job_id]
        if self._may_start(job_id, waits) and self._held.pop(job_id, None) is not None:
            if waits.after or waits.until_s is not None:
                self._say(job_id, None)  # what it waits for now is another thing
            self._turns.happens(JobSubmitted, job=waits.job)

    def _may_start(self, job_id: str, waits: Waits) -> bool:
        if waits.too_early(self._now_s()):
            self._say(job_id, waits.says(self._now_s()))
            return False
        for other_id in waits.after:
            other = self._store.job(other_id)
            if other is not None and other.state is not JobState.DONE:
                if other.state.is_over:
                    reason = f"{other.name} ({other.id}), which it comes after, {other.state}"
                    self._change(
                        job_id, (JobState.WAITING,), state=JobState.FAILED, reason=reason, ended_s=self._now_s()
                    )
                    self._held.pop(job_id, None)
                else:
                    self._say(job_id, f"it comes after {other.name} ({other.id})")
                return False
        return True

    def cancel(self, job_id: str, by: str) -> ServedJob:
        """Cancel a job: at once where it waits, else as soon as it has ended."""
        job = self._store.job(job_id)
        if job is None:
            raise NoSuch(f"there is no job {job_id}")
        if job.state.is_over:
            raise Conflict(f"{job_id} is {job.state} already")
        why = f"cancelled by {by}"
        cancelled = {"state": JobState.CANCELLED, "reason": why, "ended_s": self._now_s()}
        waiting = self._store.change_job(job_id, among=(JobState.WAITING,), **cancelled)
        if waiting is not None:
            self._out(job_id)
            self._notice("job", job_id)
            return waiting
        stopping = self._store.change_job(job_id, among=OPEN, state=JobState.STOPPING, reason=why)
        if job_id in self._open:
            self._engine.stop(self._open[job_id].id)
        self._notice("job", job_id)
        return stopping or self._store.job(job_id) or job

    def set_budget(self, budget_w: float) -> None:
        """So much power from now on."""
        self._over_because = None
        self._turns.happens(BudgetChanged, budget_w=budget_w)
        self._notice("pool", "budget")

    # What happens by itself

    def tick(self) -> None:
        """Look at everything once: machines that come and go, jobs that end, jobs whose time has come.

        Raises NotWritten or BadInput while the database does not answer; nothing is lost by that.
        """
        self._write_what_waits()
        self._look_at_nodes()
        for job_id in list(self._open):
            self._look_at(job_id)
        for job_id in list(self._to_pause):
            self._pause(job_id)
        for job_id in list(self._pending):
            self._begin(job_id)
        for job_id in list(self._held):
            if job_id in self._held:
                self._release(job_id)
        for job_id in self._now.newly_late(self.state, self._held):
            self._notice("job", job_id)
            self._notice("late", job_id)

    def _look_at_nodes(self) -> None:
        for name in self._turns.seen(self._engine.nodes()):
            self._notice("pool", name)

    def _look_at(self, job_id: str) -> None:
        attempt = self._open.get(job_id)
        if attempt is None:
            return  # what became of another has ended it
        status = self._engine.look(attempt.id)
        if status.stage is Stage.UNKNOWN:
            # It was written down and never begun: the process died in between, or the engine did.
            job, work = self._store.job(job_id), self._work(job_id)
            if job is not None and work is not None and job.state is JobState.STARTING:
                self._launch(job, attempt, work)
            else:
                self._over(
                    job_id, attempt, JobResult(exit_code=None, duration_s=0.0, why="it was stopped before it began")
                )
        elif status.stage is Stage.LOST:
            self._lost(job_id, attempt, status.why or "where it ran has gone")
        elif status.stage is Stage.ENDED and status.result is not None:
            self._over(job_id, attempt, status.result)
        elif status.stage is Stage.RUNNING:
            self._runs(job_id, attempt, status)
        elif self._now.status(job_id) is None and self._now_s() - attempt.started_s > LONG_START_S:
            self._now.saw(job_id, status)  # so that it is said once
            self._change(job_id, (JobState.STARTING,), reason="it waits for a machine that has room for it")

    def _runs(self, job_id: str, attempt: Attempt, status: AttemptStatus) -> None:
        before = self._now.status(job_id)
        self._now.saw(job_id, status)
        if before is None or before.stage is not Stage.RUNNING:
            self._change(job_id, (JobState.STARTING,), state=JobState.RUNNING, reason=None)
        if status.node is not None and job_id in self.state.running:
            known = status.node in self.state.nodes
            # Work for processors is given none by number.
            self.state = moved(self.state, job_id, status.node, status.devices or None) if known else self.state
            one = self.state.running[job_id]
            if (one.node, one.devices) != (attempt.node, attempt.devices):
                self._placed(replace(attempt, node=one.node, devices=one.devices))
        if before is None or (status.steps, status.energy_j) != (before.steps, before.energy_j):
            if status.steps is not None and (before is None or status.steps != before.steps):
                self._change(job_id, OPEN, steps=status.steps)
            steps = self._counted(job_id, status)
            self._turns.happens(Telemetry, job=job_id, power_w=status.power_w, steps=steps)

    def _placed(self, attempt: Attempt) -> None:
        """It runs elsewhere than it was sent to. If that cannot be written now, the next look does."""
        with suppress(*AWAY):
            self._store.place_attempt(attempt)
            self._open[attempt.job] = attempt
            self._notice("job", attempt.job)

    def _counted(self, job_id: str, status: AttemptStatus) -> float | None:
        """Steps for the state machine: an attempt that begins anew counts anew, and time must not run backwards."""
        one = self.state.running.get(job_id)
        if one is None or status.steps is None:
            return None
        told = status.steps * one.need.steps_each
        return told if told >= one.job.steps - one.steps_left else None

    def _lost(self, job_id: str, attempt: Attempt, why: str) -> None:
        """An attempt went without a word: the job runs again."""
        self._look_at_nodes()  # for where it was may have gone with it, and must not be where it goes
        if attempt.node in self.state.lost:
            why = f"its node {attempt.node} was lost"
        gone, changes = after_loss(self._store.job(job_id), attempt, why, self._now_s())
        self._close(gone, **changes)

    def _over(self, job_id: str, attempt: Attempt, result: JobResult) -> None:
        job = self._store.job(job_id)
        if job is None:
            self._gone(attempt, None)
            return
        ended, changes = after_ending(job, attempt, result, self._now_s())
        self._close(ended, **changes)

    def _close(self, attempt: Attempt, **changes: Any) -> None:
        """Write down how ATTEMPT ended and what its job is now, in one go; and let the pool know.

        If that fails, the next tick tries again. It may have been written all the same: then what is written holds.
        """
        job = self._store.end_attempt(attempt, **changes) or self._store.job(attempt.job)
        self._gone(attempt, job)

    def _gone(self, attempt: Attempt, job: ServedJob | None) -> None:
        """Nothing of JOB runs any more, now that ATTEMPT has ended."""
        job_id = attempt.job
        self._open.pop(job_id, None)
        self._now.forget(job_id)
        self._to_pause.discard(job_id)
        self._notice("job", job_id)
        if job is None or job.state.is_over:
            self._out(job_id)
        else:
            self._again(job_id)
        self._turns.left(job_id)
        if job is not None and job.state is JobState.DONE and attempt.result is not None:
            self._ended(job, attempt.result)

    def _out(self, job_id: str) -> None:
        """The job is over: nobody waits for it, and nothing is kept free for it."""
        self._held.pop(job_id, None)
        self._taken.pop(job_id, None)
        self._pending.pop(job_id, None)
        if job_id in self.state.waiting:
            self._turns.happens(JobCancelled, job=job_id)
        elif job_id in self.state.running:
            self._turns.happens(JobEnded, job=job_id)

    def _again(self, job_id: str) -> None:
        """Back into the queue, with all its steps: what an attempt has saved is the job's own affair."""
        if job_id in self._pending:
            return  # its turn has come already; it waited for the attempt before to leave
        if job_id in self.state.running:  # else it paused, and waits already
            self._turns.from_the_start(job_id)
            self._turns.happens(JobEnded, job=job_id, done=False)

    # Deciding and doing

    def _do(self, action: Action) -> None:
        match action:
            case StartJob():
                self._pending[action.job] = action
                self._begin(action.job)
            case SetPoint():
                self._now.set_anew(action.job)
                self._notice("job", action.job)
            case OverBudget() if action.why != self._over_because:
                self._over_because = action.why
                self._notice("pool", "budget")
            case PauseJob():
                self._pending.pop(action.job, None)
                self._pause(action.job)
            case RefuseJob() if action.job in self._taken:
                self._held[action.job] = self._taken[action.job]  # the machines that it needs may not be back yet
                self._say(action.job, action.why)
            case RefuseJob():
                self._change(
                    action.job, (JobState.WAITING,), state=JobState.REFUSED, reason=action.why, ended_s=self._now_s()
                )
            case MatchAgain():
                self._say(action.job, f"not as predicted: {action.why}")
            case _:
                pass

    def _pause(self, job_id: str) -> None:
        """Let an attempt make room, once that is written down: else it would look like one that failed."""
        self._to_pause.discard(job_id)
        if job_id not in self._open:
            return
        among = (JobState.STARTING, JobState.RUNNING, JobState.PAUSING)
        try:
            changed = self._store.change_job(
                job_id, among=among, state=JobState.PAUSING, reason="it makes room: power is short"
            )
        except NotWritten:
            self._to_pause.add(job_id)
            return
        if changed is not None:  # else it is being cancelled
            self._engine.stop(self._open[job_id].id)
            self._notice("job", job_id)

    def _begin(self, job_id: str) -> None:
        """Write down the next attempt of a job whose turn has come, and start it. If that fails, the next tick does."""
        action = self._pending[job_id]
        if job_id in self._open:  # it was told to make room, and has not left yet
            return
        if action.node in self.state.lost:
            del self._pending[job_id]
            self._again(job_id)
            return
        try:
            job, work = self._store.job(job_id), self._work(job_id)
            attempt = None if job is None or work is None else self._written(job, action)
            if job is None or work is None or attempt is None:
                self._out(job_id)
                return
            predicted = self._predict(work, len(action.devices), action.point)
            self._change(job_id, (JobState.STARTING,), predicted=predicted, reason=None)
        except AWAY:
            return
        del self._pending[job_id]
        self._open[job_id] = attempt
        if job.state is JobState.WAITING:  # else a look at it says what is to be done
            self._launch(job, attempt, work)

    def _written(self, job: ServedJob, action: StartJob) -> Attempt | None:
        """The attempt that ACTION begins, safe in the store; None: the job is over. Raises NotWritten."""
        left = next((one for one in job.attempts if one.ended_s is None), None)
        if left is not None and (left.node, left.devices) == (action.node, action.devices):
            return left  # a call that failed on its way back has written it
        if left is not None:  # the same, and the job has lost its turn in between
            gone = replace(left, ended_s=self._now_s(), lost="it was never begun")
            ended = {"state": JobState.CANCELLED, "ended_s": gone.ended_s}
            again = {"state": JobState.WAITING}
            self._store.end_attempt(gone, **(ended if job.state is JobState.STOPPING else again))
            raise NotWritten(f"{job.id} begins with the next look at it")
        attempt = Attempt(
            job=job.id,
            number=len(job.attempts) + 1,
            node=action.node,
            devices=action.devices,
            setting=action.point.setting,
            started_s=self._now_s(),
        )
        return attempt if self._store.begin_attempt(attempt) else None

    def _launch(self, job: ServedJob, attempt: Attempt, work: Job) -> None:
        node = self.state.nodes.get(attempt.node)
        try:
            self._engine.start(order_of(self._store, job, attempt, node.kind if node else work.needs[0].kind))
        except AWAY:
            pass  # it is written down and not begun: the next look starts it
        except WattsmithError as refused:
            with suppress(*AWAY):  # the next look is refused again
                self._over(job.id, attempt, JobResult(exit_code=None, duration_s=0.0, why=str(refused)))
        self._notice("job", job.id)

    # Small things

    def _change(self, job_id: str, among: Sequence[JobState], **changes: Any) -> ServedJob | None:
        """Change a job, now or, where the database does not answer, as soon as it does again."""
        try:
            changed = self._store.change_job(job_id, among=among, **changes)
        except NotWritten:
            self._later.append((job_id, among, changes))
            return None
        if changed is not None:
            self._notice("job", job_id)
        return changed

    def _write_what_waits(self) -> None:
        while self._later:
            job_id, among, changes = self._later[0]
            self._store.change_job(job_id, among=among, **changes)
            del self._later[0]
            self._notice("job", job_id)

    def _say(self, job_id: str, reason: str | None) -> None:
        with suppress(NotRead):
            job = self._store.job(job_id)
            if job is not None and job.reason != reason and not job.state.is_over:
                self._change(job_id, (job.state,), reason=reason)

    # How it stands

    def status_of(self, job_id: str) -> AttemptStatus | None:
        """As it was last seen; None: it does not run."""
        return self._now.status(job_id)

    def seen(self, jobs: Sequence[ServedJob]) -> list[ServedJob]:
        """JOBS with what is known of them at this moment. From any thread."""
        return self._now.seen(jobs, self.state, self._held)

    @property
    def late(self) -> frozenset[str]:
        """Jobs that will miss, or have missed, their deadlines and are not over."""
        return self._now.late
