"""What other workloads have in common: their curves as a belief about one that has not been measured.

Each other workload's table, relative to its own present setting, is read off at the settings of this one. The tables
vary together in few directions: how strongly a power limit slows the work down, where batches stop helping. Their mean
and covariance, over objective and limited metrics at once, are the belief before the first trial; so the first trials
say where in those directions this workload lies. What the others do not tell is left to a surface of its own, about as
large as each of the others needed when it was told by the rest.

A knob that caps something, as a power limit does, acts from where the cap meets what the work draws by itself. So its
levels are compared as multiples of the draw at the present setting, and how far below the cap that lies is itself
taken for a sign of what kind of work it is.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Curve, Failed, Space
from wattsmith.tune.coordinates import coordinates, coordinates_within
from wattsmith.tune.goals import MetricMissing, figure
from wattsmith.tune.judge import Judge
from wattsmith.tune.process import Centres, Mixture, Surface, condition, matern

DIRECTIONS = 3  # in which tables are taken to vary together; two hold most of it
SAME_DEVICE = 2.0  # weight of a curve from this very type of device, against 1 for another
OWN_REACHES = (0.35, 0.7, 1.4)  # of what the others do not tell, as parts of a knob's range
OWN_SCALES = (0.5, 1.0, 2.0, 4.0)  # how much of that there is, as multiples of what the others needed
KERNEL = 0.3  # of the whole variation, around each of the others
TABLE_NOISE = 0.01  # of the others' tables
OWN_LEAST = 0.01  # what the others never tell, at least


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """Curves of others, read off at the settings of one space."""

    logs: Any  # [curves, metrics × cells], relative to each one's present setting
    doubt: Any  # the same: variance of having read it off between and beyond its settings
    signs: Any  # [curves, signs]
    weights: Any  # [curves]
    workloads: tuple[str, ...]  # by curve


class Primed:
    """A belief from others' curves, that trials turn into one about this workload."""

    def __init__(self, places: Any, metrics: int, tables: Tables, sign: Any) -> None:
        import numpy as np

        self._places, self._metrics = places, metrics
        whole = tables.logs.shape[1]
        flat = np.concatenate([tables.logs, tables.signs], axis=1)
        mean, factors = common(flat, tables.weights)
        own = own_variance(flat, tables.weights, tables.workloads)
        self._own = np.sqrt(own[:whole] + tables.weights @ tables.doubt / tables.weights.sum())
        # Workloads are of kinds rather than scattered around one mean: so each of the others stands for its own kind,
        # widened so that all of them together vary as they do.
        factors = KERNEL * factors
        centres = mean + math.sqrt(1 - KERNEL**2) * (flat - mean)
        told, narrowed, fits = after_signs(factors[:, whole:], sign - centres[:, whole:], own[whole:])
        self._centres = centres[:, :whole] + told @ factors[:, :whole]
        self._factors = narrowed @ factors[:, :whole]
        self._weights = tables.weights * fits / (tables.weights @ fits)

    def believe(self, at: Sequence[int], logs: Any, noise: Any) -> list[Mixture]:
        """What trials at cells AT, with LOGS [trials, metrics] and NOISE alike, say of every cell, by metric."""
        import numpy as np

        cells, at = len(self._places), list(at)
        rows = np.array([metric * cells + cell for metric in range(self._metrics) for cell in at])
        together = self._factors[:, rows].T @ self._factors
        apart = ((self._places[at][:, None, :] - self._places[None, :, :]) ** 2).sum(axis=2)
        scales = self._own[rows][:, None] * self._own[None, :]
        blocks = [np.kron(np.eye(self._metrics), matern(apart / reach**2)) * scales for reach in OWN_REACHES]
        across = np.stack([together + scale**2 * block for block in blocks for scale in OWN_SCALES])
        shared = (self._factors**2).sum(axis=0)
        variance = np.stack([shared + (scale * self._own) ** 2 for _ in OWN_REACHES for scale in OWN_SCALES])
        law = condition(
            across[:, :, rows],
            across.__getitem__,
            variance,
            logs.T.reshape(-1) - self._centres[:, rows],
            noise.T.reshape(-1),
            Centres(values=self._centres, weights=self._weights),
        )
        return [
            Mixture(weights=law.weights, mean=law.mean[:, part], spread=law.spread[:, part])
            for part in (slice(metric * cells, (metric + 1) * cells) for metric in range(self._metrics))
        ]


def common(flat: Any, weights: Any) -> tuple[Any, Any]:
    """Mean of the tables, and the directions in which they vary together, each as long as it usually goes."""
    import numpy as np

    share = weights / weights.sum()
    mean = share @ flat
    _, lengths, directions = np.linalg.svd(np.sqrt(share)[:, None] * (flat - mean), full_matrices=False)
    # Of n tables one is spent on the mean: the rest vary a little less than a new one will.
    wider = math.sqrt(len(flat) / max(len(flat) - 1, 1))
    return mean, wider * lengths[:DIRECTIONS, None] * directions[:DIRECTIONS]


def own_variance(flat: Any, weights: Any, workloads: Sequence[str]) -> Any:
    """By column: how far each table lies from all that the tables of other workloads can make of it."""
    import numpy as np

    rests = []
    for workload in dict.fromkeys(workloads):
        inside = np.array([one == workload for one in workloads])
        if inside.all():  # nobody to tell it by
            return np.var(flat, axis=0) + OWN_LEAST**2
        mean, factors = common(flat[~inside], weights[~inside])
        left = flat[inside] - mean
        basis = np.linalg.svd(factors, full_matrices=False)[2]
        rests.append(left - (left @ basis.T) @ basis)
    # The median, so that one odd workload does not make all the others seem to tell nothing.
    return (1.4826 * np.median(np.abs(np.concatenate(rests)), axis=0)) ** 2 + OWN_LEAST**2


def after_signs(factors: Any, left: Any, variance: Any) -> tuple[Any, Any, Any]:
    """By curve: how far to go in each direction by the signs alone, and how well they fit.

    In between: what they leave open, as a square root to multiply with.
    """
    import numpy as np

    spread = np.linalg.inv(np.eye(len(factors)) + (factors / variance) @ factors.T)
    among = factors.T @ factors + np.diag(variance)
    far = np.einsum("cs,st,ct->c", left, np.linalg.inv(among), left)
    fits = np.exp(-0.5 * (far - far.min()))  # relative to the best, which may be far off too
    return (left / variance) @ factors.T @ spread, np.linalg.cholesky(spread).T, fits


def prime(space: Space, judge: Judge, curves: Sequence[Curve]) -> Primed:
    """The belief that CURVES give about SPACE, for the objective and the limits of JUDGE, after its first trial."""
    import numpy as np

    usable = [curve for curve in curves if same_knobs(curve.space, space)]
    if not usable:
        names = ", ".join(knob.name for knob in space.knobs)
        raise BadInput(f"none of the {len(curves)} curves has the knobs {names}, in this order; search without them")
    first = judge.first_of_present()
    if first is None:
        raise BadInput("curves of others are relative to the present setting: measure that first")
    draws = begins(space, judge.trials[first].metrics)
    read = [_read_off(curve, space, judge, draws) for curve in usable]
    tables = Tables(
        logs=np.stack([logs for logs, _, _ in read]),
        doubt=np.stack([doubt for _, doubt, _ in read]),
        signs=np.array([_signs(space, its) for _, _, its in read]).reshape(len(read), -1),
        weights=np.array([SAME_DEVICE if curve.same_device else 1.0 for curve in usable]),
        workloads=tuple(curve.workload for curve in usable),
    )
    return Primed(coordinates(space), 1 + len(judge.limits), tables, np.array(_signs(space, draws)))


def same_knobs(one: Space, other: Space) -> bool:
    return [knob.name for knob in one.knobs] == [knob.name for knob in other.knobs]


def begins(space: Space, metrics: Mapping[str, float]) -> list[float]:
    """Where each knob begins to act, in its positions: where it meets the draw if it caps, else where it is."""
    draws = [None if knob.caps is None else _draw(knob.caps, metrics) for knob in space.knobs]
    return [
        0.0 if draw is None else math.log2(draw / float(knob.present))
        for knob, draw in zip(space.knobs, draws, strict=True)
    ]


def _signs(space: Space, draws: Sequence[float]) -> list[float]:
    return [draw for knob, draw in zip(space.knobs, draws, strict=True) if knob.caps is not None]


def _draw(name: str, metrics: Mapping[str, float]) -> float | None:
    """What a run takes of what is capped; power follows from energy and time when nobody says it."""
    for names in ((name,), *((("energy", "time"),) if name == "power" else ())):
        try:
            found = [figure(metrics, one) for one in names]
        except MetricMissing:
            continue
        return found[0] / found[1] if len(found) == 2 else found[0]
    return None


def _read_off(curve: Curve, space: Space, judge: Judge, draws: Sequence[float]) -> tuple[Any, Any, list[float]]:
    """CURVE's logarithms at the settings of SPACE, relative to its own present setting, their variance, its draws."""
    import numpy as np

    its = Judge(curve.space, judge.objective, judge.limits)
    trials = sorted(curve.trials, key=lambda one: curve.space.cell(one.setting) != curve.space.present)
    if not trials or curve.space.cell(trials[0].setting) != curve.space.present:
        raise BadInput(f"the curve of {curve.workload} lacks its present setting, so it cannot prime a search")
    try:
        for trial in trials:
            its.take(trial.setting, Failed(why=trial.failed) if trial.failed else trial.metrics, trial.noise)
    except BadInput as lacking:
        raise BadInput(f"the curve of {curve.workload} cannot prime this search: {lacking}") from lacking
    worked = [seen for seen in its.seen if seen.failed is None]
    zero = worked[0]
    logs = np.array([[seen.objective, *seen.limited] for seen in worked]) - [zero.objective, *zero.limited]
    where = {cell: at for at, cell in enumerate(curve.space.cells())}
    its_draws = begins(curve.space, its.trials[0].metrics)
    theirs = coordinates_within(curve.space, space, its_draws)[[where[seen.cell] for seen in worked]]
    surface = Surface(np.concatenate([theirs, coordinates_within(space, space, draws)]))
    known = range(len(worked))
    laws = [surface.believe(known, logs[:, one], np.full(len(worked), TABLE_NOISE)) for one in range(logs.shape[1])]
    beyond = slice(len(worked), None)
    mean = np.concatenate([law.average()[beyond] for law in laws])
    return mean, np.concatenate([law.deviation()[beyond] ** 2 for law in laws]), its_draws
