"""A Gaussian process over calls: what is known of some says something of others, the less the further they are.

Two calls are far apart when their sizes differ by many doublings, or their words differ. How many doublings are far is
found for each size from the measured calls themselves, as what makes them most likely.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

USUAL_REACH = 2.0  # doublings
USUAL_APART = 0.5  # what a differing word adds to half the squared distance
SURE = 1.0  # how firmly the usual is believed, as the spread of its logarithm
LEAST_NOISE = 0.03  # calls repeat no better than that, in the logarithm
SAMPLE = 350  # calls that reaches are found from
ROUNDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How far things reach: in plain numbers, so that it can be kept in a file."""

    sizes: tuple[float, ...]  # doublings
    words: tuple[float, ...]
    spread: float  # of the logarithm, far from everything
    noise: float


class Process:
    """What was left of measured calls, and what that says of others."""

    def __init__(self, sizes: Any, words: Any, left: Any, reach: Reach) -> None:
        import numpy as np
        from scipy.linalg import cho_factor, cho_solve  # type: ignore[import-untyped]

        self.reach = reach
        self._sizes, self._words = sizes, words
        kernel = self._kernel(sizes, words)
        kernel[np.diag_indices_from(kernel)] += reach.noise**2
        self._factor = cho_factor(kernel, lower=True, check_finite=False)
        self._solved = cho_solve(self._factor, left, check_finite=False)

    def _kernel(self, sizes: Any, words: Any) -> Any:
        import numpy as np

        far = distances(sizes, words, self._sizes, self._words)
        weights = np.array([0.5 / one**2 for one in self.reach.sizes] + list(self.reach.words))
        return self.reach.spread**2 * np.exp(-np.tensordot(weights, far, axes=1))

    def guess(self, sizes: Any, words: Any) -> tuple[Any, Any]:
        """What to expect of other calls, and its standard deviation."""
        import numpy as np
        from scipy.linalg import solve_triangular

        kernel = self._kernel(sizes, words)
        whitened = solve_triangular(self._factor[0], kernel.T, lower=True, check_finite=False)
        variance = np.maximum(self.reach.spread**2 - np.sum(whitened**2, axis=0), 0.0) + self.reach.noise**2
        return kernel @ self._solved, np.sqrt(variance)


def distances(sizes: Any, words: Any, other_sizes: Any, other_words: Any) -> Any:
    """By size and word: squared differences, and 1 where words differ."""
    import numpy as np

    apart = [(sizes[:, at, None] - other_sizes[None, :, at]) ** 2 for at in range(sizes.shape[1])]
    apart += [(words[:, at, None] != other_words[None, :, at]).astype(float) for at in range(words.shape[1])]
    return np.stack(apart)


def likely_reach(sizes: Any, words: Any, left: Any) -> Reach:
    """The reach that makes what was left most likely, held near the usual."""
    import numpy as np
    from scipy.optimize import minimize  # type: ignore[import-untyped]

    if len(left) > SAMPLE:
        chosen = np.random.default_rng(0).choice(len(left), SAMPLE, replace=False)
        sizes, words, left = sizes[chosen], words[chosen], left[chosen]
    far = distances(sizes, words, sizes, words)
    usual = np.array(
        [-2 * np.log(USUAL_REACH) + np.log(0.5)] * sizes.shape[1]
        + [np.log(USUAL_APART)] * words.shape[1]
        + [np.log(max(float(np.std(left)), 0.1)), np.log(0.08)]
    )
    bounds = [(one - 5, one + 5) for one in usual[:-1]] + [(np.log(LEAST_NOISE), np.log(0.5))]
    found = minimize(
        _unlikeliness, usual, args=(far, left, usual), jac=True, method="L-BFGS-B", bounds=bounds,
        options={"maxiter": ROUNDS},
    ).x  # fmt: skip
    weights = np.exp(found[:-2])
    count = sizes.shape[1]
    return Reach(
        sizes=tuple(float(one) for one in np.sqrt(0.5 / weights[:count])),
        words=tuple(float(one) for one in weights[count:]),
        spread=float(np.exp(found[-2])),
        noise=float(np.exp(found[-1])),
    )


def _unlikeliness(at: Any, far: Any, left: Any, usual: Any) -> tuple[float, Any]:
    """How unlikely what was left is with these logarithms, and which way it gets likelier."""
    import numpy as np
    from scipy.linalg import cho_factor, cho_solve

    weights, spread, noise = np.exp(at[:-2]), np.exp(at[-2]), np.exp(at[-1])
    smooth = spread**2 * np.exp(-np.tensordot(weights, far, axes=1))
    kernel = smooth + noise**2 * np.eye(len(left))
    factor = cho_factor(kernel, lower=True, check_finite=False)
    solved = cho_solve(factor, left, check_finite=False)
    inverse = cho_solve(factor, np.eye(len(left)), check_finite=False)
    slope_by_kernel = 0.5 * (inverse - np.outer(solved, solved))
    by_smooth = slope_by_kernel * smooth
    slopes = [-weight * float(np.sum(by_smooth * one)) for weight, one in zip(weights, far, strict=True)]
    slopes += [2 * float(np.sum(by_smooth)), 2 * noise**2 * float(np.trace(slope_by_kernel))]
    pull = (at - usual) / SURE**2
    value = 0.5 * float(left @ solved) + float(np.sum(np.log(np.diag(factor[0])))) + 0.5 * float(pull @ (at - usual))
    return value, np.array(slopes) + pull


def coded(rows: Sequence[Sequence[str]], codes: dict[str, int]) -> Any:
    """Words as numbers; those that CODES does not know are added."""
    import numpy as np

    return np.array([[codes.setdefault(one, len(codes)) for one in row] for row in rows])
