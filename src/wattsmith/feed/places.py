"""Which slots are in the hands of which worker, and batches that have arrived in them."""

from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from wattsmith.feed.crew import Hand
from wattsmith.feed.messages import Grant, Made, Need, Place
from wattsmith.feed.packing import room_for, unpack
from wattsmith.feed.slots import Slot, Slots
from wattsmith.feed.worker import INLINE_BYTES


@dataclass(slots=True)
class Arrived:
    """A batch that is there. Its bytes are in the slot, or in PAYLOAD. SLOT is None once someone looks at it."""

    made: Made
    seat: int
    slot: Slot | None
    payload: bytearray | None
    pinned: "Future[Any] | None" = None  # the batch itself, where it is copied for an accelerator


class Places:
    """Gives slots to workers before they need them, by the size of the largest batch so far."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._of: dict[int, dict[int, Slot]] = {}  # by worker and offset: slots in the hands of workers
        self._likely_bytes = 0
        self.starving: dict[int, tuple[Hand, int]] = {}  # by worker: it has a finished batch of so many bytes, no room

    def learn(self, size_bytes: int) -> None:
        """There are batches of this size."""
        if size_bytes > self._likely_bytes and size_bytes > INLINE_BYTES:
            self._likely_bytes = size_bytes

    def offer(self, worker: int) -> Place | None:
        """A place for the next task of WORKER, in case it needs one; None: it will have to ask."""
        return self.grant(worker, self._likely_bytes) if self._likely_bytes else None

    def grant(self, worker: int, size_bytes: int) -> Place | None:
        """A place of SIZE_BYTES for WORKER; None: not now. Raises SlotTooSmall."""
        slot = self.slots.take(size_bytes, worker)
        if slot is None:
            return None
        self._of.setdefault(worker, {})[slot.offset] = slot
        return slot.offset, slot.capacity_bytes

    def has_any(self, worker: int) -> bool:
        """Whether WORKER has a place that it has not written to."""
        return bool(self._of.get(worker))

    def take_back(self, worker: int, offset: int | None) -> None:
        """WORKER does not need its place at OFFSET; None: it had none."""
        if offset is not None:
            self.slots.give_back(self._of[worker].pop(offset))

    def take_back_all(self, worker: int) -> None:
        """WORKER writes nothing any more."""
        self.starving.pop(worker, None)
        for slot in self._of.pop(worker, {}).values():
            self.slots.give_back(slot)

    def ask(self, hand: Hand, need: Need) -> None:
        """HAND holds a finished batch and has no room for it."""
        for offset in need.back:
            self.take_back(hand.key, offset)
        self.learn(need.size_bytes)
        if self.has_any(hand.key):
            hand.link.send(Grant(None, again=True))  # these were on their way; there may be no others
        else:
            self.starving[hand.key] = hand, need.size_bytes

    def feed(self, waiting: Iterator[Arrived]) -> None:
        """Give room to those who have none, if need be that of batches WAITING for their turn. Raises SlotTooSmall."""
        for hand, size_bytes in list(self.starving.values()):
            place = self.grant(hand.key, size_bytes)
            while place is None and (arrived := next((one for one in waiting if one.slot is not None), None)):
                self.move_out(arrived)
                place = self.grant(hand.key, size_bytes)
            # Where nobody but the user could make room, the batch is sent behind its message.
            if place is not None or not any(self._of.values()):
                del self.starving[hand.key]
                hand.link.send(Grant(place))

    def arrive(self, made: Made, size_bytes: int, worker: int, seat: int, payload: bytearray | None) -> Arrived:
        """The batch MADE of SIZE_BYTES has arrived whole from WORKER."""
        self.learn(size_bytes)
        if made.offset is None or not made.placed:
            self.take_back(worker, made.offset)
            return Arrived(made, seat, None, payload)
        return Arrived(made, seat, self._of[worker].pop(made.offset), payload)

    def drop(self, arrived: Arrived) -> None:
        """Nobody wants ARRIVED."""
        if arrived.slot is not None:
            self.slots.give_back(arrived.slot)
            arrived.slot = None

    def unpacked(self, arrived: Arrived, *, copy_out: bool) -> Any:
        """The batch itself: views of its slot while there is memory for others, or in memory of its own."""
        made = arrived.made
        if arrived.slot is not None:
            if not copy_out and self.slots.may_hold(arrived.slot, self._likely_bytes):
                slot, arrived.slot = arrived.slot, None
                return unpack(made.skeleton, made.sizes, self.slots.hold(slot))
            self.move_out(arrived)
        return unpack(made.skeleton, made.sizes, arrived.payload)

    def move_out(self, arrived: Arrived) -> None:
        """Copy ARRIVED into memory of its own, and let its slot be used again."""
        assert arrived.slot is not None
        arrived.payload = bytearray(self.slots.room.view(arrived.slot.offset, room_for(arrived.made.sizes)))
        self.drop(arrived)
