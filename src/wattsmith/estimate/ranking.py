"""Which configurations satisfy the limits, and which of them is best.

The first of the two phases of the published method: the user's limits select a cluster of the space of configurations.
Here every configuration already has its prediction, so those that fall outside are told which limit they break and by
how much, and limits that must not be broken are held against the upper end of the interval.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from wattsmith.estimate.limits import LIMITED, OBJECTIVES, Limit, format_figure
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.work import Interval, Prediction

CAUTIOUS = (
    "step",
    "epoch",
    "job",
    "memory",
)  # a job that does not fit or comes late has failed; one that costs more has not
OF_A_JOB = ("epoch", "job", "energy", "cost")  # unknown until it is known how many samples there are
TRADED = ("gpus", "energy", "time", "cost")  # what Pareto-best configurations trade against each other
HOUR_S = 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """Hardware and settings that a job could run with."""

    device: str
    batch: int  # samples per step on each device
    devices: int = 1
    precision: str = "fp32"
    power_limit_w: float | None = None  # None: left as found
    price_per_hour: float | None = None  # of one device, in any currency; None: not known

    def __post_init__(self) -> None:
        for name in ("batch", "devices"):
            if getattr(self, name) < 1:
                raise BadTerm(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.power_limit_w is not None and not 0 < self.power_limit_w < math.inf:
            raise BadTerm(f"power_limit_w must be positive and finite, got {self.power_limit_w}")
        if self.price_per_hour is not None and not 0 <= self.price_per_hour < math.inf:
            raise BadTerm(f"price_per_hour must be finite and not negative, got {self.price_per_hour}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """How much there is to do."""

    samples: int  # in an epoch
    epochs: int = 1

    def __post_init__(self) -> None:
        for name in ("samples", "epochs"):
            if getattr(self, name) < 1:
                raise BadTerm(f"{name} must be at least 1, got {getattr(self, name)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A configuration with what a step should cost there: power and energy of all its devices together."""

    configuration: Configuration
    prediction: Prediction


@dataclass(frozen=True, slots=True, kw_only=True)
class Breach:
    """A limit that an option does not satisfy."""

    limit: Limit
    figure: float | None  # what was held against the limit; None: not predicted, so nobody can say that it holds
    upper_end: bool  # the figure is the far end of the interval, not its value

    @property
    def excess_ratio(self) -> float | None:
        """How far beyond the limit, as a share of it."""
        return None if self.figure is None else self.limit.excess_ratio(self.figure)

    def __str__(self) -> str:
        if self.figure is None:
            return f"{self.limit.name} is not predicted, so {self.limit} cannot be promised"
        told = format_figure(self.figure, self.limit.name)
        might = "may be " if self.upper_end else ""
        return f"{self.limit.name} {might}{told}, {abs(self.limit.excess_ratio(self.figure)):.0%} beyond {self.limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranked:
    """An option, what it costs, and how it stands."""

    option: Option
    figures: Mapping[str, Interval | None]  # by the names of limits and objectives; None: not known
    place: int | None = None  # from 1, the best; None: a limit is broken
    pareto: bool = False  # no other that satisfies the limits is better in one way and as good in the rest
    breaches: tuple[Breach, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """Options in order: those that satisfy the limits, best first, and the others, nearest to satisfying them first."""

    objective: str
    limits: tuple[Limit, ...]
    fitting: tuple[Ranked, ...]
    rejected: tuple[Ranked, ...]

    @property
    def best(self) -> Ranked | None:
        return self.fitting[0] if self.fitting else None


def rank(
    options: Iterable[Option],
    limits: Sequence[Limit] = (),
    objective: str = "time",
    job: Job | None = None,
    cautious: Collection[str] = CAUTIOUS,
) -> Ranking:
    """OPTIONS that satisfy LIMITS, ordered by OBJECTIVE, and the others with what they break.

    Limits named in CAUTIOUS are held against the far end of the 90 % interval, the others against the value. Without
    a JOB, time and energy are those of one sample. Options whose objective is not known come last.
    """
    _check_question(limits, objective, job, cautious)
    judged = [judge(option, limits, job, cautious) for option in options]
    fitting = sorted((one for one in judged if not one.breaches), key=lambda one: _order(one, objective))
    best = _pareto_places([_goals(one.figures, objective) for one in fitting])
    return Ranking(
        objective=objective,
        limits=tuple(limits),
        fitting=tuple(replace(one, place=at + 1, pareto=at in best) for at, one in enumerate(fitting)),
        rejected=tuple(sorted((one for one in judged if one.breaches), key=_shortfall)),
    )


def _check_question(limits: Sequence[Limit], objective: str, job: Job | None, cautious: Collection[str]) -> None:
    if objective not in OBJECTIVES:
        raise BadInput(f"{objective!r} cannot be minimised; what can is {', '.join(OBJECTIVES)}")
    for name in cautious:
        if name not in LIMITED:
            raise BadInput(f"{name!r} cannot be limited, so not cautiously either; what can is {', '.join(LIMITED)}")
    if job is None:
        needing = [str(limit) for limit in limits if limit.name in OF_A_JOB]
        if objective == "cost":
            needing.append("the least cost")
        if needing:
            raise BadInput(
                f"how long a job takes must be known for {', '.join(needing)}: say how many samples it has (--samples)"
            )


def judge(option: Option, limits: Sequence[Limit], job: Job | None, cautious: Collection[str] = CAUTIOUS) -> Ranked:
    """OPTION with its figures and the limits that it breaks."""
    figures = figures_of(option, job)
    breaches = []
    for limit in limits:
        interval = figures[limit.name]
        upper_end = limit.name in cautious and interval is not None and interval.low < interval.high
        figure = None if interval is None else _held(interval, limit, upper_end)
        if figure is None or limit.excess_ratio(figure) > 0:
            breaches.append(Breach(limit=limit, figure=figure, upper_end=upper_end))
    return Ranked(option=option, figures=figures, breaches=tuple(breaches))


def _held(interval: Interval, limit: Limit, far_end: bool) -> float:
    if not far_end:
        return interval.value
    return interval.high if limit.bound == "at most" else interval.low


def figures_of(option: Option, job: Job | None) -> dict[str, Interval | None]:
    """What can be limited or minimised, by name, in SI units. Without a JOB, time and energy are of one sample."""
    where, told = option.configuration, option.prediction
    samples = where.batch * where.devices
    step_energy_j = told.step_energy_j or _product(told.power_w, told.step_s)
    figures: dict[str, Interval | None] = {
        "gpus": _exactly(where.devices),
        "batch": _exactly(samples),
        "step": told.step_s,
        "memory": told.memory_bytes,
        "power": told.power_w,
        **dict.fromkeys(OF_A_JOB),
        "time": _times(told.step_s, 1 / samples),
    }
    if job is None:
        return figures | {"energy": _times(step_energy_j, 1 / samples)}
    steps = math.ceil(job.samples / samples)
    job_s = _times(told.step_s, steps * job.epochs)
    price_per_s = None if where.price_per_hour is None else where.price_per_hour * where.devices / HOUR_S
    return figures | {
        "epoch": _times(told.step_s, steps),
        "job": job_s,
        "time": job_s,
        "energy": _times(step_energy_j, steps * job.epochs),
        "cost": None if price_per_s is None else _times(job_s, price_per_s),
    }


def _exactly(number: float) -> Interval:
    return Interval(value=number, low=number, high=number)


def _times(interval: Interval | None, factor: float) -> Interval | None:
    if interval is None:
        return None
    return Interval(value=interval.value * factor, low=interval.low * factor, high=interval.high * factor)


def _product(one: Interval | None, other: Interval | None) -> Interval | None:
    if one is None or other is None:
        return None
    return Interval(value=one.value * other.value, low=one.low * other.low, high=one.high * other.high)


def _goal(figures: Mapping[str, Interval | None], name: str) -> float:
    figure = figures[name]
    return math.inf if figure is None else figure.value


def _order(one: Ranked, objective: str) -> tuple[float, ...]:
    """By the objective; where that is equal, by what else is worth having."""
    return tuple(_goal(one.figures, name) for name in (objective, "time", "energy", "gpus", "memory"))


def _goals(figures: Mapping[str, Interval | None], objective: str) -> tuple[float, ...]:
    return tuple(_goal(figures, name) for name in dict.fromkeys((objective, *TRADED)))


def _pareto_places(goals: Sequence[tuple[float, ...]]) -> set[int]:
    """Places in GOALS that no other is at least as good as in all, and better in one."""
    # In this order nothing is beaten by what comes after it, so each need only be held against the best so far.
    best: list[int] = []
    for place in sorted(range(len(goals)), key=goals.__getitem__):
        if not any(_beats(goals[better], goals[place]) for better in best):
            best.append(place)
    return set(best)


def _beats(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one != other and all(mine <= theirs for mine, theirs in zip(one, other, strict=True))


def _shortfall(one: Ranked) -> tuple[int, float]:
    """How far from satisfying the limits: by limits whose figure is not known first, then by the worst excess."""
    excesses = [breach.excess_ratio for breach in one.breaches]
    known = [excess for excess in excesses if excess is not None]
    return len(excesses) - len(known), max(known, default=0.0)


def between_batches(measured: Mapping[int, Prediction], batches: Sequence[int]) -> list[Prediction]:
    """Predictions for BATCHES, drawn straight between those of the batches in MEASURED, two or more.

    What a step does and keeps is affine in its batch for fixed shapes, so few predictions span the whole axis. Beyond
    the last, the line goes on and the prediction says so; power, which levels off, stays as it is there.
    """
    known = sorted(measured)
    if len(known) < 2:
        raise BadTerm(f"a line needs predictions for at least 2 batches, got {len(known)}")
    return [measured[batch] if batch in measured else _between(measured, known, batch) for batch in batches]


def _between(measured: Mapping[int, Prediction], known: Sequence[int], batch: int) -> Prediction:
    upper = next((at for at, one in enumerate(known) if one > batch), len(known) - 1) or 1
    left, right = known[upper - 1], known[upper]
    near, far = measured[left], measured[right]
    share = (batch - left) / (right - left)
    inside = known[0] <= batch <= known[-1]
    doubts = [near.why_doubtful, far.why_doubtful]
    if not inside:
        doubts.append(f"batch {batch} lies beyond the batches {known[0]} to {known[-1]} that were predicted")
    return Prediction(
        step_s=_on_line(near.step_s, far.step_s, share),
        memory_bytes=_on_line(near.memory_bytes, far.memory_bytes, share),
        power_w=_on_line(near.power_w, far.power_w, min(max(share, 0.0), 1.0)),
        step_energy_j=_on_line(near.step_energy_j, far.step_energy_j, share),
        from_runs=min(near.from_runs, far.from_runs),
        inside_record=inside and near.inside_record and far.inside_record,
        why_doubtful="; ".join(dict.fromkeys(doubt for doubt in doubts if doubt)) or None,
    )


def _on_line(near: Interval | None, far: Interval | None, share: float) -> Interval | None:
    if near is None or far is None:
        return None
    value, low, high = (
        max(0.0, getattr(near, end) + share * (getattr(far, end) - getattr(near, end)))
        for end in ("value", "low", "high")
    )
    # Beyond the last batch the three lines may cross.
    return Interval(value=value, low=min(low, value), high=max(high, value))
