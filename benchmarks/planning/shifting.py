"""Jobs moved to cleaner hours, against starting them at once at full speed."""

import contextlib
import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from planning.fleets import drawn_fleet, full_draw_w
from wattsmith.schedule.planning import Wish, make_plan
from wattsmith.schedule.series import Series, read_series
from wattsmith.terms.schedule import Job, Need, NoPlan, Objective, PoolNode, Response

HOUR_S = 3600.0
HORIZON_H = 48


def zones(data: Path) -> dict[str, Series]:
    return {
        path.name.partition("_")[0]: read_series(path)
        for path in sorted((data / "carbon-carboncast").glob("*_lifecycle_ci.csv"))
    }


def drawn_jobs(responses: Mapping[str, Response], count: int, begin_s: float, rng: Any, *, pausable: bool) -> list[Job]:
    """Jobs of two to ten hours at full speed, released within twelve hours, with half to three times that as slack."""
    jobs = []
    for number, response in enumerate(drawn_fleet(dict(responses), count, rng)):
        hours = rng.uniform(2, 10)
        release_s = begin_s + HOUR_S * int(rng.integers(0, 12))
        deadline_s = min(begin_s + HORIZON_H * HOUR_S, release_s + HOUR_S * (hours * rng.uniform(1.5, 4) + 2))
        jobs.append(
            Job(
                name=f"job-{number}",
                steps=hours * HOUR_S * max(point.rate for point in response.points),
                needs=(Need(kind="gpu", devices=1, response=response),),
                release_s=release_s,
                deadline_s=deadline_s,
                pausable=pausable,
            )
        )
    return jobs


def at_once_g(jobs: list[Job], series: Series) -> float:
    """What is emitted when each job starts at its release at its fastest setting, whatever the budget."""
    total = 0.0
    for job in jobs:
        point = max(job.needs[0].response.points, key=lambda one: (one.rate, -one.power_w))
        lasts_s = job.steps / point.rate
        assert job.release_s is not None
        total += point.power_w * lasts_s * series.mean(job.release_s, job.release_s + lasts_s)
    return total


def shifted(
    responses: Mapping[str, Response],
    series: Series,
    cases: int,
    rng: Any,
    *,
    pausable: bool,
    share: float,
    exact: bool,
) -> dict[str, float]:
    """Means over CASES of 30 jobs; SHARE: the budget, of what all of them would draw at once."""
    at_once, gap, to_exact, took_s, missed = [], [], [], [], 0
    for _ in range(cases):
        begin_s = series.times_s[0] + HOUR_S * int(rng.integers(0, len(series.times_s) - 4 * HORIZON_H))
        jobs = drawn_jobs(responses, 30, begin_s, rng, pausable=pausable)
        nodes = [PoolNode(name=f"node-{number}", kind="gpu") for number in range(len(jobs))]
        budget_w = share * full_draw_w([job.needs[0].response for job in jobs])
        wish = Wish(now_s=begin_s, objective=Objective.CARBON, carbon=series, slot_s=HOUR_S, budget_w=budget_w)
        began_s = time.perf_counter()
        found = make_plan(jobs, nodes, wish)
        took_s.append(time.perf_counter() - began_s)
        missed += len(found.missed)
        if found.missed:
            continue
        at_once.append(at_once_g(jobs, series) / found.value - 1)
        if found.gap_ratio is not None:
            gap.append(found.gap_ratio)
        if exact:
            with contextlib.suppress(NoPlan):
                to_exact.append(found.value / make_plan(jobs, nodes, replace(wish, exact=True)).value - 1)
    return {
        "jobs": 30 * cases,
        "missed": missed,
        "at once": statistics.fmean(at_once) if at_once else float("nan"),
        "least": min(at_once, default=float("nan")),
        "gap": statistics.fmean(gap) if gap else float("nan"),
        "to exact": statistics.fmean(to_exact) if to_exact else float("nan"),
        "s": statistics.fmean(took_s),
    }
