"""Peak memory of a step: its tensors' lifetimes, played through a model of PyTorch's caching allocator on CUDA.

The allocator takes memory from the device in segments and cuts blocks from them. A block for a tensor may be larger
than the tensor: sizes are rounded up to 512 bytes, and what is left of a large block is not cut off unless it is more
than 1 MiB. Blocks that are given back join their free neighbours and wait; nothing is returned to the device.
"""

import math
from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

ROUND_BYTES = 512
SMALL_BYTES = 2**20  # up to here tensors share small segments; what is left of a large block stays with it up to here
SMALL_SEGMENT_BYTES = 2 * 2**20
MEDIUM_BYTES = 10 * 2**20  # below it, large tensors share segments of
MEDIUM_SEGMENT_BYTES = 20 * 2**20
SEGMENT_ROUND_BYTES = 2 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """The most memory at any time."""

    allocated_bytes: int  # in blocks that tensors hold, as torch.cuda.max_memory_allocated counts
    reserved_bytes: int  # in segments, as torch.cuda.max_memory_reserved counts


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment."""

    size: int
    small: bool
    number: int  # breaks ties: the older comes first
    free: bool = False
    before: "Block | None" = None
    after: "Block | None" = None


class Allocator:
    """The caching allocator of one device, with no limit to its memory."""

    def __init__(self) -> None:
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = 0
        self._held: dict[int, Block] = {}
        self._free: dict[bool, list[tuple[int, int]]] = {True: [], False: []}  # by pool: size and number, in order
        self._blocks: dict[int, Block] = {}
        self._numbers = 0

    def take(self, tensor: int, size_bytes: int) -> None:
        size = max(math.ceil(size_bytes / ROUND_BYTES) * ROUND_BYTES, ROUND_BYTES)
        block = self._cut(self._found(size) or self._new_segment(size), size)
        self._held[tensor] = block
        self.allocated_bytes += block.size
        self.peak_allocated_bytes = max(self.peak_allocated_bytes, self.allocated_bytes)

    def give_back(self, tensor: int) -> None:
        block = self._held.pop(tensor)
        self.allocated_bytes -= block.size
        for beside in (block.before, block.after):
            if beside is not None and beside.free:
                self._forget(beside)
                self._join(block, beside)
        self._keep_free(block)

    def _found(self, size: int) -> Block | None:
        """The smallest free block that is large enough."""
        waiting = self._free[size <= SMALL_BYTES]
        at = bisect_left(waiting, (size, -1))
        if at == len(waiting):
            return None
        block = self._blocks[waiting[at][1]]
        self._forget(block)
        return block

    def _new_segment(self, size: int) -> Block:
        if size <= SMALL_BYTES:
            whole = SMALL_SEGMENT_BYTES
        elif size < MEDIUM_BYTES:
            whole = MEDIUM_SEGMENT_BYTES
        else:
            whole = math.ceil(size / SEGMENT_ROUND_BYTES) * SEGMENT_ROUND_BYTES
        self.reserved_bytes += whole
        return self._block(whole, size <= SMALL_BYTES)

    def _cut(self, block: Block, size: int) -> Block:
        left = block.size - size
        if left < (ROUND_BYTES if block.small else SMALL_BYTES + 1):
            return block
        rest = self._block(left, block.small)
        block.size = size
        rest.before, rest.after, block.after = block, block.after, rest
        if rest.after is not None:
            rest.after.before = rest
        self._keep_free(rest)
        return block

    def _join(self, block: Block, beside: Block) -> None:
        block.size += beside.size
        if beside is block.before:
            block.before = beside.before
            if block.before is not None:
                block.before.after = block
        else:
            block.after = beside.after
            if block.after is not None:
                block.after.before = block

    def _block(self, size: int, small: bool) -> Block:
        self._numbers += 1
        block = Block(size=size, small=small, number=self._numbers)
        self._blocks[block.number] = block
        return block

    def _keep_free(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.small], (block.size, block.number))

    def _forget(self, block: Block) -> None:
        block.free = False
        waiting = self._free[block.small]
        del waiting[bisect_left(waiting, (block.size, block.number))]


def replay(memory: Sequence[tuple[int, int]], last_step_at: int = 0) -> Peaks:
    """Play MEMORY, which is a number and the bytes taken, 0 for given back. Peaks from place LAST_STEP_AT on."""
    allocator = Allocator()
    _play(allocator, memory[:last_step_at])
    allocator.peak_allocated_bytes = allocator.allocated_bytes
    _play(allocator, memory[last_step_at:])
    return Peaks(allocated_bytes=allocator.peak_allocated_bytes, reserved_bytes=allocator.reserved_bytes)


def _play(allocator: Allocator, memory: Sequence[tuple[int, int]]) -> None:
    for tensor, size_bytes in memory:
        if size_bytes:
            allocator.take(tensor, size_bytes)
        else:
            allocator.give_back(tensor)
