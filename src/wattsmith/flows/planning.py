"""Who runs where, when and on how much power: jobs and a pool from files or facts; a plan and its work schedules."""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattsmith.estimate.sheets import SHEETS, UnknownDevice, sheet_of
from wattsmith.flows.devices import Tell
from wattsmith.report.plan_plot import plot_plan
from wattsmith.schedule.documents import in_force, knob_values, read_schedule, schedules_of, write_schedule
from wattsmith.schedule.job_files import Figures, Wanted, WrittenJob, moment, positive_at, read_jobs, read_pool
from wattsmith.schedule.matched import doubt_of, evidence_of, points_of
from wattsmith.schedule.planning import Wish, make_plan
from wattsmith.schedule.series import read_series
from wattsmith.terms.errors import BadInput, NoRecord, NotWritten, WattsmithError
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.schedule import (
    NINE_IN_TEN,
    DataWork,
    Doubt,
    Job,
    Need,
    Objective,
    OperatingPoint,
    Plan,
    PoolNode,
    Response,
    SettingSource,
)
from wattsmith.terms.telemetry import Match
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import WorkSchedule

__all__ = [
    "Objective",
    "Plan",
    "Wish",
    "WorkSchedule",
    "draw_plan",
    "in_force",
    "knob_values",
    "moment",
    "plan",
    "plan_files",
    "read_schedule",
    "read_series",
    "write_schedule",
    "write_schedules",
]

LIMITS = (1.0, 0.85, 0.7, 0.55)  # of a device's power limit, at which a model is estimated
ASSUMED = 0.05  # relative error of power and time where a file states figures and no doubt


def plan(
    jobs: Sequence[Job], nodes: Sequence[PoolNode], *, now_s: float | None = None, **wishes: Any
) -> tuple[Plan, list[WorkSchedule]]:
    """The plan of JOBS on NODES, and a work schedule for each node that has work; WISHES are the fields of Wish."""
    wish = Wish(now_s=time.time() if now_s is None else now_s, **wishes)
    found = make_plan(jobs, nodes, wish, _sizes())
    return found, schedules_of(found, jobs, nodes, serial=int(wish.now_s), carbon=wish.carbon, tariff=wish.tariff)


def plan_files(
    jobs: Path,
    pool: Path,
    wish: Wish,
    tell: Tell = lambda _: None,
    estimator: Callable[..., Any] | None = None,
    find_match: "Callable[[WrittenJob, Path], Match] | None" = None,
) -> tuple[Plan, list[WorkSchedule]]:
    """The plan of the jobs and the pool in two YAML files. ESTIMATOR stands in for `wattsmith.estimate`.

    FIND_MATCH: the match that a job names; None: it is read from the file of that name beside the jobs.
    """
    nodes = [with_sheet(node) for node in read_pool(pool)]
    written = read_jobs(jobs, wish.now_s)
    find = find_match or read_match
    matches = {one.name: find(one, jobs.parent) for one in written if match_named(one) is not None}
    found = [job_of(one, nodes, tell, estimator, matches.get(one.name)) for one in written]
    made = make_plan(found, nodes, wish, _sizes())
    evidence = {name: evidence_of(match) for name, match in matches.items()}
    return made, schedules_of(
        made, found, nodes, serial=int(wish.now_s), carbon=wish.carbon, tariff=wish.tariff, evidence=evidence
    )


def match_named(written: WrittenJob) -> str | None:
    """What a job calls its match; None: it has none."""
    named = written.at.plain.get("match") if isinstance(written.at.plain, dict) else None
    return None if named is None else str(named.text())


def read_match(written: WrittenJob, folder: Path) -> Match:
    """What `wattsmith match --json` wrote of a job, in a file beside the one that the job stands in."""
    path = folder / (match_named(written) or "")
    at = written.at.plain["match"]
    try:
        return parse_fact(Match, json.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as refused:
        raise at.wrong(f"{path} holds no match as `wattsmith match --json` prints it: {refused}") from refused
    except BadInput as refused:
        raise at.wrong(f"{path} holds no match as `wattsmith match --json` prints it: {refused}") from refused


def _sizes() -> dict[str, int]:
    return {sheet.name: sheet.memory_bytes for sheet in SHEETS if sheet.memory_bytes}


def with_sheet(node: PoolNode) -> PoolNode:
    """NODE with what the maker's data sheet tells where its file does not."""
    try:
        sheet = sheet_of(node.kind)
    except UnknownDevice:
        return node
    return replace(
        node,
        memory_bytes=node.memory_bytes or sheet.memory_bytes,
        power_limits_w=node.power_limits_w,
        idle_w=sheet.idle_w if node.idle_w is None else node.idle_w,
    )


def job_of(
    written: WrittenJob,
    nodes: Sequence[PoolNode],
    tell: Tell = lambda _: None,
    estimator: Callable[..., Any] | None = None,
    matched: Match | None = None,
    *,
    unknown: bool = False,
) -> Job:
    """What a written job needs of each kind of device in NODES, and how it answers to settings there.

    MATCHED is what the running job was recognised as: where no figures are written, they are taken from there.
    UNKNOWN: where nobody can tell what a model does on a kind of device, the answer says so, and is no error.
    """
    needs: list[Need] = []
    for kind in dict.fromkeys(node.kind for node in nodes):
        given = _given(written, kind)
        most = max(node.usable for node in nodes if node.kind == kind)
        for count in _counts(written.wanted, most):
            if given is not None:
                needs.append(_stated(given, written, kind, count, nodes))
            elif matched is not None:
                needs.append(_stated(_matched(written, matched), written, kind, count, nodes))
            elif written.model:
                needs.append(_estimated(written, kind, count, nodes, tell, estimator, unknown))
    if not needs:
        kinds = ", ".join(sorted({node.kind for node in nodes}))
        raise written.at.wrong(f"there are no figures for {kinds}, which is all the pool has")
    steps = _steps(written) if written.steps is None else written.steps
    try:
        return Job(
            name=written.name,
            steps=float(steps),
            needs=tuple(needs),
            release_s=written.release_s,
            deadline_s=written.deadline_s,
            pausable=written.pausable,
            pause_every_s=written.pause_every_s,
            resume_s=written.resume_s,
            after=written.after,
            fewest_devices=written.wanted.fewest,
            weight=written.weight,
            shape=written.shape,
        )
    except WattsmithError as refused:
        raise written.at.wrong(str(refused)) from refused


def _given(written: WrittenJob, kind: str) -> Figures | None:
    """The figures that are written for devices of KIND, by whichever of its names, or else for all."""
    called = [kind, *(name for name in written.figures if name and same_kind(name, kind)), ""]
    return next((written.figures[name] for name in called if name in written.figures), None)


def same_kind(one: str, other: str) -> bool:
    """Whether both are names of one kind of device: h200 and, as a driver calls it, nvidia h200."""
    try:
        return one == other or sheet_of(one) == sheet_of(other)
    except UnknownDevice:
        return False


def _matched(written: WrittenJob, found: Match) -> Figures:
    """The figures of a match, with the doubt that its curve has where that is largest."""
    memory = written.at.plain.get("memory")
    memory_bytes = None if memory is None else positive_at(memory, "memory")
    try:
        return Figures(points=points_of(found), memory_bytes=memory_bytes, doubt=doubt_of(found))
    except BadInput as refused:
        raise written.at.plain["match"].wrong(str(refused)) from refused


def _counts(wanted: Wanted, most: int) -> list[int]:
    """Numbers of devices that may be tried: the least, its doublings, and the most."""
    top = most if wanted.most is None else wanted.most
    counts, count = [], wanted.least
    while count < top:
        counts.append(count)
        count *= 2
    return [*counts, top] if top >= wanted.least else [wanted.least]


def _speedup(written: WrittenJob, count: int) -> float:
    """Of COUNT devices over the number that the figures are of: the least that was asked for."""
    times = count / written.wanted.least
    return float(times * written.scaling ** math.log2(times))


def _idle_w(kind: str, nodes: Sequence[PoolNode]) -> float:
    """What is counted for a device of KIND while it idles, which a job that runs on it takes the place of."""
    return min(node.idle_w or 0.0 for node in nodes if node.kind == kind)


def _stated(given: Figures, written: WrittenJob, kind: str, count: int, nodes: Sequence[PoolNode]) -> Need:
    times = _speedup(written, count)
    points = tuple(replace(point, rate=point.rate * times) for point in given.points)
    doubt = given.doubt or Doubt(power_ratio=ASSUMED, time_ratio=ASSUMED)
    response = Response(points=points, idle_w=_idle_w(kind, nodes), doubt=doubt)
    data_work = _data_work(written, count / written.wanted.least)
    return Need(kind=kind, devices=count, response=response, memory_bytes=given.memory_bytes, data_work=data_work)


def _data_work(written: WrittenJob, devices_ratio: float) -> DataWork | None:
    """Of one device in a step of the job, whose batches are shared by so many times the devices that a step is of."""
    stated = written.data_work
    return None if stated is None else replace(stated, made_s=stated.made_s / devices_ratio)


def _steps(written: WrittenJob) -> float:
    """Steps with one device's batch: rates on several devices are counted in these too."""
    names = ("samples", "epochs", "batch", "accumulation")
    samples, epochs, batch, accumulation = (int(str(written.model.get(name, 1))) for name in names)
    return -(-samples // (batch * accumulation)) * epochs


def _estimated(
    written: WrittenJob,
    kind: str,
    count: int,
    nodes: Sequence[PoolNode],
    tell: Tell,
    estimator: Callable[..., Any] | None,
    unknown: bool,
) -> Need:
    """What a model needs of COUNT devices of KIND, at a few power limits."""
    estimate = estimator or _estimate()
    options = {
        name: value for name, value in written.model.items() if name not in ("model", "input", "samples", "epochs")
    }
    points, memory_bytes, errors = [], None, []
    steps_each = count if written.steps is None else 1  # steps are counted with one device's batch
    for limit_w in _limits_w(kind, nodes):
        tell(f"{written.name}: estimating on {count} × {kind}" + ("" if limit_w is None else f" at {limit_w:.0f} W"))
        try:
            found = estimate(
                written.model["model"],
                written.model.get("input"),
                device=kind,
                devices=count,
                power_limit_w=limit_w,
                methods=False,
                **options,
            )
        except WattsmithError as refused:
            if unknown and isinstance(refused, NoRecord):
                return replace(_unknown(kind, count, nodes), steps_each=steps_each)
            raise written.at.wrong(str(refused)) from refused
        if found.power_w is None and not unknown:
            raise written.at.wrong(
                f"the power of {written.model['model']} on {kind} is not known; state step and power"
            )
        rate = steps_each / found.step_s.value
        memory_bytes = max(memory_bytes or 0.0, found.memory.peak_held_bytes.high)
        if found.power_w is None:
            time_ratio = _sigma(found.step_s)
            return replace(_unknown(kind, count, nodes, rate, time_ratio, memory_bytes), steps_each=steps_each)
        points.append(
            OperatingPoint(
                setting=Setting(power_limit_w=limit_w),
                rate=rate,
                power_w=found.power_w.value / count,
                source=SettingSource.ESTIMATED,
            )
        )
        errors.append((_sigma(found.power_w), _sigma(found.step_s)))
    doubt = Doubt(power_ratio=max(power for power, _ in errors), time_ratio=max(time for _, time in errors))
    response = Response(points=tuple(points), idle_w=_idle_w(kind, nodes), doubt=doubt)
    return Need(
        kind=kind,
        devices=count,
        response=response,
        memory_bytes=memory_bytes,
        steps_each=steps_each,
        data_work=_data_work(written, steps_each),
    )


def _unknown(
    kind: str,
    count: int,
    nodes: Sequence[PoolNode],
    rate: float | None = None,
    time_ratio: float = 0.0,
    memory_bytes: float | None = None,
) -> Need:
    """What is needed of COUNT devices of KIND where nobody knows the power, nor the RATE where that is None."""
    idle_w = _idle_w(kind, nodes)
    stands_in = OperatingPoint(setting=Setting(), rate=rate or 1.0, power_w=idle_w or 1.0, source=SettingSource.DEFAULT)
    response = Response(
        points=(stands_in,),
        idle_w=idle_w,
        doubt=Doubt(time_ratio=time_ratio),
        time_known=rate is not None,
        power_known=False,
    )
    return Need(kind=kind, devices=count, response=response, memory_bytes=memory_bytes)


def _estimate() -> Callable[..., Any]:
    from wattsmith.flows.estimating import estimate

    return estimate


def _sigma(interval: Interval) -> float:
    return (interval.high - interval.low) / (2 * NINE_IN_TEN * interval.value) if interval.value > 0 else 0.0


def _limits_w(kind: str, nodes: Sequence[PoolNode]) -> list[float | None]:
    """Power limits that all nodes of KIND may be set to; None alone: they are left as found."""
    ends = [node.power_limits_w for node in nodes if node.kind == kind]
    both = [each for each in ends if each is not None]
    if len(both) < len(ends):
        return [None]
    least_w, most_w = max(low for low, _ in both), min(high for _, high in both)
    return [limit_w for share in LIMITS if (limit_w := share * most_w) >= least_w] or [most_w]


def write_schedules(schedules: Sequence[WorkSchedule], folder: Path) -> list[Path]:
    """Write one file per client into FOLDER."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as refused:
        raise NotWritten(f"the folder {folder} cannot be made: {refused}") from refused
    paths = []
    for one in schedules:
        if Path(one.client).name != one.client:
            raise BadInput(f"the node {one.client!r} cannot be the name of a file; call it otherwise")
        path = folder / f"{one.client}.json"
        write_schedule(one, path)
        paths.append(path)
    return paths


def draw_plan(found: Plan, path: Path) -> None:
    """Draw FOUND as a timeline into PATH."""
    plot_plan(found, path)
