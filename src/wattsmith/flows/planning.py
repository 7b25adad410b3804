"""Who runs where, when and on how much power: jobs and a pool from files or facts; a plan and its work schedules."""

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
from wattsmith.schedule.job_files import Figures, Wanted, WrittenJob, moment, read_jobs, read_pool
from wattsmith.schedule.planning import Wish, make_plan
from wattsmith.schedule.series import read_series
from wattsmith.terms.errors import BadInput, NotWritten, WattsmithError
from wattsmith.terms.schedule import (
    NINE_IN_TEN,
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
    return found, schedules_of(found, jobs, nodes, carbon=wish.carbon, tariff=wish.tariff)


def plan_files(
    jobs: Path,
    pool: Path,
    wish: Wish,
    tell: Tell = lambda _: None,
    estimator: Callable[..., Any] | None = None,
) -> tuple[Plan, list[WorkSchedule]]:
    """The plan of the jobs and the pool in two YAML files. ESTIMATOR stands in for `wattsmith.estimate`."""
    nodes = [_with_sheet(node) for node in read_pool(pool)]
    found = [_job(one, nodes, tell, estimator) for one in read_jobs(jobs, wish.now_s)]
    made = make_plan(found, nodes, wish, _sizes())
    return made, schedules_of(made, found, nodes, carbon=wish.carbon, tariff=wish.tariff)


def _sizes() -> dict[str, int]:
    return {sheet.name: sheet.memory_bytes for sheet in SHEETS if sheet.memory_bytes}


def _with_sheet(node: PoolNode) -> PoolNode:
    """NODE with what the maker's data sheet tells where its file does not."""
    try:
        sheet = sheet_of(node.kind)
    except UnknownDevice:
        return node
    return replace(
        node,
        memory_bytes=node.memory_bytes or sheet.memory_bytes,
        power_limits_w=node.power_limits_w,
        idle_w=node.idle_w or (sheet.idle_w or 0.0),
    )


def _job(written: WrittenJob, nodes: Sequence[PoolNode], tell: Tell, estimator: Callable[..., Any] | None) -> Job:
    needs: list[Need] = []
    for kind in dict.fromkeys(node.kind for node in nodes):
        given = written.figures.get(kind) or written.figures.get("")
        most = max(node.usable for node in nodes if node.kind == kind)
        for count in _counts(written.wanted, most):
            if given is not None:
                needs.append(_stated(given, written, kind, count, nodes))
            elif written.model:
                needs += _estimated(written, kind, count, nodes, tell, estimator)
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
    return min(node.idle_w for node in nodes if node.kind == kind)


def _stated(given: Figures, written: WrittenJob, kind: str, count: int, nodes: Sequence[PoolNode]) -> Need:
    times = _speedup(written, count)
    points = tuple(replace(point, rate=point.rate * times) for point in given.points)
    doubt = given.doubt if given.doubt != Doubt() else Doubt(power_ratio=ASSUMED, time_ratio=ASSUMED)
    response = Response(points=points, idle_w=_idle_w(kind, nodes), doubt=doubt)
    return Need(kind=kind, devices=count, response=response, memory_bytes=given.memory_bytes)


def _steps(written: WrittenJob) -> float:
    """Steps with one device's batch: rates on several devices are counted in these too."""
    samples, epochs, batch = (int(str(written.model.get(name, 1))) for name in ("samples", "epochs", "batch"))
    return -(-samples // batch) * epochs


def _estimated(
    written: WrittenJob,
    kind: str,
    count: int,
    nodes: Sequence[PoolNode],
    tell: Tell,
    estimator: Callable[..., Any] | None,
) -> list[Need]:
    """What a model needs of COUNT devices of KIND, at a few power limits; nothing where no power is known."""
    estimate = estimator or _estimate()
    options = {
        name: value for name, value in written.model.items() if name not in ("model", "input", "samples", "epochs")
    }
    points, memory_bytes, errors = [], None, []
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
            raise written.at.wrong(str(refused)) from refused
        if found.power_w is None:
            raise written.at.wrong(
                f"the power of {written.model['model']} on {kind} is not known; state step and power"
            )
        points.append(
            OperatingPoint(
                setting=Setting(power_limit_w=limit_w),
                rate=(count if written.steps is None else 1) / found.step_s.value,
                power_w=found.power_w.value / count,
                source=SettingSource.ESTIMATED,
            )
        )
        memory_bytes = max(memory_bytes or 0.0, found.memory.held_bytes.high)
        errors.append((_sigma(found.power_w), _sigma(found.step_s)))
    doubt = Doubt(power_ratio=max(power for power, _ in errors), time_ratio=max(time for _, time in errors))
    response = Response(points=tuple(points), idle_w=_idle_w(kind, nodes), doubt=doubt)
    return [Need(kind=kind, devices=count, response=response, memory_bytes=memory_bytes)]


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
