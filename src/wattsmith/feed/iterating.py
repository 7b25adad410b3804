"""The two ways through an epoch: over workers, or in the trainer's own process."""

import time
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from wattsmith.feed.engine import Engine
from wattsmith.feed.ledger import Item
from wattsmith.feed.making import Maker, StreamEnd
from wattsmith.feed.messages import Begin, Task
from wattsmith.feed.progress import Progress
from wattsmith.feed.reporting import WAITING, Counts, EnergyWindow
from wattsmith.feed.seeding import chance_of_its_own
from wattsmith.feed.source import Rotation, Source


class Passage:
    """What both ways have in common: counting, and a word when a dataset gives more than it said.

    Entered while the trainer waits. A generator for that (contextlib) would take longer than all the rest here.
    """

    def __init__(
        self, progress: Progress, counts: Counts, name: str, tick: Callable[[], None], window: EnergyWindow | None
    ) -> None:
        self.progress = progress
        self._counts = counts
        self._name = name
        self.tick = tick  # to be called now and then
        self._window = window
        self._phase: AbstractContextManager[None] | None = None
        self._yielded = 0

    def __enter__(self) -> None:
        """The trainer waits for what is enclosed."""
        self._counts.begin_wait(time.perf_counter())
        if self._window is not None:
            self._phase = self._window.phase(WAITING)
            self._phase.__enter__()

    def __exit__(self, *raised: Any) -> None:
        self._counts.end_wait(time.perf_counter())
        if self._phase is not None:
            self._phase.__exit__(*raised)

    def count(self) -> None:
        """One more batch goes to the user."""
        self._counts.batches += 1
        self._yielded += 1
        said = self.progress.len_called
        if said is not None and self._yielded > said and self.progress.iterable:
            warnings.warn(
                f"Length of IterableDataset {self._name} was reported to be {said} (when accessing len(dataloader)), "
                f"but {self._yielded} samples have been fetched. For multiprocessing data-loading, this means that "
                "workers give the same samples: let each take its own part, by torch.utils.data.get_worker_info().",
                stacklevel=3,
            )
        self.tick()


class PooledIterator:
    """One epoch over worker processes."""

    def __init__(self, engine: Engine, *, keep: bool) -> None:
        self._engine = engine
        self._keep = keep  # whether the workers stay for the next epoch
        self._passage: Passage | None = None
        self._batches: Any = ()

    def begin(self, passage: Passage, batches: Any, source: Source, shared_seed: int | None) -> None:
        """Start on the epoch of PASSAGE, in the middle of another one or not. BATCHES knows how many there are."""
        self._passage, self._batches = passage, batches
        with passage:
            self._engine.begin(passage.progress, source, shared_seed, passage.tick)

    def __iter__(self) -> "PooledIterator":
        return self

    def __next__(self) -> Any:
        assert self._passage is not None
        if self._passage.progress.finished:
            raise StopIteration
        with self._passage:
            arrived = self._engine.next()
            batch = None if arrived is None else self._engine.open(arrived)
        if arrived is None:
            self._passage.progress.finished = True
            if not self._keep:
                self._shutdown_workers()
            raise StopIteration
        del arrived
        self._passage.count()
        return batch

    def __len__(self) -> int:
        return len(self._batches)  # asked for here and not before: a sampler without a length need not have one

    @property
    def _workers(self) -> list[Any]:
        return self._engine.workers

    @property
    def _pin_memory_thread(self) -> Any:
        return self._engine.pinner

    def _shutdown_workers(self) -> None:
        self._engine.close()

    def __del__(self) -> None:
        self._shutdown_workers()


class InlineIterator:
    """One epoch in the trainer's own process. The trainer's generators of chance are left as they are."""

    def __init__(self, maker: Maker, source: Source, passage: Passage, *, batches: Any, pin: str | None) -> None:
        self._maker = maker
        self._source = source
        self._passage = passage
        self._batches = batches
        self._pin = pin
        progress = passage.progress
        self._delivered_before = frozenset(progress.ahead)
        shards = len(progress.shards) if progress.cut else 0
        starts = tuple(progress.start_of(number) for number, shard in enumerate(progress.shards) if not shard.ended)
        state = next((snapshot["dataset_state"] for snapshot in progress.states.values()), None)
        with chance_of_its_own():
            maker.begin(Begin(progress.epoch, progress.seed, shards, starts, not progress.cut, state, None))

    def __iter__(self) -> "InlineIterator":
        return self

    def __next__(self) -> Any:
        with self._passage:
            found = self._next()
        if found is None:
            self._passage.progress.finished = True
            raise StopIteration
        self._passage.count()
        return found[0]

    def _next(self) -> tuple[Any] | None:
        """The next batch, alone in a tuple; None: there is none."""
        progress = self._passage.progress
        while not progress.finished and (item := self._source.draw()) is not None:
            if item.number in self._delivered_before and not progress.iterable:
                continue
            try:
                batch = self._make(item)
            except StreamEnd:
                progress.note_end(item.shard, self._maker.snapshot(_task(item)))
                assert isinstance(self._source, Rotation)
                self._source.end(item.shard)
                continue
            progress.note(item, None, None)
            if self._pin is not None:
                from torch.utils.data._utils.pin_memory import pin_memory

                batch = pin_memory(batch, self._pin)
            return (batch,)
        return None

    def __len__(self) -> int:
        return len(self._batches)

    def _make(self, item: Item) -> Any:
        try:
            with chance_of_its_own():
                return self._maker.make(_task(item))
        except StreamEnd:
            raise
        except Exception:
            # As with workers, the next call goes on with the next batch.
            self._passage.progress.note(item, None, None)
            raise
        finally:
            if self._passage.progress.cut:
                self._maker.leave()


def _task(item: Item) -> Task:
    return Task(0, item.number, 1, item.indices, item.shard, item.ordinal, False, None)
