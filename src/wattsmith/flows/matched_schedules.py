"""A work schedule for one program that runs already, from what it was recognised as."""

import time

from wattsmith.flows.matching import best_setting
from wattsmith.schedule.documents import schedules_of
from wattsmith.schedule.matched import doubt_of, evidence_of, points_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import Job, Need, Objective, Plan, PoolNode, Response, Stretch
from wattsmith.terms.telemetry import Match
from wattsmith.terms.work_schedule import Watch, WorkSchedule


def schedule_for(
    found: Match,
    *,
    job: str,
    steps: float,
    slowdown: float = 0.05,
    client: str = "here",
    device: str = "gpu:0",
    now_s: float | None = None,
    watch: Watch | None = None,
) -> WorkSchedule:
    """The setting with least energy at which FOUND should lose no more than SLOWDOWN, even at the bad end of its doubt.

    Nothing may be set that was not recognised: BadInput says why. Figures and intervals are those of the match there.
    """
    kind, _, place = device.partition(":")
    if kind != "gpu" or not place.isdigit():
        raise BadInput(f"schedules are made for GPUs such as gpu:0, not {device!r}")
    begin_s = time.time() if now_s is None else now_s
    points = points_of(found)
    setting = best_setting(found, slowdown, cautious=True)
    assert found.response is not None
    assert setting is not None
    chosen = found.response.at(setting)
    point = points[chosen]
    node = PoolNode(name=client, kind=kind, count=int(place) + 1)
    response = Response(points=(point,), doubt=doubt_of(found, chosen))
    work = Job(name=job, steps=steps, needs=(Need(kind=kind, devices=1, response=response),))
    stretch = Stretch(
        job=job,
        node=client,
        devices=(int(place),),
        from_s=begin_s,
        until_s=begin_s + steps / point.rate,
        point=point,
        steps=steps,
    )
    plan = Plan(
        objective=Objective.ENERGY,
        stretches=(stretch,),
        begin_s=begin_s,
        end_s=stretch.until_s,
        energy_j=stretch.energy_j,
        emitted_g=None,
        cost=None,
        peak_w=point.power_w,
        budget_w=None,
        guard_w=0.0,
        bound=None,
        value=stretch.energy_j,
        method="match",
    )
    (made,) = schedules_of(plan, [work], [node], serial=int(begin_s), watch=watch, evidence={job: evidence_of(found)})
    return made
