"""A training step cut in two: what runs where, what crosses, and why."""

from dataclasses import dataclass

DATA = "data"
TRAINING = "training"
BOTH = "both"


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """One tensor that goes from the data half to the training half, with the sizes of the example batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One node of the step, and where it runs."""

    name: str
    operator: str
    side: str  # "data", "training", or "both": a constant, which is made on either side and does not cross
    why: str
    could_move: bool  # whether the other side would have been right too
    takes: tuple[str, ...]  # names of the nodes whose values it takes
    output_bytes: int | None  # with the example batch; None: not known, as on the training side
    line: str | None  # of the user's source; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A step's two halves."""

    tracer: str  # "torch.export", "torch.fx", "by hand", "onnx" or "jax"
    batch: int  # samples in the example
    any_batch: bool  # whether batches of other sizes may come
    raw_bytes: int  # of the batch as the step takes it
    places: tuple[Place, ...]  # in the order of the step
    crossing: tuple[Crossing, ...]  # in the order in which they are sent
    unlike: tuple[str, ...]  # nodes of the data half whose last bits differ between kinds of CPUs or numbers of threads
    needs: tuple[str, ...]  # packages that a worker must have besides PyTorch
    notes: tuple[str, ...]

    @property
    def bytes_per_step(self) -> int:
        return sum(one.size_bytes for one in self.crossing)

    @property
    def data_nodes(self) -> int:
        return sum(one.side == DATA for one in self.places)

    @property
    def training_nodes(self) -> int:
        return sum(one.side == TRAINING for one in self.places)

    @property
    def stayed(self) -> tuple[Place, ...]:
        """What could have moved to the data half, and did not."""
        return tuple(one for one in self.places if one.side == TRAINING and one.could_move)
