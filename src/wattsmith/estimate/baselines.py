"""Simple ways to predict a step's time, kept to be printed beside ours.

constant    the median of what was measured
linear      linear regression on raw dimensions of network and device, over all that was measured
two-phase   the published method: conditions and limits select a cluster of what was measured, and linear regression on
            raw dimensions runs inside it. Here the device and regime select, then the nearest of eight clusters
roofline    the data sheet alone: each class of operators takes as long as its operations or its bytes at the peak
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

from wattsmith.estimate.costs import PRODUCTS, Step, Timed
from wattsmith.terms.errors import BadTerm

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[Any]

Predictor = Callable[[Sequence[Step]], list[float]]

CLUSTERS = 8
ROUNDS = 20
RIDGE = 1e-2  # against dimensions that go together; without it, a small cluster's answers are arbitrary


def constant(rows: Sequence[Timed]) -> Predictor:
    middle_s = median(row.step_s for row in rows)
    return lambda steps: [middle_s] * len(steps)


def roofline(_rows: Sequence[Timed] = ()) -> Predictor:
    return lambda steps: [roofline_s(step) for step in steps]


def roofline_s(step: Step) -> float:
    """Seconds at the peaks of the data sheet."""
    rate, bandwidth = step.device.peak(step.regime.precision), step.device.bandwidth
    return sum(
        max(one.flops / rate if name in PRODUCTS else 0.0, one.moved_bytes / bandwidth)
        for name, one in step.structure.operators.items()
    )


def linear(rows: Sequence[Timed]) -> Predictor:
    import numpy as np

    solve = _regression(_dimensions([row.step for row in rows]), np.array([row.step_s for row in rows]))
    return lambda steps: solve(_dimensions(steps))


def two_phase(rows: Sequence[Timed]) -> Predictor:
    import numpy as np

    def inside(some: Sequence[Timed]) -> Predictor:
        raw = _dimensions([row.step for row in some])
        actual_s = np.array([row.step_s for row in some])
        logs = np.log(np.abs(raw) + 1)
        centre, spread = logs.mean(axis=0), np.maximum(logs.std(axis=0), 1e-9)
        middles = _clusters((logs - centre) / spread)
        at = _nearest((logs - centre) / spread, middles)
        solves = [_regression(raw[at == one], actual_s[at == one]) for one in range(len(middles))]

        def predict(steps: Sequence[Step]) -> list[float]:
            asked = _dimensions(steps)
            chosen = _nearest((np.log(np.abs(asked) + 1) - centre) / spread, middles)
            return [solves[one](asked[row : row + 1])[0] for row, one in enumerate(chosen)]

        return predict

    by_condition: dict[object, list[Timed]] = {}
    for row in rows:
        by_condition.setdefault((row.step.regime, row.step.device.name), []).append(row)
    predictors = {key: inside(some) for key, some in by_condition.items()}
    otherwise = inside(rows)
    return lambda steps: [predictors.get((step.regime, step.device.name), otherwise)([step])[0] for step in steps]


def _dimensions(steps: Sequence[Step]) -> Floats:
    import numpy as np

    return np.array([_dimensions_of(step) for step in steps], dtype=float)


def _dimensions_of(step: Step) -> list[float]:
    structure, device = step.structure, step.device
    return [
        structure.parameters,
        structure.input_bytes,
        structure.flops,
        structure.moved_bytes,
        structure.launches,
        structure.conv_layers,
        structure.dense_layers,
        structure.conv_strength,
        structure.dense_strength,
        device.peak(step.regime.precision),
        device.bandwidth,
        device.units,
    ]


def _regression(raw: Floats, actual_s: Floats) -> Callable[[Floats], list[float]]:
    """Least squares in seconds. Answers stay within a factor of two of what was measured: no time is negative."""
    import numpy as np

    centre, spread = raw.mean(axis=0), raw.std(axis=0)
    spread = np.where(spread > 0, spread, 1.0)
    facts = np.hstack([np.ones((len(raw), 1)), (raw - centre) / spread])
    held = RIDGE * len(raw) * np.diag([0.0, *[1.0] * raw.shape[1]])
    found = np.linalg.solve(facts.T @ facts + held, facts.T @ actual_s)
    least_s, most_s = float(actual_s.min()) / 2, float(actual_s.max()) * 2

    def predict(asked: Floats) -> list[float]:
        said = found[0] + (asked - centre) / spread @ found[1:]
        return [min(most_s, max(least_s, float(one))) for one in said]

    return predict


def _clusters(places: Floats) -> Floats:
    """Middles of clusters: k-means from places far apart, without chance."""
    import numpy as np

    middles = places[:1]
    while len(middles) < min(CLUSTERS, max(1, len(places) // 40)):
        far = _squares(places, middles).min(axis=1).argmax()
        middles = np.vstack([middles, places[far]])
    for _ in range(ROUNDS):
        at = _nearest(places, middles)
        middles = np.array([places[at == one].mean(axis=0) for one in range(len(middles)) if (at == one).any()])
    return middles


def _squares(places: Floats, middles: Floats) -> Floats:
    squares: Floats = ((places[:, None, :] - middles[None, :, :]) ** 2).sum(axis=2)
    return squares


def _nearest(places: Floats, middles: Floats) -> Floats:
    at: Floats = _squares(places, middles).argmin(axis=1)
    return at


BASELINES: dict[str, Callable[[Sequence[Timed]], Predictor]] = {
    "constant": constant,
    "linear": linear,
    "two-phase": two_phase,
    "roofline": roofline,
}


def predictor(name: str, rows: Sequence[Timed]) -> Predictor:
    """The baseline that goes by NAME, fitted to ROWS. Only roofline needs none."""
    if name not in BASELINES:
        raise BadTerm(f"there is no baseline {name!r}. Known: {', '.join(BASELINES)}")
    if not rows and name != "roofline":
        raise BadTerm(
            f"the baseline {name!r} needs measured steps, and there are none. Take a record, or use roofline."
        )
    return BASELINES[name](rows)
