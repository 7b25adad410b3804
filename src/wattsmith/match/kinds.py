"""What kind of network a program is, by the layers that it is known to have.

Layers tell the kind far better than anything that a meter reads: what counts is which of its layers mix their inputs,
each kind's share of their calls. Differences are taken in units of how much networks of one kind differ among
themselves, so that a trait which a kind always has, or never has, counts most.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from wattsmith.match.features import MIXING
from wattsmith.terms.telemetry import Benchmark

NEIGHBOURS = 5
LEAST_APART = 0.02  # by which networks of one kind may always differ
SOFTEN = 0.05


def kind_votes(points: Sequence[Benchmark], features: Mapping[str, float | None]) -> dict[int, float] | None:
    """The benchmarks whose layers are most like the client's, with what each counts; None: layers are not known."""
    import numpy as np

    asked = _row(features)
    known = [place for place, point in enumerate(points) if _row(point.features) is not None]
    if asked is None or len(known) < NEIGHBOURS:
        return None
    rows = np.array([_row(points[place].features) for place in known])
    apart = _within(rows, [points[place].family for place in known])
    far = np.sqrt((((rows - np.array(asked)) / apart) ** 2).sum(axis=1))
    nearest = np.argsort(far, kind="stable")[:NEIGHBOURS]
    return {known[place]: 1 / (float(far[place]) + SOFTEN) for place in nearest}


def _row(features: Mapping[str, float | None]) -> list[float] | None:
    values = [features.get(name) for name in MIXING]
    return None if any(value is None for value in values) else [float(value) for value in values if value is not None]


def _within(rows: Any, kinds: Sequence[str]) -> Any:
    """By feature: how much networks of one kind differ from the middle of their kind."""
    import numpy as np

    of = np.array(kinds)
    left = np.concatenate([rows[of == kind] - rows[of == kind].mean(axis=0) for kind in dict.fromkeys(kinds)])
    return np.sqrt((left**2).mean(axis=0)) + LEAST_APART
