"""Optuna's constrained samplers over the same settings. Needs optuna 5; its GP sampler needs torch too."""

import logging
import math
import warnings
from collections.abc import Mapping
from typing import Any

from wattsmith.terms.tuning import Level, Space

STARTS = 5  # as in PolyThrottle; the default setting is the first of them
SAMPLERS = {"optuna TPE": "TPESampler", "optuna GP": "GPSampler"}


class WithOptuna:
    """A study that is asked for settings and told energy and time."""

    def __init__(self, sampler: str, space: Space, limit_s: float, seed: int) -> None:
        import optuna

        optuna.logging.set_verbosity(logging.ERROR)
        self.space, self._limit_s = space, limit_s
        self.kept: list[tuple[float, Mapping[str, Level]]] = []
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # parts of it call themselves experimental
            made = getattr(optuna.samplers, SAMPLERS[sampler])(
                seed=seed, n_startup_trials=STARTS, constraints_func=lambda trial: trial.user_attrs["over"]
            )
            self._study = optuna.create_study(sampler=made)
        self._distributions = {
            knob.name: optuna.distributions.IntDistribution(0, len(knob.levels) - 1) for knob in space.knobs
        }
        self._study.enqueue_trial(dict(zip(self._distributions, space.present, strict=True)))
        self._open: Any = None

    def ask(self) -> dict[str, Level]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._open = self._study.ask(self._distributions)
        return self.space.setting(tuple(self._open.params[name] for name in self._distributions))

    def tell(self, setting: Mapping[str, Level], outcome: Any, noise: Any = None) -> None:  # noqa: ARG002
        over = math.log(outcome["time_s"] / self._limit_s)
        self._open.set_user_attr("over", (over,))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._study.tell(self._open, math.log(outcome["energy_j"]))
        if over <= 0:
            self.kept.append((outcome["energy_j"], setting))

    def best(self) -> Mapping[str, Level]:
        if not self.kept:
            return self.space.setting(self.space.present)
        return min(self.kept, key=lambda one: one[0])[1]
