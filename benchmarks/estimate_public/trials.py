"""Predictions for steps that were held out, by us and by the baselines, and figures about them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from wattsmith.estimate.baselines import BASELINES, predictor
from wattsmith.estimate.costs import Timed
from wattsmith.estimate.whole import StepTime, Whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One step that was held out, and what was said about it."""

    timed: Timed
    said: StepTime
    baselines_s: dict[str, float]

    @property
    def error(self) -> float:
        return abs(self.said.step_s.value / self.timed.step_s - 1)

    @property
    def covered(self) -> bool:
        return self.said.step_s.low <= self.timed.step_s <= self.said.step_s.high

    @property
    def twofold(self) -> bool:
        """Whether it was off by more than a factor of two, either way."""
        return abs(math.log(self.said.step_s.value / self.timed.step_s)) > math.log(2)


def tried(known: Sequence[Timed], asked: Sequence[Timed]) -> list[Trial]:
    """What is said about ASKED from KNOWN alone."""
    steps = [one.step for one in asked]
    said = Whole.learn(known).estimates(steps)
    others = {name: predictor(name, known)(steps) for name in BASELINES}
    return [
        Trial(timed=one, said=about, baselines_s={name: told[at] for name, told in others.items()})
        for at, (one, about) in enumerate(zip(asked, said, strict=True))
    ]


def each_left_out(rows: Sequence[Timed], parts: Sequence[object]) -> list[Trial]:
    """Every row predicted from the rows of other parts."""
    found = []
    for part in sorted(set(parts), key=str):
        known = [row for row, its in zip(rows, parts, strict=True) if its != part]
        found += tried(known, [row for row, its in zip(rows, parts, strict=True) if its == part])
    return found


def mape(trials: Sequence[Trial]) -> float:
    return 100 * fmean(one.error for one in trials)


def median_error(trials: Sequence[Trial]) -> float:
    return 100 * median(one.error for one in trials)


def baseline_mapes(trials: Sequence[Trial]) -> dict[str, float]:
    return {
        name: 100 * fmean(abs(one.baselines_s[name] / one.timed.step_s - 1) for one in trials) for name in BASELINES
    }


def coverage(trials: Sequence[Trial]) -> float:
    return 100 * fmean(one.covered for one in trials)


def typical_factor(trials: Sequence[Trial]) -> float:
    """Of the interval, either way."""
    return median(one.said.step_s.high / one.said.step_s.value for one in trials)
