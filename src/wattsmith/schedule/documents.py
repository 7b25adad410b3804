"""Work schedules made from a plan, written, read back, and asked what holds now."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattsmith.schedule.needs import fed
from wattsmith.schedule.series import HOUR_S, KWH_J, Series
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.schedule import NINE_IN_TEN, Job, Plan, PoolNode, Response, Stretch
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    Phase,
    PhaseSetting,
    PowerLimits,
    SignalWindow,
    Site,
    Span,
    Timing,
    Watch,
    Work,
    WorkSchedule,
)

NINETY_NINE = 2.326  # standard deviations from the middle to the 99th percentile
STAYS_VALID_S = HOUR_S  # after the last stretch of a client


def schedules_of(
    plan: Plan,
    jobs: Sequence[Job],
    nodes: Sequence[PoolNode],
    *,
    serial: int = 1,
    limits: PowerLimits | None = None,
    watch: Watch | None = None,
    carbon: Series | None = None,
    tariff: Series | None = None,
    evidence: Mapping[str, Evidence] | None = None,
) -> list[WorkSchedule]:
    """One work schedule for each node of the plan that has something to do. EVIDENCE: by job, what it rests on."""
    found = []
    by_name = {job.name: job for job in jobs}
    for node in nodes:
        mine = [one for one in plan.stretches if one.node == node.name]
        if not mine:
            continue
        names = list(dict.fromkeys(one.job for one in mine))
        works = tuple(
            _work(by_name[name], [one for one in mine if one.job == name], node, carbon, tariff) for name in names
        )
        works = tuple(
            replace(work, evidence=evidence[work.job]) if evidence and work.job in evidence else work for work in works
        )
        first = [work.phases[0] for work in works if work.phases]  # work on no device sets none
        headroom_w = sum(one.p99_w or 0.0 for one in first) - sum(one.power_w.value for one in first if one.power_w)
        found.append(
            WorkSchedule(
                client=node.name,
                issued_s=plan.begin_s,
                valid_from_s=plan.begin_s,
                valid_until_s=max(one.until_s for one in mine) + STAYS_VALID_S,
                serial=serial,
                devices=tuple(_identity(node, place) for place in range(node.count)),
                works=works,
                limits=limits or PowerLimits(headroom_w=max(0.0, headroom_w)),
                watch=watch or Watch(),
                safe_default=tuple(_default(node, place) for place in range(node.count)),
            )
        )
    return found


def _identity(node: PoolNode, place: int) -> DeviceIdentity:
    return DeviceIdentity(
        device=f"gpu:{place}",
        name=node.kind,
        memory_bytes=node.memory_bytes,
        power_limit_w=None if node.power_limits_w is None else node.power_limits_w[1],
        power_limit_range_w=node.power_limits_w,
    )


def _default(node: PoolNode, place: int) -> PhaseSetting:
    """Where a manager is lost a device runs as its maker meant it: at its own limit, its clocks not locked."""
    limit_w = None if node.power_limits_w is None else node.power_limits_w[1]
    return PhaseSetting(device=f"gpu:{place}", phase=Phase.STEADY, setting=Setting(power_limit_w=limit_w))


def _work(job: Job, mine: Sequence[Stretch], node: PoolNode, carbon: Series | None, tariff: Series | None) -> Work:
    need = next(
        (one for one in job.needs if one.kind == node.kind and one.devices == len(mine[0].devices)), job.needs[0]
    )
    phases = tuple(_phase(one, place, need.response) for one in mine for place in one.devices)
    here = [found for one in job.needs if (found := fed(one, [node])) is not None] or job.needs
    fastest_s = min(job.steps / max(point.rate for point in one.response.points) for one in here)
    data_workers = max((one.point.data_workers.count for one in mine if one.point.data_workers), default=None)
    signals = [
        window for name, series in (("carbon", carbon), ("tariff", tariff)) for window in _signals(name, series, mine)
    ]
    return Work(
        job=job.name,
        phases=phases,
        shape=replace(
            job.shape,
            replicas=job.shape.replicas or need.devices,
            loader_workers=job.shape.loader_workers if data_workers is None else data_workers,
        ),
        timing=Timing(
            earliest_start_s=job.release_s,
            latest_start_s=None if job.deadline_s is None else max(job.deadline_s - fastest_s, job.release_s or 0.0),
            deadline_s=job.deadline_s,
            runs=tuple(_runs(mine)),
            pausable=job.pausable,
            pause_every_s=job.pause_every_s,
            signals=tuple(signals),
        ),
        site=Site(
            node=node.name,
            devices=tuple(f"gpu:{place}" for place in mine[0].devices),
            excluded=tuple(f"gpu:{place}" for place in node.excluded),
        ),
        evidence=Evidence(source=mine[0].point.source, confidence=0.9 if need.response.doubt.power_ratio else None),
    )


def _phase(one: Stretch, place: int, response: Response) -> PhaseSetting:
    doubt = response.doubt
    sigma = (doubt.power_ratio**2 + doubt.common_ratio**2) ** 0.5
    point = one.point
    return PhaseSetting(
        device=f"gpu:{place}",
        phase=Phase.STEADY,
        setting=point.setting,
        from_s=one.from_s,
        until_s=one.until_s,
        steps=one.steps,
        power_w=_interval(point.power_w, sigma) if response.power_known else None,
        p99_w=point.p99_w or (point.power_w * (1 + NINETY_NINE * sigma) if response.power_known else None),
        peak_w=point.peak_w,
        step_s=_interval(point.step_s, doubt.time_ratio) if response.time_known else None,
        source=point.source,
    )


def _interval(value: float, sigma: float) -> Interval:
    return Interval(
        value=value, low=max(0.0, value * (1 - NINE_IN_TEN * sigma)), high=value * (1 + NINE_IN_TEN * sigma)
    )


def _runs(mine: Sequence[Stretch]) -> list[Span]:
    spans: list[Span] = []
    for one in sorted(mine, key=lambda each: each.from_s):
        if spans and one.from_s <= spans[-1].until_s + 1e-6:
            spans[-1] = Span(from_s=spans[-1].from_s, until_s=max(spans[-1].until_s, one.until_s))
        else:
            spans.append(Span(from_s=one.from_s, until_s=one.until_s))
    return spans


def _signals(kind: str, series: Series | None, mine: Sequence[Stretch]) -> list[SignalWindow]:
    if series is None:
        return []
    return [
        SignalWindow(span=span, kind=kind, value=series.mean(span.from_s, span.until_s) * KWH_J)
        for span in _runs(mine)
        if span.from_s >= series.times_s[0] and span.until_s <= series.until_s
    ]


def in_force(schedule: WorkSchedule, now_s: float, phase: Phase = Phase.STEADY) -> dict[str, Setting]:
    """By device the setting that holds NOW_S: the schedule's while it is valid, else the safe default.

    A device for which nothing is said is left as found, and is not in the answer.
    """
    default = {one.device: one.setting for one in schedule.safe_default}
    if not schedule.valid_from_s <= now_s < schedule.valid_until_s:
        return default
    holds = {
        one.device: one.setting
        for work in schedule.works
        for one in work.phases
        if one.phase is phase
        and (one.from_s is None or one.from_s <= now_s)
        and (one.until_s is None or now_s < one.until_s)
    }
    return default | holds


def knob_values(settings: Mapping[str, Setting]) -> dict[str, float | tuple[float, float]]:
    """SETTINGS as values of the knobs that a lease turns: "gpu:0/power_limit" in W, "gpu:0/clock" in Hz."""
    values: dict[str, float | tuple[float, float]] = {}
    for device, setting in settings.items():
        if setting.power_limit_w is not None:
            values[f"{device}/power_limit"] = setting.power_limit_w
        if setting.clock_hz is not None:
            values[f"{device}/clock"] = (setting.clock_hz, setting.clock_hz)
        if setting.memory_clock_hz is not None:
            values[f"{device}/memory_clock"] = (setting.memory_clock_hz, setting.memory_clock_hz)
    return values


def schedule_text(schedule: WorkSchedule) -> str:
    """SCHEDULE as JSON."""
    return json.dumps(as_plain(schedule), indent=1, sort_keys=True) + "\n"


def schedule_from(text: str, where: str = "work schedule") -> WorkSchedule:
    """The work schedule in TEXT. Raises BadInput that names every field that is wrong."""
    try:
        plain: Any = json.loads(text)
    except json.JSONDecodeError as wrong:
        raise BadInput(f"{where}, line {wrong.lineno}: this is no JSON: {wrong.msg}") from wrong
    return parse_fact(WorkSchedule, plain, where)


def write_schedule(schedule: WorkSchedule, path: Path) -> None:
    try:
        path.write_text(schedule_text(schedule), encoding="utf-8")
    except OSError as refused:
        raise NotWritten(f"the work schedule {path} cannot be written: {refused}") from refused


def read_schedule(path: Path) -> WorkSchedule:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"the work schedule {path} cannot be read: {refused}") from refused
    return schedule_from(text, path.name)
