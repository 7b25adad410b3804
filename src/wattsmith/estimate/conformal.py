"""How far predictions were off where nothing of the kind was known, and the interval that follows from it.

Split conformal on the logarithm of actual over predicted. What makes it hold is that the errors come from groups that
were held out whole: a network's relatives tell about it, so errors on random splits are too small. Errors within a
group are alike, so many rows of few groups are worth less than as many of many: the level is raised as conformal theory
asks for the number of rows that would be worth as much if they were independent.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from statistics import fmean

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Interval

WIDEST = 50.0  # logarithm of a factor beyond which nothing is said any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Errors of predictions for groups that had been left out, in the sense of |log(actual / predicted)| ÷ widen."""

    scores: tuple[float, ...]  # from the smallest on
    worth: float  # of so many independent rows

    @classmethod
    def fit(
        cls,
        predicted: Sequence[float],
        actual: Sequence[float],
        groups: Sequence[Hashable],
        widen: Sequence[float] | None = None,
    ) -> Doubt:
        """From predictions that were made without each row's own group. Every row counts alike."""
        if not len(predicted) == len(actual) == len(groups) or not len(predicted):
            raise BadTerm(
                f"a doubt needs as many predictions as actual values and groups, and at least one: got "
                f"{len(predicted)}, {len(actual)} and {len(groups)}"
            )
        if min(predicted) <= 0 or min(actual) <= 0:
            raise BadTerm("a doubt is about ratios: every predicted and actual value must be above zero")
        widths = [1.0] * len(predicted) if widen is None else widen
        scores = [abs(math.log(was / said)) / width for was, said, width in zip(actual, predicted, widths, strict=True)]
        return cls(scores=tuple(sorted(scores)), worth=worth(scores, groups))

    def factor(self, level: float = 0.9, widen: float = 1.0) -> float:
        """What a value is multiplied and divided by to get an interval that holds the truth with LEVEL."""
        if not 0 < level < 1:
            raise BadTerm(f"level must be between 0 and 1, got {level}")
        raised = min(1.0, level * (1 + 1 / self.worth))
        at = math.ceil(raised * len(self.scores) - 1e-9) - 1
        return math.exp(min(self.scores[at] * widen, WIDEST))

    def interval(self, value: float, level: float = 0.9, widen: float = 1.0) -> Interval:
        """VALUE with the range that holds the truth with LEVEL. WIDEN: how much less is known than usual."""
        factor = self.factor(level, widen)
        return Interval(value=value, low=value / factor, high=value * factor)


def worth(scores: Sequence[float], groups: Sequence[Hashable]) -> float:
    """How many independent rows tell as much: rows ÷ (1 + (rows a group − 1) · likeness within groups)."""
    by_group: dict[Hashable, list[float]] = defaultdict(list)
    for score, group in zip(scores, groups, strict=True):
        by_group[group].append(score)
    rows, several = len(scores), len(by_group)
    if several < 2 or rows == several:
        return float(several)
    middle = fmean(scores)
    means = {group: fmean(some) for group, some in by_group.items()}
    between = sum(len(some) * (means[group] - middle) ** 2 for group, some in by_group.items()) / (several - 1)
    within = sum((one - means[group]) ** 2 for group, some in by_group.items() for one in some) / (rows - several)
    size = (rows - sum(len(some) ** 2 for some in by_group.values()) / rows) / (several - 1)
    total = between + (size - 1) * within
    likeness = max(0.0, (between - within) / total) if total > 0 else 1.0
    return max(float(several), rows / (1 + (size - 1) * likeness)) if likeness < 1 else float(several)
