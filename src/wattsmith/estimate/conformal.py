"""How far predictions were off where nothing of the kind was known, and the interval that follows from it.

Conformal on the logarithm of actual over predicted. What makes it hold is that the errors come from groups that were
held out whole: a network's relatives tell about it, so errors on random splits are too small. What is asked about next
is of a group of its own, so every group counts alike, however many rows it has. The level is raised by one row in all
rows, and by one group in all groups where there are too few of them to see a tail of one in ten.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from itertools import accumulate

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Interval

WIDEST = 50.0  # logarithm of a factor beyond which nothing is said any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubt:
    """Errors of predictions for groups that had been left out, in the sense of |log(actual / predicted)| ÷ widen."""

    scores: tuple[float, ...]  # from the smallest on
    shares: tuple[float, ...]  # of all groups' weight, up to and with each score
    groups: int

    @classmethod
    def fit(
        cls,
        predicted: Sequence[float],
        actual: Sequence[float],
        groups: Sequence[Hashable],
        widen: Sequence[float] | None = None,
    ) -> Doubt:
        """From predictions that were made without each row's own group."""
        if not len(predicted) == len(actual) == len(groups) or not len(predicted):
            raise BadTerm(
                f"a doubt needs as many predictions as actual values and groups, and at least one: got "
                f"{len(predicted)}, {len(actual)} and {len(groups)}"
            )
        if min(predicted) <= 0 or min(actual) <= 0:
            raise BadTerm("a doubt is about ratios: every predicted and actual value must be above zero")
        widths = [1.0] * len(predicted) if widen is None else widen
        sizes = Counter(groups)
        scored = sorted(
            (abs(math.log(was / said)) / width, 1 / sizes[group] / len(sizes))
            for was, said, width, group in zip(actual, predicted, widths, groups, strict=True)
        )
        return cls(
            scores=tuple(score for score, _ in scored),
            shares=tuple(accumulate(weight for _, weight in scored)),
            groups=len(sizes),
        )

    def factor(self, level: float = 0.9, widen: float = 1.0) -> float:
        """What a value is multiplied and divided by to get an interval that holds the truth with LEVEL."""
        if not 0 < level < 1:
            raise BadTerm(f"level must be between 0 and 1, got {level}")
        seen = len(self.scores) if self.groups * (1 - level) >= 1 else self.groups
        raised = level * (1 + 1 / seen)
        at = min(bisect_left(self.shares, raised - 1e-9), len(self.scores) - 1)
        return math.exp(min(self.scores[at] * widen, WIDEST))

    def interval(self, value: float, level: float = 0.9, widen: float = 1.0) -> Interval:
        """VALUE with the range that holds the truth with LEVEL. WIDEN: how much less is known than usual."""
        factor = self.factor(level, widen)
        return Interval(value=value, low=value / factor, high=value * factor)
