"""Runs an epoch over worker processes: gives tasks out, takes batches in, and sees that each is delivered once.

All of it happens inside the trainer's call for the next batch. Between two calls workers have their tasks, and
nothing here takes time from the trainer.
"""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wattsmith.feed.crew import Crew, Hand
from wattsmith.feed.deaths import Deaths
from wattsmith.feed.ledger import VOID, Item, Ledger
from wattsmith.feed.link import Gone
from wattsmith.feed.making import Recipe, is_stateful
from wattsmith.feed.messages import Adopt, Begin, Begun, Ended, Failed, Made, Need, Snapshot, Stop, StreamStart, Task
from wattsmith.feed.packing import room_for
from wattsmith.feed.pinning import Pinner
from wattsmith.feed.places import Arrived, Places
from wattsmith.feed.progress import Progress
from wattsmith.feed.remote import OpenYard, Yard, mixed
from wattsmith.feed.reporting import Counts
from wattsmith.feed.seeding import epoch_seed
from wattsmith.feed.slots import Notes, Slots, SlotTooSmall
from wattsmith.feed.source import Rotation, Source

LOOK_S = 1.0  # how often a waiting trainer looks whether a worker is late
LATE_S = 30.0  # nobody is late before this
LATE_TIMES = 20  # nor before so many times the longest batch so far
SETTLED = 20  # batches that were seen before anyone is called late


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What a Feeder asks of its workers."""

    prefetch: int = 2  # tasks that a worker has at a time
    in_order: bool = True
    timeout_s: float = 0  # 0: wait for as long as it takes
    lease_s: float | None = None  # when a worker is late; None: judged by how long others took
    snapshot_every: int = 1  # batches of a worker between two states of the dataset; 0: only at the beginning
    copy_out: bool = False  # whether users get memory of their own instead of views of slots


class Engine:
    """The workers of one Feeder, and the epoch they are in."""

    def __init__(
        self,
        recipe: Recipe,
        terms: Terms,
        slots: Slots,
        counts: Counts,
        context: Any,
        *,
        seats: int,
        fixed: bool,
        pinner: Pinner | None = None,
        yard: Yard | None = None,
    ) -> None:
        self._terms = terms
        self._places = Places(slots)
        self._notes = Notes(slots.room)
        self._counts = counts
        self._crew = Crew(recipe, slots.room, context, yard)
        self._iterable = recipe.iterable
        self._seats = seats
        self._fixed = fixed  # whether the number of workers stays
        # Whoever is free takes the next batch, unless what comes out may depend on who makes it: then each has a seat.
        self._seated = fixed and (recipe.init is not None or is_stateful(recipe.dataset))
        self._ledger = Ledger()
        self._serials = itertools.count(1)
        self._deaths = Deaths()
        self._longest_s = 0.0
        self._seen = 0
        self._looked_s = 0.0  # when it was last looked whether a worker is late
        self._error: Any = None
        self._broken: Exception | None = None  # why there will be no further batch
        self._moved = False  # whether a worker came or went, so that batches may have to be made elsewhere
        # Whole numbers alone are the same everywhere; a data half knows whether it holds anything else.
        self._alike = getattr(recipe.data, "unlike", None) == ()
        self.pinner = pinner
        self.closed = False

    # An epoch

    def begin(
        self, progress: Progress, source: Source, shared_seed: int | None, tick: Callable[[], None] = lambda: None
    ) -> None:
        """Start the epoch of PROGRESS. Returns when all workers are ready; raises what stops one of them.

        TICK is called every now and then while the trainer waits.
        """
        self._tick = tick
        self._progress = progress
        self._source = source
        self._shared_seed = shared_seed
        for arrived in self._arrived():  # in an epoch that was broken off
            self._places.drop(arrived)
        self._ledger = Ledger(in_order=self._terms.in_order, first=0 if self._iterable else progress.delivered)
        self._deaths = Deaths()
        self._delivered_before = frozenset(progress.ahead)
        self._ends: dict[int, Snapshot | None] = {}  # of shards, as they arrived
        self._error = None
        alone = self._fixed and len(progress.shards) <= self._seats
        for hand in self._crew:
            hand.ready = False
            hand.shards.clear()
            hand.reached.clear()
        self._alone = alone
        for seat in range(self._seats):
            if not any(hand.seat == seat for hand in self._crew.at_work()):
                self._crew.start(seat, self._seats, epoch_seed(progress.seed, progress.epoch))
        hands = self._crew.at_work()
        for number in range(len(progress.shards)):
            if not progress.shards[number].ended:
                hands[number % len(hands)].shards.add(number)
        for hand in hands:
            self._tell_begin(hand)
        self._dispatch()
        # Nobody knows when a worker from elsewhere comes: one of them will do.
        enough = all if self._crew.yard is None else any
        self._until(lambda: enough(hand.ready for hand in self._crew.at_work()))

    def next(self) -> Arrived | None:
        """The next batch; None at the end of the epoch. Raises whatever the user's code raised."""
        while True:
            if self._broken is not None:
                raise self._broken
            if self.closed:
                raise RuntimeError("this epoch has no workers any more: the Feeder was closed. Iterate over it anew.")
            if self.pinner is not None:
                self._take_in(0.0)  # what has come while the trainer computed is pinned while it computes again
            delivered = self._ledger.deliver()
            if delivered is None:
                self._dispatch()
                if self._source.exhausted and not len(self._ledger):
                    return None
                self._until(lambda: self._error is not None or self._next_is_there())
                continue
            item, arrived = delivered
            if arrived is VOID:
                continue
            if isinstance(arrived, Ended):
                self._progress.note_end(arrived.shard, arrived.snapshot)
                continue
            if isinstance(arrived, Failed):
                self._progress.note(item, None, None)
                self._dispatch()
                arrived.error.reraise()
            self._progress.note(item, arrived.made.snapshot, arrived.seat)
            self._dispatch()
            assert isinstance(arrived, Arrived)
            return arrived

    def open(self, arrived: Arrived) -> Any:
        """The batch itself; its tensors are views of the slot, which stays theirs until they are gone."""
        return self._unpacked(arrived) if arrived.pinned is None else arrived.pinned.result()

    def _unpacked(self, arrived: Arrived) -> Any:
        return self._places.unpacked(arrived, copy_out=self._terms.copy_out)

    # Workers come and go

    def resize(self, seats: int) -> None:
        """So many workers from now on. Those that are too many finish what they have."""
        self._seats = seats
        self._moved = True
        hands = self._crew.at_work()
        for seat in sorted(set(range(seats)) - {hand.seat for hand in hands}):
            hand = self._crew.start(seat, seats, epoch_seed(self._progress.seed, self._progress.epoch))
            self._tell_begin(hand)
        for hand in hands:
            if hand.seat >= seats:
                hand.leaving = True
                self._hand_on(hand)
        self._send_home()
        self._dispatch()

    @property
    def workers(self) -> list[Any]:
        """The processes at work, by seat."""
        return [hand.process for hand in self._crew.at_work()]

    @property
    def address(self) -> str | None:
        """Where workers from elsewhere come to by themselves; None: they do not."""
        yard = self._crew.yard
        return str(yard.address) if isinstance(yard, OpenYard) and not self.closed else None

    @property
    def fleet(self) -> list[dict[str, Any]]:
        """The machines of the workers that are elsewhere."""
        return [hand.about for hand in self._crew.at_work() if hand.about is not None]

    @property
    def starting(self) -> int:
        return sum(1 for hand in self._crew.at_work() if not hand.ready)

    @property
    def filled(self) -> float:
        """The share of the window that holds finished batches."""
        return min(1.0, self._ledger.arrived / max(1, self._window()))

    def close(self) -> None:
        """Everyone goes home. Views that the user still has stay what they are."""
        if not self.closed:
            self.closed = True
            self._counts.workers = len(self.workers)
            self._crew.dismiss(self._notes.stop)
            if self.pinner is not None:
                self.pinner.close()

    # Giving out

    def _window(self) -> int:
        return max(1, self._terms.prefetch) * max(1, self._seats)

    def _dispatch(self) -> None:
        hands, ledger = self._crew.at_work(), self._ledger
        while (item := self._draw()) is not None:
            if item.number in self._delivered_before and not self._iterable:
                ledger.skip(item.number)
            else:
                item.home = self._home(item, hands)
                ledger.draw(item)
        if self._moved:
            self._moved = False
            ledger.settle(lambda item: self._home(item, hands))
        most, loads = max(1, self._terms.prefetch), ledger.loads
        able = [hand for hand in hands if loads[hand.key] < most and (hand.ready or self._crew.yard is None)]
        while able and ledger.waiting:
            # The least busy; among these, in turns: whoever reads every n-th sample may have its neighbours at hand.
            turn = ledger.foremost
            hand = min(able, key=lambda hand: (loads[hand.key], (hand.seat - turn) % len(hands)))
            if not self._give(hand) or loads[hand.key] >= most:
                able.remove(hand)

    def _draw(self) -> Item | None:
        """A further batch, as long as there are not enough of them on their way."""
        if self._iterable and not self._terms.in_order:
            # What is late in one shard must not keep others waiting.
            most = max(1, self._terms.prefetch)
            shards = range(len(self._progress.shards))
            return self._source.draw({shard for shard in shards if self._ledger.open_in(shard) >= most})
        return self._source.draw() if len(self._ledger) < self._window() and not self._source.exhausted else None

    def _home(self, item: Item, hands: list[Hand]) -> int | None:
        if self._iterable:
            return next((hand.seat for hand in hands if item.shard in hand.shards), None)
        if self._seated and self._terms.in_order and hands:
            return hands[item.number % len(hands)].seat
        return None

    def _give(self, hand: Hand) -> bool:
        serial = next(self._serials)
        lease = self._ledger.lease(hand.seat, hand.key, serial, time.monotonic())
        if lease is None:
            return False
        item = lease.item
        every = self._terms.snapshot_every
        task = Task(
            serial,
            item.number,
            lease.attempt,
            item.indices,
            item.shard,
            item.ordinal,
            every > 0 and (item.ordinal + 1 if self._iterable else item.number + 1) % every == 0,
            # While a worker waits for room, nobody is given any in advance: not even that worker could use it.
            None if self._places.starving else self._places.offer(hand.key),
        )
        if self._iterable and item.ordinal < hand.reached.get(item.shard, 0):
            hand.link.send(Adopt(self._start_of(item.shard)))  # it has read past what is wanted again
        hand.reached[item.shard] = item.ordinal + 1
        hand.link.send(task)
        return True

    def _start_of(self, shard: int) -> StreamStart:
        """Where a worker takes SHARD up: behind what was delivered, or at its end, if that has arrived."""
        if shard in self._ends:
            return StreamStart(shard, 0, self._ends[shard])
        return self._progress.start_of(shard)

    def _tell_begin(self, hand: Hand) -> None:
        progress = self._progress
        states = progress.states
        state = (states.get(hand.seat % len(states)) or {}).get("dataset_state") if states else None
        streams = tuple(self._start_of(shard) for shard in sorted(hand.shards))
        hand.link.send(
            Begin(
                progress.epoch,
                progress.seed,
                len(progress.shards) if progress.cut else 0,
                streams,
                self._alone,
                state,
                self._shared_seed,
            )
        )

    # Taking in

    def _next_is_there(self) -> bool:
        return self._ledger.arrived > 0 and self._ledger.can_deliver()

    def _until(self, done: Callable[[], bool]) -> None:
        """Take in what arrives until DONE. Raises RuntimeError when that takes longer than the user allows."""
        began_s = time.monotonic()
        while not done():
            left_s = LOOK_S
            if self._terms.timeout_s > 0:
                left_s = min(LOOK_S, began_s + self._terms.timeout_s - time.monotonic())
                if left_s <= 0:
                    raise RuntimeError(f"DataLoader timed out after {self._terms.timeout_s} seconds")
            # Where a worker waits for memory that only the user can give back, look more often.
            self._take_in(max(0.0, min(left_s, 0.01) if self._places.starving else left_s))
            if time.monotonic() - self._looked_s >= LOOK_S:
                self._retire_late()
                self._tick()

    def _take_in(self, timeout_s: float) -> None:
        """Read what workers have sent, or send within TIMEOUT_S. Raises what stops one of them."""
        for hand in self._crew.wait(timeout_s):
            self._read(hand)
        if self._error is not None:
            error, self._error = self._error, None
            error.reraise()
        if self._places.starving:
            self._feed_starving()
        if self._ledger.waiting:
            self._dispatch()  # all were busy when it came back

    def _read(self, hand: Hand) -> None:
        try:
            received = hand.link.receive()
        except Gone:
            self._lose(hand)
            return
        for news, payload in received:
            self._take(hand, news, payload)
        if not received and not hand.process.is_alive():
            self._lose(hand)  # a child of the worker's may hold its end of the link open

    def _take(self, hand: Hand, news: Any, payload: bytearray | None) -> None:
        if isinstance(news, Made):
            self._take_batch(hand, news, payload)
        elif isinstance(news, Need):
            self._places.ask(hand, news)
            self._feed_starving()
        elif isinstance(news, Begun):
            if news.epoch == self._progress.epoch:
                hand.ready = True
                self._deaths.ready()
                self._error = self._error or news.error
                if news.about is not None:
                    hand.about = news.about
                    self._look_at_fleet()
                    self._dispatch()
                for number, snapshot in news.snapshots.items():
                    self._progress.note_begin(number, snapshot)
        elif isinstance(news, Ended | Failed):
            self._places.take_back(hand.key, news.offset)
            self._ledger.commit(news.serial, news)
            if isinstance(news, Ended) and isinstance(self._source, Rotation) and news.epoch == self._progress.epoch:
                self._source.end(news.shard)
                self._ends[news.shard] = news.snapshot
        if hand.leaving or hand.late:
            self._send_home()

    def _look_at_fleet(self) -> None:
        """Warn once where machines differ so that a batch that is made again may not be the same."""
        differs = None if self._alike else mixed(self.fleet)
        if differs is not None:
            self._alike = True
            warnings.warn(differs, stacklevel=2)

    def _take_batch(self, hand: Hand, made: Made, payload: bytearray | None) -> None:
        size_bytes = room_for(made.sizes)
        arrived = self._places.arrive(made, size_bytes, hand.key, hand.seat, payload)
        if not self._ledger.commit(made.serial, arrived):
            self._counts.dropped += 1
            self._places.drop(arrived)
            return
        self._longest_s = max(self._longest_s, made.made_s)
        self._seen += 1
        if made.named and self._fixed and not self._seated:
            self._seated = self._moved = True
        self._counts.add_made(made.made_s, made.blocked_s, size_bytes)
        if self.pinner is not None:
            arrived.pinned = self.pinner.submit(self._unpacked(arrived))

    def _feed_starving(self) -> None:
        try:
            self._places.feed(self._arrived())
        except SlotTooSmall as never:
            self._give_up(never)

    def _arrived(self) -> Iterator[Arrived]:
        """Batches that are there and wait for their turn, the last to leave first."""
        return (arrived for _, arrived in self._ledger.committed() if isinstance(arrived, Arrived))

    # Losses

    def _lose(self, hand: Hand) -> None:
        """HAND has died: its batches go to others, and another takes its seat."""
        begun = self._notes.begun(hand.key)
        code = self._crew.bury(hand)
        self._notes.begin(hand.key, 0)
        before = self._ledger.redone
        lost = self._ledger.take_back(hand.key)
        self._counts.redone += self._ledger.redone - before
        self._moved = True
        self._places.take_back_all(hand.key)
        if hand.late or (hand.leaving and not lost):
            return
        self._counts.lost += 1
        if not hand.ready and not begun:
            charge = self._deaths.judge_start(hand.pid, code)
        else:
            culprit = next((lease.item for lease in lost if lease.serial == begun), None)
            charge = self._deaths.judge(culprit, hand.pid, code)
        if charge is not None:
            self._give_up(RuntimeError(charge))
        if not hand.leaving:
            self._replace(hand)
        self._dispatch()

    def _replace(self, hand: Hand) -> None:
        """Another worker at the seat of HAND."""
        fresh = self._crew.start(hand.seat, self._seats, epoch_seed(self._progress.seed, self._progress.epoch))
        fresh.shards |= hand.shards
        self._tell_begin(fresh)

    def _give_up(self, why: Exception) -> None:
        """There will be no further batch."""
        self._broken = why
        self.close()
        raise why

    def _retire_late(self) -> None:
        self._looked_s = time.monotonic()
        limit_s = self._terms.lease_s
        if limit_s is None:
            if self._seen < SETTLED:
                return
            limit_s = max(LATE_S, LATE_TIMES * self._longest_s)
        late = {lease.worker for lease in self._ledger.overdue(time.monotonic() - limit_s)}
        late -= self._places.starving.keys()  # these wait for room
        for hand in self._crew:
            if hand.late and self._places.starving and self._places.has_any(hand.key):
                hand.process.kill()  # it stands still on memory that others need
        for hand in self._crew:
            if hand.key in late and hand.ready and not hand.late:
                hand.late = True
                before = self._ledger.redone
                self._ledger.doubt(hand.key)
                self._counts.redone += self._ledger.redone - before
                self._counts.late += 1
                if not hand.leaving:
                    self._replace(hand)
                self._dispatch()

    def _hand_on(self, hand: Hand) -> None:
        """The shards of HAND, who is leaving, go to others."""
        others = self._crew.at_work()
        for turn, shard in enumerate(sorted(hand.shards)):
            heir = others[turn % len(others)]
            heir.shards.add(shard)
            heir.link.send(Adopt(self._start_of(shard)))
        hand.shards.clear()

    def _send_home(self) -> None:
        for hand in self._crew:
            if (hand.leaving or hand.late) and not self._ledger.loads[hand.key]:
                hand.link.send(Stop())
