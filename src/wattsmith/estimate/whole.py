"""Time of a whole step from what it does, learned from whole steps: for records that know nothing of single operators.

Two parts, fitted for each device and regime that has enough runs; for each device over all its regimes, for those that
have not; and over all devices, for the ones that have not been measured (there without the second part):

base      a sum of cost terms (see `costs`) with weights that cannot be negative, so that more work never takes less
          time; fitted to relative error, with less and less say for rows that stay far off, and drawn towards what
          such work usually costs, so that a few runs are enough and an operator that no run had is not free
residual  what is left, log(actual / base), carried over from steps that are alike. A Gaussian process with mean zero:
          near measured steps it corrects the base, far from them it fades out by itself, and its own variance says
          how much is known, which widens the interval (see `conformal`)
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from wattsmith.estimate.conformal import Doubt
from wattsmith.estimate.costs import TERMS, USUAL, Regime, Step, Timed, cost_terms, shares, table
from wattsmith.estimate.standing import WIDE, Level, Reach, Signs, Standing
from wattsmith.terms.work import Interval

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]

Key = tuple[Regime | None, str | None]

FEWEST = 30  # runs of one device and regime that make a fit of its own
MOST = 2_000  # runs whose likeness is kept; more make fitting slow and hardly better
PULL = 0.01  # of weights towards what is usual, in rows; it rules where runs are few or a term hardly ever matters
ROUNDS = 6  # of reweighting
LEAST_S = 1e-12  # no step takes less
CLOSE = 0.05  # log error below which rows count fully
REACH = 1.0  # distance over which likeness fades, where 1 is as far as two traits usually differ
NOISE = 0.1  # share of the residual's variance that likeness does not explain
FLOOR = 0.05  # smallest spread that a trait is measured in: one that never varied is not infinitely far
ELSEWHERE = 2.0  # times the doubt, for a device not measured when only one was
UNLEARNED = 4.0  # factor of the interval where nothing was measured; nine of ten public steps lie in it
FOLDS = 20  # parts that groups are held out in, to learn how far predictions are off


def nonnegative(matrix: Floats, target: Floats) -> Floats:
    """The x ≥ 0 with the least |matrix · x − target|², by Lawson's and Hanson's active sets."""
    import numpy as np

    gram, right = matrix.T @ matrix, matrix.T @ target
    found: Floats = np.zeros(len(right))
    free = np.zeros(len(right), dtype=bool)
    small = 1e-10 * max(1.0, float(np.abs(right).max()))
    for _ in range(3 * len(right)):
        pull = np.where(free, -np.inf, right - gram @ found)
        if pull.max() <= small:
            break
        free[pull.argmax()] = True
        while True:
            tried = np.zeros(len(right))
            tried[free] = np.linalg.solve(gram[np.ix_(free, free)], right[free])
            wrong = free & (tried <= 0)
            if not wrong.any():
                break
            reach = float(np.min(found[wrong] / np.maximum(found[wrong] - tried[wrong], 1e-300)))
            found = found + reach * (tried - found)
            free &= found > 1e-14
        found = tried
    return found


def weights_for(terms: Floats, actual_s: Floats) -> Floats:
    """Weights on cost terms with small relative errors, in which no few rows rule."""
    import numpy as np

    usual = np.array(USUAL)
    pull = math.sqrt(PULL) * np.ones(len(usual))
    times: Floats = np.ones(len(usual))
    say = np.ones(len(actual_s))
    for _ in range(ROUNDS):
        rows = terms * usual * (say / actual_s)[:, None]
        times = nonnegative(np.vstack([rows, np.diag(pull)]), np.concatenate([say, pull]))
        said = np.maximum(terms @ (times * usual), LEAST_S)
        # (said - actual)² ÷ (said · actual) is nearly the squared log error; over the error itself, its absolute value.
        say = np.sqrt(actual_s / said / np.maximum(np.abs(np.log(said / actual_s)), CLOSE))
    weights: Floats = times * usual
    return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """Predictions for several steps, with what tells how good they are."""

    step_s: Floats
    unknown: Floats  # near √NOISE amid the runs, √(1 + NOISE) far from all
    distance: Floats  # to the nearest run
    dispute: Floats  # |log| of base over prediction plus that of the second opinion over it


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """What was learned from one set of runs."""

    weights: Floats  # of TERMS
    centre: Floats  # of traits
    spread: Floats
    places: Floats  # traits of the runs, so many spreads from the centre
    pull: Floats  # of each run on what is like it
    inverse: Floats  # of the covariance of the runs
    second: Floats  # a second opinion: log seconds, linear in traits
    local: bool  # whether like steps correct the base
    rows: int

    @classmethod
    def to(cls, terms: Floats, traits: Floats, actual_s: Floats, *, local: bool) -> Fit:
        """LOCAL: all on one device, so that what is left over can be carried to steps that are alike."""
        import numpy as np

        weights = weights_for(terms, actual_s)
        kept = slice(None, None, -(-len(actual_s) // MOST))
        centre = traits.mean(axis=0)
        spread = np.maximum(traits.std(axis=0), FLOOR)
        places = (traits[kept] - centre) / spread
        left = np.log(actual_s[kept] / np.maximum(terms[kept] @ weights, LEAST_S))
        if not local:
            left = np.zeros_like(left)  # mostly the device's own doing, which says nothing about another device
        inverse = np.linalg.inv(likeness(distance(places, places)) + NOISE * np.eye(len(places)))
        facts = np.hstack([np.ones((len(places), 1)), places])
        second = np.linalg.solve(
            facts.T @ facts + NOISE * NOISE * len(places) * np.eye(facts.shape[1]), facts.T @ np.log(actual_s[kept])
        )
        return cls(
            weights=weights,
            centre=centre,
            spread=spread,
            places=places,
            pull=inverse @ left,
            inverse=inverse,
            second=second,
            local=local,
            rows=len(actual_s),
        )

    def predict(self, terms: Floats, traits: Floats) -> Seen:
        import numpy as np

        places = (traits - self.centre) / self.spread
        apart = distance(places, self.places)
        alike = likeness(apart)
        left = alike @ self.pull
        unknown = 1.0 - np.einsum("ij,ij->i", alike @ self.inverse, alike)
        base = np.log(np.maximum(terms @ self.weights, LEAST_S))
        opinion = self.second[0] + places @ self.second[1:]
        return Seen(
            step_s=np.exp(base + left),
            unknown=np.sqrt(np.maximum(unknown, 0.0) + NOISE),
            distance=apart.min(axis=1),
            dispute=np.abs(left) + np.abs(opinion - base - left),
        )


def likeness(apart: Floats) -> Floats:
    """From 1 for the same traits to 0 for steps that have nothing in common."""
    import numpy as np

    alike: Floats = np.exp(-((apart / REACH) ** 2) / 2)
    return alike


def distance(some: Floats, others: Floats) -> Floats:
    """Root mean square over traits."""
    import numpy as np

    squares = (some**2).sum(axis=1)[:, None] + (others**2).sum(axis=1)[None, :] - 2 * some @ others.T
    apart: Floats = np.sqrt(np.maximum(squares, 0.0) / some.shape[1])
    return apart


def folds_of(groups: Sequence[str], most: int = FOLDS) -> list[int]:
    """A part for each row, so that a group is in one part and parts are about as large as each other."""
    sizes = Counter(groups)
    parts = [0] * min(most, len(sizes))
    place = {}
    for group, size in sorted(sizes.items(), key=lambda one: (-one[1], one[0])):
        at = parts.index(min(parts))
        place[group] = at
        parts[at] += size
    return [place[group] for group in groups]


def held_out(terms: Floats, traits: Floats, actual_s: Floats, groups: Sequence[str], *, local: bool) -> Seen:
    """Each row as it is predicted from the rows of other groups."""
    import numpy as np

    names = ("step_s", "unknown", "distance", "dispute")
    seen = {name: np.zeros(len(actual_s)) for name in names}
    part = np.array(folds_of(groups))
    for at in range(part.max() + 1):
        out = part == at
        told = Fit.to(terms[~out], traits[~out], actual_s[~out], local=local).predict(terms[out], traits[out])
        for name in names:
            seen[name][out] = getattr(told, name)
    return Seen(**seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """A fit with what is known of its errors."""

    fit: Fit
    doubt: Doubt
    reach: Reach

    @classmethod
    def learn(cls, rows: Sequence[Timed], *, local: bool) -> Lesson:
        """LOCAL: the rows are of one device, to be asked about again. Else other devices are to be asked about."""
        import numpy as np

        terms, traits = table([row.step for row in rows])
        actual_s = np.array([row.step_s for row in rows])
        families = [row.group for row in rows]
        devices = [row.step.device.name for row in rows]
        across = not local and len(set(devices)) > 1
        groups = devices if across else families
        fit = Fit.to(terms, traits, actual_s, local=local)
        if len(set(groups)) < 2:
            seen = fit.predict(terms, traits)
            doubt = Doubt(scores=(math.log(WIDE) / math.sqrt(NOISE),), shares=(1.0,), groups=1)  # not known at all
        else:
            seen = held_out(terms, traits, actual_s, groups, local=local)
            width = seen.unknown if local or across else seen.unknown / ELSEWHERE
            doubt = Doubt.fit(seen.step_s.tolist(), actual_s.tolist(), groups, width.tolist())
        return cls(fit=fit, doubt=doubt, reach=Reach.of(_signs(seen, [shares(row.step) for row in rows]), families))


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTime:
    """What a step should take, and how far to trust it."""

    step_s: Interval
    by_class_s: Mapping[str, float]  # parts of step_s.value
    standing: Standing
    from_runs: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What a record teaches about whole steps. Keys: regime and device, where None stands for all of them."""

    lessons: Mapping[Key, Lesson]

    @classmethod
    def learn(cls, rows: Sequence[Timed]) -> Whole:
        """From none at all, what is usual is taken for granted, and every estimate says so."""
        by_key: dict[Key, list[Timed]] = defaultdict(list)
        for row in rows:
            for key in keys_of(row.step):
                by_key[key].append(row)
        lessons: dict[Key, Lesson] = {}
        for (regime, device), some in by_key.items():
            local = device is not None
            same = lessons.get((rows[0].step.regime, device)) if regime is None else None
            if same is not None and same.fit.rows == len(some):
                lessons[regime, device] = same  # there is one regime
            elif len(some) >= FEWEST or (regime, device) == (None, None):
                lessons[regime, device] = Lesson.learn(some, local=local)
        return cls(lessons=lessons)

    def estimate(self, step: Step, level: float = 0.9) -> StepTime:
        return self.estimates([step], level)[0]

    def estimates(self, steps: Sequence[Step], level: float = 0.9) -> list[StepTime]:
        """Of many steps at once, in their order."""
        found: dict[int, StepTime] = {}
        if not self.lessons:
            return [unlearned(step) for step in steps]
        for key, places in self._by_lesson(steps).items():
            lesson = self.lessons[key]
            terms, traits = table([steps[at] for at in places])
            seen = lesson.fit.predict(terms, traits)
            signs = _signs(seen, [shares(steps[at]) for at in places])
            for row, at in enumerate(places):
                value_s, unknown = float(seen.step_s[row]), float(seen.unknown[row])
                found[at] = StepTime(
                    step_s=lesson.doubt.interval(value_s, level, unknown),
                    by_class_s=by_class(terms[row] * lesson.fit.weights, value_s),
                    standing=lesson.reach.judge(
                        signs[row], lesson.doubt.factor(0.9, unknown), self._unmeasured(steps[at])
                    ),
                    from_runs=lesson.fit.rows,
                )
        return [found[at] for at in range(len(steps))]

    def _by_lesson(self, steps: Sequence[Step]) -> dict[Key, list[int]]:
        chosen: dict[Key, list[int]] = defaultdict(list)
        for at, step in enumerate(steps):
            chosen[next(key for key in keys_of(step) if key in self.lessons)].append(at)
        return chosen

    def _unmeasured(self, step: Step) -> list[str]:
        found = []
        if (None, step.device.name) not in self.lessons:
            found.append(f"too little was measured on {step.device.name}; this rests on its data sheet")
        if all((step.regime, device) not in self.lessons for device in (step.device.name, None)):
            found.append(f"too little was measured in this regime: {step.regime}")
        return found


def unlearned(step: Step) -> StepTime:
    """What the data sheet and usual costs say, where nothing was measured."""
    import numpy as np

    parts = np.array(cost_terms(step)) * np.array(USUAL)
    value_s = float(parts.sum())
    why = (
        "nothing was measured: this rests on the data sheet and on what such work usually costs. "
        "Take a record with `wattsmith record run`, or import one."
    )
    return StepTime(
        step_s=Interval(value=value_s, low=value_s / UNLEARNED, high=value_s * UNLEARNED),
        by_class_s=by_class(parts, value_s),
        standing=Standing(level=Level.OUTSIDE, reasons=(why,)),
        from_runs=0,
    )


def keys_of(step: Step) -> list[Key]:
    """Where to look for what is known about it, the most particular first."""
    return [(step.regime, step.device.name), (None, step.device.name), (step.regime, None), (None, None)]


def by_class(parts: Floats, value_s: float) -> dict[str, float]:
    """VALUE_S divided over classes of operators as PARTS, seconds by cost term, are."""
    total = float(parts.sum())
    found: dict[str, float] = defaultdict(float)
    for name, part in zip(TERMS, parts, strict=True):
        found[name.partition(":")[0]] += float(part) / total * value_s
    return {name: part_s for name, part_s in found.items() if part_s > 0}


def _signs(seen: Seen, shared: Sequence[Mapping[str, float]]) -> list[Signs]:
    rows = zip(seen.distance.tolist(), seen.dispute.tolist(), shared, strict=True)
    return [Signs(distance=apart, dispute=dispute, shares=share) for apart, dispute, share in rows]
