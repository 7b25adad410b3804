"""Which slot belongs to which task, and batches that have arrived in them."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from wattsmith.feed.messages import Made
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
    """Gives slots to tasks before they need them, by the size of the largest batch so far."""

    def __init__(self, slots: Slots) -> None:
        self.slots = slots
        self._of: dict[int, Slot] = {}  # by serial: slots in the hands of workers
        self._likely_bytes = 0

    def learn(self, size_bytes: int) -> None:
        """There are batches of this size."""
        if size_bytes > INLINE_BYTES:
            self._likely_bytes = max(self._likely_bytes, size_bytes)

    def offer(self, serial: int) -> tuple[int, int] | None:
        """A slot for task SERIAL, in case it needs one; None: it will have to ask."""
        return self.grant(serial, self._likely_bytes) if self._likely_bytes else None

    def grant(self, serial: int, size_bytes: int) -> tuple[int, int] | None:
        """A slot of SIZE_BYTES for task SERIAL instead of the one it has; None: not now. Raises SlotTooSmall."""
        self.free(serial)
        slot = self.slots.take(size_bytes)
        if slot is None:
            return None
        self._of[serial] = slot
        return slot.offset, slot.capacity_bytes

    def free(self, serial: int) -> None:
        """Nobody writes for task SERIAL any more."""
        slot = self._of.pop(serial, None)
        if slot is not None:
            self.slots.give_back(slot)

    def arrive(self, made: Made, seat: int, payload: bytearray | None) -> Arrived:
        """The batch MADE has arrived whole."""
        self.learn(room_for(made.sizes))
        if not made.in_slot:
            self.free(made.serial)
        return Arrived(made, seat, self._of.pop(made.serial, None), payload)

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
