"""Where a prediction stands to what was measured: measured, inside, at the edge, or outside, and why.

"Outside" is a flag to act on: measure first, or count on an error beyond the interval. It is raised by facts (a device,
a regime or a class of operators that was never measured), by an interval wider than a factor of two, and by two signs
that come before large errors: traits further from any measured step than steps of one family usually are from all
others, and ways to predict that disagree more than they usually do. What is usual is learned from the measured steps
themselves, each seen as if its group were unknown.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

WIDE = 2.0  # interval factor beyond which a prediction does not help to decide
NOTABLE = 0.05  # share of the cost from which a class of operators matters
SAME = 0.02  # distance below which two steps are one, measured or not at the very same batch
EDGE = 0.80  # share of measured steps that are nearer to their nearest stranger than the edge
FAR = 0.97
AGREED = 0.90  # share of measured steps about which opinions differ less


class Level(StrEnum):
    MEASURED = "measured"
    INSIDE = "inside"
    EDGE = "edge"
    OUTSIDE = "outside"


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a prediction can be trusted beyond what its interval says."""

    level: Level
    reasons: tuple[str, ...] = ()

    @property
    def outside(self) -> bool:
        return self.level is Level.OUTSIDE


@dataclass(frozen=True, slots=True, kw_only=True)
class Signs:
    """What is seen of one prediction."""

    distance: float  # to the nearest measured step
    dispute: float  # how far other ways to predict it are from the prediction, in logarithms, together
    shares: Mapping[str, float]  # of the cost, by class of operators


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far what was measured goes."""

    edge: float
    far: float
    disputed: float
    classes: frozenset[str]  # that had a notable share in at least two groups

    @classmethod
    def of(cls, seen: Sequence[Signs], groups: Sequence[str]) -> Reach:
        """From measured steps, each seen with its own group held out."""
        holders: dict[str, set[str]] = {}
        for one, group in zip(seen, groups, strict=True):
            for name, share in one.shares.items():
                if share >= NOTABLE:
                    holders.setdefault(name, set()).add(group)
        distances = sorted(one.distance for one in seen)
        return cls(
            edge=_at(distances, EDGE),
            far=_at(distances, FAR),
            disputed=_at(sorted(one.dispute for one in seen), AGREED),
            classes=frozenset(name for name, who in holders.items() if len(who) > 1 or len(set(groups)) == 1),
        )

    def judge(self, signs: Signs, factor: float, unmeasured: Sequence[str] = ()) -> Standing:
        """FACTOR: of the 90 % interval. UNMEASURED: what of the device and regime was never measured, in words."""
        against = list(unmeasured)
        for name, share in sorted(signs.shares.items()):
            if share >= NOTABLE and name not in self.classes:
                against.append(f"no measured step does much {name}, which is {share:.0%} of this one's cost")
        if factor > WIDE:
            against.append(f"the interval is as wide as a factor of {factor:.1f} either way")
        if signs.distance > self.far:
            against.append("it is less like any measured step than families usually are like each other")
        if signs.dispute > self.disputed:
            against.append("other ways to predict it disagree more than they usually do")
        if against:
            return Standing(level=Level.OUTSIDE, reasons=tuple(against))
        if signs.distance <= SAME:
            return Standing(level=Level.MEASURED)
        if signs.distance > self.edge:
            return Standing(level=Level.EDGE, reasons=("it is about as far from what was measured as families go",))
        return Standing(level=Level.INSIDE)


def _at(ordered: Sequence[float], share: float) -> float:
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]
