"""Slots are used again, never while anyone looks at them, and never take more memory than allowed."""

import itertools
import socket
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from wattsmith.feed.slots import SMALLEST_BYTES, Room, Slots, SlotTooSmall, Stock, capacity_for, span_for
from wattsmith.terms.errors import BadTerm

MIB = 1 << 20


def by_place(slot):
    return slot.offset


@given(st.integers(1, 1 << 34))
def test_a_capacity_is_at_least_the_size_and_at_most_an_eighth_more(size):
    assert size <= capacity_for(size) <= max(SMALLEST_BYTES, size * 9 / 8 + 4096)


def test_sixteen_feeders_fit_into_a_process_on_a_machine_with_two_terabytes():
    addresses_bytes, limit_bytes = 1 << 47, 1 << 39
    assert 16 * span_for(limit_bytes) <= addresses_bytes / 2
    assert span_for(limit_bytes) >= 4 * limit_bytes
    assert span_for(MIB) == 64 * MIB


def test_a_slot_that_came_back_is_given_again():
    slots = Slots(8 * MIB)
    first = slots.take(MIB)
    slots.give_back(first)
    assert slots.take(MIB) == first
    assert slots.used_bytes == MIB


def test_a_worker_gets_the_slot_back_that_it_wrote_last():
    slots = Slots(8 * MIB)
    his, hers = slots.take(MIB, writer=1), slots.take(MIB, writer=2)
    slots.give_back(his)
    slots.give_back(hers)
    assert slots.take(MIB, writer=1) == his
    assert slots.take(MIB, writer=1) == hers  # another's rather than none


def test_the_place_that_a_worker_got_last_is_used_first():
    stock = Stock()
    for place in ((0, 10), (10, 30), (40, 20)):
        stock.add(place)
    assert stock.take(5) == (40, 20)
    assert stock.take(25) == (10, 30)
    assert stock.take(25) is None
    assert (stock.spare(), stock.spare()) == (0, None)


def test_a_stock_that_is_emptied_tells_all_that_it_held():
    stock = Stock()
    stock.add((0, 10))
    stock.add((10, 10))
    assert sorted(stock.empty()) == [0, 10]
    assert stock.empty() == ()


def test_slots_in_use_do_not_overlap():
    slots = Slots(8 * MIB)
    taken = sorted((slots.take(size) for size in (MIB, MIB // 2, MIB, 70_000)), key=lambda slot: slot.offset)
    for one, other in itertools.pairwise(taken):
        assert one.offset + one.capacity_bytes <= other.offset


def test_a_full_room_gives_none_until_something_comes_back():
    slots = Slots(2 * MIB)
    first, second = slots.take(MIB), slots.take(MIB)
    assert second is not None
    assert slots.take(MIB) is None
    slots.give_back(first)
    assert slots.take(MIB) == first


def test_what_can_never_fit_is_said_at_once():
    with pytest.raises(SlotTooSmall, match="3145728 bytes does not fit: memory_limit_bytes is 2097152"):
        Slots(2 * MIB).take(3 * MIB)


def test_a_limit_below_the_smallest_slot_is_refused():
    with pytest.raises(BadTerm, match="at least 65536"):
        Slots(1000)


def test_small_slots_give_their_memory_to_a_large_one():
    slots = Slots(2 * MIB)
    for slot in [slots.take(MIB), slots.take(MIB)]:
        slots.give_back(slot)
    assert slots.take(2 * MIB) is not None
    assert slots.used_bytes == 2 * MIB


def test_a_slot_stays_while_any_view_of_it_lives():
    slots = Slots(8 * MIB)
    slot = slots.take(MIB)
    tensor = torch.frombuffer(slots.hold(slot), dtype=torch.uint8)
    part = tensor[5:10].numpy()[1:]
    del tensor
    assert slots.take(MIB) != slot
    assert slots.held == 1
    del part
    assert slots.take(MIB) == slot
    assert slots.held == 0


def test_views_outlive_the_slots():
    slots = Slots(8 * MIB)
    tensor = torch.frombuffer(slots.hold(slots.take(MIB)), dtype=torch.uint8)
    tensor.fill_(7)
    del slots
    assert int(tensor.sum()) == 7 * MIB


def test_another_process_sees_the_same_memory_and_it_has_no_name():
    slots = Slots(MIB)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        slots.room.send(ours)
        other = Room.receive(theirs)
    other.view(100_000, 3)[:] = b"abc"
    assert bytes(slots.room.view(100_000, 3)) == b"abc"
    assert str(Path(f"/proc/self/fd/{other.descriptor}").readlink()).startswith("/memfd:")


def test_sending_the_memory_to_a_process_that_has_gone_is_no_error():
    ours, theirs = socket.socketpair()
    theirs.close()
    with ours:
        Slots(MIB).room.send(ours)


def test_a_user_may_keep_what_leaves_room_for_a_batch_of_the_largest_size():
    slots = Slots(4 * MIB)
    kept = [slots.hold(slots.take(MIB))]
    slot = slots.take(MIB)
    assert slots.may_hold(slot, 2 * MIB)
    kept.append(slots.hold(slot))
    assert not slots.may_hold(slots.take(MIB), 2 * MIB)
    kept.clear()
    assert slots.may_hold(slot, 2 * MIB)


def test_batches_may_take_more_sizes_than_there_are_addresses_for():
    slots, all_bytes = Slots(64 * MIB), 0
    for size in (SMALLEST_BYTES * 2**octave * (8 + eighth) // 8 for octave in range(10) for eighth in range(8)):
        taken = list(iter(lambda size=size: slots.take(size), None))
        assert len(taken) == 64 * MIB // size
        assert all(one.offset + size <= other.offset for one, other in itertools.pairwise(sorted(taken, key=by_place)))
        assert max(taken, key=by_place).offset + size <= slots.room.span_bytes
        all_bytes += len(taken) * size
        for slot in taken:
            slots.give_back(slot)
    assert all_bytes > slots.room.span_bytes


@settings(max_examples=30)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 300_000)), max_size=40))
def test_no_sequence_of_takes_and_returns_goes_beyond_the_limit(steps):
    slots, taken = Slots(MIB), []
    for take, size in steps:
        if take:
            taken += [slot for slot in [slots.take(size)] if slot is not None]
        elif taken:
            slots.give_back(taken.pop())
        places = sorted((slot.offset, slot.offset + slot.capacity_bytes) for slot in taken)
        assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(places))
        assert sum(slot.capacity_bytes for slot in taken) <= slots.used_bytes <= MIB
