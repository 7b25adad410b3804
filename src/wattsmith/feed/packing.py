"""A batch as a small skeleton and its raw bytes, and back again.

The skeleton is a pickle from which the bytes of tensors and arrays have been taken out, wherever they stand: in
dicts, lists, tuples, named tuples, dataclasses or objects of one's own. The bytes go, one behind the other, into
whatever carries them: a slot of shared memory, a socket, the message itself.
"""

import io
import pickle
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

ALIGN_BYTES = 64  # vector instructions like it, and every dtype's alignment divides it


@dataclass(frozen=True, slots=True)
class Packed:
    """One batch, ready to be written: SIZES are those of RAW, each of which begins at a multiple of 64."""

    skeleton: bytes
    sizes: tuple[int, ...]
    raw: Sequence[memoryview]

    @property
    def total_bytes(self) -> int:
        return room_for(self.sizes)

    def write(self, into: memoryview) -> None:
        """Put the raw bytes where `unpack` looks for them. INTO must have room for total_bytes."""
        for offset, piece in zip(offsets(self.sizes), self.raw, strict=True):
            into[offset : offset + piece.nbytes] = piece


def offsets(sizes: Sequence[int]) -> list[int]:
    """Where each piece begins."""
    begin, found = 0, []
    for size in sizes:
        found.append(begin)
        begin += -(-size // ALIGN_BYTES) * ALIGN_BYTES
    return found


def room_for(sizes: Sequence[int]) -> int:
    """Bytes that pieces of these SIZES take together."""
    return sum(-(-size // ALIGN_BYTES) * ALIGN_BYTES for size in sizes)


def pack(batch: Any) -> Packed:
    """Take BATCH apart. Nothing is copied yet, so it must not change before it is written."""
    import torch

    taken: list[pickle.PickleBuffer] = []
    written = io.BytesIO()
    _packer_of(torch)(written, protocol=5, buffer_callback=taken.append).dump(batch)
    raw = [buffer.raw() for buffer in taken]
    return Packed(written.getvalue(), tuple(piece.nbytes for piece in raw), raw)


def unpack(skeleton: bytes | memoryview, sizes: Sequence[int], held: Any) -> Any:
    """The batch. Its tensors and arrays are views of HELD (anything with a buffer), and keep it alive."""
    if not sizes:
        return pickle.loads(skeleton)
    room = memoryview(held).cast("B")
    pieces = [room[begin : begin + size] for begin, size in zip(offsets(sizes), sizes, strict=True)]
    return pickle.loads(skeleton, buffers=pieces)


def _packer_of(torch: Any) -> Any:
    """The pickler that knows tensors; made once torch is there."""
    global _Packer
    if _Packer is not None:
        return _Packer
    plain, strided = torch.Tensor, torch.strided

    class Packer(pickle.Pickler):
        # Called for what pickle has no short form for, so lists of thousands of numbers stay quick.
        def reducer_override(self, value: Any) -> Any:
            if type(value) is not plain or value.layout is not strided or value.device.type != "cpu":
                return NotImplemented
            if value.requires_grad or value.is_quantized or value.is_nested or value.is_conj() or value.is_neg():
                return NotImplemented
            if value.numel() == 0:
                return _empty_tensor, (value.dtype, tuple(value.shape))
            if value.is_contiguous():
                return _tensor, (_bytes_of(value, torch), value.dtype, tuple(value.shape), None)
            # Channels-last and the like: dense, in another order of dimensions, which is to stay.
            order = sorted(range(value.dim()), key=lambda axis: -value.stride(axis))
            dense = value.permute(order)
            if not dense.is_contiguous():
                return _tensor, (_bytes_of(value.contiguous(), torch), value.dtype, tuple(value.shape), None)
            back = tuple(order.index(axis) for axis in range(value.dim()))
            return _tensor, (_bytes_of(dense, torch), value.dtype, tuple(dense.shape), back)

    _Packer = Packer
    return Packer


_Packer: Any = None


def _bytes_of(tensor: Any, torch: Any) -> pickle.PickleBuffer:
    return pickle.PickleBuffer(tensor.detach().reshape(-1).view(torch.uint8).numpy())


def _tensor(raw: Any, dtype: Any, shape: tuple[int, ...], back: tuple[int, ...] | None) -> Any:
    import torch

    tensor = torch.frombuffer(raw, dtype=dtype).view(shape)
    return tensor if back is None else tensor.permute(back)


def _empty_tensor(dtype: Any, shape: tuple[int, ...]) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype)
