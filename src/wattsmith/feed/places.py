"""Which slots are in the hands of which worker, and batches that have arrived in them."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from wattsmith.feed.messages import Made, Place
from wattsmith.feed.packing import room_for, unpack
from wattsmith.feed.slots import Slot, Slots
from wattsmith.feed.worker import INLINE_BYTES


@dataclass(slots=True)
class Arrived:
    """A batch that is there. Its bytes are in the slot, or in PAYLOAD."""

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

    def take_back(self, worker: int, offset: int | None) -> None:
        """WORKER does not need its place at OFFSET; None: it had none."""
        if offset is not None:
            self.slots.give_back(self._of[worker].pop(offset))

    def take_back_all(self, worker: int) -> None:
        """WORKER writes nothing any more."""
        for slot in self._of.pop(worker, {}).values():
            self.slots.give_back(slot)

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
            if not copy_out and self.slots.may_hold(arrived.slot):
                return unpack(made.skeleton, made.sizes, self.slots.hold(arrived.slot))
            self.move_out(arrived)
        return unpack(made.skeleton, made.sizes, arrived.payload)

    def move_out(self, arrived: Arrived) -> None:
        """Copy ARRIVED into memory of its own, and let its slot be used again."""
        assert arrived.slot is not None
        arrived.payload = bytearray(self.slots.room.view(arrived.slot.offset, room_for(arrived.made.sizes)))
        self.drop(arrived)
