"""Inference beside fine-tuning on one device: how much slower queries get, and what can be done that the limit holds.

Time on a shared device adds up: what the batch costs alone, and what the other job takes meanwhile. A linear model with
factors that cannot be negative, fitted by ratio to a few measured pairs, in terms of operations and bytes of both jobs
over what the device reaches (so one model serves all networks), and the batch.
"""

import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from wattsmith.terms.errors import BadInput
from wattsmith.tune.load import Served
from wattsmith.tune.serving import Policy, foreseen

FEWEST = 4  # measured pairs; fewer do not tell the terms apart
SHARE = 0.99  # of queries that must be within the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One of the two jobs: a step of it."""

    flops: float
    moved_bytes: float
    batch: int = 1

    @property
    def intensity(self) -> float:
        """Operations per byte."""
        return self.flops / self.moved_bytes if self.moved_bytes else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """What was measured: an inference step beside a fine-tuning step, or alone."""

    inference: Job
    fine_tuning: Job | None
    latency_s: float


class Contention:
    """Latency of an inference step, alone or beside a fine-tuning step."""

    def __init__(self, factors: Any, shape: str = "adds up") -> None:
        self.factors, self.shape = factors, shape

    @classmethod
    def fit(cls, pairs: Iterable[Pair], shape: str | None = None) -> "Contention":
        """Learned from PAIRS, in a SHAPE of SHAPES; None: in the one that foretells pairs that are left out better."""
        measured = list(pairs)
        if len(measured) < FEWEST:
            raise BadInput(f"contention is learned from at least {FEWEST} measured pairs, got {len(measured)}")
        if any(not 0 < one.latency_s < math.inf for one in measured):
            raise BadInput("every measured latency must be positive and finite")
        if shape is not None and shape not in SHAPES:
            raise BadInput(f"there is no shape {shape!r}; there are {', '.join(SHAPES)}")
        if shape is None:
            shape = min(SHAPES, key=lambda one: left_out_error(measured, one))
        return cls(_factors(measured, SHAPES[shape]), shape)

    def latency_s(self, inference: Job, fine_tuning: Job | None = None) -> float:
        terms = SHAPES[self.shape](inference, fine_tuning)
        return float(sum(a * b for a, b in zip(self.factors, terms, strict=True)))


def left_out_error(pairs: Sequence[Pair], shape: str) -> float:
    """How far a model in SHAPE is off for a pair that it was not learned from: mean of the logarithm's size."""
    errors = []
    for at, one in enumerate(pairs):
        model = Contention(_factors([*pairs[:at], *pairs[at + 1 :]], SHAPES[shape]), shape)
        foretold_s = max(model.latency_s(one.inference, one.fine_tuning), 1e-3 * one.latency_s)
        errors.append(abs(math.log(foretold_s / one.latency_s)))
    return sum(errors) / len(errors)


def _factors(pairs: Sequence[Pair], terms_of: "Terms") -> Any:
    """Factors that cannot be negative, by least squares of the ratios."""
    import numpy as np
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    terms = np.array([terms_of(one.inference, one.fine_tuning) for one in pairs])
    scale = np.maximum(np.abs(terms).max(axis=0), 1e-30)
    weights = 1 / np.array([one.latency_s for one in pairs])
    return nnls(terms / scale * weights[:, None], np.ones(len(pairs)))[0] / scale


def _adding_up(inference: Job, fine_tuning: Job | None) -> list[float]:
    """What adds up: PolyThrottle's terms (operations and intensity of both, and the batch), and the bytes of both."""
    other = [0.0] * 3 if fine_tuning is None else [fine_tuning.flops, fine_tuning.moved_bytes, fine_tuning.intensity]
    return [1.0, inference.flops, inference.moved_bytes, inference.intensity, float(inference.batch), *other]


def _slowing_down(inference: Job, fine_tuning: Job | None) -> list[float]:
    """What the other job takes, and a share of one's own work: whoever shares a device for longer waits more."""
    own = [1.0, inference.flops, inference.moved_bytes]
    if fine_tuning is None:
        return [*own, *[0.0] * 5]
    return [*own, *own, fine_tuning.flops, fine_tuning.moved_bytes]


Terms = Callable[[Job, Job | None], list[float]]
SHAPES: Mapping[str, Terms] = {"adds up": _adding_up, "slows down": _slowing_down}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to serve while fine-tuning, or without it."""

    policy: Policy
    beside: Hashable  # what runs beside, of those that were offered
    foreseen: Served

    @property
    def fine_tunes(self) -> bool:
        return bool(self.beside)


def plan(
    arrivals_s: Sequence[float],
    limit_s: float,
    latency_s: Callable[[int, Any], float],
    batches: Sequence[int] = (),
    margin: float = 0.1,
    *,
    policies: Sequence[Policy] = (),
    besides: Sequence[Hashable] = (True, False),
) -> Plan | None:
    """The policy that keeps LIMIT_S for 99 of 100 queries: with fine-tuning if any does, else without; None: none does.

    LATENCY_S(batch, beside) is the time of a batch, beside fine-tuning or not; MARGIN, a share of it, is kept in hand.
    BESIDES are what may run beside, the most wanted first, nothing as False or None. Of several policies, those of
    BATCHES and POLICIES, the one with the fewest batches is taken: fewer, larger ones cost less energy per query.
    """
    if not 0 < limit_s < math.inf:
        raise BadInput(f"the limit must be positive and finite, got {limit_s}")
    offered = [*policies, *(Policy(batch=batch) for batch in batches)]
    for beside in besides:
        service_s = partial(_with_margin, latency_s, beside, margin)
        plans = [Plan(policy=one, beside=beside, foreseen=foreseen(arrivals_s, service_s, one)) for one in offered]
        kept = [one for one in plans if one.foreseen.percentile_s(SHARE) <= limit_s]
        if kept:
            return min(kept, key=lambda one: (one.foreseen.batches, -one.policy.batch))
    return None


def _with_margin(latency_s: Callable[[int, Any], float], beside: Hashable, margin: float, batch: int) -> float:
    return (1 + margin) * latency_s(batch, beside)
