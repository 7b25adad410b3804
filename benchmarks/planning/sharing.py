"""Fleets under one budget: how near the optimum, how fast, and how often a plan draws more than it may."""

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np  # noqa: TID253 - part of a script

from planning.fleets import drawn_fleet, full_draw_w, weights_of, with_error
from wattsmith.schedule.budget import Shared, share_budget
from wattsmith.schedule.guard import guarded_share
from wattsmith.terms.schedule import NoPlan, Response

BUDGETS = (0.6, 0.7, 0.8, 0.9)  # of what the fleet draws at its fastest


def common_cap(fleet: Sequence[Response], weights: Sequence[float], budget_w: float) -> float:
    """The most work with one cap for all, as a share of each device's highest setting; 0: no cap keeps the budget."""
    levels = [[point.setting.power_limit_w or point.setting.clock_hz or 0.0 for point in one.points] for one in fleet]
    best = 0.0
    for share in sorted({level / max(row) for row in levels for level in row}):
        picked = [
            max((place for place, level in enumerate(row) if level <= share * max(row) * (1 + 1e-9)),
                key=lambda place, row=row: row[place], default=int(np.argmin(row)))
            for row in levels
        ]  # fmt: skip
        points = [one.points[place] for one, place in zip(fleet, picked, strict=True)]
        if sum(point.power_w for point in points) <= budget_w:
            best = max(best, sum(w * point.rate for w, point in zip(weights, points, strict=True)))
    return best


def gaps(responses: Mapping[str, Response], devices: int, fleets: int, rng: Any) -> dict[str, float]:
    """Means over FLEETS of each budget; fleets that the budget cannot keep running are drawn anew."""
    ours, worst, common, kept, exact_s, ours_s = [], 0.0, [], [], [], []
    for share in BUDGETS:
        found = 0
        while found < fleets:
            fleet = drawn_fleet(dict(responses), devices, rng)
            weights, budget_w = weights_of(fleet), share * full_draw_w(fleet)
            try:
                began_s = time.perf_counter()
                near = share_budget(fleet, budget_w, weights=weights, may_pause=False)
                ours_s.append(time.perf_counter() - began_s)
            except NoPlan:
                continue
            began_s = time.perf_counter()
            best = share_budget(fleet, budget_w, weights=weights, may_pause=False, exact=True)
            exact_s.append(time.perf_counter() - began_s)
            top = max(best.worth, near.worth)
            ours.append(1 - near.worth / top)
            worst = max(worst, ours[-1])
            common.append(1 - common_cap(fleet, weights, budget_w) / top)
            kept.append(top / devices)
            found += 1
    return {
        "devices": devices,
        "fleets": len(ours),
        "gap": statistics.fmean(ours),
        "worst": worst,
        "common cap": statistics.fmean(common),
        "kept": statistics.fmean(kept),
        "ms": 1e3 * statistics.median(ours_s),
        "exact ms": 1e3 * statistics.median(exact_s),
    }


def overshoots(
    responses: Mapping[str, Response], devices: int, fleets: int, error: float, by: str, rng: Any
) -> dict[str, Any]:
    """How often the true power of a plan is above its budget, with a guard band and without, and what that costs."""
    over, over_plain, lost, guards, most = [], [], [], [], 0.0
    for share in BUDGETS[1:]:
        for _ in range(fleets):
            fleet = drawn_fleet(dict(responses), devices, rng)
            weights, budget_w = weights_of(fleet), share * full_draw_w(fleet)
            seen = with_error(fleet, error, rng, by=by)
            try:
                kept, guard = guarded_share(seen, budget_w, weights=weights, may_pause=False)
                plain = share_budget(seen, budget_w, weights=weights, may_pause=False)
                best = share_budget(fleet, budget_w, weights=weights, may_pause=False)
            except NoPlan:
                continue
            if min(sum(min(p.power_w for p in one.points) for one in each) for each in (seen, fleet)) > 0.97 * budget_w:
                continue  # nothing can be chosen: all devices are at their least anyway
            true_w = _true(fleet, kept, "power_w")
            over.append(true_w > budget_w)
            most = max(most, true_w / budget_w - 1)
            over_plain.append(_true(fleet, plain, "power_w") > budget_w)
            lost.append(1 - _true(fleet, kept, "rate", weights) / best.worth)
            guards.append(guard.guard_w / budget_w)
    return {
        "devices": devices,
        "error": error,
        "by": by,
        "plans": len(over),
        "over": statistics.fmean(over),
        "from": interval_of(sum(over), len(over))[0],
        "to": interval_of(sum(over), len(over))[1],
        "most over": most,
        "without": statistics.fmean(over_plain),
        "lost": statistics.fmean(lost),
        "guard": statistics.fmean(guards),
    }


def together(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Two rows of the same cell as one."""
    plans = one["plans"] + other["plans"]
    means = {
        name: (one["plans"] * one[name] + other["plans"] * other[name]) / plans
        for name in ("over", "without", "lost", "guard")
    }
    low, high = interval_of(round(means["over"] * plans), plans)
    most = max(one["most over"], other["most over"])
    return {**one, **means, "plans": plans, "from": low, "to": high, "most over": most}


def interval_of(hits: int, count: int) -> tuple[float, float]:
    """The shares between which the true one lies 95 times of 100, by Clopper and Pearson."""
    from scipy.stats import beta

    low = 0.0 if hits == 0 else float(beta.ppf(0.025, hits, count - hits + 1))
    return low, 1.0 if hits == count else float(beta.ppf(0.975, hits + 1, count - hits))


def _true(fleet: Sequence[Response], shared: Shared, name: str, weights: Sequence[float] | None = None) -> float:
    points = shared.points(fleet)
    return sum(
        (1.0 if weights is None else weights[place]) * getattr(point, name)
        for place, point in enumerate(points)
        if point is not None
    )


def plan_time(responses: Mapping[str, Response], devices: int, rng: Any) -> dict[str, float]:
    """Milliseconds to share a budget among DEVICES, the best of several: others use this machine too."""
    fleet = drawn_fleet(dict(responses), devices, rng)
    weights, budget_w = weights_of(fleet), 0.7 * full_draw_w(fleet)
    seen = with_error(fleet, 0.05, rng)
    plain, guarded = [], []
    for _ in range(7):
        began_s = time.perf_counter()
        share_budget(fleet, budget_w, weights=weights)
        plain.append(time.perf_counter() - began_s)
        began_s = time.perf_counter()
        guarded_share(seen, budget_w, weights=weights)
        guarded.append(time.perf_counter() - began_s)
    return {"devices": devices, "ms": 1e3 * min(plain), "guarded ms": 1e3 * min(guarded)}
