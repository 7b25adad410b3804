"""Where the batches of an epoch come from: drawn one after the other, in the order in which they are delivered."""

from collections.abc import Set
from typing import Protocol

from wattsmith.feed.ledger import Item
from wattsmith.feed.order import Order
from wattsmith.feed.progress import Progress


class Source(Protocol):
    """Draws batches to be made."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing is left to be drawn."""

    def draw(self, full: Set[int] = frozenset()) -> Item | None:
        """The next batch, of a shard that is not FULL; None: there is none."""


class Samples:
    """Batches of indices of a map-style dataset."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self.exhausted = False

    def draw(self, full: Set[int] = frozenset()) -> Item | None:  # noqa: ARG002 - there are no shards
        number = self._order.drawn
        indices = self._order.draw()
        self.exhausted = indices is None
        return None if indices is None else Item(number, indices)


class Rotation:
    """Shards of an iterable dataset, in turns. One that has ended is left out."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._following = [shard.delivered for shard in progress.shards]
        self._ended = {number for number, shard in enumerate(progress.shards) if shard.ended}
        self._turn = progress.turn
        self._drawn = 0

    @property
    def exhausted(self) -> bool:
        return len(self._ended) == len(self._following)

    def draw(self, full: Set[int] = frozenset()) -> Item | None:
        count = len(self._following)
        for step in range(count):
            shard = (self._turn + step) % count
            if shard not in self._ended and shard not in full:
                item = Item(self._drawn, None, shard, self._following[shard])
                self._following[shard] += 1
                self._turn = (shard + 1) % count
                self._drawn += 1
                return item
        return None

    def end(self, shard: int) -> None:
        """SHARD has no further batch."""
        self._ended.add(shard)
