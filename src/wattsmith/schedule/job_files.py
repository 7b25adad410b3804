"""Jobs and pools as people write them: YAML with units, and errors that name line and field, all of them at once."""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from wattsmith.schedule.order import circle_in
from wattsmith.schedule.yaml_tree import Value, Wrongs, read_tree
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.quantity import parse_quantity
from wattsmith.terms.schedule import DataWork, Doubt, OperatingPoint, PoolNode, SettingSource, Shape
from wattsmith.terms.work import Setting

FIGURES = ("memory", "curve", "step", "power", "doubt")
MODEL = (
    *("model", "input", "batch", "precision", "mode", "optimizer", "layout", "accumulation", "compiled"),
    *("samples", "epochs", "record"),
)
WORDS = {  # that these fields of a model may hold
    "mode": ("train", "infer"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "layout": ("contiguous", "channels-last"),
    "optimizer": ("sgd", "adam", "adamw", "none"),
}
JOB = (
    *("name", "steps", "gpus", "scaling", "on", *FIGURES, *MODEL, "release", "deadline", "pausable", "pause_every"),
    *("resume", "after", "weight", "micro_batch", "concurrency", "loader_workers", "pacing_gap"),
)
PLANNED = ("match", "data_work")  # what only a plan asks for
NODE = ("name", "device", "count", "memory", "idle", "base", "power_limits", "excluded", "cores")
POINT = ("power_limit", "clock", "step", "rate", "power", "p99", "peak")
DOUBT = ("power", "common", "time")
DATA_WORK = ("made", "worker")
SCALING = 0.95  # of the speed, kept with each doubling of devices, where a file does not tell
CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")
LAST_S = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
Read = TypeVar("Read")


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is written of a job on one kind of device."""

    points: tuple[OperatingPoint, ...]
    memory_bytes: float | None = None
    doubt: Doubt | None = None  # None: nothing is said of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """How many devices a job may have."""

    least: int = 1
    most: int | None = 1  # None: as many as a machine has
    fewest: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenJob:
    """A job as its file has it. Figures by kind of device; "" stands for every kind."""

    name: str
    at: Value  # where it stands, for errors
    steps: float | None
    wanted: Wanted
    scaling: float
    figures: Mapping[str, Figures]
    model: Mapping[str, object]  # options of an estimate; empty: plain figures are given
    release_s: float | None
    deadline_s: float | None
    pausable: bool
    pause_every_s: float | None
    resume_s: float
    after: tuple[str, ...]
    weight: float
    shape: Shape
    data_work: DataWork | None = None  # None: nothing is said of it


def read_jobs(path: Path, now_s: float) -> list[WrittenJob]:
    """The jobs in a file. Times without a date are the next such time after NOW_S; "2h" is so long after it."""
    top = read_tree(path).fields(("jobs",))
    if "jobs" not in top:
        raise read_tree(path).wrong("there must be a list called jobs")
    wrongs = Wrongs()
    jobs = [written_job(one, now_s, wrongs, PLANNED) for one in top["jobs"].items()]
    wrongs.tell()
    if not jobs:
        raise top["jobs"].wrong("there is no job in it")
    seen: dict[str, int | None] = {}
    for job in jobs:
        if job.name in seen:
            raise job.at.wrong(f"a job called {job.name!r} stands in line {seen[job.name]} already")
        seen[job.name] = job.at.line
    check_waits(jobs)
    return jobs


def check_waits(jobs: Sequence[WrittenJob]) -> None:
    """Raise where a job waits for one that is not among JOBS, or for itself by way of others."""
    by_name = {job.name: job for job in jobs}
    wrongs = Wrongs()
    for job in jobs:
        for name in job.after:
            if name not in by_name:
                wrongs.add(_after_at(job).wrong(f"there is no job called {name!r} to wait for"))
    wrongs.tell()
    circle = circle_in({job.name: job.after for job in jobs})
    if circle:
        first = _after_at(by_name[circle[0]])
        raise first.wrong(f"jobs wait for each other in a circle: {' after '.join(circle)}")


def _after_at(job: WrittenJob) -> Value:
    found: Value = job.at.plain["after"]
    return found


def read_pool(path: Path) -> list[PoolNode]:
    """The nodes in a file."""
    tree = read_tree(path)
    top = tree.fields(("nodes",))
    if "nodes" not in top or not top["nodes"].items():
        raise tree.wrong("there must be a list called nodes, with at least one")
    found: dict[str, PoolNode] = {}
    wrongs = Wrongs()
    for one in top["nodes"].items():
        with wrongs.gathered():
            node = _node(one)
            if node.name in found:
                raise one.wrong(f"there are two nodes called {node.name!r}")
            found[node.name] = node
    wrongs.tell()
    return list(found.values())


def _node(at: Value) -> PoolNode:
    fields = at.fields(NODE)
    for name in ("name", "device"):
        if name not in fields:
            raise at.wrong(f"a node needs a {name}")
    limits = fields.get("power_limits")
    ends_w = None
    if limits is not None:
        both = [_quantity(one, "power") for one in limits.items()]
        if len(both) != 2 or not 0 < both[0] <= both[1]:
            raise limits.wrong("write the least and the most, such as [100W, 300W]")
        ends_w = (both[0], both[1])
    memory = fields.get("memory")
    excluded = fields["excluded"].items() if "excluded" in fields else []
    try:
        return PoolNode(
            name=fields["name"].text(),
            kind=fields["device"].text().lower(),
            count=count_at(fields["count"]) if "count" in fields else 1,
            memory_bytes=None if memory is None else int(positive_at(memory, "memory")),
            idle_w=_quantity(fields["idle"], "power") if "idle" in fields else None,
            base_w=_quantity(fields["base"], "power") if "base" in fields else 0.0,
            power_limits_w=ends_w,
            excluded=tuple(count_at(one, least=0) for one in excluded),
            cores=count_at(fields["cores"]) if "cores" in fields else None,
        )
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused


def written_job(at: Value, now_s: float, wrongs: Wrongs, more: tuple[str, ...] = ()) -> WrittenJob:
    """The job that stands at AT. What is wrong with it goes to WRONGS, and then it is none to work with.

    MORE are names of fields that somebody else reads.
    """
    says = isinstance(at.plain, dict) and bool(at.plain)
    fields = at.fields((*JOB, *more), wrongs) if says else {}
    if not says:
        wrongs.add(at.wrong(f"a job holds names with values, such as name: …; got {at.said}"))

    def read(name: str, how: Callable[[Value], Read], otherwise: Read) -> Read:
        return wrongs.read(fields, name, how, otherwise)

    if says and "name" not in fields:
        wrongs.add(at.wrong("a job needs a name"))
    figures: dict[str, Figures] = {}
    kinds: dict[str, Value] = read("on", _kinds, {})
    for kind, one in kinds.items():
        with wrongs.gathered():
            figures[kind] = _figures(one, one.fields(FIGURES), fields, wrongs)
    if "curve" in fields or "step" in fields:
        with wrongs.gathered():
            figures[""] = _figures(at, fields, fields, wrongs)
    model = {name: read(name, _plain, None) for name in MODEL if name in fields} if "model" in fields else {}
    # What nobody takes must be right all the same.
    read("memory", partial(positive_at, kind="memory"), None)
    read("doubt", _doubt, None)
    if "curve" in fields or "step" not in fields:
        read("step", partial(positive_at, kind="time"), None)
        read("power", partial(positive_at, kind="power"), None)
    if says and not {"on", "curve", "step", "model", "match"} & set(fields):
        wrongs.add(
            at.wrong("how does it run? Give step and power, a curve, figures on: devices, or a model to estimate")
        )
    if "data_work" in fields and "loader_workers" in fields:
        wrongs.add(
            fields["data_work"].wrong("how many data workers there are follows from it; leave out loader_workers")
        )
    if says and "steps" not in fields and not ("model" in fields and "samples" in fields):
        wrongs.add(at.wrong("how much is there to do? Give steps, or samples and epochs of a model"))
    return WrittenJob(
        name=read("name", Value.text, ""),
        at=at,
        steps=read("steps", _positive_number, None),
        wanted=read("gpus", _wanted, Wanted()),
        scaling=read("scaling", _share, SCALING),
        figures=figures,
        model=model,
        release_s=read("release", lambda one: _time(one, now_s), None),
        deadline_s=read("deadline", lambda one: _time(one, now_s), None),
        pausable=read("pausable", _yes, False),
        pause_every_s=read("pause_every", lambda one: positive_at(one, "time"), None),
        resume_s=read("resume", lambda one: _quantity(one, "time"), 0.0),
        after=read("after", _names, ()),
        weight=read("weight", _positive_number, 1.0),
        shape=_shape(read),
        data_work=read("data_work", _data_work, None),
    )


def _kinds(on: Value) -> dict[str, Value]:
    if not isinstance(on.plain, dict) or not on.plain:
        raise on.wrong("must hold figures by kind of device, such as a100: {step: 100ms, power: 300W}")
    return {kind.lower(): value for kind, value in on.plain.items()}


def _shape(read: Callable[..., Any]) -> Shape:
    return Shape(
        batch=read("batch", count_at, None),
        micro_batch=read("micro_batch", count_at, None),
        concurrency=read("concurrency", count_at, None),
        precision=read("precision", Value.text, None),
        loader_workers=read("loader_workers", lambda one: count_at(one, least=0), None),
        pacing_gap_s=read("pacing_gap", lambda one: _quantity(one, "time"), None),
    )


def _data_work(at: Value) -> DataWork:
    wrongs = Wrongs()
    fields = at.fields(DATA_WORK, wrongs)
    if "made" not in fields:
        wrongs.add(at.wrong("needs made, the time of a worker for one batch, such as {made: 400ms, worker: 8W}"))
    made_s = wrongs.read(fields, "made", lambda one: positive_at(one, "time"), 1.0)
    worker_w: float | None = wrongs.read(fields, "worker", lambda one: positive_at(one, "power"), None)
    wrongs.tell()
    try:
        return DataWork(made_s=made_s, worker_w=worker_w)
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused


def _figures(at: Value, fields: Mapping[str, Value], job: Mapping[str, Value], wrongs: Wrongs) -> Figures:
    both = {**job, **fields}
    return Figures(
        points=wrongs.tried(lambda: _stated_points(at, fields), ()),
        memory_bytes=wrongs.read(both, "memory", lambda one: positive_at(one, "memory"), None),
        doubt=wrongs.read(both, "doubt", _doubt, None),
    )


def _stated_points(at: Value, fields: Mapping[str, Value]) -> tuple[OperatingPoint, ...]:
    if "curve" in fields:
        points = _points(fields["curve"])
        if not points:
            raise fields["curve"].wrong("a curve needs at least one point")
    elif "step" in fields and "power" in fields:
        points = (_point(at, {"step": fields["step"], "power": fields["power"]}),)
    else:
        raise at.wrong("give a curve, or both step (the time of one) and power")
    return points


def _points(curve: Value) -> tuple[OperatingPoint, ...]:
    wrongs, points = Wrongs(), []
    lines: dict[Setting, int | None] = {}
    for one in curve.items():
        with wrongs.gathered():
            point = _point(one, one.fields(POINT))
            if point.setting in lines:
                raise one.wrong(f"the same setting stands in line {lines[point.setting]} already; keep one of them")
            lines[point.setting] = one.line
            points.append(point)
    wrongs.tell()
    return tuple(points)


def _doubt(at: Value) -> Doubt:
    if isinstance(at.plain, str):
        share = _share(at)
        return Doubt(power_ratio=share, time_ratio=share)
    shares = {name: _share(value) for name, value in at.fields(DOUBT).items()}
    return Doubt(
        power_ratio=shares.get("power", 0.0), common_ratio=shares.get("common", 0.0), time_ratio=shares.get("time", 0.0)
    )


def _point(at: Value, fields: Mapping[str, Value]) -> OperatingPoint:
    if "power" not in fields or not ("step" in fields or "rate" in fields):
        raise at.wrong("a point needs power, and step (the time of one) or rate (steps a second)")
    wrongs = Wrongs()
    rate = wrongs.tried(lambda: _rate(fields), 1.0)
    power_w = wrongs.tried(lambda: positive_at(fields["power"], "power"), 1.0)
    wrongs.tell()
    try:
        return OperatingPoint(
            setting=Setting(
                power_limit_w=positive_at(fields["power_limit"], "power") if "power_limit" in fields else None,
                clock_hz=positive_at(fields["clock"], "frequency") if "clock" in fields else None,
            ),
            rate=rate,
            power_w=power_w,
            p99_w=positive_at(fields["p99"], "power") if "p99" in fields else None,
            peak_w=positive_at(fields["peak"], "power") if "peak" in fields else None,
            source=SettingSource.STATED,
        )
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused


def _rate(fields: Mapping[str, Value]) -> float:
    return number_at(fields["rate"], positive=True) if "rate" in fields else 1 / positive_at(fields["step"], "time")


def _wanted(at: Value) -> Wanted:
    if isinstance(at.plain, dict):
        wrongs = Wrongs()
        fields = at.fields(("least", "most", "fewest"), wrongs)
        least = wrongs.read(fields, "least", count_at, 1)
        most: int | None = wrongs.read(fields, "most", count_at, None)
        fewest = wrongs.read(fields, "fewest", _yes, False)
        wrongs.tell()
        if most is not None and most < least:
            raise at.wrong(f"at least {least} and at most {most} cannot both be")
        return Wanted(least=least, most=most, fewest=fewest)
    if at.plain == "fewest":
        return Wanted(most=None, fewest=True)
    count = count_at(at)
    return Wanted(least=count, most=count)


def _names(at: Value) -> tuple[str, ...]:
    return (at.plain,) if isinstance(at.plain, str) else tuple(one.text() for one in at.items())


def _plain(at: Value) -> object:
    name = at.place.rpartition(".")[2]
    if isinstance(at.plain, list) and name == "input":
        return [one.text() for one in at.plain]
    if name in ("batch", "samples", "epochs", "accumulation"):
        return count_at(at)
    if name == "compiled":
        return _yes(at)
    if name in WORDS and at.plain not in WORDS[name]:
        raise at.wrong(f"must be one of {', '.join(WORDS[name])}; got {at.said}")
    return at.text()


def _quantity(at: Value, kind: str) -> float:
    try:
        value = parse_quantity(at.text(), kind)
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused
    if value < 0:
        raise at.wrong(f"must not be negative, got {at.plain}")
    return value


def positive_at(at: Value, kind: str) -> float:
    """A quantity of KIND that is more than nothing."""
    value = _quantity(at, kind)
    if value == 0:
        raise at.wrong("must be more than nothing")
    return value


def number_at(at: Value, *, positive: bool = False) -> float:
    """A finite number without a unit."""
    try:
        value = float(at.text())
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or (positive and value <= 0):
        raise at.wrong(f"must be a {'positive ' if positive else ''}number, got {at.said}")
    return value


def _positive_number(at: Value) -> float:
    return number_at(at, positive=True)


def count_at(at: Value, *, least: int = 1) -> int:
    """A whole number from LEAST on."""
    value = number_at(at)
    if not value.is_integer() or value < least:
        raise at.wrong(f"must be a whole number from {least} on, got {at.said}")
    return int(value)


def _share(at: Value) -> float:
    text = at.text()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 <= share <= 1:
        raise at.wrong(f"must be a share such as 5% or 0.05, got {at.said}")
    return share


def _yes(at: Value) -> bool:
    said = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if not isinstance(at.plain, str) or at.plain.lower() not in said:
        raise at.wrong(f"must be yes or no, got {at.said}")
    return said[at.plain.lower()]


def _time(at: Value, now_s: float) -> float:
    try:
        return moment(at.text(), now_s)
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused


def moment(text: str, now_s: float) -> float:
    """TEXT as seconds since 1970: a date and time, "18:00" (the next, UTC), or "6h" after NOW_S."""
    at_s = _moment(text, now_s)
    if not at_s < LAST_S:
        raise BadTerm(f"{text!r:.60} lies after the year 9999, which cannot be meant")
    if at_s < 0:
        raise BadTerm(f"{text!r:.60} lies before 1970, which cannot be meant")
    return at_s


def _moment(text: str, now_s: float) -> float:
    if clock := CLOCK.fullmatch(text.strip()):
        now = datetime.fromtimestamp(now_s, UTC)
        at = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
        return (at if at > now else at + timedelta(days=1)).timestamp()
    try:
        at = datetime.fromisoformat(text.strip())
        return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()
    except ValueError:
        pass
    try:
        return now_s + parse_quantity(text.strip().removeprefix("+"), "time")
    except BadTerm:
        raise BadTerm(f"{text!r} is no time: write 2026-11-16T18:00Z, 18:00 or 6h") from None
