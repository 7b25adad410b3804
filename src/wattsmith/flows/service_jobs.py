"""Jobs as people submit them: read, checked against what they may do, estimated, and handed to the dispatcher."""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattsmith.engines.attempt_folder import check_files
from wattsmith.flows.devices import record_named
from wattsmith.flows.launching import Launch, keep_work
from wattsmith.flows.planning import job_of
from wattsmith.flows.service_estimates import Estimates, Structured
from wattsmith.flows.service_options import ServiceOptions
from wattsmith.flows.service_runs import predicted, run_of, why_unknown
from wattsmith.schedule.job_submission import SubmittedJob, submitted_job
from wattsmith.schedule.yaml_tree import Value
from wattsmith.terms.errors import BadInput, BadTerm, NoSuch, NotAllowed, WattsmithError
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.run import Run
from wattsmith.terms.schedule import Job, Need, OperatingPoint, PoolNode
from wattsmith.terms.service import JobState, Predicted, Role, ServedJob, ServiceStore, Token

MOST_FILES_BYTES = 12 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What jobs may do."""

    allowed_commands: tuple[str, ...] = ("python", "python3")  # for role submit
    data: Path | None = None  # folders below it may be named by jobs
    meters: str = "auto"
    record: str | None = None  # from which estimates come, as it may be named; None: a user's own


def rules_of(options: ServiceOptions) -> Rules:
    return Rules(
        allowed_commands=options.allowed_commands,
        data=options.data,
        meters=options.meters,
        record=record_named(options.db),
    )


@dataclass(slots=True)
class Jobs:
    """Turns what was written into what can be dispatched."""

    store: ServiceStore
    estimates: Estimates
    rules: Rules
    now_s: Callable[[], float]
    standing: dict[str, tuple[str, tuple[str, ...]]] = field(default_factory=dict)  # by structure, how far to trust it

    def accept(
        self,
        job: str | Mapping[str, object],
        nodes: Sequence[PoolNode],
        *,
        files: Mapping[str, bytes],
        structure: str | None,
        once: str | None,
        by: Token,
        budget_w: float = math.inf,
    ) -> tuple[ServedJob, Job | None, Launch]:
        """Keep a job, with what it needs; None instead of that: it was sent before. BUDGET_W is the pool's."""
        told = submitted_job(job, self.now_s())
        self._check(told, files, by)
        work = self.work_of(told, structure, nodes, budget_w)
        kept = self.store.add_job(
            ServedJob(
                id="",
                name=told.name,
                by=by.name,
                written=job if isinstance(job, str) else json.dumps(job, indent=1),  # which is YAML too
                state=JobState.WAITING,
                submitted_s=self.now_s(),
                command=told.command,
                structure=structure,
                once=once,
                deadline_s=told.work.deadline_s,
                retries=told.retries,
                predicted=self.predict(work, structure),
            ),
            dict(files),
        )
        sent_before = self.store.document("work", kept.id) is not None or kept.state is not JobState.WAITING
        return kept, None if sent_before else self.named(work, kept), self.launch(told)

    def again(self, kept: ServedJob, nodes: Sequence[PoolNode], budget_w: float) -> tuple[Job, Launch]:
        """What a job that was kept and never handed on needs."""
        told = submitted_job(kept.written, kept.submitted_s)
        return self.named(self.work_of(told, kept.structure, nodes, budget_w), kept), self.launch(told)

    def hand_on_what_was_kept(self, nodes: Sequence[PoolNode], budget_w: float) -> None:
        """Jobs that were kept a moment before the service died get what they need kept beside them now."""
        for job in self.store.jobs(states=(JobState.WAITING,), limit=1000):
            if self.store.document("work", job.id) is not None or job.attempts:
                continue
            try:
                work, launch = self.again(job, nodes, budget_w)
            except WattsmithError as refused:
                over = {"state": JobState.REFUSED, "reason": str(refused), "ended_s": self.now_s()}
                self.store.change_job(job.id, among=(JobState.WAITING,), **over)
                continue
            keep_work(self.store, job, work, launch, self.now_s())

    def named(self, work: Job, kept: ServedJob) -> Job:
        """WORK under the id of its job, behind the jobs that it comes after."""
        return replace(work, name=kept.id, after=tuple(self._id_of(name, kept) for name in work.after))

    def _id_of(self, name: str, kept: ServedJob) -> str:
        if self.store.job(name) is not None:
            return name
        mine = [one for one in self.store.jobs(by=kept.by, limit=1000) if one.name == name and one.id != kept.id]
        if not mine:
            raise NoSuch(f"it comes after {name!r}, and you have submitted no job of that name")
        return mine[0].id

    def launch(self, told: SubmittedJob) -> Launch:
        return Launch(
            environment=dict(told.environment),
            cpus=told.cpus,
            data=None if told.data is None else str(self._data(told)),
            timeout_s=told.timeout_s,
            meters=self.rules.meters,
        )

    def _check(self, told: SubmittedJob, files: Mapping[str, bytes], by: Token) -> None:
        program = told.command[0]
        if by.role is not Role.ADMIN and program not in self.rules.allowed_commands:
            allowed = ", ".join(self.rules.allowed_commands) or "none"
            raise NotAllowed(f"role {by.role} may run {allowed} here, not {program!r:.80}; an admin may run others")
        if sum(map(len, files.values())) > MOST_FILES_BYTES:
            most = format_quantity(MOST_FILES_BYTES, "memory")
            raise BadInput(f"the files of the job are larger than {most}; put large ones under the service's data")
        check_files(files)
        if missing := sorted(set(told.files) - set(files)):
            raise _field(told, "files").wrong(f"{missing[0]} is named by the job and was not sent with it")
        self._check_times(told)
        if told.data is not None:
            self._data(told)
        for name in told.work.after:
            if self.store.job(name) is None and not any(
                one.name == name for one in self.store.jobs(by=by.name, limit=1000)
            ):
                raise _field(told, "after").wrong(f"you have submitted no job called {name!r:.80}")

    def _check_times(self, told: SubmittedJob) -> None:
        deadline_s, release_s = told.work.deadline_s, told.work.release_s
        if deadline_s is not None and deadline_s <= self.now_s():
            raise _field(told, "deadline").wrong("it has passed already")
        if deadline_s is not None and release_s is not None and deadline_s <= release_s:
            raise _field(told, "deadline").wrong("it lies before its release, and it may not start before that")

    def _data(self, told: SubmittedJob) -> Path:
        """The folder of a data set; its name has no way out of where data is kept."""
        root, name, at = self.rules.data, told.data or "", _field(told, "data")
        if root is None:
            raise at.wrong("this service has no data; start it with --data DIR")
        path = (root / name).resolve()
        if path.parent != root.resolve() or not path.is_dir():
            there = sorted(one.name for one in root.iterdir() if one.is_dir())[:20]
            raise at.wrong(f"there is no data set {name!r:.80}; there are {', '.join(there) or 'none'}")
        return path

    # What it needs

    def work_of(
        self, told: SubmittedJob, structure: str | None, nodes: Sequence[PoolNode], budget_w: float = math.inf
    ) -> Job:
        """What the job needs of the pool, without settings that break its own limits. Raises BadInput if none is."""
        if not nodes:
            raise BadInput("the pool is empty just now: no machine is there that could run it")
        structured = None
        if told.work.model and not told.work.figures:
            structured = self._structured(structure)
        estimator = None if structured is None else self._estimator(structure, structured)
        work = job_of(told.work, nodes, estimator=estimator, unknown=True)
        return self._within(_judged(work, told, budget_w, self.rules.record), told)

    def _structured(self, structure: str | None) -> Structured:
        if structure is None:
            raise BadInput(
                "model: the service does not run code to see what it does; `wattsmith submit` traces the model where "
                "it is and sends its structure along"
            )
        found = self.estimates.structure(structure)
        if found is None:
            raise NoSuch(f"there is no structure {structure!r}; send it first (POST /structures)")
        return found

    def _estimator(self, key: str | None, structured: Structured) -> Callable[..., Any]:
        def estimate(
            _model: object, _inputs: object, *, device: str, devices: int, power_limit_w: float | None, **_: Any
        ) -> Any:
            found = self.estimates.estimate(
                key or "", structured, device=device, devices=devices, power_limit_w=power_limit_w
            )
            self.standing[key or ""] = (found.standing, found.reasons)
            return found

        return estimate

    def _within(self, work: Job, told: SubmittedJob) -> Job:
        """WORK without the settings that draw more than its own budget, and ways to run it that all are too slow."""
        left_s = math.inf if work.deadline_s is None else work.deadline_s - max(self.now_s(), work.release_s or 0.0)
        most_w = told.power_budget_w or math.inf
        needs = [
            replace(need, response=replace(need.response, points=points))
            for need in work.needs
            # Where power becomes short a setting that is too slow is better than one that draws too much.
            if any(_fits(work, need, one, left_s, most_w) for one in need.response.points)
            and (points := tuple(one for one in need.response.points if _fits(work, need, one, math.inf, most_w)))
        ]
        if needs:
            return replace(work, needs=tuple(needs))
        fastest_s = min(work.steps / one.rate for need in work.needs for one in need.response.points)
        least_w = min(need.devices * one.power_w for need in work.needs for one in need.response.points)
        if fastest_s > left_s:
            raise _field(told, "deadline").wrong(
                f"it takes {format_quantity(fastest_s, 'time', 3)} at the fastest, and "
                f"{format_quantity(left_s, 'time', 3)} are left"
            )
        if least_w > most_w:
            raise _field(told, "power_budget").wrong(
                f"it draws {format_quantity(least_w, 'power', 3)} at the least, more than "
                f"{format_quantity(most_w, 'power', 3)}"
            )
        raise _field(told, "power_budget").wrong("no setting keeps both this and its deadline; give it more of either")

    # What is said before and after

    def predict(self, work: Job, structure: str | None) -> Predicted:
        """What it should need where it would run first."""
        # What somebody can tell comes first: other rates only stand in.
        told = [one for one in work.needs if one.response.time_known] or work.needs
        best = max(told, key=lambda one: max(point.rate for point in one.response.points))
        need = min(told, key=lambda one: one.devices) if work.fewest_devices else best
        return self.predict_at(work, need, max(need.response.points, key=lambda one: one.rate), structure)

    def predict_at(self, work: Job, need: Need, point: OperatingPoint, structure: str | None) -> Predicted:
        standing = self.standing.get(structure or "")
        return predicted(work, need, point, standing=standing, record=self.rules.record)

    def run_of(self, job: ServedJob, result: JobResult, kind: str) -> Run | None:
        """The run with which a job joins the record; None: it has no structure, or did not tell its steps."""
        if job.structure is None or not job.attempts:
            return None
        structured = self.estimates.structure(job.structure)
        return None if structured is None else run_of(job, job.attempts[-1], result, structured, kind)


def _judged(work: Job, told: SubmittedJob, budget_w: float, record: str | None) -> Job:
    """WORK with those ways to run it of which it can be told whether they keep the limits that there are."""
    asks_time = work.deadline_s is not None
    asks_power = told.power_budget_w is not None or budget_w < math.inf
    needs = tuple(
        need
        for need in work.needs
        if (need.response.time_known or not asks_time) and (need.response.power_known or not asks_power)
    )
    if needs:
        return replace(work, needs=needs)
    why = why_unknown(work.needs[0], record)
    if asks_time and not work.needs[0].response.time_known:
        raise _field(told, "deadline").wrong(f"nobody can say whether it is met: {why}")
    if told.power_budget_w is not None:
        raise _field(told, "power_budget").wrong(f"nobody can say whether it is kept: {why}")
    most = format_quantity(budget_w, "power", 3)
    raise told.work.at.wrong(f"the pool has a budget of {most}, and nobody can say whether it is kept: {why}")


def _field(told: SubmittedJob, name: str) -> Value:
    found: Value = told.work.at.plain[name]
    return found


def _fits(work: Job, need: Need, point: OperatingPoint, left_s: float, most_w: float) -> bool:
    """Whether it keeps both limits; where a figure is not known there is no such limit."""
    in_time = not need.response.time_known or work.steps / point.rate <= left_s
    return in_time and (not need.response.power_known or need.devices * point.power_w <= most_w)


def checked_power_w(budget_w: float | None) -> float:
    """A budget as the dispatcher takes it: None is no limit."""
    if budget_w is None:
        return math.inf
    if not 0 < budget_w < math.inf:
        raise BadTerm(f"a power budget must be positive and finite, got {budget_w} W")
    return budget_w
