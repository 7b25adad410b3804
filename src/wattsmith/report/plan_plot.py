"""A plan as a timeline: who runs on which device, and what is drawn together."""

from datetime import UTC, datetime
from pathlib import Path

from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten
from wattsmith.terms.schedule import Plan

MOST_ROWS = 120


def power_steps(plan: Plan) -> list[tuple[float, float]]:
    """From each time on, what all jobs draw together, in W."""
    changes: dict[float, float] = {plan.begin_s: 0.0}
    for one in plan.stretches:
        changes[one.from_s] = changes.get(one.from_s, 0.0) + one.power_w
        changes[one.until_s] = changes.get(one.until_s, 0.0) - one.power_w
    drawn_w, steps = 0.0, []
    for at_s in sorted(changes):
        drawn_w += changes[at_s]
        steps.append((at_s, max(0.0, drawn_w)))
    return steps


def plot_plan(plan: Plan, path: Path) -> None:
    """Draw PLAN into PATH (.png, .svg or .pdf)."""
    if not plan.stretches:
        raise BadInput("there is nothing to draw: no job of the plan runs")
    try:
        from matplotlib import colormaps
        from matplotlib.dates import DateFormatter, date2num
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ExtraNeeded("drawing needs matplotlib: `pip install 'wattsmith[report]'`") from missing
    rows = list(dict.fromkeys((one.node, place) for one in plan.stretches for place in one.devices))[:MOST_ROWS]
    jobs = list(dict.fromkeys(one.job for one in plan.stretches))
    colours = colormaps["tab20"]
    figure = Figure(figsize=(12, 2.6 + 0.28 * len(rows)), layout="constrained")
    ratios = {"height_ratios": [max(1.0, 0.28 * len(rows)), 1.6]}
    lanes, power = figure.subplots(2, 1, sharex=True, gridspec_kw=ratios)

    def at(time_s: float) -> float:
        return float(date2num(datetime.fromtimestamp(time_s, UTC)))

    for one in plan.stretches:
        colour = colours(jobs.index(one.job) % 20)
        for place in one.devices:
            if (one.node, place) not in rows:
                continue
            row = rows.index((one.node, place))
            lanes.barh(row, at(one.until_s) - at(one.from_s), left=at(one.from_s), color=colour, edgecolor="white")
        if (one.node, one.devices[0]) in rows:
            row = rows.index((one.node, one.devices[0]))
            lanes.text(at(one.from_s), row, f" {one.job}", va="center", fontsize="x-small", clip_on=True)
    lanes.set_yticks(range(len(rows)), [f"{node} gpu:{place}" for node, place in rows], fontsize="x-small")
    lanes.invert_yaxis()
    steps = [*power_steps(plan), (plan.end_s, 0.0)]
    power.step([at(time_s) for time_s, _ in steps], [drawn_w for _, drawn_w in steps], where="post", color="#c05621")
    power.set_ylabel("jobs, W")
    power.set_ylim(bottom=0)
    power.xaxis.set_major_formatter(DateFormatter("%d %b %H:%M", tz=UTC))
    if plan.budget_w is not None:
        power.axhline(plan.budget_w, color="#4a5568", linestyle="--", linewidth=1)
        power.text(at(plan.begin_s), plan.budget_w, " budget", va="bottom", fontsize="x-small")
    figure.suptitle(f"{len(jobs)} jobs, least {plan.objective} ({plan.method})")
    try:
        figure.savefig(path)
    except (OSError, ValueError) as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused}") from refused
