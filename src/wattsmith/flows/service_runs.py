"""A job that has run, as what was predicted of it, and as a run for the record."""

import math
import socket
from datetime import UTC, datetime

from wattsmith.flows.service_estimates import Structured
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.run import Consumption, Device, Provenance, Run, Status, StepTimes
from wattsmith.terms.schedule import NINE_IN_TEN, Job, Need, OperatingPoint
from wattsmith.terms.service import Attempt, Predicted, ServedJob
from wattsmith.terms.work import Interval, Workload

FAMILY = "user"  # networks that people submitted
FEWEST_STEPS = 3  # a job that did fewer says nothing of a step


def way_of(job: Job, devices: int, point: OperatingPoint) -> Need:
    """The need of JOB that POINT belongs to."""
    return next((one for one in job.needs if one.devices == devices and point in one.response.points), job.needs[0])


def predicted(
    job: Job,
    need: Need,
    point: OperatingPoint,
    *,
    standing: tuple[str, tuple[str, ...]] | None = None,
    record: str | None = None,
) -> Predicted:
    """What JOB should need on the devices of NEED at POINT. STANDING: how far an estimate is to be trusted, and why.

    RECORD names the record from which it would be known.
    """
    doubt = need.response.doubt
    duration_s = _interval(job.steps / point.rate, doubt.time_ratio)
    power_sigma = math.hypot(doubt.power_ratio, doubt.common_ratio)
    power_w = _interval(need.devices * point.power_w, power_sigma)
    memory = need.memory_bytes
    where, why = standing or (str(point.source), ())
    time_known, power_known = need.response.time_known, need.response.power_known
    if (unknown := why_unknown(need, record)) is not None:
        where, why = where if time_known else "unknown", (*why, unknown)
    energy_j = _interval(power_w.value * duration_s.value, math.hypot(power_sigma, doubt.time_ratio))
    return Predicted(
        duration_s=duration_s if time_known else None,
        energy_j=energy_j if time_known and power_known else None,
        power_w=power_w if power_known else None,
        memory_bytes=None if memory is None else Interval(value=memory, low=0.0, high=memory),
        step_s=_interval(need.steps_each / point.rate, doubt.time_ratio) if time_known else None,
        steps=math.ceil(job.steps / need.steps_each),
        device=need.kind,
        devices=need.devices,
        standing=where,
        reasons=why,
    )


def why_unknown(need: Need, record: str | None) -> str | None:
    """Why nobody can tell what a job does on the devices of NEED, and the ways out; None: it can be told.

    RECORD names the record from which it would be known.
    """
    if need.response.power_known and need.response.time_known:
        return None
    command = f"wattsmith record run --preset smoke --device {'cpu' if need.kind == 'cpu' else 'cuda:0'}"
    into = "" if record is None else f" --record {record}"
    out = f"state its step and power, or measure first, on that machine: {command}{into}"
    if not need.response.time_known:
        return f"no record tells how long it takes on {need.kind} or what it draws; {out}"
    return f"the record of {need.kind} does not tell what it draws; {out} (with a meter)"


def _interval(value: float, sigma: float) -> Interval:
    wide = NINE_IN_TEN * sigma
    return Interval(value=value, low=max(0.0, value * (1 - wide)), high=value * (1 + wide))


def run_of(job: ServedJob, attempt: Attempt, result: JobResult, structured: Structured, kind: str) -> Run | None:
    """The job as a run of the record; None: it did not say enough of its steps."""
    steps, step_s = result.steps, result.step_s
    if steps is None or step_s is None or steps < FEWEST_STEPS or step_s <= 0:
        return None
    counted = int(steps) - 1
    spread_s = result.step_spread_s or 0.0
    how = structured.how
    workload = Workload(
        family=FAMILY,
        parameters={"model": structured.name or job.name, "structure": job.structure or ""},
        batch=int(how.get("batch") or 1),
        precision=how.get("precision", "fp32"),
        mode=how.get("mode", "train"),
        layout=how.get("layout", "contiguous"),
        compiled=bool(how.get("compiled", False)),
        optimizer=how.get("optimizer", "adamw") if how.get("mode", "train") == "train" else None,
        accumulation=int(how.get("accumulation", 1)),
        devices=max(1, len(attempt.devices)),
    )
    energy_j, error_j = result.energy_j, result.energy_error_j
    power_w = result.power_w
    return Run(
        workload=workload,
        device=Device(name=result.device or kind, kind="cpu" if kind == "cpu" else "cuda", simulated=result.simulated),
        setting=attempt.setting,
        status=Status.MEASURED,
        provenance=Provenance(
            measured_at=datetime.fromtimestamp(attempt.started_s, UTC).isoformat(),
            session=session_of(job),
            hostname=attempt.node or socket.gethostname(),
        ),
        structure=structured.trace.structure,
        times=StepTimes(
            steps=counted,
            mean_s=step_s,
            median_s=step_s,  # the mean stands in: single steps are not kept
            spread_s=spread_s,
            error_ratio=1.96 * spread_s / math.sqrt(counted) / step_s,
            first_s=result.first_step_s or step_s,
        ),
        consumption=Consumption(
            window_s=result.duration_s,
            # The meter saw the whole job; a step has its share of that by time.
            step_energy_j=None if power_w is None else power_w * step_s,
            step_energy_error_j=None
            if not energy_j or error_j is None or power_w is None
            else error_j / energy_j * power_w * step_s,
            power_w=power_w,
            energy_source=result.energy_source,
            peak_held_bytes=result.peak_memory_bytes,
            simulated=result.simulated,
        ),
    )


def session_of(job: ServedJob) -> str:
    """The session under which the run of JOB joins the record: one job joins once."""
    return f"job {job.id} {job.submitted_s:.3f}"
