"""A curve for a program that has none, blended from recorded ones.

The nearer a recorded program, the more its curve counts; and where the neighbours' curves lean with a feature, the
blend leans with it too (a straight line through the neighbours, held flat by a penalty). So the answer is a weighted
sum of recorded curves, with weights that add up to one. Times and powers are logarithms of ratios to the usual setting.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.match.nearness import Scale, distances, learnt_weights, scale_of

STIFF = 3.0  # how firmly the lean with a feature of state is held flat
STIFF_PROBE = 0.1  # with what a probe gave: that is the same kind of figure as what is sought
SHARP = (0.3, 1.0, 3.0, 10.0)  # how quickly weight falls with distance, over the middle distance
MOST_FOLDS = 12


@dataclass(frozen=True, slots=True)
class Blender:
    """A record, ready to blend: its features on their scale, its curves, and what was learnt about them."""

    scale: Scale
    features: Any  # programs × features, scaled; NaN: not known
    curves: Any  # programs × figures
    groups: tuple[Hashable, ...]
    weights: Any
    stiff: Any
    sharp: float

    def weights_for(self, asked: Any) -> tuple[Any, Any]:
        """How much each program's curve counts for ASKED (features as they are), and how far each is."""
        import numpy as np

        place = self.scale.applied(asked)
        far = distances(place[None, :], self.features, self.weights)[0]
        return _blend(place, self.features, far, self.stiff, self.sharp), np.asarray(far)

    def farness(self, asked: Any, level: float) -> float:
        """How far the nearest program is, over how far LEVEL of the programs at most are from the next group's."""
        import numpy as np

        inside = distances(self.features, self.features, self.weights)
        codes = {group: number for number, group in enumerate(dict.fromkeys(self.groups))}
        numbers = np.array([codes[group] for group in self.groups])
        nearest = np.where(numbers[:, None] != numbers[None, :], inside, np.inf).min(axis=1)
        nearest = nearest[np.isfinite(nearest)]
        usual = float(np.quantile(nearest, level)) if len(nearest) else 0.0
        return float(self.weights_for(asked)[1].min()) / (usual or 1.0)

    def guess(self, asked: Any) -> Any:
        return self.weights_for(asked)[0] @ self.curves


def fit_blender(features: Any, curves: Any, groups: Sequence[Hashable], probed: Any) -> Blender:
    """Learn from programs with curves. PROBED says which features come from a probe."""
    import numpy as np

    scale = scale_of(features)
    scaled = scale.applied(features)
    stiff = np.where(probed, STIFF_PROBE, STIFF)
    weights = learnt_weights(scaled, curves, groups)
    sharp = _best_sharpness(scaled, curves, groups, weights, stiff)
    return Blender(scale, scaled, curves, tuple(groups), weights, stiff, sharp)


def left_out_guesses(features: Any, curves: Any, groups: Sequence[Hashable], probed: Any) -> Any:
    """What each program's curve is guessed as by the others, everything learnt without its group."""
    import numpy as np

    guesses = np.zeros_like(curves)
    for rows in folds(groups):
        rest = [row for row in range(len(groups)) if row not in rows]
        blender = fit_blender(features[rest], curves[rest], [groups[row] for row in rest], probed)
        for row in rows:
            guesses[row] = blender.guess(features[row])
    return guesses


def folds(groups: Sequence[Hashable]) -> list[list[int]]:
    """Rows to leave out together: each group alone, or several at once where there are many groups."""
    names = list(dict.fromkeys(groups))
    number = min(MOST_FOLDS, len(names)) if len(names) > 2 * MOST_FOLDS else len(names)
    fold_of = {name: place % number for place, name in enumerate(names)}
    return [[row for row, group in enumerate(groups) if fold_of[group] == fold] for fold in range(number)]


def _best_sharpness(features: Any, curves: Any, groups: Sequence[Hashable], weights: Any, stiff: Any) -> float:
    import numpy as np

    far = distances(features, features, weights)
    worst = []
    for sharp in SHARP:
        off = 0.0
        for row, group in enumerate(groups):
            rest = np.array([other != group for other in groups])
            if rest.sum() < 2:
                continue
            shares = _blend(features[row], features[rest], far[row][rest], stiff, sharp)
            off += float(np.abs(shares @ curves[rest] - curves[row]).mean())
        worst.append(off)
    return SHARP[int(np.argmin(worst))]


def _blend(place: Any, features: Any, far: Any, stiff: Any, sharp: float) -> Any:
    """Weights of programs that add up to one. An unknown feature says nothing: there it lies in the middle."""
    import numpy as np

    middle = float(np.median(far**2)) or 1.0
    near = np.exp(-0.5 * sharp * (far**2 - np.min(far**2)) / middle)
    share = near / near.sum()
    known = ~np.isnan(place)
    around = np.nan_to_num(features[:, known], nan=0.0)
    centre = share @ around
    lean = around - centre
    wanted = place[known] - centre
    slopes = np.linalg.solve((lean.T * near) @ lean + np.diag(stiff[known]), wanted)
    return share + near * (lean @ slopes)
