"""The search: which setting to try next, when to stop, and what to recommend."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Cell, Curve, Failed, Level, Recommendation, Space, Trial
from wattsmith.terms.work import Interval
from wattsmith.tune.coordinates import coordinates, positions
from wattsmith.tune.goals import Limit
from wattsmith.tune.judge import Judge, Seen
from wattsmith.tune.prime import Primed, prime
from wattsmith.tune.process import Laws, Surface, matern

SWITCH = "switch_ratio"  # the metric that tells how long it took to make a setting, in lengths of the trial itself
CAUTION = 0.5  # power of the probability that all limits hold, by which a primed gain is weighted once more
MOST_SETTINGS = 20_000  # what is believed of each is kept in memory, and takes seconds to work out for so many
NINETY = 1.6449  # standard deviations to each side that hold nine times out of ten
FAILURE_REACH = 0.25  # of a knob's range: what lies nearer to a failure is likely to fail too
FAILURE_DOUBT = 0.5  # weight of believing, without any trial near, that a setting works


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How the search goes about it. The defaults hold for every workload."""

    budget: int = 20  # trials at most
    first_step: float = 1 / 3  # of the way to a knob's end, in the first move of each knob
    floor: float = 0.3  # settings less likely to keep the limits are not tried
    least_gain: float = 0.01  # expected improvement below which searching is over; 0: never
    patience: int = 2  # times that the gain must be so small before it counts
    sure: float = 0.99  # how probable it must be that a recommended setting keeps the limits
    repeats: int = 3  # times that one setting is measured at most
    horizon: float | None = None  # how many trials' worth of work will run with the result; None: very many


class Tuner:
    """Ask for a setting, try it, tell what came of it; then take the recommendation.

    Primed with CURVES of other workloads, it starts from what they have in common.
    """

    def __init__(
        self,
        space: Space,
        objective: str = "energy",
        limits: str | Sequence[str | Limit] = (),
        *,
        curves: Sequence[Curve] = (),
        manner: Manner | None = None,
    ) -> None:
        count = math.prod(len(knob.levels) for knob in space.knobs)
        if count > MOST_SETTINGS:
            raise BadInput(
                f"{count} settings are more than the {MOST_SETTINGS} that are searched at most: "
                "give fewer levels, or fewer knobs at a time"
            )
        self.space = space
        self.manner = manner or Manner()
        self._judge = Judge(space, objective, limits)
        self._cells = space.cells()
        self._at = {cell: at for at, cell in enumerate(self._cells)}
        self._places = coordinates(space)
        self._surface = Surface(self._places)
        self._curves = tuple(curves)
        self._primed: Primed | None = None  # once the present setting is measured
        self._small_gains = 0
        self._told_gain: float | None = None

    @property
    def trials(self) -> list[Trial]:
        return self._judge.trials

    @property
    def judge(self) -> Judge:
        return self._judge

    @property
    def limits(self) -> tuple[Limit, ...]:
        return self._judge.limits

    def ask(self) -> dict[str, Level] | None:
        """The setting to try next; None when trying more is not worth it."""
        if len(self.trials) >= self.manner.budget:
            return None
        cell = self._next()
        return None if cell is None else self.space.setting(cell)

    def tell(
        self,
        setting: Mapping[str, Level],
        outcome: Mapping[str, float] | Failed,
        noise: Mapping[str, float] | None = None,
    ) -> None:
        """What came of SETTING: metrics by name, or Failed. NOISE: relative standard errors by metric."""
        self._judge.take(setting, outcome, noise)
        if self._judge.first_of_present() == len(self.trials) - 1:
            self._judge.check_together()
        if self._told_gain is not None:
            self._small_gains = self._small_gains + 1 if self._told_gain < self.manner.least_gain else 0

    # What to try

    def _next(self) -> Cell | None:
        self._told_gain = None
        tried = Counter(seen.cell for seen in self._judge.seen)
        if self.space.present not in tried:
            return self.space.present
        if not self._curves:
            first = next((cell for cell in self._first_moves() if cell not in tried), None)
            if first is not None:
                return first
        belief = self._belief()
        if self._small_gains < self.manner.patience:
            cell = self._most_promising(belief, tried)
            if cell is not None:
                return cell
        return self._to_confirm(belief, tried)

    def _first_moves(self) -> list[Cell]:
        """The present setting with one knob moved, for each knob that can be."""
        moves = []
        for at, knob in enumerate(self.space.knobs):
            level = first_level(positions(knob), knob.saves, self.manner.first_step)
            if level is not None:
                moves.append((*self.space.present[:at], level, *self.space.present[at + 1 :]))
        return moves

    def _most_promising(self, belief: "Belief", tried: Counter[Cell]) -> Cell | None:
        import numpy as np

        open_cells = np.array([cell not in tried for cell in self._cells])
        if not open_cells.any():
            return None
        if belief.best is None:  # nothing keeps the limits yet: first of all find something that does
            return self._cells[int(np.argmax(np.where(open_cells, belief.holds, -1.0)))]
        gain = belief.works * belief.laws.gain(belief.best)
        allowed = open_cells & (belief.holds >= self.manner.floor)
        worthwhile = gain >= self.manner.least_gain
        if self.manner.least_gain and not (allowed & worthwhile).any():
            allowed |= open_cells & worthwhile  # unlikely, but what it may bring is worth a try
        if not allowed.any():
            return None
        cost = np.exp(np.clip(belief.laws.objective.average() - belief.best, -2.0, 2.0)) + self._switching()
        # What others' curves call unlikely is rarely worth a trial; without them it is merely not known.
        worth = np.where(allowed, gain / cost * (belief.holds**CAUTION if self._curves else 1.0), -1.0)
        chosen = int(np.argmax(worth))
        self._told_gain = float(gain[allowed].max())
        horizon = self.manner.horizon
        if horizon is not None and gain[chosen] * horizon < cost[chosen]:
            return None
        return self._cells[chosen]

    def _switching(self) -> Any:
        """By cell: what it costs to get there from the last one, in trials, as far as trials have told (SWITCH)."""
        import numpy as np
        from scipy.optimize import nnls  # type: ignore[import-untyped]

        cells, told = [seen.cell for seen in self._judge.seen], [trial.metrics.get(SWITCH) for trial in self.trials]
        here = np.array(self._cells) != np.array(cells[-1])
        pairs = [(a, b, cost) for (a, b), cost in zip(pairwise(cells), told[1:], strict=True) if cost is not None]
        if not pairs:
            return np.zeros(len(self._cells))
        moved = np.array([[x != y for x, y in zip(a, b, strict=True)] for a, b, _ in pairs], dtype=float)
        by_knob = nnls(moved, np.array([cost for _, _, cost in pairs], dtype=float))[0]
        return here @ by_knob

    def _to_confirm(self, belief: "Belief", tried: Counter[Cell]) -> Cell | None:
        """What would be recommended, as long as it is not sure enough; None when all is said."""
        likely = [at for at in map(self._at.__getitem__, tried) if belief.holds[at] >= 0.5]
        average = belief.laws.objective.average()
        for at in sorted(likely, key=lambda one: float(average[one])):
            times = tried[self._cells[at]]
            if times > 1 and belief.holds[at] >= self.manner.sure:
                return None
            if times < self.manner.repeats:
                return self._cells[at]
        return None

    # What is believed

    def _belief(self) -> "Belief":
        import numpy as np

        judge = self._judge
        worked = [seen for seen in judge.seen if seen.failed is None]
        at = [self._at[seen.cell] for seen in worked]
        zero = worked[0]
        logs = np.array([[seen.objective, *seen.limited] for seen in worked]) - [zero.objective, *zero.limited]
        noise = np.array([seen.noise for seen in worked])
        if self._curves:
            self._primed = self._primed or prime(self.space, judge, self._curves)
            laws = self._primed.believe(at, logs, noise)
        else:
            laws = [self._surface.believe(at, logs[:, one], noise[:, one]) for one in range(logs.shape[1])]
        known = Laws(
            objective=laws[0],
            limited=tuple(laws[1:]),
            bounds=tuple(bound - start for bound, start in zip(judge.bounds(), zero.limited, strict=True)),
            together=bool(self._curves),
        )
        works = self._works()
        holds = works * known.holds()
        average = laws[0].average()
        best = min((float(average[one]) for one in set(at) if holds[one] >= 0.5), default=None)
        return Belief(laws=known, works=works, holds=holds, best=best, zero=zero)

    def _works(self) -> Any:
        """How probable it is that a setting works at all, from those near it that did and did not."""
        import numpy as np

        failed = [self._at[seen.cell] for seen in self._judge.seen if seen.failed is not None]
        if not failed:
            return np.ones(len(self._cells))
        worked = [self._at[seen.cell] for seen in self._judge.seen if seen.failed is None]

        def near(cells: list[int]) -> Any:
            apart = self._places[:, None, :] - self._places[None, cells, :]
            return matern((apart**2).sum(axis=2) / FAILURE_REACH**2).sum(axis=1)

        for_it = FAILURE_DOUBT + near(worked)
        works = for_it / (for_it + near(failed))
        for at in {*failed, *worked}:  # what was tried is known, not guessed
            works[at] = worked.count(at) / (worked.count(at) + failed.count(at))
        return works

    # What to recommend

    def _promised(self, belief: "Belief") -> "Belief":
        """BELIEF with limits that are multiples of the present setting taken as kept there, whatever its noise."""
        import numpy as np

        bounds = []
        for limit, bound in zip(self.limits, belief.laws.bounds, strict=True):
            by_cell = np.full(len(self._cells), bound)
            if limit.relative and (limit.value >= 1 if limit.bound == "at most" else limit.value <= 1):
                by_cell[self._at[self.space.present]] = math.inf
            bounds.append(by_cell)
        laws = replace(belief.laws, bounds=tuple(bounds))
        return replace(belief, laws=laws, holds=belief.works * laws.holds())

    def recommend(self) -> Recommendation:
        """The setting to use, of those that were tried."""
        import numpy as np

        if all(seen.failed is not None for seen in self._judge.seen):
            raise BadInput("nothing was tried yet that works, so nothing can be recommended: ask, try and tell first")
        belief = self._promised(self._belief())
        tried = Counter(seen.cell for seen in self._judge.seen if seen.failed is None)
        average, spread = belief.laws.objective.average(), belief.laws.objective.deviation()
        cells = sorted(tried, key=lambda cell: float(average[self._at[cell]]))
        sure = [cell for cell in cells if belief.holds[self._at[cell]] >= self.manner.sure]
        chosen = sure[0] if sure else self._nearest(belief, cells)
        at, present = self._at[chosen], self._at[self.space.present]
        value, low, high = (
            float(np.exp(belief.zero.objective + average[at] + side * NINETY * spread[at])) for side in (0, -1, 1)
        )
        apart = 0.0 if at == present else math.hypot(spread[at], spread[present])
        saved, least, most = (
            0.0 - float(np.expm1(average[at] - average[present] + side * NINETY * apart)) for side in (0, 1, -1)
        )
        return Recommendation(
            setting=self.space.setting(chosen),
            objective=Interval(value=value, low=low, high=high),
            saving=Interval(value=saved, low=least, high=most),
            holds=float(belief.holds[at]),
            kept=bool(sure),
            confirmed=tried[chosen] > 1,
            why=self._why(chosen, bool(sure), float(belief.holds[at])),
        )

    def _nearest(self, belief: "Belief", cells: Sequence[Cell]) -> Cell:
        """Where nothing surely keeps the limits: the present setting if it may, else what comes nearest to them."""
        present = self.space.present
        if belief.holds[self._at[present]] >= 0.3:  # as good as on the limit: staying breaks no promise anew
            return present
        worst = {cell: self._expected_excess(belief, cell) for cell in cells}
        return min(cells, key=lambda cell: worst[cell])

    def _expected_excess(self, belief: "Belief", cell: Cell) -> float:
        both = zip(belief.laws.limited, belief.laws.bounds, strict=True)
        at = self._at[cell]
        over = [float(law.average()[at] - bound[at]) for law, bound in both]
        return max(over, default=-math.inf)

    def _why(self, chosen: Cell, kept: bool, holds: float) -> str:
        if kept:
            return f"least of the settings that keep all limits with a probability of {self.manner.sure:.0%}"
        if chosen == self.space.present and holds >= 0.3:
            return "the present setting: no other surely keeps the limits"
        if not self.limits:
            return "no setting that was tried surely works; this one did at times"
        broken = ", ".join(str(limit) for limit in self.limits)
        if holds < 0.01:
            return f"no setting that was tried keeps the limits ({broken}); this one comes nearest"
        return f"no setting that was tried surely keeps the limits ({broken}); this one comes nearest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """What is believed of every cell, relative to the first trial."""

    laws: Laws
    works: Any  # by cell: how probable it is that it runs at all
    holds: Any  # by cell: how probable it is that all limits hold
    best: float | None  # least objective of a tried setting that likely keeps the limits; None: there is none
    zero: Seen  # what the logarithms are relative to


def first_level(places: Sequence[float], saves: str | None, share: float) -> int | None:
    """The level SHARE of the way from the present one (at 0) to the end where it saves; None: there is one level.

    Towards the other end when it is at that one already; without a word on where it saves, towards the further one.
    """
    low, high = min(places), max(places)
    up = high >= -low if saves is None else (places[-1] - places[0] > 0) == (saves == "up")
    end = (high or low) if up else (low or high)
    if end == 0:
        return None
    others = [at for at, place in enumerate(places) if place * end > 0]
    return min(others, key=lambda at: (abs(places[at] - share * end), at))
