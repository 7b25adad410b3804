"""A Gaussian process over settings: small, and averaged over how far things reach instead of guessing it.

A metric's logarithm, relative to the present setting, is a linear trend in each knob plus a Matérn-5/2 surface. How far
the surface reaches in each knob and how much it moves are not known after a handful of trials. So a grid of both is
kept, and each is believed as far as it makes what was measured likely.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

REACHES = (0.35, 0.7, 1.4)  # as parts of a knob's range
AMPLITUDES = (0.1, 0.3, 0.9)  # of the logarithm: from hardly anything to a factor of two and a half
TREND = 1.0  # of the linear trend over a knob's range, as a multiple of the amplitude
MOST_GRIDS = 96  # combinations of reaches and amplitudes that are averaged
NEGLECTED = 1e-3  # of the whole belief: what is less likely is left out
JITTER = 1e-10


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """What is believed of one metric's logarithm at every cell: a weighted mixture of normal laws."""

    weights: Any  # [grids]
    mean: Any  # [grids, cells]
    spread: Any  # [grids, cells], of the true value; noise comes on top

    def average(self) -> Any:
        return self.weights @ self.mean

    def deviation(self) -> Any:
        """Standard deviation of the whole mixture."""
        import numpy as np

        mean = self.average()
        return np.sqrt(self.weights @ (self.spread**2 + (self.mean - mean) ** 2))

    def below(self, bound: Any) -> Any:
        """How probable it is, [grids, cells], that the metric's logarithm is at most BOUND, by cell or for all."""
        from scipy.special import ndtr  # type: ignore[import-untyped]

        return ndtr((bound - self.mean) / self.spread)

    def improvement(self, best: float) -> Any:
        """How far below BEST the metric's logarithm is expected to come, [grids, cells]."""
        import numpy as np
        from scipy.special import ndtr

        scaled = (best - self.mean) / self.spread
        density = np.exp(-0.5 * scaled**2) / np.sqrt(2 * np.pi)
        return self.spread * (scaled * ndtr(scaled) + density)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """What is believed of the objective and of what is limited."""

    objective: Mixture
    limited: tuple[Mixture, ...]
    bounds: tuple[Any, ...]  # of what is limited, by cell or for all
    together: bool  # the n-th parts of all mixtures belong together; else each metric is judged by itself

    def holds(self) -> Any:
        """By cell: how probable it is that all limits hold."""
        return self._where_kept(self.objective.mean * 0 + 1)

    def gain(self, best: float) -> Any:
        """By cell: how far below BEST the objective is expected to come, counting only what keeps the limits."""
        return self._where_kept(self.objective.improvement(best))

    def _where_kept(self, worth: Any) -> Any:
        """The average of WORTH [grids, cells] times the probability that all limits hold."""
        below = [law.below(bound) for law, bound in zip(self.limited, self.bounds, strict=True)]
        if self.together:
            for one in below:
                worth = worth * one
            return self.objective.weights @ worth
        product = self.objective.weights @ worth
        for law, one in zip(self.limited, below, strict=True):
            product = product * (law.weights @ one)
        return product


def matern(squared: Any) -> Any:
    """Matérn-5/2 of the squared distance, 1 at zero."""
    import numpy as np

    far = np.sqrt(5 * squared)
    return (1 + far + far**2 / 3) * np.exp(-far)


def usual_grids(knobs: int) -> list[tuple[float, ...]]:
    """Reaches by knob with an amplitude behind; of many knobs an even choice, always the same."""
    import numpy as np

    grids = list(itertools.product(*[REACHES] * knobs, AMPLITUDES))
    if len(grids) <= MOST_GRIDS:
        return grids
    return [grids[at] for at in sorted(np.random.default_rng(0).choice(len(grids), MOST_GRIDS, replace=False))]


class Surface:
    """Cells that one metric is believed about; knows nothing of the metric itself, so several may share it."""

    def __init__(self, places: Any) -> None:
        """PLACES [cells, knobs]."""
        import numpy as np

        self.places = places
        used = np.array(usual_grids(places.shape[1]))
        self._reaches, self._amplitudes = used[:, :-1], used[:, -1]

    def covariance(self, cells: Sequence[int], others: Sequence[int], grids: Any) -> Any:
        """Of CELLS with OTHERS, for some of the grids: [grids, cells, others]."""
        import numpy as np

        one, other = self.places[list(cells)], self.places[list(others)]
        apart = (one[:, None, :] - other[None, :, :]) ** 2
        squared = np.tensordot(1 / self._reaches[grids] ** 2, apart, axes=(1, 2))
        return self._amplitudes[grids, None, None] ** 2 * (matern(squared) + TREND**2 * (one @ other.T))

    def believe(self, cells: Sequence[int], values: Any, noise: Any) -> Mixture:
        """What VALUES measured at CELLS, with standard errors NOISE, say of every cell."""
        import numpy as np

        every = slice(None)
        trend = TREND**2 * (self.places**2).sum(axis=1)
        return condition(
            self.covariance(cells, cells, every),
            lambda grids: self.covariance(cells, range(len(self.places)), grids),
            self._amplitudes[:, None] ** 2 * (1 + trend),
            np.asarray(values),
            noise,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Centres:
    """Several means that normal laws may have."""

    values: Any  # [centres, places]
    weights: Any  # [centres], sum 1


def condition(
    among: Any, across: Callable[[Any], Any], variance: Any, values: Any, noise: Any, centres: Centres | None = None
) -> Mixture:
    """Normal laws given what was measured, each weighted by how likely it makes that.

    AMONG [grids, trials, trials]; ACROSS, of the grids that it is asked for, [grids, trials, places]; VARIANCE [grids,
    places]; NOISE by trial. VALUES by trial, relative to the mean; with CENTRES, to each of them: [centres, trials].
    """
    import numpy as np

    lower = np.linalg.cholesky(among + np.diag(np.asarray(noise) ** 2 + JITTER))
    values = np.atleast_2d(values)
    seen = np.linalg.solve(lower, np.broadcast_to(values.T, (len(lower), *values.T.shape)))  # [grids, trials, centres]
    likelihood = -0.5 * (seen**2).sum(axis=1) - np.log(np.diagonal(lower, axis1=1, axis2=2)).sum(axis=1)[:, None]
    weights = np.exp(likelihood - likelihood.max()) * (np.ones(1) if centres is None else centres.weights)
    grid, centre = np.nonzero(weights > NEGLECTED * weights.sum())
    used, which = np.unique(grid, return_inverse=True)
    places = np.linalg.solve(lower[used], across(used))
    mean = np.einsum("kt,ktp->kp", seen[grid, :, centre], places[which])
    if centres is not None:
        mean = mean + centres.values[centre]
    left = np.maximum(variance[used] - (places**2).sum(axis=1), 1e-12)
    kept = weights[grid, centre]
    return Mixture(weights=kept / kept.sum(), mean=mean, spread=np.sqrt(left)[which])
