"""What the page draws: power over time, predicted beside measured, lanes of devices, curves, coverage."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from wattsmith.serve.page.charts import (
    Axis,
    Point,
    area,
    band,
    frame,
    joined,
    level,
    line,
    linear_axis,
    log_axis,
    percent,
    time_axis,
)
from wattsmith.serve.page.words import DIGITS, field, stamp
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.service import Attempt, ServedJob

COLOURS = 10  # that page.css has for jobs
LANE = 26  # pixels
MOST_LANES = 64
CELLS = 26  # of the coverage, across
_SIGNAL_UNITS = {"carbon": "g/kWh", "tariff": "money/kWh"}


def power_over_time(
    points: Sequence[Point],
    begin_s: float,
    end_s: float,
    *,
    label: str,
    budget_w: float | None = None,
    height: int = 180,
) -> Markup:
    """Measured power, and the budget above it."""
    known = [value for _, value in points if value is not None]
    x = time_axis(begin_s, end_s)
    y = linear_axis(1.08 * max([*known, budget_w or 0.0, 1.0]), "power")
    over = (
        []
        if budget_w is None
        else [level(budget_w, y, "budget", f"budget {format_quantity(budget_w, 'power', DIGITS)}")]
    )
    return frame(
        label=label,
        x=x,
        y=y,
        paths=[area(points, x, y, "measured"), line(points, x, y, "measured")],
        over=over,
        height=height,
    )


def channel_over_time(
    lines: Mapping[str, Sequence[Point]], kind: str | None, *, label: str, high: float | None = None, height: int = 115
) -> Markup:
    """One channel of each device of a client. HIGH: the most that it can be."""
    values = [value for points in lines.values() for _, value in points if value is not None]
    times_s = [at for points in lines.values() for at, _ in points]
    x = time_axis(min(times_s), max(times_s))
    y = linear_axis(high if high is not None else 1.05 * max([*values, 1e-9]), kind, most_ticks=3)
    if high is not None and kind is None:
        y = Axis(low=0.0, high=high, ticks=((0.0, "0 %"), (high / 2, "50 %"), (high, "100 %")))
    paths = [line(points, x, y, f"c{place % COLOURS}") for place, points in enumerate(lines.values())]
    return frame(label=label, x=x, y=y, paths=paths, height=height)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of a job: what was said before it ran, and what came of it."""

    name: str
    kind: str  # of quantity
    predicted: Any  # an Interval, its plain form, or None
    measured: float | None
    so_far: bool = False  # it still grows
    note: str | None = None

    @property
    def verdict(self) -> str | None:
        """Where the measured value lies, in words; None: there is nothing to compare yet."""
        if self.predicted is None or self.measured is None:
            return None
        low, high = field(self.predicted, "low"), field(self.predicted, "high")
        if self.measured > high:
            return "above the interval"
        if self.so_far:
            return "so far"
        return "below the interval" if self.measured < low else "inside the interval"


def beside(one: Compared, *, height: int = 26) -> Markup:
    """The predicted interval as a band with its middle, the measured value as a mark on it."""
    shown = [
        each for each in (one.measured, field(one.predicted, "high") if one.predicted is not None else None) if each
    ]
    if not shown:
        return Markup("")
    x, middle = Axis(low=0.0, high=1.15 * max(shown)), height / 2
    parts = [Markup('<line class="rail" x1="0" x2="100%" y1="{0}" y2="{0}"/>').format(middle)]
    words = []
    if one.predicted is not None:
        low, value, high = (field(one.predicted, name) for name in ("low", "value", "high"))
        parts.append(
            Markup('<rect class="predicted" x="{}" width="{}" y="{}" height="12" rx="3"/>').format(
                percent(x.at(low)), percent(max(0.004, x.at(high) - x.at(low))), middle - 6
            )
        )
        parts.append(
            Markup('<line class="middle" x1="{0}" x2="{0}" y1="{1}" y2="{2}"/>').format(
                percent(x.at(value)), middle - 8, middle + 8
            )
        )
        words.append(f"predicted {format_quantity(value, one.kind, DIGITS)}")
    if one.measured is not None:
        parts.append(
            Markup('<circle class="measured{}" cx="{}" cy="{}" r="5"/>').format(
                " open" if one.so_far else "", percent(x.at(one.measured)), middle
            )
        )
        words.append(f"measured {format_quantity(one.measured, one.kind, DIGITS)}")
    return Markup('<svg class="beside" role="img" aria-label="{}" width="100%" height="{}">{}</svg>').format(
        f"{one.name}: {', '.join(words)}", height, joined(parts)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Something on a lane from one time to another."""

    lane: str
    from_s: float
    until_s: float
    kind: str  # class of its look
    text: str
    says: str  # when it is pointed at


def lanes(
    names: Sequence[str], pieces: Sequence[Piece], x: Axis, *, label: str, marks: Iterable[tuple[float, str, str]] = ()
) -> Markup:
    """Lanes under each other, with what is on them. MARKS: time, look and text of lines across all."""
    rows = {name: place for place, name in enumerate(names)}
    height = LANE * len(rows)
    parts = [
        Markup(
            '<rect class="lane" x="0" width="100%" y="{}" height="{}" rx="3"/>'
            '<text class="tick up" x="-8" y="{}">{}</text>'
        ).format(place * LANE + 2, LANE - 4, place * LANE + LANE / 2 + 4, _short(name))
        for name, place in rows.items()
    ]
    for one in pieces:
        if one.lane not in rows:
            continue
        from_share, until_share = x.at(one.from_s), x.at(one.until_s)
        width = max(0.003, until_share - from_share)
        top = rows[one.lane] * LANE
        # Cut off at its own end: a nested svg clips.
        text = Markup('<svg x="{}" width="{}" y="{}" height="{}"><text class="on" x="5" y="{}">{}</text></svg>').format(
            percent(from_share), percent(width), top, LANE, LANE / 2 + 4, one.text
        )
        parts.append(
            Markup(
                '<g class="piece {}"><title>{}</title><rect x="{}" width="{}" y="{}" height="{}" rx="3"/>{}</g>'
            ).format(one.kind, one.says, percent(from_share), percent(width), top + 3, LANE - 6, text)
        )
    over = [
        Markup('<line class="mark {1}" x1="{0}" x2="{0}" y1="0" y2="100%"><title>{2}</title></line>').format(
            percent(x.at(at_s)), kind, says
        )
        for at_s, kind, says in marks
    ]
    flat = Axis(low=0.0, high=1.0)
    return frame(label=label, x=x, y=flat, paths=[], over=[*parts, *over], height=height)


def _short(name: str, most: int = 9) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def response_curve(response: Mapping[str, Any], *, label: str) -> Markup:
    """Time and power over a setting, relative to the usual one, with intervals. Plain form of a ResponseGuess."""
    settings = response["settings"]
    both = [*response["time_ratio"], *response["power_ratio"]]
    x = linear_axis(max(settings), low=min(settings))
    x = Axis(low=min(settings), high=max(settings), ticks=x.ticks)
    y = linear_axis(max(one["high"] for one in both), low=min(0.9, *(one["low"] for one in both)))
    paths = [line([(x.low, 1.0), (x.high, 1.0)], x, y, "one")]
    for name, look in (("time_ratio", "predicted"), ("power_ratio", "measured")):
        found = response[name]
        lows = [(at, one["low"]) for at, one in zip(settings, found, strict=True)]
        highs = [(at, one["high"]) for at, one in zip(settings, found, strict=True)]
        paths.append(band(lows, highs, x, y, look))
        paths.append(line([(at, one["value"]) for at, one in zip(settings, found, strict=True)], x, y, look))
    dots = [
        Markup('<circle class="probe {}" cx="{}" cy="{}" r="4"><title>{}</title></circle>').format(
            look, percent(x.at(probe["setting"])), percent(1 - y.at(probe[name])), f"probed at {probe['setting']:.3g}"
        )
        for probe in response.get("probes", ())
        for name, look in (("time_ratio", "predicted"), ("power_ratio", "measured"))
        if probe.get(name) is not None
    ]
    return frame(label=label, x=x, y=y, paths=paths, over=dots, height=200)


def power_steps(stretches: Sequence[Mapping[str, Any]], begin_s: float) -> list[tuple[float, float]]:
    """From each time on, what all jobs of a plan draw together, in W."""
    changes: dict[float, float] = {begin_s: 0.0}
    for one in stretches:
        changes[one["from_s"]] = changes.get(one["from_s"], 0.0) + one["power_w"]
        changes[one["until_s"]] = changes.get(one["until_s"], 0.0) - one["power_w"]
    drawn_w, steps = 0.0, []
    for at_s in sorted(changes):
        drawn_w += changes[at_s]
        steps.append((at_s, max(0.0, drawn_w)))
    return steps


def plan_axis(plan: Mapping[str, Any]) -> Axis:
    return time_axis(plan["begin_s"], max(plan["end_s"], plan["begin_s"] + 1.0))


def plan_lanes(plan: Mapping[str, Any]) -> tuple[Markup, int]:
    """Jobs on devices over time, and how many devices are left out of the picture."""
    jobs = list(dict.fromkeys(one["job"] for one in plan["stretches"]))
    places = sorted({(one["node"], place) for one in plan["stretches"] for place in one["devices"]})
    names = [f"{node}:{place}" for node, place in places]
    pieces = [
        Piece(
            lane=f"{one['node']}:{place}",
            from_s=one["from_s"],
            until_s=one["until_s"],
            kind=f"c{jobs.index(one['job']) % COLOURS}",
            text=one["job"],
            says=f"{one['job']} on {one['node']}:{place}, {stamp(one['from_s'])} to {stamp(one['until_s'])}, "
            f"{format_quantity(one['point']['power_w'], 'power', DIGITS)}",
        )
        for one in plan["stretches"]
        for place in one["devices"]
    ]
    label = f"{len(jobs)} jobs on {len(names)} devices"
    return lanes(names[:MOST_LANES], pieces, plan_axis(plan), label=label), max(0, len(names) - MOST_LANES)


def plan_power(plan: Mapping[str, Any]) -> Markup:
    """What the jobs of a plan draw, under the budget less what is kept free."""
    steps = [*power_steps(plan["stretches"], plan["begin_s"]), (plan["end_s"], 0.0)]
    x = plan_axis(plan)
    budget_w, guard_w = plan["budget_w"], plan["guard_w"]
    y = linear_axis(1.08 * max([power_w for _, power_w in steps] + [budget_w or 0.0, 1.0]), "power", most_ticks=4)
    over, paths = [], [area(steps, x, y, "measured", steps=True), line(steps, x, y, "measured", steps=True)]
    if budget_w is not None:
        over.append(level(budget_w, y, "budget", f"budget {format_quantity(budget_w, 'power', DIGITS)}"))
        if guard_w:
            free = [(x.low, budget_w - guard_w), (x.high, budget_w - guard_w)]
            paths.insert(0, band(free, [(x.low, budget_w), (x.high, budget_w)], x, y, "guard"))
    return frame(label="power of the jobs over time", x=x, y=y, paths=paths, over=over, height=130)


def plan_signal(plan: Mapping[str, Any], windows: Sequence[Mapping[str, Any]], kind: str) -> Markup:
    """How dirty or dear energy is while a plan runs."""
    meant = sorted((one for one in windows if one["kind"] == kind), key=lambda one: one["span"]["from_s"])
    x = plan_axis(plan)
    points: list[Point] = []
    for one in meant:
        span, value = one["span"], one["value"]
        if points and span["from_s"] < points[-1][0]:
            continue
        if points and points[-1][0] < span["from_s"]:
            points.append((points[-1][0], None))  # nothing is known in between
        points += [(max(x.low, span["from_s"]), value), (min(x.high, span["until_s"]), value)]
    y = linear_axis(max(one["value"] for one in meant), most_ticks=3)
    label = f"{kind} in {_SIGNAL_UNITS.get(kind, 'units of its own')}"
    return frame(label=label, x=x, y=y, paths=[area(points, x, y, "signal"), line(points, x, y, "signal")], height=75)


def coverage(points: Sequence[tuple[float, float]], *, label: str) -> Markup:
    """How many runs were measured at each intensity (across) and number of operations (up): both positive."""
    x = log_axis(min(at for at, _ in points), max(at for at, _ in points))
    y = log_axis(min(value for _, value in points), max(value for _, value in points))
    rows = CELLS * 2 // 3
    counts: dict[tuple[int, int], int] = {}
    for at, value in points:
        cell = (min(CELLS - 1, int(x.at(at) * CELLS)), min(rows - 1, int(y.at(value) * rows)))
        counts[cell] = counts.get(cell, 0) + 1
    most = math.log1p(max(counts.values()))
    cells = [
        Markup('<rect class="cell d{}" x="{}" y="{}" width="{}" height="{}"><title>{} measured</title></rect>').format(
            1 + round(4 * math.log1p(count) / most),
            percent(across / CELLS),
            percent(1 - (up + 1) / rows),
            percent(1 / CELLS),
            percent(1 / rows),
            count,
        )
        for (across, up), count in sorted(counts.items())
    ]
    return frame(label=label, x=x, y=y, paths=[], over=cells, height=230)


def attempt_lanes(job: ServedJob, now_s: float) -> Markup:
    """From when it was submitted: waiting, and each attempt with how it ended."""
    end_s = job.ended_s if job.ended_s is not None else now_s
    names = [f"#{one.number}" for one in job.attempts]
    pieces = []
    for one in job.attempts:
        until_s = one.ended_s if one.ended_s is not None else now_s
        ended = "runs" if one.ended_s is None else "lost" if one.lost else _how_it_ended(one)
        look = {"runs": "running", "done": "done"}.get(ended, "failed")
        says = (
            f"attempt {one.number} on {one.node}: {ended}, {format_quantity(until_s - one.started_s, 'time', DIGITS)}"
        )
        text = f"{one.node} · {ended}"
        pieces.append(
            Piece(lane=f"#{one.number}", from_s=one.started_s, until_s=until_s, kind=look, text=text, says=says)
        )
    marks = []
    if job.deadline_s is not None and job.deadline_s <= end_s + (end_s - job.submitted_s):
        marks.append((job.deadline_s, "deadline", "deadline"))
        end_s = max(end_s, job.deadline_s)
    x = time_axis(job.submitted_s, end_s)
    return lanes(names, pieces, x, label=f"{len(names)} attempts since it was submitted", marks=marks)


def _how_it_ended(one: Attempt) -> str:
    if one.result is None:
        return "ended"
    if one.result.why:
        return "stopped"
    return "done" if one.result.exit_code == 0 else f"exit code {one.result.exit_code}"
