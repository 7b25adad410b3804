"""How long the host takes to queue a step: so much per step, per operator of each sort, and per tensor of an update.

It is the least certain part of an estimate: the same step on a host with another load or clock may take half, or twice.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.run import OperatorCall, StepTimes

LIGHT = ("elementwise", "copy", "reduce", "softmax", "embedding")
USUAL_S = (3e-4, 1e-5, 1.5e-5, 2e-5, 2e-6)  # where no record tells, in the order of HostModel's fields
ENOUGH = 5  # steps; fewer say nothing
ROUNDS = 4
PULL = 0.05  # towards the usual ratios of costs; a term that hardly any step has stays there
USUAL_OFF = 0.2  # in the logarithm; beyond it, errors count less than in proportion
PACED_BY_HOST = 0.7  # a device that is busy for a smaller share of the step waits for the host all the time


@dataclass(frozen=True, slots=True)
class HostModel:
    """The host's time."""

    step_s: float
    light_s: float  # an operator that only moves elements
    forward_s: float  # any other
    backward_s: float  # the gradient of any other
    tensor_s: float  # one tensor of an optimizer's update
    steps: int = 0  # that it was learned from

    @classmethod
    def usual(cls) -> "HostModel":
        return cls(*USUAL_S)

    @classmethod
    def fit(cls, measured: Iterable[tuple[Sequence[OperatorCall], float, str]]) -> "HostModel":
        """From calls of steps, the seconds that the host took for each, and the session that measured it.

        Hosts are not equally fast, nor is one at all times, so each session has a speed of its own. The model stands
        for the host in the middle.
        """
        import numpy as np

        rows = list(measured)
        if len(rows) < ENOUGH:
            return cls.usual()
        terms = np.array([_counts(calls) for calls, _, _ in rows])
        took_s = np.array([host_s for _, host_s, _ in rows])
        sessions = np.array([session for _, _, session in rows])
        slowness = np.ones(len(rows))
        factors: Any = np.zeros(terms.shape[1])
        for _ in range(ROUNDS):
            factors = _by_ratio(terms, took_s / slowness)
            off = np.log(took_s / (terms @ factors))
            middles = {one: float(np.median(off[sessions == one])) for one in set(sessions)}
            middle = sum(middles.values()) / len(middles)
            slowness = np.exp([middles[one] - middle for one in sessions])
        step_s, light_s, forward_s, backward_s, tensor_s = map(float, factors)
        return cls(step_s, light_s, forward_s, backward_s, tensor_s, steps=len(rows))

    def call_s(self, call: OperatorCall) -> float:
        """The host's time for one call."""
        return sum(part_s * count for part_s, count in zip(self._parts(), _counts_of(call), strict=True))

    def whole_s(self, calls: Sequence[OperatorCall]) -> float:
        """The host's time for a step."""
        return self.step_s + sum(one.calls * self.call_s(one) for one in calls)

    def _parts(self) -> tuple[float, float, float, float]:
        return self.light_s, self.forward_s, self.backward_s, self.tensor_s


def _by_ratio(terms: Any, took_s: Any) -> Any:
    """Factors of TERMS that come closest to TOOK_S by ratio, none of them nothing, drawn a little to what is usual.

    Small and large steps count alike; what lies far off counts less.
    """
    import numpy as np
    from scipy.optimize import least_squares  # type: ignore[import-untyped]

    usual = np.array(USUAL_S)
    usual = np.log(usual * np.median(took_s / (terms @ usual)))

    def off(at: Any) -> Any:
        return np.concatenate([np.log(terms @ np.exp(at)) - np.log(took_s), PULL * (at - usual)])

    return np.exp(least_squares(off, usual, loss="cauchy", f_scale=USUAL_OFF).x)


def host_time_s(times: StepTimes) -> float | None:
    """The host's time for a measured step: the step itself where the device waits for it; None: not known."""
    if times.busy_s is not None and times.busy_s < PACED_BY_HOST * times.mean_s:
        return times.mean_s
    return times.host_s


def _counts_of(call: OperatorCall) -> tuple[int, int, int, int]:
    """One call, as what HostModel has a time for."""
    if call.kind == "update":
        many = len(call.shapes) == 1 and len(call.shapes[0]) == 2  # told as one: tensors, and elements in all
        return 0, 0, 0, call.shapes[0][0] if many else len(call.shapes)
    if call.kind in LIGHT:
        return 1, 0, 0, 0
    return (0, 0, 1, 0) if "backward" in call.operator else (0, 1, 0, 0)


def _counts(calls: Sequence[OperatorCall]) -> list[float]:
    import numpy as np

    each = np.array([_counts_of(one) for one in calls]) * np.array([one.calls for one in calls])[:, None]
    return [1.0, *(float(one) for one in each.sum(axis=0))]
