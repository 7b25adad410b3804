"""A worker process on the trainer's machine: takes tasks, makes batches, writes them into the trainer's slots."""

import collections
import ctypes
import os
import signal
import socket
import threading
import time
from typing import Any, NamedTuple, Protocol

from wattsmith.feed.link import Gone, WorkerEnd
from wattsmith.feed.making import Maker, Recipe, StreamEnd
from wattsmith.feed.messages import Adopt, Begin, Begun, Ended, Failed, Grant, Made, Need, Order, Place, Stop, Task
from wattsmith.feed.packing import ALIGN_BYTES, Packed, pack
from wattsmith.feed.slots import Notes, Room, Stock

INLINE_BYTES = 1 << 14  # batches up to here travel inside the message: a slot each would cost more than the copy
_PR_SET_PDEATHSIG = 1
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4  # <malloc.h>
_KEPT_BYTES = 1 << 30  # unused, at the end of what a worker has; beyond it memory goes back to the machine


class Post(NamedTuple):
    """What a worker is told about itself."""

    key: int  # no two workers of a trainer share it
    seat: int
    seats: int
    base_seed: int
    trainer: int | None  # its process id, where the worker is to die with it at once


def run_worker(end: socket.socket, recipe: Recipe, post: Post) -> None:
    """The life of a worker process."""
    try:
        _prepare(post.trainer)
        Worker(WorkerEnd(end), Room.receive(end), recipe, post).run()
    except (Gone, EOFError, KeyboardInterrupt):
        pass  # the trainer has gone, or will raise KeyboardInterrupt itself
    finally:
        end.close()


class End(Protocol):
    """A worker's end of the way to its trainer. Both raise Gone when that is lost."""

    def receive(self) -> Any: ...

    def arrived(self) -> list[Any]:
        """Orders that are there already."""

    def send(self, message: Any, payload: list[memoryview] | None = None) -> None: ...


class Worker:
    """Takes one order after the other. ROOM None: the trainer's memory is elsewhere, and batches follow the messages.

    FAILED: what stopped it from starting, told when an epoch begins; then there may be no RECIPE.
    """

    def __init__(self, end: End, room: Room | None, recipe: Recipe | None, post: Post, *, failed: Any = None) -> None:
        self._end = end
        self._room = room
        self._notes = None if room is None else Notes(room)
        self._seat, self._key = post.seat, post.key
        self._stock = Stock()
        self._orders: collections.deque[Order] = collections.deque()
        self._failed = failed
        self._epoch = 0
        if recipe is None:
            return
        self._maker = Maker(recipe, post.seat, post.seats)
        try:
            self._maker.enter(post.base_seed)
        except Exception:  # noqa: BLE001 - the user's code; it goes to the trainer
            self._failed = wrapped(f"in DataLoader worker process {post.seat}")

    def run(self) -> None:
        while not self._stopped:
            order = self._orders.popleft() if self._orders else self._noted(self._end.receive())
            if isinstance(order, Task):
                if not self._stopped:
                    self._work(order)
            elif isinstance(order, Begin):
                self._begin(order)
            elif isinstance(order, Adopt):
                self._adopt(order)
            elif isinstance(order, Stop):
                return

    def _noted(self, order: Order) -> Order:
        """ORDER, of which the place is kept already."""
        if isinstance(order, Task) and order.place is not None:
            self._stock.add(order.place)
        return order

    @property
    def _stopped(self) -> bool:
        return self._notes is not None and self._notes.stopped

    def _note(self, task: int) -> None:
        if self._notes is not None:
            self._notes.begin(self._key, task)

    def _begin(self, order: Begin) -> None:
        self._epoch = order.epoch
        snapshots = {}
        if self._failed is None:
            try:
                snapshots = self._maker.begin(order)
            except Exception:  # noqa: BLE001 - the user's code; it goes to the trainer
                self._failed = wrapped(f"in DataLoader worker process {self._seat}")
        self._end.send(Begun(order.epoch, snapshots, self._failed))

    def _adopt(self, order: Adopt) -> None:
        try:
            self._maker.adopt(order.start)
        except Exception:  # noqa: BLE001 - the user's code; told with the first batch of the stream
            self._failed = wrapped(f"in DataLoader worker process {self._seat}")

    def _work(self, task: Task) -> None:
        began_s = time.perf_counter()
        if self._failed is not None:
            self._end.send(Failed(task.serial, task.number, task.attempt, self._failed, self._stock.spare()))
            return
        self._note(task.serial)
        try:
            packed = pack(self._maker.make(task))
            snapshot = self._maker.snapshot(task) if task.snapshot else None
        except StreamEnd:
            state = self._maker.snapshot(task)
            spare = self._stock.spare()
            self._end.send(Ended(self._epoch, task.serial, task.number, task.attempt, task.shard, state, spare))
        except Exception:  # noqa: BLE001 - the user's code; it goes to the trainer
            self._end.send(Failed(task.serial, task.number, task.attempt, self._why(task), self._stock.spare()))
        else:
            self._hand_over(task, packed, snapshot, began_s)
        # Not where user's code leaves the process (sys.exit): the trainer is to see at which batch that was.
        self._note(0)

    def _hand_over(self, task: Task, packed: Packed, snapshot: Any, began_s: float) -> None:
        size_bytes, blocked_s = packed.total_bytes, 0.0
        offset = None
        if size_bytes > INLINE_BYTES and self._room is not None:
            for order in self._end.arrived():  # what the trainer gave last is what should be used first
                self._orders.append(self._noted(order))
            place = self._stock.take(size_bytes)
            if place is None:
                asked_s = time.perf_counter()
                place = self._ask_for_room(size_bytes)
                blocked_s = time.perf_counter() - asked_s
            if place is not None:
                offset = place[0]
                packed.write(self._room.view(offset, size_bytes))
        made_s = time.perf_counter() - began_s
        placed = offset is not None
        message = Made(
            task.serial,
            task.number,
            task.attempt,
            packed.skeleton,
            packed.sizes,
            offset if placed else self._stock.spare(),
            placed,
            made_s,
            blocked_s,
            snapshot,
            self._maker.named,
        )
        self._end.send(message, None if placed else _padded(packed))

    def _ask_for_room(self, size_bytes: int) -> Place | None:
        while True:
            self._end.send(Need(size_bytes, self._stock.empty()))
            while not isinstance(order := self._end.receive(), Grant):
                self._orders.append(self._noted(order))
            if not order.again:
                return order.place

    def _why(self, task: Task) -> Any:
        where = f"in DataLoader worker process {self._seat}"
        if not self._maker.recipe.iterable:
            where += f" at index {self._maker.at!r:.200}, batch {task.number}"
        return wrapped(where)


def _padded(packed: Packed) -> list[memoryview]:
    """The raw bytes with the gaps that `unpack` expects."""
    parts = []
    for piece in packed.raw:
        parts += [piece, memoryview(bytes(-piece.nbytes % ALIGN_BYTES))]
    return parts


def wrapped(where: str) -> Any:
    """The exception being handled, in a form that travels: type, message and traceback text."""
    import pickle

    from torch._utils import ExceptionWrapper

    wrapped = ExceptionWrapper(where=where)
    try:
        pickle.loads(pickle.dumps(wrapped))
    except Exception:  # noqa: BLE001 - a type that exists only in this process
        wrapped.exc_type = RuntimeError
    return wrapped


def die_with(trainer: int | None) -> None:
    """Let this process be killed when its parent TRAINER ends; None: leave it. Raises Gone where it has ended."""
    if trainer is None:
        return
    # Not only when the socket closes: a dataset may be stuck for hours in code of its own.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != trainer:
        raise Gone


def keep_memory() -> None:
    """Let this process keep the memory that a batch was made in, for the next one.

    The C library gives pieces of more than 32 MB back to the machine at once and asks for them anew with every batch;
    each of their pages then has to be found and cleared, which takes longer than to put the batch together.
    """
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):  # not every C library has it
        library.mallopt(_M_MMAP_MAX, 0)
        library.mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def _prepare(trainer: int | None) -> None:
    import torch
    from torch.utils.data._utils import signal_handling

    signal_handling._set_worker_signal_handlers()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with(trainer)
    # One thread each: there are as many workers as there is work, and float results do not depend on the split.
    torch.set_num_threads(1)
    keep_memory()
