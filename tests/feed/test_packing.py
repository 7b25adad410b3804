"""A batch is taken apart and put together again as it was."""

from collections import namedtuple
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.feed.packing import offsets, pack, room_for, unpack

Point = namedtuple("Point", ["x", "y"])


@dataclass
class Pair:
    left: torch.Tensor
    right: list[object]


def through(batch):
    packed = pack(batch)
    room = bytearray(packed.total_bytes)
    packed.write(memoryview(room))
    return unpack(packed.skeleton, packed.sizes, room)


def test_nested_things_come_back_with_their_types():
    batch = {"a": Point(torch.arange(6).view(2, 3), "text"), "b": [Pair(torch.ones(2), [1, None]), (2.5, b"x")]}
    back = through(batch)
    assert isinstance(back["a"], Point)
    assert torch.equal(back["a"].x, torch.tensor([[0, 1, 2], [3, 4, 5]]))
    assert back["a"].y == "text"
    assert isinstance(back["b"][0], Pair)
    assert torch.equal(back["b"][0].left, torch.ones(2))
    assert back["b"][1] == (2.5, b"x")


@pytest.mark.parametrize(
    "dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.float64, torch.int64, torch.complex64]
)
def test_every_dtype_keeps_its_bits(dtype):
    tensor = torch.tensor([0, 1, 1, 0, 1]).to(dtype)
    back = through(tensor)
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(7),
        torch.empty(0, 3),
        torch.arange(24.0).view(1, 2, 3, 4).to(memory_format=torch.channels_last),
        torch.arange(12).view(3, 4).t(),
        torch.arange(10)[::3],
        torch.ones(1).expand(4, 3),
        torch.eye(3).to_sparse(),
        torch.ones(2, requires_grad=True),
        torch.view_as_complex(torch.ones(3, 2)).conj(),
    ],
    ids=[
        "scalar",
        "empty",
        "channels last",
        "transposed",
        "strided",
        "expanded",
        "sparse",
        "with gradient",
        "conjugate",
    ],
)
def test_tensors_of_every_kind_come_back_equal(tensor):
    back = through(tensor)
    assert back.shape == tensor.shape
    assert torch.equal(back.to_dense().resolve_conj(), tensor.to_dense().resolve_conj())
    assert back.requires_grad == tensor.requires_grad


def test_channels_last_stays_channels_last():
    assert through(torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)).is_contiguous(
        memory_format=torch.channels_last
    )


def test_arrays_come_back_and_can_be_written_to():
    back = through({"a": np.arange(5.0), "s": np.float32(2)})
    back["a"][0] = 9
    assert back["a"].tolist() == [9, 1, 2, 3, 4]
    assert back["s"] == np.float32(2)


def test_the_bytes_of_tensors_are_not_in_the_skeleton():
    packed = pack({"x": torch.zeros(1000, 1000)})
    assert packed.sizes == (4_000_000,)
    assert len(packed.skeleton) < 300


def test_one_tensor_twice_travels_once():
    tensor = torch.arange(3)
    packed = pack([tensor, tensor])
    assert packed.sizes == (24,)


@given(st.lists(st.integers(0, 1000), max_size=20))
def test_pieces_begin_at_multiples_of_64_and_do_not_overlap(sizes):
    begins = offsets(sizes)
    assert all(begin % 64 == 0 for begin in begins)
    ends = [begin + size for begin, size in zip(begins, sizes, strict=True)]
    assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    assert not sizes or ends[-1] <= room_for(sizes)
