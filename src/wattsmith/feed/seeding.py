"""Chance in the making of batches: every batch has a seed of its own, so that a batch made again is the same batch."""

import contextlib
import random
from collections.abc import Iterator
from typing import Any

from wattsmith.terms.feed import batch_seed

_EPOCH = 1 << 62  # no epoch has so many batches, so this "batch" stands for the epoch as a whole
_ORDER = _EPOCH + 1


def epoch_seed(run_seed: int, epoch: int) -> int:
    """Worker 0's seed in EPOCH; that of worker n is n more. Room is left for n below what torch takes."""
    return batch_seed(run_seed, epoch, _EPOCH) >> 1


def order_seed(run_seed: int, epoch: int) -> int:
    """What samples are shuffled with in EPOCH."""
    return batch_seed(run_seed, epoch, _ORDER)


class RunSeed:
    """Where all chance of a run comes from: SEED, or one number drawn from GENERATOR (None: torch's global one).

    It is drawn once, so that a state which holds it says all about the epochs to come. But who seeds the generator
    anew, be it with the same number, begins anew, as with a DataLoader.
    """

    def __init__(self, seed: int | None, generator: Any) -> None:
        self._seed = seed
        self._generator = generator
        self._mark: tuple[int, bytes] | None = None

    @property
    def given(self) -> bool:
        return self._seed is not None

    def draw(self) -> int:
        import torch

        if self._seed is not None:
            return self._seed
        self._mark = self._stand()
        return int(torch.empty((), dtype=torch.int64).random_(generator=self._generator).item())

    def look(self) -> None:
        """Remember the generator's seed where a run goes on whose own was drawn in an earlier life."""
        self._mark = self._stand()[0], b""

    def seeded_anew(self) -> bool:
        """Whether the generator was seeded since the run began."""
        if self._seed is not None or self._mark is None:
            return False
        seed, state = self._stand()
        return seed != self._mark[0] or state == self._mark[1]

    def _stand(self) -> tuple[int, bytes]:
        import torch

        generator = torch.default_generator if self._generator is None else self._generator
        return generator.initial_seed(), generator.get_state().numpy().tobytes()


def seed_all(seed: int) -> None:
    """Seed what datasets draw from: Python's, torch's and NumPy's global generators of this process."""
    import numpy as np
    import torch

    random.seed(seed)
    # Not torch.manual_seed: it visits every kind of device, which takes longer than making a small batch.
    torch.default_generator.manual_seed(seed)
    # One word, not two: NumPy takes five times as long over an array, and every batch pays for it.
    np.random.seed((seed ^ (seed >> 32)) & 0xFFFFFFFF)


@contextlib.contextmanager
def chance_of_its_own() -> Iterator[None]:
    """Whatever is seeded or drawn inside leaves the process's generators as they were."""
    import numpy as np
    import torch

    python, numpy, torched = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        torch.set_rng_state(torched)
