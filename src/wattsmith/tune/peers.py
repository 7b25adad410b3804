"""Other ways to search, by name: what ours is held against, in one interface.

Each way is a generator: it yields the cell to try and is sent back what was seen there. The present setting has been
seen before the first. A way that ends has nothing more to try.
"""

import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Cell, Failed, Level, Space, Trial
from wattsmith.tune.coordinates import coordinates
from wattsmith.tune.goals import Limit
from wattsmith.tune.judge import Judge, Seen
from wattsmith.tune.process import matern

RANDOM_STARTS = 5  # as PolyThrottle has them
PAPER_MARGIN = 0.1  # its ξ


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What came of one cell."""

    cell: Cell
    value: float  # logarithm of the objective; infinite: it failed
    excess: float  # of the worst limit; not positive: all hold


Way = Generator[Cell, Scored, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a way starts with."""

    space: Space
    start: Scored
    rng: Any  # numpy's generator


class Peer:
    """A named way in the interface of the tuner."""

    def __init__(
        self, method: str, space: Space, objective: str = "energy", limits: Sequence[str | Limit] = (), *, seed: int = 0
    ) -> None:
        if method not in METHODS:
            raise BadInput(f"there is no method {method!r}; there are {', '.join(METHODS)}")
        self.space = space
        self._judge = Judge(space, objective, limits)
        self._method, self._seed = method, seed
        self._way: Way | None = None
        self._next: Cell | None = space.present

    @property
    def trials(self) -> list[Trial]:
        return self._judge.trials

    def ask(self) -> dict[str, Level] | None:
        """The setting to try next; None when it has nothing more to try."""
        return None if self._next is None else self.space.setting(self._next)

    def tell(
        self,
        setting: Mapping[str, Level],
        outcome: Mapping[str, float] | Failed,
        noise: Mapping[str, float] | None = None,
    ) -> None:
        """What came of SETTING, which was asked for."""
        import numpy as np

        scored = self._scored(self._judge.take(setting, outcome, noise))
        try:
            if self._way is None:
                task = Task(space=self.space, start=scored, rng=np.random.default_rng(self._seed))
                self._way = METHODS[self._method](task)
                self._next = next(self._way)
            else:
                self._next = self._way.send(scored)
        except StopIteration:
            self._next = None

    def _scored(self, seen: Seen) -> Scored:
        value = math.inf if seen.failed is not None else seen.objective
        return Scored(cell=seen.cell, value=value, excess=self._judge.excess(seen))

    def best(self) -> dict[str, Level]:
        """What it chooses: the least of those that kept the limits; the present setting when none did.

        Zeus's first rule chooses the lowest level of the last knob, its power limit, that keeps them.
        """
        kept = [one for one in map(self._scored, self._judge.seen) if one.excess <= 0]
        if not kept:
            return self.space.setting(self.space.present)
        if self._method == "one-factor, lowest":
            return self.space.setting(min(kept, key=lambda one: (one.cell[-1], one.value)).cell)
        return self.space.setting(min(kept, key=lambda one: one.value).cell)


def by_chance(task: Task) -> Way:
    """Every setting once, in random order."""
    cells = [cell for cell in task.space.cells() if cell != task.space.present]
    for at in task.rng.permutation(len(cells)):
        yield cells[at]


def whole_grid(task: Task) -> Way:
    """Every setting in order, from the present corner's side: the last knob runs fastest, downwards."""
    for cell in reversed(task.space.cells()):
        if cell != task.space.present:
            yield cell


def hill_climb(task: Task) -> Way:
    """From the best so far to its neighbours, two levels away and then one, until none is better."""
    best, tried = task.start, {task.start.cell}
    for step in (2, 1):
        better = True
        while better:
            better = False
            for cell in _neighbours(task.space, best.cell, step):
                if cell in tried:
                    continue
                tried.add(cell)
                scored = yield cell
                if scored.excess <= 0 and scored.value < best.value:
                    best, better = scored, True
                    break


def _neighbours(space: Space, cell: Cell, step: int) -> list[Cell]:
    """Cells STEP levels away in one knob; first where it saves, if that is known."""
    found = []
    for at, knob in enumerate(space.knobs):
        for sign in (1, -1) if knob.saves == "up" else (-1, 1):
            level = cell[at] + sign * step
            if 0 <= level < len(knob.levels):
                found.append((*cell[:at], level, *cell[at + 1 :]))
    return found


def one_factor(task: Task) -> Way:
    """One knob at a time, the last first, through all its levels from the top; each stays at its best."""
    best, tried = task.start, {task.start.cell}
    for at in reversed(range(len(task.space.knobs))):
        base = best.cell
        for level in reversed(range(len(task.space.knobs[at].levels))):
            cell = (*base[:at], level, *base[at + 1 :])
            if cell in tried:
                continue
            tried.add(cell)
            scored = yield cell
            if scored.excess <= 0 and (best.excess > 0 or scored.value < best.value):
                best = scored


def polythrottle(task: Task) -> Way:
    """Five random starts, then probability of feasibility times expected improvement, with ξ = 0.1, on plain scales.

    The paper leaves its kernel open: here Matérn-5/2, with one reach for all knobs by marginal likelihood.
    """
    import numpy as np

    cells = task.space.cells()
    places = coordinates(task.space)
    seen, at = [task.start], [cells.index(task.start.cell)]
    for start in task.rng.permutation(len(cells)):
        if len(seen) > RANDOM_STARTS - 1:
            break
        if start != at[0]:
            seen.append((yield cells[start]))
            at.append(int(start))
    apart = ((places[:, None, :] - places[None, :, :]) ** 2).sum(axis=2)
    while len(at) < len(cells):
        worked = [place for place, one in enumerate(seen) if math.isfinite(one.value)]
        known = [at[place] for place in worked]
        value = np.exp([seen[place].value - seen[0].value for place in worked])
        over = np.exp([max(seen[place].excess, -700.0) for place in worked])
        chosen = _paper_choice(apart, known, value, over, np.isin(np.arange(len(cells)), at))
        seen.append((yield cells[chosen]))
        at.append(chosen)


def _paper_choice(apart: Any, at: list[int], value: Any, over: Any, taken: Any) -> int:
    import numpy as np
    from scipy.special import ndtr  # type: ignore[import-untyped]

    mean, spread = _plain_process(apart, at, value)
    limit_mean, limit_spread = _plain_process(apart, at, over)
    holds = ndtr((1 - limit_mean) / limit_spread)
    kept = value[over <= 1]
    if len(kept):
        scaled = (kept.min() - PAPER_MARGIN - mean) / spread
        gain = spread * (scaled * ndtr(scaled) + np.exp(-0.5 * scaled**2) / math.sqrt(2 * math.pi))
    else:
        gain = np.ones(len(mean))
    return int(np.argmax(np.where(taken, -1.0, holds * gain)))


def _plain_process(apart: Any, at: list[int], values: Any) -> tuple[Any, Any]:
    """Mean and deviation everywhere, by the reach that makes VALUES most likely; standardised, nearly without noise."""
    import numpy as np

    middle, size = values.mean(), values.std() or 1.0
    scaled = (values - middle) / size
    best: tuple[float, Any, Any] | None = None
    for reach in (0.1, 0.2, 0.4, 0.8, 1.6):
        kernel = matern(apart[at] / reach**2)
        lower = np.linalg.cholesky(kernel[:, at] + 1e-4 * np.eye(len(at)))
        whitened = np.linalg.solve(lower, np.column_stack([kernel, scaled]))
        likelihood = -0.5 * float((whitened[:, -1] ** 2).sum()) - float(np.log(np.diag(lower)).sum())
        if best is None or likelihood > best[0]:
            mean = whitened[:, -1] @ whitened[:, :-1]
            spread = np.sqrt(np.maximum(1 - (whitened[:, :-1] ** 2).sum(axis=0), 1e-9))
            best = likelihood, mean, spread
    assert best is not None
    return middle + size * best[1], size * best[2]


METHODS: Mapping[str, Callable[[Task], Way]] = {
    "random": by_chance,
    "grid": whole_grid,
    "one-factor, lowest": one_factor,
    "one-factor, least energy": one_factor,
    "hill-climb": hill_climb,
    "polythrottle": polythrottle,
}
