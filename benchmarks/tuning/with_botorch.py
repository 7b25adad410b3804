"""BoTorch's constrained expected improvement over the same settings. Needs botorch, and with it torch."""

import math
import warnings
from collections.abc import Mapping
from typing import Any

from wattsmith.terms.tuning import Level, Space
from wattsmith.tune.coordinates import coordinates

STARTS = 5  # as in PolyThrottle; the default setting is the first of them
METHOD = "botorch logCEI"


class WithBotorch:
    """Two Gaussian processes as BoTorch makes them by default, on logarithms, and the best of all cells each time."""

    def __init__(self, space: Space, limit_s: float, seed: int) -> None:
        import numpy as np
        import torch

        self.space, self._limit_s = space, limit_s
        self.kept: list[tuple[float, Mapping[str, Level]]] = []
        self._cells = space.cells()
        places = coordinates(space)
        self._places = torch.tensor(places - places.min(axis=0), dtype=torch.double)  # each knob from 0 to 1
        default = self._cells.index(space.present)
        drawn = [int(at) for at in np.random.default_rng(seed).permutation(len(self._cells)) if at != default]
        self._starts = [default, *drawn[: STARTS - 1]]
        self._tried: list[int] = []
        self._seen: list[tuple[float, float]] = []  # logarithms: energy, and time over the limit

    def ask(self) -> dict[str, Level] | None:
        if len(self._tried) == len(self._cells):
            return None
        at = self._starts[len(self._tried)] if len(self._tried) < len(self._starts) else self._best()
        self._tried.append(at)
        return self.space.setting(self._cells[at])

    def tell(self, setting: Mapping[str, Level], outcome: Any, noise: Any = None) -> None:  # noqa: ARG002
        over = math.log(outcome["time_s"] / self._limit_s)
        self._seen.append((math.log(outcome["energy_j"]), over))
        if over <= 0:
            self.kept.append((outcome["energy_j"], setting))

    def best(self) -> Mapping[str, Level]:
        return min(self.kept, key=lambda one: one[0])[1] if self.kept else self.space.setting(self.space.present)

    def _best(self) -> int:
        import torch
        from botorch.acquisition.analytic import LogConstrainedExpectedImprovement, LogProbabilityOfFeasibility
        from botorch.fit import fit_gpytorch_mll
        from botorch.models import ModelListGP, SingleTaskGP
        from botorch.models.transforms import Standardize
        from gpytorch.mlls import ExactMarginalLogLikelihood

        where = self._places[self._tried]
        models = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numerical trouble that it deals with itself
            for column in range(2):
                values = torch.tensor([[seen[column]] for seen in self._seen], dtype=torch.double)
                one = SingleTaskGP(where, values, outcome_transform=Standardize(m=1))
                fit_gpytorch_mll(ExactMarginalLogLikelihood(one.likelihood, one))
                models.append(one)
            model, limits = ModelListGP(*models), {1: (None, 0.0)}
            feasible = [energy for energy, over in self._seen if over <= 0]
            acquisition = (
                LogConstrainedExpectedImprovement(model, min(feasible), 0, limits, maximize=False)
                if feasible
                else LogProbabilityOfFeasibility(model, limits)
            )
            open_cells = [at for at in range(len(self._cells)) if at not in set(self._tried)]
            with torch.no_grad():
                worth = acquisition(self._places[open_cells].unsqueeze(1))
        return open_cells[int(worth.argmax())]
