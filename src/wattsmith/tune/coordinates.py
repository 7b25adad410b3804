"""Where settings lie: levels as numbers in which equal steps mean about the same."""

import math
from collections.abc import Sequence
from typing import Any

from wattsmith.terms.tuning import Knob, Space


def positions(knob: Knob) -> list[float]:
    """The levels of KNOB as numbers, 0 at the present one.

    Powers of two for numbers, since batches, clocks and limits act by their ratio; the place in the order for words.
    """
    here = knob.levels.index(knob.present)
    if knob.numeric:
        return [math.log2(float(one) / float(knob.present)) for one in knob.levels]
    return [float(at - here) for at in range(len(knob.levels))]


def span(knob: Knob) -> float:
    """From the lowest to the highest position; 1 for a knob with a single level."""
    places = positions(knob)
    return (max(places) - min(places)) or 1.0


def coordinates(space: Space) -> Any:
    """Cells × knobs, in order of `space.cells()`; 0 at the present setting, each knob's range 1 long."""
    import numpy as np

    scaled = [[place / span(knob) for place in positions(knob)] for knob in space.knobs]
    return np.array([[scaled[k][at] for k, at in enumerate(cell)] for cell in space.cells()])


def coordinates_within(other: Space, space: Space, origins: Sequence[float]) -> Any:
    """Cells of OTHER in the scale of SPACE, whose knobs it must have; ORIGINS, by knob, are its positions of 0."""
    import numpy as np

    scaled = [
        [(place - origin) / span(knob) for place in positions(its)]
        for its, knob, origin in zip(other.knobs, space.knobs, origins, strict=True)
    ]
    return np.array([[scaled[k][at] for k, at in enumerate(cell)] for cell in other.cells()])
