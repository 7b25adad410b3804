"""One global order of samples for several trainers: which of them each takes depends on their number, the order not."""

from collections.abc import Iterator

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.feed import batch_seed


class RankBatches:
    """A batch sampler for trainer RANK of RANKS: its share of each global batch, the shares disjoint.

    All trainers together see global batch k after k steps, be they one or eight: a run that is taken up with another
    number of trainers goes on with the same samples. The order comes from SEED and the epoch (`set_epoch`) alone.
    """

    def __init__(
        self,
        length: int,
        global_batch: int,
        *,
        rank: int,
        ranks: int,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
    ) -> None:
        if length < 0 or ranks < 1 or not 0 <= rank < ranks:
            raise BadTerm(
                f"rank {rank} of {ranks} trainers, {length} samples: ranks count from 0, samples are not negative"
            )
        if global_batch < ranks:
            raise BadTerm(f"a global batch of {global_batch} is too small for {ranks} trainers; each needs a sample")
        tail = 0 if drop_last else length % global_batch
        if 0 < tail < ranks:
            raise BadTerm(
                f"the last global batch has {tail} samples for {ranks} trainers, and one would wait for ever; "
                "use drop_last=True, or another batch size"
            )
        self._length, self._global_batch = length, global_batch
        self._rank, self._ranks = rank, ranks
        self._seed, self._shuffle, self._drop_last = seed, shuffle, drop_last
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        whole, rest = divmod(self._length, self._global_batch)
        return whole + (rest > 0 and not self._drop_last)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        for step in range(len(self)):
            batch = order[step * self._global_batch : (step + 1) * self._global_batch]
            begin, end = (len(batch) * edge // self._ranks for edge in (self._rank, self._rank + 1))
            yield batch[begin:end]

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._length))
        import torch

        chance = torch.Generator().manual_seed(batch_seed(self._seed, self.epoch, 0))
        shuffled: list[int] = torch.randperm(self._length, generator=chance).tolist()
        return shuffled
