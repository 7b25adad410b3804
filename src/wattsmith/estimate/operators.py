"""How long a device is busy with calls of operators, learned from the calls that a record holds.

For each kind of operator: first a line through the origin of three costs (a call, its operations, its bytes), fitted to
relative errors; then what is left, by how far calls are from measured ones (a Gaussian process on the logarithm). Far
from everything measured the second part fades out, and only the costs speak.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

from wattsmith.estimate.likeness import Process, Reach, coded, likely_reach
from wattsmith.estimate.shapes import Features

LEAST_S = 1e-6  # no kernel takes less
SERIAL_S = 1e-9  # for an element that must wait for the one before, as a measure
SPREAD = 0.5  # of calls about their costs, in the logarithm, where nothing is measured nearby
MOST = 1500  # calls per kind; more make it slow and little better


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One measured call."""

    features: Features
    busy_s: float  # of one call


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """What a device reaches at most."""

    flops_per_s: Mapping[str, float]  # by arithmetic
    bandwidth_bytes_per_s: float

    def costs_s(self, one: Features) -> tuple[float, float, float, float]:
        rate = self.flops_per_s.get(one.arithmetic, self.flops_per_s["fp32"])
        return LEAST_S, one.flops / rate, one.moved_bytes / self.bandwidth_bytes_per_s, one.serial * SERIAL_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """How long calls take, each."""

    busy_s: Any  # array, of one call
    doubt: Any  # array: standard deviation of its logarithm


class Kind:
    """Calls of one kind."""

    def __init__(self, examples: Sequence[Example], peak: Peak, reach: Reach | None = None) -> None:
        import numpy as np

        self._peak = peak
        self._codes: dict[str, int] = {}
        self.examples = len(examples)
        features = [one.features for one in examples]
        sizes, words = _sizes(features), coded([one.words for one in features], self._codes)
        costs = np.array([peak.costs_s(one) for one in features])
        actual = np.array([one.busy_s for one in examples])
        self.factors = relative_fit(costs, actual)
        left = np.log(actual / (costs @ self.factors))
        self.offset = float(np.median(left))
        left -= self.offset
        self._process = Process(sizes, words, left, reach or likely_reach(sizes, words, left))

    @property
    def reach(self) -> Reach:
        return self._process.reach

    def on(self, peak: Peak) -> "Kind":
        other = copy(self)
        other._peak = peak
        return other

    def guess(self, features: Sequence[Features]) -> tuple[Any, Any]:
        """Seconds of one call each, and the standard deviation of their logarithm."""
        import numpy as np

        costs = np.array([self._peak.costs_s(one) for one in features]) @ self.factors
        left, doubt = self._process.guess(_sizes(features), coded([one.words for one in features], self._codes))
        return np.maximum(costs * np.exp(self.offset + left), LEAST_S), doubt


def _sizes(features: Sequence[Features]) -> Any:
    import numpy as np

    return np.array([one.sizes for one in features])


def relative_fit(costs: Any, actual: Any) -> Any:
    """Factors of COSTS, none below zero, that come close to ACTUAL by ratio."""
    import numpy as np
    from scipy.optimize import nnls  # type: ignore[import-untyped]

    # A few extremes must not decide: what lies far off counts less, in a few rounds.
    weights = 1.0 / actual
    factors = nnls(costs * weights[:, None], np.ones(len(actual)))[0]
    for _ in range(8):
        fitted = costs @ factors
        off = np.abs(np.log(np.maximum(fitted, 1e-12) / actual))
        weights = 1.0 / np.sqrt(actual * np.maximum(fitted, 1e-12)) / np.sqrt(1 + (off / 0.3) ** 2)
        factors = nnls(costs * weights[:, None], actual * weights)[0]
    return factors if factors.any() else np.ones(costs.shape[1])


class OperatorTimes:
    """All kinds of operators on one device."""

    def __init__(self, kinds: Mapping[str, Kind], peak: Peak) -> None:
        self._kinds = kinds
        self._peak = peak

    @classmethod
    def fit(
        cls, examples: Iterable[Example], peak: Peak, reaches: Mapping[str, Reach] | None = None
    ) -> "OperatorTimes":
        """From measured calls. REACHES, by kind, where they are known from before."""
        known = reaches or {}
        by_kind: dict[str, list[Example]] = defaultdict(list)
        for one in examples:
            if one.busy_s > 0:
                by_kind[one.features.model].append(one)
        return cls({name: Kind(thinned(some), peak, known.get(name)) for name, some in by_kind.items()}, peak)

    def guess(self, features: Sequence[Features]) -> Guess:
        import numpy as np

        busy_s, doubt = np.zeros(len(features)), np.zeros(len(features))
        places: dict[str, list[int]] = defaultdict(list)
        for at, one in enumerate(features):
            places[one.model].append(at)
        for model, chosen in places.items():
            some = [features[at] for at in chosen]
            if model in self._kinds:
                busy_s[chosen], doubt[chosen] = self._kinds[model].guess(some)
            else:
                costs = np.array([self._peak.costs_s(one) for one in some])
                busy_s[chosen] = costs[:, 0] * 2 + np.maximum(costs[:, 1], costs[:, 2]) / 0.7
                doubt[chosen] = SPREAD
        return Guess(busy_s=busy_s, doubt=doubt)

    def on(self, peak: Peak) -> "OperatorTimes":
        """The same for a device of other peaks."""
        return OperatorTimes({name: kind.on(peak) for name, kind in self._kinds.items()}, peak)

    @property
    def reaches(self) -> Mapping[str, Reach]:
        return {name: kind.reach for name, kind in self._kinds.items()}

    @property
    def kinds(self) -> Mapping[str, int]:
        return {name: kind.examples for name, kind in self._kinds.items()}


def thinned(examples: list[Example]) -> list[Example]:
    """One example for calls that are the same, and no more than MOST."""
    import numpy as np

    seen: dict[tuple[object, ...], list[Example]] = defaultdict(list)
    for one in examples:
        seen[(one.features.sizes, one.features.words)].append(one)
    kept = [
        Example(
            features=some[0].features,
            busy_s=math.exp(sum(math.log(one.busy_s) for one in some) / len(some)),
        )
        for some in seen.values()
    ]
    if len(kept) > MOST:
        kept = [kept[i] for i in np.linspace(0, len(kept) - 1, MOST).astype(int)]
    return kept
