"""Results of many runs compared: efficiency per joule in units that cannot be mixed, trends, scaling, accuracy."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import TypeVar

from wattsmith.terms.errors import BadTerm

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


# Benchmarks that kept their name and became another one: what came before cannot be compared with what came after.
CHANGED_IN = {"3d-unet": "v2.0"}  # from BraTS 2019 to KiTS 2019


class Work(StrEnum):
    """What is counted. One kind never stands for another."""

    SAMPLES = "samples"
    QUERIES = "queries"
    TOKENS = "tokens"
    INFERENCES = "inferences"


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiency:
    """So much work for one joule."""

    per_joule: float
    work: Work

    def __post_init__(self) -> None:
        if not 0 < self.per_joule < float("inf"):
            raise BadTerm(f"an efficiency must be positive and finite, got {self.per_joule} {self.work}/J")

    @property
    def unit(self) -> str:
        return f"{self.work}/J"

    @property
    def energy_each_j(self) -> float:
        """Joules for one of them."""
        return 1 / self.per_joule

    def over(self, other: "Efficiency") -> float:
        """How many times OTHER this is. Refused between different kinds of work."""
        if self.work is not other.work:
            raise BadTerm(
                f"{self.unit} cannot be compared with {other.unit}: a sample may hold hundreds of tokens and a query "
                f"several samples. Convert one by a stated count first, with `as_work`."
            )
        return self.per_joule / other.per_joule

    def as_work(self, work: Work, each: float) -> "Efficiency":
        """The same in another kind of work, of which EACH make one of this: 69 tokens to a sample."""
        if each <= 0:
            raise BadTerm(f"there must be more than 0 {work} to one of {self.work}, got {each}")
        return Efficiency(per_joule=self.per_joule * each, work=work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One measured run of a benchmark. None: the source does not tell."""

    round: str
    division: str
    submitter: str
    system: str
    system_name: str
    category: str  # "edge", "datacenter" or "datacenter,edge"
    model: str
    scenario: str  # in small letters
    scenario_run: str  # what was really run, where the scenario was inferred
    window_s: float
    samples: int
    invalid_samples: int
    power_w: float
    power_min_w: float | None
    power_max_w: float | None
    power_spread_w: float | None
    power_factor_ratio: float | None
    queries: int | None
    metric: float  # as the round's rule works it out
    metric_unit: str  # "W" or "J/query"
    efficiency: Efficiency | None
    samples_per_s: float | None
    tokens_per_s: float | None
    published_figure: float | None
    published_figure_units: str
    published_performance: float | None
    published_performance_units: str
    ranging_power_w: float | None
    longest_gap_s: float | None
    clock_skew_s: float | None
    uncertain_samples: int | None  # above 1 % in the window
    accelerator: str
    accelerators: int | None  # in all nodes

    @property
    def closed(self) -> bool:
        return self.division == "closed"

    @property
    def owner(self) -> tuple[str, str]:
        """Which system: names alone repeat between submitters."""
        return (self.submitter, self.system)

    @property
    def recording(self) -> Hashable:
        """What tells one recording from another; several results may rest on one."""
        return (self.round, self.window_s, self.power_w, self.samples, *self._spread)

    @property
    def _spread(self) -> tuple[float | None, ...]:
        return (self.power_spread_w, self.power_min_w, self.power_max_w)

    @property
    def labelled_wrong(self) -> bool:
        """Whether the published performance is labelled as samples or queries but counts something far smaller.

        The run's own log tells samples a second; a figure ten times that is one of tokens.
        """
        if self.published_performance is None or not self.samples_per_s:
            return False
        is_tokens = self.published_performance_units == "Tokens/s"
        return not is_tokens and self.published_performance > 10 * self.samples_per_s and self.metric_unit == "W"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The best of one round."""

    round: str
    efficiency: Efficiency
    best: Result
    results: int  # that it was chosen from


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """One kind of system with different numbers of accelerators, on one benchmark of one round."""

    round: str
    submitter: str
    accelerator: str
    model: str
    scenario: str
    points: tuple[tuple[int, float, Efficiency], ...]  # accelerators, watts, efficiency; fewest first

    @property
    def kept_ratio(self) -> float:
        """Efficiency of the largest over that of the smallest: 1 means that joules per sample do not grow."""
        return self.points[-1][2].over(self.points[0][2])


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracyCost:
    """The same system at two accuracies of one model."""

    round: str
    submitter: str
    system_name: str
    model: str  # without its accuracy
    scenario: str
    lower: str
    higher: str
    kept_ratio: float  # efficiency at the higher accuracy over that at the lower


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSummary:
    """One system in one round."""

    round: str
    submitter: str
    system_name: str
    accelerator: str
    accelerators: int | None
    results: int
    least_w: float
    most_w: float
    best: dict[str, Efficiency]  # by "model scenario"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCount:
    """How much there is of one round."""

    round: str
    results: int
    recordings: int
    closed: int
    systems: int


def round_key(name: str) -> tuple[int, ...]:
    """For sorting: v10.0 comes after v9.1."""
    return tuple(int(part) if part.isdigit() else 0 for part in name.lstrip("v").split("."))


def count_rounds(results: Sequence[Result]) -> list[RoundCount]:
    """Results, distinct recordings, closed results and systems of each round."""
    return [
        RoundCount(
            round=name,
            results=len(group),
            recordings=len({one.recording for one in group}),
            closed=sum(one.closed for one in group),
            systems=len({one.owner for one in group}),
        )
        for name, group in sorted(grouped(results, lambda one: one.round).items(), key=lambda item: round_key(item[0]))
    ]


def comparable_since(model: str) -> str | None:
    """The round in which MODEL became another benchmark under the same name; None: it never did."""
    return next((since for name, since in CHANGED_IN.items() if model.startswith(name)), None)


def trend(
    results: Iterable[Result], model: str, *, scenario: str = "offline", category: str | None = None
) -> list[Step]:
    """The most efficient closed result of each round, in order of rounds, from where they can be compared."""
    since = comparable_since(model)
    meant = [
        one
        for one in results
        if one.closed and one.efficiency is not None and (one.model, one.scenario) == (model, scenario)
        if category is None or category in one.category
        if since is None or round_key(one.round) >= round_key(since)
    ]
    steps = []
    for name, group in grouped(meant, lambda one: one.round).items():
        best = most_efficient(group)
        assert best.efficiency is not None
        steps.append(Step(round=name, efficiency=best.efficiency, best=best, results=len(group)))
    return sorted(steps, key=lambda step: round_key(step.round))


def most_efficient(results: Sequence[Result]) -> Result:
    """The best of RESULTS, all of which must count the same kind of work."""
    known = [(one, one.efficiency) for one in results if one.efficiency is not None]
    if not known:
        raise BadTerm("none of these results tells its efficiency")
    best, first = known[0]
    for one, efficiency in known[1:]:
        if efficiency.over(first) > 1:
            best, first = one, efficiency
    return best


def largest_gain(steps: Sequence[Step]) -> float | None:
    """How many times the first round's best the best round's is; None with fewer than two rounds."""
    return max(step.efficiency.over(steps[0].efficiency) for step in steps) if len(steps) > 1 else None


def scaling(results: Iterable[Result]) -> list[Scaling]:
    """Where one submitter ran the same benchmark in one round on different numbers of the same accelerator."""

    def alike(one: Result) -> tuple[str, ...]:
        return (one.round, one.submitter, one.accelerator, one.model, one.scenario)

    found = []
    for key, group in grouped((one for one in results if one.closed and one.accelerator), alike).items():
        by_count: dict[int, tuple[int, float, Efficiency]] = {}
        for one in group:
            if one.accelerators and one.efficiency is not None:
                point = (one.accelerators, one.power_w, one.efficiency)
                held = by_count.get(one.accelerators)
                if held is None or point[2].over(held[2]) > 1:
                    by_count[one.accelerators] = point
        if len(by_count) > 1:
            name, submitter, accelerator, model, scenario = key
            points = tuple(by_count[count] for count in sorted(by_count))
            found.append(
                Scaling(
                    round=name,
                    submitter=submitter,
                    accelerator=accelerator,
                    model=model,
                    scenario=scenario,
                    points=points,
                )
            )
    return sorted(
        found, key=lambda one: (round_key(one.round), one.submitter, one.accelerator, one.model, one.scenario)
    )


def accuracy_costs(results: Iterable[Result], *, scenario: str | None = None) -> list[AccuracyCost]:
    """What the step from 99 % to 99.9 % of the reference accuracy costs, system by system."""
    pairs: dict[tuple[str, ...], dict[str, Result]] = defaultdict(dict)
    for one in results:
        base, _, accuracy = one.model.rpartition("-")
        if one.closed and one.efficiency is not None and accuracy in ("99", "99.9"):
            pairs[(one.round, *one.owner, base, one.scenario)][accuracy] = one
    costs = []
    for (name, submitter, _, base, ran), pair in pairs.items():
        if len(pair) == 2 and scenario in (None, ran):
            lower, higher = pair["99"].efficiency, pair["99.9"].efficiency
            assert lower is not None
            assert higher is not None
            costs.append(
                AccuracyCost(
                    round=name,
                    submitter=submitter,
                    system_name=pair["99"].system_name,
                    model=base,
                    scenario=ran,
                    lower="99",
                    higher="99.9",
                    kept_ratio=higher.over(lower),
                )
            )
    return sorted(costs, key=lambda cost: (round_key(cost.round), cost.model, cost.submitter, cost.system_name))


def median_cost(costs: Sequence[AccuracyCost], *, round_name: str, model: str, system: str = "") -> float | None:
    """The median of what is kept in one round; None when there is no such pair."""
    kept = [c.kept_ratio for c in costs if (c.round, c.model) == (round_name, model) and system in c.system_name]
    return median(kept) if kept else None


def summarise_systems(results: Iterable[Result]) -> list[SystemSummary]:
    """Every closed system of every round, with its best efficiency on each benchmark."""
    summaries = []
    for (name, _), group in grouped((one for one in results if one.closed), lambda one: (one.round, one.owner)).items():
        best: dict[str, Efficiency] = {}
        for one in group:
            key = f"{one.model} {one.scenario}"
            if one.efficiency is not None and (key not in best or one.efficiency.over(best[key]) > 1):
                best[key] = one.efficiency
        summaries.append(
            SystemSummary(
                round=name,
                submitter=group[0].submitter,
                system_name=group[0].system_name,
                accelerator=group[0].accelerator,
                accelerators=group[0].accelerators,
                results=len(group),
                least_w=min(one.power_w for one in group),
                most_w=max(one.power_w for one in group),
                best=best,
            )
        )
    return sorted(summaries, key=lambda one: (round_key(one.round), one.submitter, one.system_name))


def grouped(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """ITEMS by what KEY says of them, in the order in which the groups came."""
    groups: dict[K, list[V]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return dict(groups)
