"""The order of samples in an epoch: which indices the n-th batch has, and how a later life of the run finds it again.

An order is found again by putting the sampler where it stood when the epoch began and drawing again what was drawn.
Where a sampler draws its chance from decides how it is put back: a generator of its own, a state of its own, an
epoch number, or the process's generators.
"""

import base64
import itertools
import random
from collections.abc import Iterator
from typing import Any

from wattsmith.feed.making import is_stateful
from wattsmith.feed.seeding import chance_of_its_own

Anchor = dict[str, Any]  # how a sampler stood when the epoch began; goes through JSON unless the sampler's own does not


class Order:
    """Draws the batches of one epoch. SAMPLER holds the chance, INDEX_SAMPLER gives the batches; often it wraps it.

    SEEDED: seed and epoch alone say the order, and there is nothing to remember. ANCHOR and SKIP: of an earlier life.
    """

    def __init__(
        self, index_sampler: Any, sampler: Any, *, seeded: bool = False, anchor: Anchor | None = None, skip: int = 0
    ) -> None:
        self.drawn = 0
        self.anchor = anchor
        if anchor is None and not seeded:
            self.anchor = _stand(sampler)
        self._batches = _from(index_sampler, sampler, anchor, skip)
        while self.drawn < skip and self.draw() is not None:
            pass

    def draw(self) -> Any:
        """The indices of the next batch; None: the epoch has no further one."""
        try:
            indices = next(self._batches)
        except StopIteration:
            return None
        self.drawn += 1
        return indices


def _stand(sampler: Any) -> Anchor | None:
    """How SAMPLER stands; None: it draws on nothing that we know of."""
    import torch
    from torch.utils.data import SequentialSampler

    if is_stateful(sampler):
        return {"state": sampler.state_dict()}
    if isinstance(getattr(sampler, "generator", None), torch.Generator):
        return {"generator": _as_text(sampler.generator.get_state())}
    if hasattr(sampler, "set_epoch") and isinstance(getattr(sampler, "epoch", None), int):
        return {"epoch": sampler.epoch}
    if isinstance(sampler, SequentialSampler | list | tuple | range):
        return None
    version, words, gauss = random.getstate()
    return {"torch": _as_text(torch.get_rng_state()), "python": [version, list(words), gauss]}


def _from(index_sampler: Any, sampler: Any, anchor: Anchor | None, skip: int) -> Iterator[Any]:
    """The batches, from where ANCHOR was taken."""
    import torch

    anchor = anchor or {}
    if "state" in anchor and is_stateful(sampler):
        sampler.load_state_dict(anchor["state"])
    if "generator" in anchor:
        sampler.generator.set_state(_as_tensor(anchor["generator"]))
    if "epoch" in anchor:
        sampler.set_epoch(anchor["epoch"])
    if "torch" not in anchor:
        return iter(index_sampler)
    # It draws from the process's generators: give it those of then, for as long as it takes to come to where it was.
    with chance_of_its_own():
        torch.set_rng_state(_as_tensor(anchor["torch"]))
        version, words, gauss = anchor["python"]
        random.setstate((version, tuple(words), gauss))
        batches = iter(index_sampler)
        first = list(itertools.islice(batches, skip + 1))
    return itertools.chain(first, batches)


def _as_text(state: Any) -> str:
    return base64.b64encode(bytes(state.tolist())).decode()


def _as_tensor(text: str) -> Any:
    import torch

    return torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
