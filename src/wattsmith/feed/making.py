"""Makes batches out of a dataset. The same code runs in a worker, on another machine and in the trainer itself."""

import copy
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wattsmith.feed.messages import Begin, Snapshot, StreamStart, Task
from wattsmith.feed.seeding import epoch_seed, seed_all
from wattsmith.terms.errors import BadInput
from wattsmith.terms.feed import DataHalf, batch_seed


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How batches are made. Travels to a worker once, when it starts."""

    dataset: Any
    iterable: bool
    grouped: bool  # whether a batch is several samples; if not, each sample goes to collate by itself
    batch_size: int | None  # of an iterable dataset
    drop_last: bool
    collate: Callable[[Any], Any]
    data: DataHalf | None  # what else is done to a collated batch
    init: Callable[[int], Any] | None  # worker_init_fn
    seeds_win: bool  # whether batches are seeded even where `init` seeds torch by itself


class StreamEnd(Exception):
    """The shard has no further batch. StopIteration itself would not leave a generator."""


def is_stateful(thing: Any) -> bool:
    """Whether THING can save where it is, in the way that torchdata has made known."""
    return callable(getattr(thing, "state_dict", None)) and callable(getattr(thing, "load_state_dict", None))


class Maker:
    """Makes the batches that one worker is given. SEAT None: in the trainer itself."""

    def __init__(self, recipe: Recipe, seat: int | None, seats: int) -> None:
        self.recipe = recipe
        self.seat = seat
        self.seats = seats
        self.at: Any = None  # the index that is being read, for the message if it fails
        self._streams: dict[int, _Stream] = {}
        self._begin: Begin | None = None
        self._seeds = True
        self.named = False  # whether the dataset has asked which worker it is in, so that others may do otherwise

    def enter(self, base_seed: int) -> None:
        """Once for each worker, before anything else: seeds, worker info, worker_init_fn."""
        assert self.seat is not None
        seed_all(base_seed + self.seat)
        self._say_who(self.seat, self.seats, base_seed + self.seat, self.recipe.dataset)
        if not self.recipe.iterable:
            self._run_init(self.seat)

    def begin(self, begin: Begin) -> dict[int, Snapshot]:
        """Open an epoch; gives the dataset's own states at its beginning."""
        self._begin = begin
        dataset = self.recipe.dataset
        if begin.shared_seed is not None:
            _seed_datapipe(dataset, begin.shared_seed)
        if self.recipe.iterable:
            kept, self._streams = self._streams, {}
            return {start.shard: self._open(start, kept.get(start.shard)).snapshot() for start in begin.streams}
        if begin.dataset_state is not None and is_stateful(dataset):
            dataset.load_state_dict(begin.dataset_state)
        return {self.seat or 0: self._map_snapshot()}

    def adopt(self, start: StreamStart) -> None:
        """Take up a stream that another worker has left."""
        self._open(start, None)

    def make(self, task: Task) -> Any:
        """The batch of TASK. Raises StreamEnd where the shard has none."""
        assert self._begin is not None
        self.at = task.indices
        if self.recipe.iterable:
            return self._make_streamed(task)
        self._seed(task.number)
        return self._finish(self._read(task.indices), task.number)

    def snapshot(self, task: Task) -> Snapshot | None:
        """The dataset's own state now; None where it keeps none."""
        if self.recipe.iterable:
            stream = self._streams[task.shard]
            return stream.snapshot() if stream.stateful or stream.ended else None
        return self._map_snapshot() if is_stateful(self.recipe.dataset) else None

    def note_into(self, progress: Any) -> None:
        """Write into PROGRESS how the dataset stands now. For a maker in the trainer's own process."""
        for number, stream in self._streams.items():
            progress.note_now(number, stream.snapshot())
        if not self.recipe.iterable:
            progress.states[0] = self._map_snapshot()

    def leave(self) -> None:
        """get_worker_info() is None again, as it was outside."""
        _set_worker_info(None)

    def _read(self, indices: Any) -> Any:
        dataset = self.recipe.dataset
        if not self.recipe.grouped:
            return dataset[indices]
        if getattr(dataset, "__getitems__", None):
            return dataset.__getitems__(indices)
        samples = []
        for self.at in indices:
            samples.append(dataset[self.at])
        self.at = indices
        return samples

    def _finish(self, read: Any, number: int) -> Any:
        batch = _collated(self.recipe.collate, read)
        if self.recipe.data is None:
            return batch
        return self.recipe.data(batch, self._batch_seed(number))

    def _make_streamed(self, task: Task) -> Any:
        stream = self._streams[task.shard]
        self._look_out_of(stream)
        if stream.made > task.ordinal:
            raise BadInput(f"batch {task.ordinal} of shard {task.shard} is behind, at {stream.made}")
        while stream.made < task.ordinal:
            self._next_of(stream)
        read = self._next_of(stream)
        return self._finish(read, self._place(stream, task.ordinal))

    def _next_of(self, stream: "_Stream") -> Any:
        self._seed(self._place(stream, stream.made))
        return stream.read(self.recipe)

    def _place(self, stream: "_Stream", ordinal: int) -> int:
        """A number that no other batch of the epoch has, whichever worker makes it."""
        assert self._begin is not None
        return ordinal * max(1, self._begin.shards) + stream.shard

    def _open(self, start: StreamStart, kept: "_Stream | None") -> "_Stream":
        assert self._begin is not None
        begin = self._begin
        fresh = kept is None
        dataset = self._dataset_for(begin.alone) if kept is None else kept.dataset
        stream = _Stream(dataset, start.shard, begin.shards)
        if self.seat is not None or begin.shards:
            self._look_out_of(stream)
            seed_all(epoch_seed(begin.run_seed, begin.epoch) + start.shard)
            if fresh:
                self._run_init(start.shard)
        stream.open(start)
        self._streams[start.shard] = stream
        return stream

    def _dataset_for(self, alone: bool) -> Any:
        if alone:
            return self.recipe.dataset
        try:
            return copy.deepcopy(self.recipe.dataset)
        except Exception as uncopied:
            raise BadInput(
                "this dataset is cut into more shards than there are workers, and one worker can take several only "
                f"of a dataset that can be copied: {uncopied!r}. Give Feeder as many workers as the run began with."
            ) from uncopied

    def _look_out_of(self, stream: "_Stream") -> None:
        """get_worker_info() speaks of STREAM from here on."""
        assert self._begin is not None
        if self._begin.shards:
            seed = epoch_seed(self._begin.run_seed, self._begin.epoch) + stream.shard
            self._say_who(stream.shard, self._begin.shards, seed, stream.dataset)
        elif self.seat is not None:
            _set_worker_info(None)

    def _run_init(self, identity: int) -> None:
        import torch

        if self.recipe.init is None:
            return
        before = torch.initial_seed()
        self.recipe.init(identity)
        if torch.initial_seed() != before and not self.recipe.seeds_win:
            self._seeds = False  # who seeds torch by hand gets what they asked for, and repeats are theirs to answer

    def _say_who(self, identity: int, count: int, seed: int, dataset: Any) -> None:
        from torch.utils.data._utils.worker import WorkerInfo

        kind = WorkerInfo if self.recipe.iterable else _telling(WorkerInfo, self._note_named)
        _set_worker_info(kind(id=identity, num_workers=count, seed=seed, dataset=dataset))

    def _note_named(self) -> None:
        self.named = True

    def _batch_seed(self, number: int) -> int:
        assert self._begin is not None
        return batch_seed(self._begin.run_seed, self._begin.epoch, number)

    def _seed(self, number: int) -> None:
        if self._seeds:
            seed_all(self._batch_seed(number))

    def _map_snapshot(self) -> Snapshot:
        dataset = self.recipe.dataset
        state = dataset.state_dict() if is_stateful(dataset) else None
        return {"worker_id": self.seat or 0, "fetcher_state": None, "dataset_state": state}


class _Stream:
    """One shard of an iterable dataset, and how far it has been read."""

    def __init__(self, dataset: Any, shard: int, shards: int) -> None:
        self.dataset = dataset
        self.shard = shard
        self.shards = shards
        self.made = 0
        self.ended = False
        self.stateful = is_stateful(dataset)
        self._iterator: Iterator[Any] = iter(())

    def open(self, start: StreamStart) -> None:
        """Begin where START says: the dataset's state first, then its iterator, then the iterator's state."""
        snapshot, fetcher = start.snapshot, (start.snapshot or {}).get("fetcher_state") or {}
        if snapshot is not None and snapshot["dataset_state"] is not None and is_stateful(self.dataset):
            self.dataset.load_state_dict(snapshot["dataset_state"])
        self._iterator = iter(self.dataset)
        self.stateful = self.stateful or is_stateful(self._iterator)
        if fetcher.get("dataset_iter_state") is not None and is_stateful(self._iterator):
            self._iterator.load_state_dict(fetcher["dataset_iter_state"])  # type: ignore[attr-defined]
        self.made = start.made
        self.ended = bool(fetcher.get("fetcher_ended"))  # an iterator that has ended may begin anew when it is asked

    def read(self, recipe: Recipe) -> Any:
        """What the next batch is collated from."""
        if self.ended:
            raise StreamEnd
        if not recipe.grouped:
            try:
                read = next(self._iterator)
            except StopIteration:
                self.ended = True
                raise StreamEnd from None
        else:
            assert recipe.batch_size is not None
            read = []
            while len(read) < recipe.batch_size:
                try:
                    read.append(next(self._iterator))
                except StopIteration:
                    self.ended = True
                    break
            if not read or (recipe.drop_last and len(read) < recipe.batch_size):
                raise StreamEnd
        self.made += 1
        return read

    def snapshot(self) -> Snapshot:
        own = self._iterator is self.dataset
        iterator = self._iterator
        return {
            "worker_id": self.shard,
            "fetcher_state": {
                "dataset_iter_state": iterator.state_dict() if is_stateful(iterator) else None,  # type: ignore[attr-defined]
                "fetcher_ended": self.ended,
            },
            "dataset_state": self.dataset.state_dict() if not own and is_stateful(self.dataset) else None,
        }


def _collated(collate: Callable[[Any], Any], read: Any) -> Any:
    """READ as one batch. What torch's own collate puts together stays in this process's ordinary memory.

    In a worker it would take a fresh piece of shared memory for every tensor, whose pages cost several times the copy
    into a slot, and nobody but the worker would ever look at it.
    """
    import torch
    from torch.utils.data._utils import collate as torchs

    known = torchs.default_collate_fn_map
    if collate is not torchs.default_collate or known.get(torch.Tensor) is not torchs.collate_tensor_fn:
        return collate(read)
    return torchs.collate(read, collate_fn_map={**known, torch.Tensor: _stacked})


def _stacked(tensors: Any, *, collate_fn_map: Any = None) -> Any:
    from torch.utils.data._utils import worker
    from torch.utils.data._utils.collate import collate_tensor_fn

    info, worker._worker_info = worker._worker_info, None
    try:
        return collate_tensor_fn(tensors, collate_fn_map=collate_fn_map)
    finally:
        worker._worker_info = info


def _telling(known: Any, tell: Callable[[], None]) -> Any:
    """KNOWN, torch's WorkerInfo, which calls TELL when it is asked for what no two workers share."""

    class WorkerInfo(known):  # type: ignore[misc]
        def __getattribute__(self, name: str) -> Any:
            if name in ("id", "seed"):
                tell()
            return super().__getattribute__(name)

        def __reduce__(self) -> Any:
            own = ("id", "num_workers", "seed", "dataset")
            return functools.partial(known, **{name: getattr(self, name) for name in own}), ()

    return WorkerInfo


def _set_worker_info(info: Any) -> None:
    from torch.utils.data._utils import worker

    worker._worker_info = info


def _seed_datapipe(dataset: Any, shared_seed: int) -> None:
    import torch
    from torch.utils.data.graph_settings import apply_random_seed

    apply_random_seed(dataset, torch.Generator().manual_seed(shared_seed))
