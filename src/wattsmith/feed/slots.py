"""Places for finished batches in memory that the trainer owns and workers write into.

One anonymous file of memory (memfd) holds all of them: it has no name, so nothing stays behind however the
processes end. It is far larger than the memory that may be used; only what was written to takes any. A slot is
used again and again, since the first touch of fresh memory costs several times the copy itself.
"""

import collections
import contextlib
import ctypes
import mmap
import os
import socket
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from wattsmith.terms.errors import BadTerm, WattsmithError

HEADER_BYTES = 1 << 16  # words that all processes see: see `Notes`
SMALLEST_BYTES = 1 << 16
SPAN = 64  # virtual room for each byte that may be used; sizes change, and old places are not moved
# A process has 128 TB of addresses, and a worker that is forked has its trainer's rooms mapped beside its own: where a
# quarter of the memory is hundreds of gigabytes, several Feeders at a time would take them all.
WIDE_BYTES, LEAST_SPAN = 1 << 40, 4
ENOUGH_HELD = 512  # batches that a user may keep as views; further ones are copied out


class SlotTooSmall(WattsmithError):
    """One batch needs more memory than all slots together may take; allow more or make batches smaller."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A place for one batch: where it begins in the file, and how much it holds."""

    offset: int
    capacity_bytes: int


def capacity_for(size_bytes: int) -> int:
    """SIZE_BYTES rounded up by at most an eighth, so that batches of nearly one size share places."""
    if size_bytes <= SMALLEST_BYTES:
        return SMALLEST_BYTES
    step = 1 << max(12, size_bytes.bit_length() - 4)
    return -(-size_bytes // step) * step


def span_for(limit_bytes: int) -> int:
    """Virtual room for slots that together take at most LIMIT_BYTES."""
    return min(SPAN * limit_bytes, max(WIDE_BYTES, LEAST_SPAN * limit_bytes))


class Room:
    """The memory itself, mapped into this process. Views of it keep it alive."""

    def __init__(self, span_bytes: int, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("wattsmith-feed", os.MFD_CLOEXEC)
            os.ftruncate(descriptor, span_bytes)
        self.descriptor = descriptor
        self.span_bytes = span_bytes
        self._map = mmap.mmap(descriptor, span_bytes)
        self._close = weakref.finalize(self, os.close, descriptor)

    def view(self, offset: int, size_bytes: int) -> memoryview:
        return memoryview(self._map)[offset : offset + size_bytes]

    def held(self, slot: Slot) -> Any:
        """An object with the slot's bytes as its buffer; whatever views them keeps this very object alive."""
        return (ctypes.c_ubyte * slot.capacity_bytes).from_buffer(self._map, slot.offset)

    def forget(self, slot: Slot) -> None:
        """Give the slot's memory back to the machine; its place stays."""
        self._map.madvise(mmap.MADV_REMOVE, slot.offset, slot.capacity_bytes)

    def send(self, through: socket.socket) -> None:
        """Let the process at the other end of a Unix socket map the same memory, if it still is there."""
        with contextlib.suppress(BrokenPipeError):
            socket.send_fds(through, [self.span_bytes.to_bytes(8, "big")], [self.descriptor])

    @staticmethod
    def receive(through: socket.socket) -> "Room":
        size, descriptors, _, _ = socket.recv_fds(through, 8, 1)
        if len(size) != 8 or not descriptors:
            raise EOFError("the trainer has gone")
        return Room(int.from_bytes(size, "big"), descriptors[0])


class Notes:
    """Words in the header: whether all is to stop, and which task each worker has begun."""

    def __init__(self, room: Room) -> None:
        self._words = room.view(0, HEADER_BYTES).cast("Q")

    def stop(self) -> None:
        self._words[0] = 1

    @property
    def stopped(self) -> bool:
        return bool(self._words[0])

    def begin(self, worker: int, task: int) -> None:
        """WORKER is at work on TASK; 0: on none."""
        self._words[1 + worker % (len(self._words) - 1)] = task

    def begun(self, worker: int) -> int:
        return self._words[1 + worker % (len(self._words) - 1)]


class Stock:
    """Places that a worker may write into: one for each task that it was given, or fewer.

    The one that it got last comes first, so that a quick trainer is served from few, which the processor's cache can
    hold; the others stay in reserve, for times in which batches wait for the trainer.
    """

    def __init__(self) -> None:
        self._places: list[tuple[int, int]] = []

    def add(self, place: tuple[int, int]) -> None:
        self._places.append(place)

    def take(self, size_bytes: int) -> tuple[int, int] | None:
        """A place with room for SIZE_BYTES; None: there is none."""
        for at in range(len(self._places) - 1, -1, -1):
            if self._places[at][1] >= size_bytes:
                return self._places.pop(at)
        return None

    def spare(self) -> int | None:
        """The offset of a place that is not needed; None: there is none."""
        return self._places.pop(0)[0] if self._places else None

    def empty(self) -> tuple[int, ...]:
        """The offsets of all places, which are here no longer."""
        offsets = []
        while self._places:  # one by one: another thread may be adding
            offsets.append(self._places.pop()[0])
        return tuple(offsets)


class Slots:
    """Hands slots out, and takes them back when nobody looks at them any more."""

    def __init__(self, limit_bytes: int) -> None:
        if limit_bytes < SMALLEST_BYTES:
            raise BadTerm(f"memory_limit_bytes must be at least {SMALLEST_BYTES} bytes, got {limit_bytes}")
        self.limit_bytes = limit_bytes
        self.room = Room(HEADER_BYTES + span_for(limit_bytes))
        self.used_bytes = 0  # memory that slots take, whether in use or not
        self.held = 0  # slots that the user's batches are views of
        self.held_bytes = 0
        self._end = HEADER_BYTES
        self._warm: dict[int, list[Slot]] = {}  # by capacity, with memory; the last to come back is the last
        self._writers: dict[int, int] = {}  # by offset: who has had the slot last
        self._cold: dict[int, list[Slot]] = {}  # without
        # A view can die at any moment, in any thread, even inside a method of this class: only this is touched then.
        self._returned: collections.deque[Slot] = collections.deque()

    def take(self, size_bytes: int, writer: int = 0) -> Slot | None:
        """A slot with room for SIZE_BYTES, of those that WRITER has had if there is one.

        None: the memory allowed is in use. Raises SlotTooSmall if it never fits.
        """
        slot = self._take(size_bytes, writer)
        if slot is not None:
            self._writers[slot.offset] = writer
        return slot

    def _take(self, size_bytes: int, writer: int) -> Slot | None:
        self._collect()
        capacity_bytes = capacity_for(size_bytes)
        if capacity_bytes > self.limit_bytes:
            raise SlotTooSmall(
                f"a batch of {size_bytes} bytes does not fit: memory_limit_bytes is {self.limit_bytes} bytes. "
                "Give Feeder a larger memory_limit_bytes, or make the batch smaller."
            )
        for size in sorted(self._warm):
            if capacity_bytes <= size <= 2 * capacity_bytes and (warm := self._warm[size]):
                # A core writes quickest to where it has written before: no other core's cache has to be asked.
                own = (at for at in range(len(warm) - 1, -1, -1) if self._writers[warm[at].offset] == writer)
                return warm.pop(next(own, -1))
        if not self._make_room(capacity_bytes):
            return None
        slot = self._place_for(capacity_bytes)
        if slot is not None:
            self.used_bytes += capacity_bytes
        return slot

    def _place_for(self, capacity_bytes: int) -> Slot | None:
        """A place without memory: that of an earlier slot of this size, a new one, or a part of several old ones."""
        if self._cold.get(capacity_bytes):
            return self._cold[capacity_bytes].pop()
        if self._end + capacity_bytes > self.room.span_bytes:
            return self._joined(capacity_bytes)
        slot = Slot(self._end, capacity_bytes)
        self._end += capacity_bytes
        return slot

    def _joined(self, capacity_bytes: int) -> Slot | None:
        """A place where slots of other sizes were, side by side; None: those in use lie in between."""
        for slots in self._warm.values():
            while slots:
                self._cool(slots.pop())
        runs = _side_by_side(slot for slots in self._cold.values() for slot in slots)
        self._cold = {}
        for run in runs:
            self._cold.setdefault(run.capacity_bytes, []).append(run)
        longest_bytes = max(self._cold, default=0)
        if longest_bytes < capacity_bytes:
            return None
        run = self._cold[longest_bytes].pop()
        if rest_bytes := longest_bytes - capacity_bytes:
            self._cold.setdefault(rest_bytes, []).append(Slot(run.offset + capacity_bytes, rest_bytes))
        return Slot(run.offset, capacity_bytes)

    def give_back(self, slot: Slot) -> None:
        """Nobody writes or reads SLOT any more."""
        self._warm.setdefault(slot.capacity_bytes, []).append(slot)

    def hold(self, slot: Slot) -> Any:
        """The slot's bytes for the user. It comes back by itself when the last view of them is gone."""
        held = self.room.held(slot)
        self.held += 1
        self.held_bytes += slot.capacity_bytes
        weakref.finalize(held, self._returned.append, slot).atexit = False
        return held

    def may_hold(self, slot: Slot, next_bytes: int) -> bool:
        """Whether a user may keep SLOT and there is still memory for a batch of NEXT_BYTES."""
        self._collect()
        kept_bytes = self.held_bytes + slot.capacity_bytes
        return self.held < ENOUGH_HELD and kept_bytes + capacity_for(next_bytes) <= self.limit_bytes

    def _collect(self) -> None:
        while self._returned:
            slot = self._returned.popleft()
            self.give_back(slot)
            self.held -= 1
            self.held_bytes -= slot.capacity_bytes

    def _make_room(self, capacity_bytes: int) -> bool:
        """Empty slots that nobody uses until CAPACITY_BYTES more fit into the limit."""
        for size in sorted(self._warm):
            while self._warm[size] and self.used_bytes + capacity_bytes > self.limit_bytes:
                self._cool(self._warm[size].pop())
        return self.used_bytes + capacity_bytes <= self.limit_bytes

    def _cool(self, slot: Slot) -> None:
        """Give the memory of SLOT, which nobody uses, back to the machine."""
        self.room.forget(slot)
        self.used_bytes -= slot.capacity_bytes
        self._cold.setdefault(slot.capacity_bytes, []).append(slot)


def _side_by_side(slots: Iterable[Slot]) -> list[Slot]:
    """SLOTS, of which those that touch have become one."""
    runs: list[Slot] = []
    for slot in sorted(slots, key=lambda slot: slot.offset):
        if runs and runs[-1].offset + runs[-1].capacity_bytes == slot.offset:
            runs[-1] = Slot(runs[-1].offset, runs[-1].capacity_bytes + slot.capacity_bytes)
        else:
            runs.append(slot)
    return runs


def memory_allowed_bytes() -> int:
    """A quarter of the memory that is free now, at least 64 MiB."""
    try:
        with open("/proc/meminfo") as lines:  # noqa: PTH123
            free_bytes = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        free_bytes = 1 << 32
    return max(1 << 26, free_bytes // 4)
