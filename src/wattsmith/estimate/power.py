"""Energy of a step: what the device draws anyway, what it draws while busy, and what operations and bytes add.

All terms are energies that cannot be negative, fitted by ratio to the measured steps of a record. The mean power cannot
exceed the limit in force: a step that would draw more takes the energy that the limit allows for its time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.estimate.operators import relative_fit
from wattsmith.estimate.shapes import Features

TERA = 1e12
ARITHMETICS = ("fp32", "tf32", "bf16", "fp16")
# Kinds that leave most of the device idle draw less while busy, however busy it is called.
GROUPS = {
    **dict.fromkeys(("matmul", "conv", "attention"), "products"),
    **dict.fromkeys(("grouped", "depthwise"), "grouped"),
    "batch-norm": "batch-norm",
}
BUSY = ("products", "grouped", "batch-norm", "light")
LEAST_POWER_W = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """What a device does in one step."""

    step_s: float
    features: Sequence[Features]
    busy_s: Sequence[float]  # of all calls together, one for each of features
    calls: Sequence[int]

    def terms(self) -> list[float]:
        busy_s = dict.fromkeys(BUSY, 0.0)
        flops = dict.fromkeys(ARITHMETICS, 0.0)
        moved_bytes = 0.0
        for one, took_s, calls in zip(self.features, self.busy_s, self.calls, strict=True):
            group = GROUPS.get(one.model, "light")
            busy_s[group] += took_s
            moved_bytes += calls * one.moved_bytes
            if group in ("products", "grouped"):
                flops[one.arithmetic if one.arithmetic in flops else "fp32"] += calls * one.flops
        return [self.step_s, *busy_s.values(), *(one / TERA for one in flops.values()), moved_bytes / TERA]


class EnergyModel:
    """Joules of a step from what the device does in it."""

    def __init__(self, factors: Any, limit_w: float | None) -> None:
        self.factors = factors
        self.limit_w = limit_w

    @classmethod
    def fit(cls, measured: Iterable[tuple[Activity, float]], limit_w: float | None) -> "EnergyModel":
        """From activities and the joules of their steps."""
        import numpy as np

        rows = list(measured)
        terms = np.array([activity.terms() for activity, _ in rows])
        return cls(relative_fit(terms, np.array([energy_j for _, energy_j in rows])), limit_w)

    def energy_j(self, activity: Activity, limit_w: float | None = None) -> float:
        """Joules of one step, under LIMIT_W or the limit that was in force when the record was taken."""
        import numpy as np

        power_w = max(float(np.array(activity.terms()) @ self.factors) / activity.step_s, LEAST_POWER_W)
        limits = [one for one in (limit_w, self.limit_w) if one is not None]
        return min([power_w, *limits]) * activity.step_s

    @property
    def idle_w(self) -> float:
        """What is drawn when nothing runs in a step, as far as the fit can tell."""
        return float(self.factors[0])
