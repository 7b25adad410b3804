"""Inference beside fine-tuning on one device: how much slower queries get, and what can be done that the limit holds.

Time on a shared device adds up: what the batch costs alone, and what the other job takes meanwhile. A linear model with
factors that cannot be negative, fitted by ratio to a few measured pairs, in terms of operations and bytes of both jobs
over what the device reaches (so one model serves all networks), and the batch.
"""

from collections.abc import Callable, Iterable, Sequence
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

    def __init__(self, factors: Any) -> None:
        self.factors = factors

    @classmethod
    def fit(cls, pairs: Iterable[Pair]) -> "Contention":
        import numpy as np
        from scipy.optimize import nnls  # type: ignore[import-untyped]

        measured = list(pairs)
        if len(measured) < FEWEST:
            raise BadInput(f"contention is learned from at least {FEWEST} measured pairs, got {len(measured)}")
        if any(not 0 < one.latency_s < float("inf") for one in measured):
            raise BadInput("every measured latency must be positive and finite")
        terms = np.array([_terms(one.inference, one.fine_tuning) for one in measured])
        scale = np.maximum(np.abs(terms).max(axis=0), 1e-30)
        weights = 1 / np.array([one.latency_s for one in measured])
        factors = nnls(terms / scale * weights[:, None], np.ones(len(measured)))[0]
        return cls(factors / scale)

    def latency_s(self, inference: Job, fine_tuning: Job | None = None) -> float:
        return float(sum(a * b for a, b in zip(self.factors, _terms(inference, fine_tuning), strict=True)))


def _terms(inference: Job, fine_tuning: Job | None) -> list[float]:
    """What adds up: PolyThrottle's terms (operations and intensity of both, and the batch), and the bytes of both."""
    other = [0.0] * 3 if fine_tuning is None else [fine_tuning.flops, fine_tuning.moved_bytes, fine_tuning.intensity]
    return [1.0, inference.flops, inference.moved_bytes, inference.intensity, float(inference.batch), *other]


def _with_margin(latency_s: Callable[[int, bool], float], beside: bool, margin: float, batch: int) -> float:
    return (1 + margin) * latency_s(batch, beside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to serve while fine-tuning, or without it."""

    policy: Policy
    fine_tunes: bool
    foreseen: Served


def plan(
    arrivals_s: Sequence[float],
    limit_s: float,
    latency_s: Callable[[int, bool], float],
    batches: Sequence[int],
    margin: float = 0.1,
) -> Plan | None:
    """The policy that keeps LIMIT_S for 99 of 100 queries: with fine-tuning if any does, else without; None: none does.

    LATENCY_S(batch, beside) is the time of a batch, beside fine-tuning or not; MARGIN, a share of it, is kept in hand.
    Of several the largest batch is taken: fewer, larger batches cost less energy per query.
    """
    if not 0 < limit_s < float("inf"):
        raise BadInput(f"the limit must be positive and finite, got {limit_s}")
    for beside in (True, False):
        for batch in sorted(batches, reverse=True):
            policy = Policy(batch=batch)
            came = foreseen(arrivals_s, partial(_with_margin, latency_s, beside, margin), policy)
            if came.percentile_s(SHARE) <= limit_s:
                return Plan(policy=policy, fine_tunes=beside, foreseen=came)
    return None
