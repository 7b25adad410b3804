"""A DataLoader whose workers may die, come and go, and whose place in an epoch can be saved.

Everything a DataLoader takes, a Feeder takes too, and it is one: code that asks `isinstance(x, DataLoader)` works.
"""

import copy
import functools
import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler

from wattsmith.feed.demand import Watts
from wattsmith.feed.draws import Draws
from wattsmith.feed.elastic import Elastic
from wattsmith.feed.engine import Engine, Terms
from wattsmith.feed.iterating import InlineIterator, Passage, PooledIterator
from wattsmith.feed.making import Maker, Recipe
from wattsmith.feed.order import Order
from wattsmith.feed.pinning import Pinner, pin_device
from wattsmith.feed.pool import member_of
from wattsmith.feed.progress import Progress, Shard
from wattsmith.feed.remote import LOCAL, Elsewhere
from wattsmith.feed.reporting import Counts, EnergyWindow, FeedReport, LiveLine, energy_of
from wattsmith.feed.seeding import RunSeed, order_seed
from wattsmith.feed.slots import SMALLEST_BYTES, Slots, memory_allowed_bytes
from wattsmith.feed.source import Rotation, Samples, Source
from wattsmith.terms.engines import WorkerEngine
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.feed import DataHalf

AUTO = "auto"


Sample = TypeVar("Sample")


class Feeder(DataLoader[Sample]):  # type: ignore[misc]
    """Iterates over batches of DATASET.

    The arguments are those of torch.utils.data.DataLoader, in the same order, and:
    NUM_WORKERS may be "auto": as many as keep the trainer from waiting, at any moment.
    DATA: the data half of a split step; it is run on each collated batch, in the workers.
    SEED: what all chance comes from; None: drawn from GENERATOR, or from torch's global one, at the first epoch.
    MEMORY_LIMIT_BYTES: what finished batches may take; None: a quarter of what is free.
    LEASE_S: after which a batch is given to another worker too; None: judged by how long others took.
    COPY_OUT: give batches memory of their own instead of views of reused slots.
    WINDOW: of wattsmith.measure, around the training; `report()` then has its joules, and those spent waiting.
    LIVE: show a line of the report on standard error, once in a second.
    SNAPSHOT_EVERY_N_STEPS: how often a dataset that has a state_dict is asked for it.
    MAX_WORKERS: of "auto"; None: as many as there are cores here. WATTS: what waiting and workers draw, for "auto";
    None: found by the meters of WINDOW. STEP_S: how long a step should take, as an estimate says, for "auto".
    POOL: address of a pool that several jobs share (`wattsmith feed pool`); it is asked how many there may be.
    ENGINE: what places and starts workers: "local", "ray", or anything like terms.engines.WorkerEngine.
    LISTEN: an address such as "10.0.0.1:7070", to which workers come by themselves (`wattsmith feed worker`) and prove
    the token in TOKEN_FILE, as the pool does. Then num_workers is the number of places.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int | None = 1,
        shuffle: bool | None = None,
        sampler: Any = None,
        batch_sampler: Any = None,
        num_workers: int | str | None = 0,
        collate_fn: Callable[[Any], Any] | None = None,
        pin_memory: bool = False,
        drop_last: bool = False,
        timeout: float = 0,
        worker_init_fn: Callable[[int], Any] | None = None,
        multiprocessing_context: Any = None,
        generator: Any = None,
        *,
        prefetch_factor: int | None = None,
        persistent_workers: bool = False,
        pin_memory_device: str = "",
        in_order: bool = True,
        snapshot_every_n_steps: int | None = 1,
        data: DataHalf | None = None,
        seed: int | None = None,
        memory_limit_bytes: int | None = None,
        lease_s: float | None = None,
        copy_out: bool = False,
        window: EnergyWindow | None = None,
        live: bool = False,
        max_workers: int | None = None,
        watts: Watts | None = None,
        step_s: float | None = None,
        pool: str | None = None,
        engine: str | WorkerEngine = LOCAL,
        listen: str | None = None,
        token_file: str | os.PathLike[str] | None = None,
    ) -> None:
        self.num_workers: int
        self._iterator: PooledIterator | None
        _refuse_what_makes_no_sense(data, num_workers, seed, memory_limit_bytes, lease_s, max_workers, window, step_s)
        self._elsewhere = Elsewhere(engine=engine, listen=listen, token_file=token_file)
        if not self._elsewhere.here and not num_workers:
            raise BadTerm(f'workers from elsewhere need places: num_workers is a number or "auto", got {num_workers!r}')
        self._elastic = None
        if num_workers == AUTO:
            draws = None if window is None else Draws(window)
            self._elastic = Elastic(max_workers, watts, member_of(pool, token_file), draws, step_s)
        elif pool is not None or watts is not None or step_s is not None:
            raise BadTerm(f'pool, watts and step_s are for num_workers="auto", got {num_workers!r}')
        workers = self._elastic.first if self._elastic is not None else (num_workers or 0)
        super().__init__(
            dataset,
            batch_size,
            shuffle,
            sampler,
            batch_sampler,
            workers,
            collate_fn,
            pin_memory,
            drop_last,
            timeout,
            worker_init_fn,
            multiprocessing_context,
            generator,
            prefetch_factor=prefetch_factor,
            persistent_workers=persistent_workers or self._elastic is not None or not self._elsewhere.here,
            pin_memory_device=pin_memory_device,
            in_order=in_order,
        )
        self.snapshot_every_n_steps = snapshot_every_n_steps
        self._shuffles = sampler is None and batch_sampler is None and bool(shuffle)
        self._data = data
        self._run_seed = RunSeed(seed, generator)
        self._memory_limit_bytes = memory_limit_bytes
        self._terms = Terms(
            prefetch=self.prefetch_factor if self.prefetch_factor is not None else 2,
            in_order=in_order,
            timeout_s=timeout,
            lease_s=lease_s,
            snapshot_every=snapshot_every_n_steps or 0,
            copy_out=copy_out,
        )
        self._counts = Counts()
        self._window = window
        self._live = LiveLine() if live else None
        self._progress: Progress | None = None  # of the epoch that was begun last
        self._ahead: Progress | None = None  # of one that has been promised by state_dict and not begun
        self._loaded: dict[str, Any] | None = None
        self._maker: Maker | None = None  # where there are no workers
        self._engine: weakref.ref[Engine] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """What can travel: not the workers, nor the epoch they are in."""
        return {**self.__dict__, "_engine": None, "_iterator": None, "_maker": None}

    # Iterating

    def __iter__(self) -> Any:
        if not self.persistent_workers or self.num_workers == 0:
            return self._get_iterator()
        if self._iterator is None or self._iterator._engine.closed:
            self._iterator = self._get_iterator()
        else:
            self._begin(self._iterator)
        return self._iterator

    def _get_iterator(self) -> Any:
        if self.num_workers > 0:
            return self._begin(PooledIterator(self._new_engine(), keep=self.persistent_workers))
        progress = self._next_progress()
        source, passage = self._source(progress), self._passage(progress)
        self._progress, self._loaded = progress, None
        self._maker = Maker(self._recipe(), None, 0)
        return InlineIterator(self._maker, source, passage, batches=self._index_sampler, pin=self._pins_for())

    def _begin(self, iterator: PooledIterator) -> PooledIterator:
        """Start ITERATOR on the next epoch."""
        progress = self._next_progress()
        source = self._source(progress)
        self._progress, self._loaded = progress, None
        self._engine = weakref.ref(iterator._engine)
        iterator.begin(self._passage(progress), self._index_sampler, source, self._shared_seed(progress))
        return iterator

    def _new_engine(self) -> Engine:
        self.check_worker_number_rationality()
        pin, recipe = self._pins_for(), self._recipe()
        limit_bytes = self._memory_limit_bytes or memory_allowed_bytes()
        return Engine(
            recipe,
            self._terms,
            Slots(limit_bytes),
            self._counts,
            self._context(),
            seats=self.num_workers,
            fixed=self._elastic is None and self._elsewhere.here,
            pinner=None if pin is None else Pinner(pin),
            yard=self._elsewhere.yard(recipe, limit_bytes),
        )

    def _passage(self, progress: Progress) -> Passage:
        progress.len_called = self._IterableDataset_len_called
        name = str(self.dataset) if progress.iterable else ""
        tick = functools.partial(_tick, self._elastic, self._live, self._counts, weakref.ref(self))
        return Passage(progress, self._counts, name, tick, self._window)

    def _pins_for(self) -> str | None:
        return pin_device(self.pin_memory, self.pin_memory_device)

    def _next_progress(self) -> Progress:
        """The epoch that begins now: one that was loaded, one that was promised, or the next."""
        if self._ahead is not None:
            progress, self._ahead = self._ahead, None
            return progress
        cut = self.num_workers > 0
        shards = self._shards()
        if self._loaded is not None:
            progress = Progress.from_state(self._loaded, iterable=self._iterable)
            self._run_seed.look()
            if not progress.finished:
                return progress
            return progress.next_epoch(shards=shards, cut=cut, carry=True)
        if self._progress is not None and not self._run_seed.seeded_anew():
            return self._progress.next_epoch(shards=shards, cut=cut, carry=False)
        fresh = Progress(self._run_seed.draw(), iterable=self._iterable, cut=cut and self._iterable)
        fresh.shards = [Shard() for _ in range(shards)]
        return fresh

    def _shards(self) -> int:
        """Into how many shards an iterable dataset is cut when an epoch begins; 0: it is not iterable."""
        if not self._iterable:
            return 0
        return self._elastic.most if self._elastic is not None else max(1, self.num_workers)

    def _source(self, progress: Progress) -> Source:
        if progress.iterable:
            return Rotation(progress)
        index_sampler, sampler = self._index_sampler, self.sampler
        if self._shuffles:
            index_sampler = sampler = self._shuffled(order_seed(progress.seed, progress.epoch))
            if self._auto_collation:
                index_sampler = BatchSampler(sampler, self.batch_size, self.drop_last)
        elif self.batch_sampler is not None and not _wraps(self.batch_sampler, self.sampler):
            sampler = self.batch_sampler
        order = Order(index_sampler, sampler, seeded=self._shuffles, anchor=progress.anchor, skip=progress.delivered)
        progress.anchor = order.anchor
        return Samples(order)

    def _shuffled(self, seed: int) -> Any:
        import torch

        return RandomSampler(self.dataset, generator=torch.Generator().manual_seed(seed))

    # Saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Where the run is: behind the last batch that was delivered. Asking does not move it."""
        if self._loaded is not None:
            return copy.deepcopy(self._loaded)
        progress = self._progress
        if progress is None:
            if self._ahead is None:
                self._ahead = self._next_progress()
            progress = self._ahead
        elif self._maker is not None and self.num_workers == 0:
            self._maker.note_into(progress)
        return progress.to_state(self.num_workers)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """The next iteration begins where STATE_DICT was taken, with however many workers this Feeder has."""
        if state_dict == {}:
            return
        Progress.from_state(state_dict, iterable=self._iterable)  # complain now rather than later
        self._loaded = copy.deepcopy(state_dict)
        self._ahead = None
        self._iterator = None

    # Looking and steering

    def report(self) -> FeedReport:
        """What was delivered so far, how long the trainer waited, and what became of workers."""
        engine = None if self._engine is None else self._engine()
        workers = self._counts.workers if engine is None or engine.closed else len(engine.workers)
        return self._counts.report(workers, *energy_of(self._window))

    def resize(self, workers: int) -> None:
        """Have so many workers from now on, in the middle of an epoch or before it."""
        if isinstance(workers, bool) or not isinstance(workers, int) or workers < 1:
            raise BadTerm(f"workers must be a whole number of at least 1, got {workers!r}")
        if self.num_workers == 0:
            raise BadTerm("a Feeder without workers (num_workers=0) cannot be resized; make one with workers")
        engine = None if self._engine is None else self._engine()
        if self._iterable and self._elastic is None and engine is not None and not engine.closed:
            raise BadTerm(
                'an iterable dataset with a fixed number of workers is cut among them; use num_workers="auto" to resize'
            )
        self.num_workers = workers
        if engine is not None and not engine.closed:
            engine.resize(workers)

    def close(self) -> None:
        """Send all workers home now rather than when the Feeder is forgotten. It can be iterated over again."""
        engine = None if self._engine is None else self._engine()
        if engine is not None:
            engine.close()

    @property
    def address(self) -> str | None:
        """Where workers come to, once iteration has begun; None: nowhere."""
        engine = None if self._engine is None else self._engine()
        return None if engine is None else engine.address

    # Parts

    def check_worker_number_rationality(self) -> None:
        """DataLoader's warning, where workers run on this machine's cores."""
        if self._elsewhere.here:
            super().check_worker_number_rationality()

    @property
    def _iterable(self) -> bool:
        return isinstance(self.dataset, IterableDataset)

    def _recipe(self) -> Recipe:
        return Recipe(
            dataset=self.dataset,
            iterable=self._iterable,
            grouped=self._auto_collation,
            batch_size=self.batch_size,
            drop_last=self.drop_last,
            collate=self.collate_fn,
            data=self._data,
            init=self._worker_init(),
            seeds_win=self._run_seed.given or self._data is not None,
        )

    def _worker_init(self) -> Callable[[int], Any] | None:
        init: Callable[[int], Any] | None = self.worker_init_fn
        from torch.utils.data import IterDataPipe, MapDataPipe
        from torch.utils.data.dataloader import _sharding_worker_init_fn

        if not isinstance(self.dataset, IterDataPipe | MapDataPipe) or self.num_workers == 0:
            return init
        return functools.partial(_sharding_worker_init_fn, init, 1, 0)

    def _shared_seed(self, progress: Progress) -> int | None:
        from torch.utils.data import IterDataPipe

        return order_seed(progress.seed, progress.epoch) if isinstance(self.dataset, IterDataPipe) else None

    def _context(self) -> Any:
        import torch.multiprocessing

        context = self.multiprocessing_context
        return torch.multiprocessing.get_context() if context is None else context


def _refuse_what_makes_no_sense(
    data: Any,
    num_workers: Any,
    seed: Any,
    memory_limit_bytes: int | None,
    lease_s: float | None,
    max_workers: int | None,
    window: Any,
    step_s: float | None,
) -> None:
    """Complain about what a DataLoader does not have, now rather than in the middle of an epoch."""
    if data is not None and not callable(data):
        raise BadTerm(f"data is the data half of a split, called with a batch and a seed, got {data!r:.80}")
    if num_workers not in (None, AUTO) and not isinstance(num_workers, int):
        raise BadTerm(f'num_workers is a whole number or "auto", got {num_workers!r}')
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int)):
        raise BadTerm(f"seed must be a whole number, got {seed!r}")
    if memory_limit_bytes is not None and memory_limit_bytes < SMALLEST_BYTES:
        raise BadTerm(f"memory_limit_bytes must be at least {SMALLEST_BYTES} bytes, got {memory_limit_bytes}")
    if lease_s is not None and not lease_s > 0:
        raise BadTerm(f"lease_s must be positive, got {lease_s}")
    if max_workers is not None and max_workers < 1:
        raise BadTerm(f"max_workers must be at least 1, got {max_workers}")
    numeric = isinstance(step_s, int | float) and not isinstance(step_s, bool)
    if step_s is not None and not (numeric and 0 < step_s < float("inf")):
        raise BadTerm(f"step_s is a number of seconds above 0, such as `estimate(...).step_s.value`, got {step_s!r}")
    if window is not None and not hasattr(window, "phase"):
        raise BadTerm(f"window is one of wattsmith.measure, as in `with measure(...) as window`, got {window!r}")


def _wraps(batch_sampler: Any, sampler: Any) -> bool:
    return isinstance(batch_sampler, BatchSampler) and batch_sampler.sampler is sampler


def _tick(elastic: Elastic | None, live: LiveLine | None, counts: Counts, feeder: "weakref.ref[Feeder[Any]]") -> None:
    if elastic is None and live is None:
        return
    alive = feeder()
    if live is not None and alive is not None:
        live.show(alive.report)
    if elastic is None:
        return
    engine = None if alive is None or alive._engine is None else alive._engine()
    if engine is not None and not engine.closed:
        elastic.tick(engine, counts)


__all__ = ["Feeder"]
