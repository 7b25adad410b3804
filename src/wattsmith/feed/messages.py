"""What trainer and workers tell each other. Plain tuples, since one of each kind travels with every batch."""

from typing import Any, NamedTuple

Place = tuple[int, int]  # offset and capacity of a slot
Snapshot = dict[str, Any]  # a dataset's own state: worker_id, fetcher_state, dataset_state


class StreamStart(NamedTuple):
    """Where a worker takes up one shard of an iterable dataset."""

    shard: int
    made: int  # batches of the shard that lie behind the snapshot
    snapshot: Snapshot | None  # None: begin at the beginning and go forward


class Begin(NamedTuple):
    """To a worker: an epoch begins."""

    epoch: int
    run_seed: int
    shards: int  # of an iterable dataset; 0: it is not cut, and get_worker_info() is None
    streams: tuple[StreamStart, ...]
    alone: bool  # whether the worker will never have a second stream, and so may use the dataset itself
    dataset_state: Any  # of a map-style dataset; None: leave it as it is
    shared_seed: int | None  # for datapipes


class Adopt(NamedTuple):
    """To a worker: take this stream too."""

    start: StreamStart


class Task(NamedTuple):
    """To a worker: make one batch."""

    serial: int  # counts all tasks of a run, from 1
    number: int  # of the batch in its epoch
    attempt: int
    indices: Any  # of a map-style dataset
    shard: int  # of an iterable dataset
    ordinal: int  # of the batch in its shard
    snapshot: bool  # whether the dataset's own state is wanted behind it
    place: Place | None  # one more to write into; None: ask when one is needed


class Grant(NamedTuple):
    """To a worker that asked for room."""

    place: Place | None  # None: there is none, and will be none; the batch is to follow its message
    again: bool = False  # it has been given places since: it is to ask again, and to hand those back too


class Stop(NamedTuple):
    """To a worker: finish what you were given, and go."""


class Begun(NamedTuple):
    """From a worker: ready for the epoch, or why not."""

    epoch: int
    snapshots: dict[int, Snapshot]  # by shard, or by seat for a map-style dataset
    error: Any  # None, or torch's ExceptionWrapper
    about: dict[str, Any] | None = None  # the machine of a worker that is elsewhere


class Need(NamedTuple):
    """From a worker: a batch of so many bytes is finished and fits nowhere."""

    size_bytes: int
    back: tuple[int, ...]  # offsets of the places that it had, all of them too small


class Made(NamedTuple):
    """From a worker: a batch is there, whole. Its bytes are at its place, or follow the message."""

    serial: int
    number: int
    attempt: int
    skeleton: bytes
    sizes: tuple[int, ...]
    offset: int | None  # of a place that comes back with it; None: the worker had none
    placed: bool  # whether the bytes are there
    made_s: float  # from taking the task up to here
    blocked_s: float  # of those, waiting for room
    snapshot: Snapshot | None
    named: bool = False  # whether the dataset has asked which worker it is in


class Ended(NamedTuple):
    """From a worker: its shard has no such batch."""

    epoch: int
    serial: int
    number: int
    attempt: int
    shard: int
    snapshot: Snapshot | None
    offset: int | None  # of a place that comes back unused


class Failed(NamedTuple):
    """From a worker: the user's code raised."""

    serial: int
    number: int
    attempt: int
    error: Any  # torch's ExceptionWrapper
    offset: int | None  # of a place that comes back unused


Order = Begin | Adopt | Task | Grant | Stop
News = Begun | Need | Made | Ended | Failed
