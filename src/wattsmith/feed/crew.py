"""The worker processes of this machine, and those that stand for workers elsewhere: started, watched, replaced."""

import bisect
import errno
import itertools
import multiprocessing.util
import os
import pickle
import select
import threading
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from wattsmith.feed.link import TrainerEnd, pair
from wattsmith.feed.making import Recipe
from wattsmith.feed.remote import Yard
from wattsmith.feed.remote_relay import run_relay
from wattsmith.feed.slots import Room
from wattsmith.feed.worker import Post, run_worker

LEAVE_S = 5.0  # how long a worker may take to finish what it is doing when all is over


@dataclass(eq=False, slots=True)
class Hand:
    """One worker, as the trainer sees it. SEAT is its number for the user; `key` is never used again."""

    key: int
    seat: int
    process: Any
    link: TrainerEnd
    descriptor: int  # of the process: readable once it has ended
    ready: bool = False  # has answered to the beginning of an epoch
    leaving: bool = False  # gets no further task
    late: bool = False  # has overrun a lease; what it still sends counts only if nobody was faster
    shards: set[int] = field(default_factory=set)
    reached: dict[int, int] = field(default_factory=dict)  # by shard: the batch behind the last it was given
    about: dict[str, Any] | None = None  # the machine of a worker that is elsewhere

    @property
    def pid(self) -> int:
        return int(self.process.pid)


class Crew:
    """Starts workers and knows who is there. YARD: where they come from, if not from this machine."""

    def __init__(self, recipe: Recipe, room: Room, context: Any, yard: Yard | None = None) -> None:
        self._recipe = recipe
        self._room = room
        self._context = context
        self.yard = yard
        self._keys = itertools.count(1)
        self._poll = select.poll()
        self._by_descriptor: dict[int, Hand] = {}
        self.hands: list[Hand] = []  # by seat
        self.owner = os.getpid()
        # At exit multiprocessing waits for its children, and one that stands still does not hear that it is to go.
        multiprocessing.util.Finalize(self, _kill_late, (self.hands,), exitpriority=0)

    def start(self, seat: int, seats: int, base_seed: int) -> Hand:
        """A new worker. It has to be told that an epoch begins before it can work."""
        try:
            return self._start(seat, seats, base_seed)
        except OSError as refused:
            if refused.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            raise RuntimeError(
                f"worker {seat} could not be started: this process may not open more files. "
                "Raise the limit (`ulimit -n`), or use fewer workers."
            ) from refused

    def _start(self, seat: int, seats: int, base_seed: int) -> Hand:
        ours, theirs = pair()
        # Workers die with this process; but the kernel watches the thread that started them, which must not end first.
        main = threading.current_thread() is threading.main_thread()
        trainer = os.getpid() if main and self._context.get_start_method() != "forkserver" else None
        key = next(self._keys)
        post = Post(key, seat, seats, base_seed, trainer)
        if self.yard is None:
            process = self._context.Process(target=run_worker, args=(theirs, self._recipe, post), daemon=True)
        else:
            process = self._context.Process(target=run_relay, args=(theirs, self.yard.ticket(key), post), daemon=True)
        try:
            process.start()
        except (TypeError, AttributeError, pickle.PicklingError):
            warnings.warn(
                "Got pickle error when attempting to start a worker: with the start methods spawn and forkserver "
                "dataset, collate_fn and worker_init_fn are pickled. Define them, and what they use, at the top level "
                'of a module, or give Feeder multiprocessing_context="fork".',
                stacklevel=2,
            )
            ours.close()
            raise
        finally:
            theirs.close()
        self._room.send(ours.socket)
        hand = Hand(key, seat, process, ours, os.pidfd_open(process.pid))
        bisect.insort(self.hands, hand, key=lambda one: one.seat)
        for descriptor in (hand.link.fileno(), hand.descriptor):
            self._by_descriptor[descriptor] = hand
            self._poll.register(descriptor, select.POLLIN)
        return hand

    def at_work(self) -> list[Hand]:
        """Workers that may get tasks, by seat."""
        return [hand for hand in self.hands if not hand.leaving and not hand.late]

    def wait(self, timeout_s: float | None) -> list[Hand]:
        """Workers that have sent something or have ended; [] when none has for TIMEOUT_S."""
        for hand in self.hands:
            if hand.link.pending:
                hand.link.flush()
                timeout_s = 0.001 if timeout_s is None else min(timeout_s, 0.001)
        events = self._poll.poll(None if timeout_s is None else timeout_s * 1000)
        return list(dict.fromkeys([self._by_descriptor[descriptor] for descriptor, _ in events]))

    def bury(self, hand: Hand) -> int | None:
        """HAND is not to do anything any more; make sure of it. Gives its exit code, negative for a signal."""
        self.hands.remove(hand)
        for descriptor in (hand.link.fileno(), hand.descriptor):
            self._poll.unregister(descriptor)
            del self._by_descriptor[descriptor]
        hand.process.join(LEAVE_S)  # who has hung up is about to end by itself, and its exit code tells why
        hand.process.kill()
        hand.process.join(LEAVE_S)
        code: int | None = hand.process.exitcode
        hand.link.close()
        os.close(hand.descriptor)
        if self.yard is not None:
            self.yard.release(hand.key)
        return code

    def dismiss(self, tell: Any) -> None:
        """Send everyone home. Who does not go within LEAVE_S is killed. TELL says stop to all of them at once."""
        if os.getpid() != self.owner:
            return  # a forked child has a copy of this, not of the workers
        tell()
        for hand in self.hands:
            hand.link.close()
            if hand.late:
                hand.process.kill()
        until_s = time.monotonic() + LEAVE_S  # for all of them together
        for hand in self.hands:
            hand.process.join(max(0.0, until_s - time.monotonic()))
            if hand.process.is_alive():
                hand.process.kill()
                hand.process.join(LEAVE_S)
            os.close(hand.descriptor)
        self.hands.clear()
        self._by_descriptor.clear()
        if self.yard is not None:
            self.yard.close()

    def __iter__(self) -> Iterator[Hand]:
        return iter(list(self.hands))


def _kill_late(hands: list[Hand]) -> None:
    for hand in hands:
        if hand.late:
            hand.process.kill()
