"""How far programs are apart: a distance over features that both have, with a weight for each feature.

Features are put on scales of the record (middle and spread). Weights are learnt so that programs near each other have
curves near each other: each program's curve is guessed from the others', the nearer the more, and the weights are those
that make these guesses best, held near a common start. A feature that one of two lacks is left out between them, and
what the others add up to is raised in its place.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

PULL = 0.0125  # by which weights are held to where they start, over the number of programs
ROUNDS = 40
FAR = 8.0  # logarithm of a weight, at most
LEAST_SPREAD = 1e-6


@dataclass(frozen=True, slots=True)
class Scale:
    """Where the features of a record lie."""

    middle: Any
    spread: Any

    def applied(self, features: Any) -> Any:
        return (features - self.middle) / self.spread


def scale_of(features: Any) -> Scale:
    """Middle and spread of FEATURES (programs × features, NaN: not known). What does not vary counts for nothing."""
    import numpy as np

    spread = np.sqrt(known_variance(features))
    return Scale(known_mean(features), np.where(spread > LEAST_SPREAD, spread, np.inf))


def known_mean(values: Any) -> Any:
    """By column the mean of VALUES that are known (not NaN); 0 where none is."""
    import numpy as np

    known = ~np.isnan(values)
    return np.where(known, values, 0.0).sum(axis=0) / np.maximum(known.sum(axis=0), 1)


def known_variance(values: Any) -> Any:
    """By column the variance of VALUES that are known; 0 where none is."""
    return known_mean((values - known_mean(values)) ** 2)


def squared_apart(these: Any, those: Any) -> tuple[Any, Any]:
    """By pair and feature: squared differences, with 0 where one is not known, and which are known."""
    import numpy as np

    apart = (these[:, None, :] - those[None, :, :]) ** 2
    known = ~np.isnan(apart)
    return np.where(known, apart, 0.0), known


def distances(these: Any, those: Any, weights: Any) -> Any:
    """How far THESE are from THOSE (both scaled, NaN: not known), as if all features were known."""
    import numpy as np

    apart, known = squared_apart(these, those)
    seen = known @ weights
    return np.sqrt(apart @ weights * weights.sum() / np.maximum(seen, 1e-12))


def learnt_weights(features: Any, curves: Any, groups: Sequence[Hashable]) -> Any:
    """Weights of features (scaled) with which CURVES (programs × figures) are guessed best from other groups."""
    import numpy as np
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    start = np.zeros(features.shape[1])
    alone = _different(groups)
    if len(features) < 4 or not alone.any(axis=1).all():
        return np.exp(start)
    worth, ends = _worth(features, curves, alone), [(-FAR, FAR)] * len(start)
    found = minimize(worth, start, jac=True, method="L-BFGS-B", bounds=ends, options={"maxiter": ROUNDS})
    return np.exp(found.x)


def _different(groups: Sequence[Hashable]) -> Any:
    import numpy as np

    codes = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    numbers = np.array([codes[group] for group in groups])
    return numbers[:, None] != numbers[None, :]


def _worth(features: Any, curves: Any, alone: Any) -> Callable[[Any], tuple[float, Any]]:
    """How badly curves are guessed with the logarithms of certain weights, and which way it gets better."""
    import numpy as np

    apart, known = squared_apart(features, features)
    share = known.mean(axis=2, keepdims=True)
    apart = apart / np.maximum(share, 1e-12)
    around = float(((curves - curves.mean(0)) ** 2).mean()) or 1.0
    pull = PULL / len(features)

    def worth(logs: Any) -> tuple[float, Any]:
        far = np.where(alone, apart @ np.exp(logs), np.inf)
        near = np.exp(-0.5 * (far - far.min(axis=1, keepdims=True)))
        near /= near.sum(axis=1, keepdims=True)
        off = near @ curves - curves
        loss = float((off**2).mean()) / around + pull * float(logs @ logs)
        by_near = 2 * off @ curves.T / off.size / around
        by_far = -0.5 * near * (by_near - (near * by_near).sum(axis=1, keepdims=True))
        slope = np.einsum("ij,ijf->f", by_far, apart) * np.exp(logs) + 2 * pull * logs
        return loss, slope

    return worth
