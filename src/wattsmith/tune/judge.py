"""Trials as numbers that can be compared: the logarithms of the objective and of what is limited."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Cell, Failed, Level, Space, Trial
from wattsmith.tune.goals import Limit, MetricMissing, figure, is_number, parse_limits, parse_objective, value_of

SPENT = "spent_j"  # the metric that tells what a whole trial consumed
USUAL_NOISE = 0.01  # relative standard error of a metric, when nobody says
LEAST_NOISE = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One trial as logarithms. Of a limit "at least", the sign is turned, so that small is always good."""

    cell: Cell
    objective: float = math.nan
    limited: tuple[float, ...] = ()  # by limit
    noise: tuple[float, ...] = ()  # standard errors: of the objective, then by limit
    failed: str | None = None


class Judge:
    """Knows what is wanted, and keeps what was seen."""

    def __init__(self, space: Space, objective: str | tuple[str, ...], limits: str | Sequence[str | Limit]) -> None:
        self.space = space
        self.objective = parse_objective(objective) if isinstance(objective, str) else objective
        self.limits: tuple[Limit, ...] = parse_limits(limits)
        self.trials: list[Trial] = []
        self.seen: list[Seen] = []

    def take(
        self, setting: Mapping[str, Level], outcome: Mapping[str, float] | Failed, noise: Mapping[str, float] | None
    ) -> Seen:
        """Keep what came of SETTING. Figures that are missing or no numbers make it a failed one."""
        cell = self.space.cell(setting)
        setting = self.space.setting(cell)
        if isinstance(outcome, Failed):
            return self._keep_failed(cell, outcome)
        metrics = numbers_in(outcome)
        try:
            objective = math.log(value_of(outcome, self.objective))
            limited = tuple(_sign(one) * math.log(figure(outcome, one.metric, one.kind)) for one in self.limits)
        except MetricMissing as missing:
            return self._keep_failed(cell, Failed(why=str(missing), spent_j=metrics.get(SPENT)))
        trial = Trial(setting=setting, metrics=metrics, noise=dict(noise or {}))
        errors = (
            math.hypot(*(_error(trial.noise, name) for name in self.objective)),
            *(_error(trial.noise, one.metric) for one in self.limits),
        )
        return self._keep(trial, Seen(cell=cell, objective=objective, limited=limited, noise=errors))

    def check_together(self) -> None:
        """Raise BadInput where a multiple of the present setting, known now, leaves no room beside another limit."""
        both = list(zip(self.limits, self.bounds(), strict=True))
        for one, least in both:
            for other, most in both:
                if one.metric == other.metric and (one.bound, other.bound) == ("at least", "at most") and -least > most:
                    raise BadInput(f"no setting can keep both: {one}, and {other}. Loosen one of them")

    def _keep_failed(self, cell: Cell, failed: Failed) -> Seen:
        if cell == self.space.present and self.first_of_present() is None:
            raise BadInput(
                f"the present setting itself gave no figures ({failed.why}), so there is nothing to improve on; "
                "make it work first"
            )
        spent = {} if failed.spent_j is None else {SPENT: failed.spent_j}
        trial = Trial(setting=self.space.setting(cell), metrics=spent, failed=failed.why)
        return self._keep(trial, Seen(cell=cell, failed=failed.why))

    def _keep(self, trial: Trial, seen: Seen) -> Seen:
        self.trials.append(trial)
        self.seen.append(seen)
        return seen

    def first_of_present(self) -> int | None:
        """The place of the first trial of the present setting that gave figures; None: there is none yet."""
        here = (at for at, one in enumerate(self.seen) if one.cell == self.space.present and one.failed is None)
        return next(here, None)

    def bounds(self) -> tuple[float, ...]:
        """The limits as logarithms; those that are multiples of the present setting need it measured."""
        return tuple(
            _sign(one) * math.log(one.value) + (self.present_limited(at) if one.relative else 0.0)
            for at, one in enumerate(self.limits)
        )

    def present_limited(self, limit: int) -> float:
        """Mean of the limited metric over the trials of the present setting."""
        here = [seen.limited[limit] for seen in self.seen if seen.cell == self.space.present and seen.limited]
        if not here:
            raise BadInput("a limit relative to the present setting needs that setting measured first")
        return sum(here) / len(here)

    def excess(self, seen: Seen) -> float:
        """By how much the worst limit is broken, as a logarithm; not positive: all hold; infinite: it failed."""
        if seen.failed is not None:
            return math.inf
        return max((got - bound for got, bound in zip(seen.limited, self.bounds(), strict=True)), default=-math.inf)


def numbers_in(outcome: Mapping[str, Any]) -> dict[str, float]:
    """What is a finite number in OUTCOME, as Python's own; the rest is no metric. Raises BadInput where none can be."""
    if not isinstance(outcome, Mapping):
        raise BadInput(f'a trial gives metrics by name, such as {{"energy_j": 3.1}}, or Failed; got {outcome!r}')
    finite = {str(name): value for name, value in outcome.items() if is_number(value) and math.isfinite(value)}
    return {name: value if isinstance(value, int) else float(value) for name, value in finite.items()}


def _sign(limit: Limit) -> int:
    return 1 if limit.bound == "at most" else -1


def _error(noise: Mapping[str, float], name: str) -> float:
    given = next((value for key, value in noise.items() if key == name or key.startswith(f"{name}_")), USUAL_NOISE)
    if not is_number(given) or not 0 <= given < math.inf:
        raise BadInput(f"the noise of {name} must be a relative standard error, such as 0.03, got {given!r}")
    return max(given, LEAST_NOISE)
