"""The original grids, by name: every combination of a few levels of each parameter of a plain convolutional network."""

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from wattsmith.record.families import workload_of
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Workload

POWERS = (8, 16, 32, 64, 128, 256, 512)
ADDED = (0, 1, 2, 3, 4, 5)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
IMAGES = tuple((size, 3) for size in range(16, 257, 16))
DATA_SETS = ((28, 1), (32, 3), (128, 3))

_CUSTOMISED = {"filters": POWERS, "conv_layers": ADDED, "nodes": POWERS, "dense_layers": ADDED, "batch": BATCHES}
GRIDS: Mapping[str, Mapping[str, Sequence[object]]] = {
    # Filters of one layer, nodes of one layer, layers added, on images of three data sets or of many sizes.
    "data-sets": {"images": DATA_SETS, **_CUSTOMISED},
    "images": {"images": IMAGES, **_CUSTOMISED},
    # Input size, filter size, number of filters, stride and number of layers.
    "topology": {
        "images": tuple((size, 3) for size in (16, 32, 64, 128, 256)),
        "filter_size": (1, 3, 5, 7),
        "all_filters": POWERS,
        "stride": (1, 2),
        "conv_layers": ADDED,
        "batch": (1, 8, 64, 512),
    },
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Workloads of a grid, made one by one as they are asked for."""

    name: str
    levels: Mapping[str, Sequence[object]]
    chosen: Sequence[int]  # places in the whole grid
    precision: str = "fp32"

    def __len__(self) -> int:
        return len(self.chosen)

    def __iter__(self) -> Iterator[Workload]:
        return (self.at(place) for place in self.chosen)

    @property
    def whole(self) -> int:
        """How many there are in the whole grid."""
        return math.prod(map(len, self.levels.values()))

    def at(self, place: int) -> Workload:
        """The workload at a place of the whole grid, in which the last parameter changes fastest."""
        values: dict[str, object] = {}
        for name, levels in reversed(list(self.levels.items())):
            place, which = divmod(place, len(levels))
            values[name] = levels[which]
        return customised(values, self.precision)


def customised(values: dict[str, object], precision: str) -> Workload:
    parameters = dict(values)
    parameters["image"], parameters["channels"] = parameters.pop("images")  # type: ignore[misc]
    batch = parameters.pop("batch")
    if "all_filters" in parameters:
        parameters["filters"] = parameters["base_filters"] = parameters.pop("all_filters")
    return workload_of("cnn", batch, parameters=parameters, optimizer="sgd", precision=precision)  # type: ignore[arg-type]


def grid(name: str, sample: int | None = None, seed: int = 0, precision: str = "fp32") -> Grid:
    """The grid of that name: whole and in order, or SAMPLE of it, drawn without repetition."""
    if name not in GRIDS:
        raise BadTerm(f"there is no grid {name!r}; there are: {', '.join(GRIDS)}")
    every = range(math.prod(map(len, GRIDS[name].values())))
    if sample is not None and not 1 <= sample <= len(every):
        raise BadTerm(f"a sample of grid {name!r} must have 1 to {len(every)} points, got {sample}")
    chosen = every if sample is None else random.Random(seed).sample(every, sample)
    return Grid(name=name, levels=GRIDS[name], chosen=chosen, precision=precision)
