"""What a cut of a step, the workers that run its data half, and the plan that counts these agree on."""

import math
from hashlib import blake2b
from os import PathLike
from typing import Any, Protocol

from wattsmith.terms.errors import BadTerm

HEADROOM = 1.15  # workers for each one needed: service times vary
SPARE = 0.5  # of a worker, for small numbers


def plain_target(need: float) -> float:
    """Workers for a NEED, with room for times that vary."""
    return math.ceil(HEADROOM * need + SPARE) if math.isfinite(need) else math.inf


def batch_seed(run_seed: int, epoch: int, batch: int) -> int:
    """The seed of one batch: the same for the same three whole numbers, on every machine, from 0 to 2**63 - 1.

    Neighbouring batches get seeds that have nothing to do with each other. RUN_SEED may be any whole number.
    """
    if epoch < 0 or batch < 0:
        raise BadTerm(f"an epoch and a batch are counted from 0, got epoch {epoch} and batch {batch}")
    text = f"{run_seed:d}/{epoch:d}/{batch:d}".encode()
    return int.from_bytes(blake2b(text, digest_size=8, person=b"wattsmith").digest(), "big") >> 1


class DataHalf(Protocol):
    """The part of a step that workers run. It can be pickled, and sent to where the user's source is not."""

    def __call__(self, batch: Any, seed: int) -> tuple[Any, ...]:
        """The tensors that cross to the trainer, in the cut's order, for one collated raw BATCH.

        A pure function of both arguments: chance comes from SEED alone, and the caller's generators stay as they are.
        """

    def save(self, path: str | PathLike[str]) -> None:
        """Write the half into a file, from which it can be read without the user's source."""
