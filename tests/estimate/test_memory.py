"""Memory of a step: the sizes that PyTorch's allocator rounds to, what it keeps, and the peaks that come of it."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers, lists, tuples

from wattsmith.estimate.memory import Allocator, Peaks, replay

KIB = 2**10
MIB = 2**20


def with_tensors(*sizes_bytes):
    """An allocator that has given tensors 1, 2, … of these sizes."""
    allocator = Allocator()
    for tensor, size_bytes in enumerate(sizes_bytes, start=1):
        allocator.take(tensor, size_bytes)
    return allocator


class TestSizes:
    @pytest.mark.parametrize(("asked", "given"), [(1, 512), (512, 512), (513, 1024), (5 * KIB, 5 * KIB)])
    def test_blocks_come_in_multiples_of_512_bytes(self, asked, given):
        assert with_tensors(asked).allocated_bytes == given

    @pytest.mark.parametrize(
        ("asked", "segment"),
        [
            (1, 2 * MIB),
            (MIB, 2 * MIB),  # the largest small one
            (MIB + 1, 20 * MIB),
            (10 * MIB - 512, 20 * MIB),
            (10 * MIB, 10 * MIB),
            (10 * MIB + 1, 12 * MIB),
            (101 * MIB, 102 * MIB),
        ],
    )
    def test_a_tensor_brings_a_segment_that_depends_on_its_size(self, asked, segment):
        assert with_tensors(asked).reserved_bytes == segment

    def test_small_tensors_share_a_segment_until_it_is_full(self):
        assert with_tensors(*[512 * KIB] * 4).reserved_bytes == 2 * MIB
        assert with_tensors(*[512 * KIB] * 5).reserved_bytes == 4 * MIB

    def test_medium_tensors_share_a_segment_until_it_is_full(self):
        assert with_tensors(*[5 * MIB] * 4).reserved_bytes == 20 * MIB
        assert with_tensors(*[5 * MIB] * 5).reserved_bytes == 40 * MIB

    def test_what_is_left_of_a_large_block_stays_with_it_up_to_one_mebibyte(self):
        assert with_tensors(11 * MIB).allocated_bytes == 12 * MIB
        assert with_tensors(11 * MIB - 512).allocated_bytes == 11 * MIB - 512  # more than 1 MiB is left of 12

    def test_what_is_left_of_a_large_segment_is_no_place_for_small_tensors(self):
        assert with_tensors(5 * MIB, 512).reserved_bytes == 22 * MIB


class TestKeeping:
    def test_what_was_given_back_is_taken_again(self):
        allocator = with_tensors(30 * MIB)
        allocator.give_back(1)
        allocator.take(2, 30 * MIB)
        assert allocator.reserved_bytes == 30 * MIB

    def test_nothing_goes_back_to_the_device(self):
        allocator = with_tensors(30 * MIB)
        allocator.give_back(1)
        assert (allocator.allocated_bytes, allocator.reserved_bytes) == (0, 30 * MIB)

    @pytest.mark.parametrize("freed", [(2, 3), (3, 2)])
    def test_free_neighbours_join(self, freed):
        allocator = with_tensors(*[5 * MIB] * 4)
        for tensor in freed:
            allocator.give_back(tensor)
        allocator.take(5, 10 * MIB)
        assert allocator.reserved_bytes == 20 * MIB

    def test_a_block_joins_both_its_neighbours(self):
        allocator = with_tensors(*[5 * MIB] * 4)
        for tensor in (1, 3, 2):
            allocator.give_back(tensor)
        allocator.take(5, 15 * MIB)
        assert allocator.reserved_bytes == 20 * MIB

    def test_free_blocks_with_a_tensor_between_them_do_not(self):
        allocator = with_tensors(*[5 * MIB] * 4)
        for tensor in (1, 3):
            allocator.give_back(tensor)
        allocator.take(5, 10 * MIB)
        assert allocator.reserved_bytes == 30 * MIB

    def test_segments_never_join(self):
        allocator = with_tensors(10 * MIB, 10 * MIB)
        for tensor in (1, 2):
            allocator.give_back(tensor)
        allocator.take(3, 20 * MIB)
        assert allocator.reserved_bytes == 40 * MIB

    def test_the_smallest_block_that_fits_is_taken_even_if_the_next_tensor_then_finds_none(self):
        allocator = with_tensors(5 * MIB, 16 * MIB, 15 * MIB)  # 5 and 15 in one segment, 16 in its own
        assert allocator.reserved_bytes == 36 * MIB
        for tensor in (1, 2, 3):
            allocator.give_back(tensor)
        allocator.take(4, 5 * MIB)  # from the 16
        allocator.take(5, 16 * MIB)  # from the 20
        assert allocator.reserved_bytes == 36 * MIB
        allocator.take(6, 15 * MIB)
        assert allocator.reserved_bytes == 52 * MIB


# A number that is held is given back, one that is not is taken, so that any list of pairs is a history.
sizes_bytes = integers(1, 3 * MIB) | integers(1, 40).map(lambda mebi: mebi * MIB)
histories = lists(tuples(integers(0, 9), sizes_bytes), max_size=60)


def played(history):
    """HISTORY in an allocator, what it holds at the end, all sizes it gave, and what it was like after each step."""
    allocator, held, taken, after = Allocator(), {}, [], []
    for tensor, size_bytes in history:
        if tensor in held:
            allocator.give_back(tensor)
            del held[tensor]
        else:
            allocator.take(tensor, size_bytes)
            held[tensor] = size_bytes
            taken.append(size_bytes)
        after.append((sum(held.values()), len(held), allocator.allocated_bytes, allocator.reserved_bytes))
    return allocator, held, taken, after


@given(histories)
def test_tensors_fit_in_their_blocks_and_blocks_in_their_segments(history):
    for needed, tensors, allocated, reserved in played(history)[3]:
        assert needed <= allocated <= needed + tensors * (MIB + 512)
        assert allocated <= reserved


@given(histories)
def test_when_all_is_given_back_nothing_is_lost(history):
    allocator, held, taken, _ = played(history)
    for tensor in held:
        allocator.give_back(tensor)
    assert allocator.allocated_bytes == 0
    kept_bytes = allocator.reserved_bytes
    for size_bytes in taken:
        # Each of them finds its place again. All of them together may not: see the smallest block that fits.
        allocator.take(-1, size_bytes)
        allocator.give_back(-1)
    assert allocator.reserved_bytes == kept_bytes


@given(integers(1, 60 * MIB), integers(1, 20))
def test_as_many_tensors_of_one_size_can_be_taken_again_without_new_segments(size_bytes, count):
    allocator = with_tensors(*[size_bytes] * count)
    kept_bytes, needed_bytes = allocator.reserved_bytes, allocator.allocated_bytes
    for tensor in range(count, 0, -1):
        allocator.give_back(tensor)
    for tensor in range(1, count + 1):
        allocator.take(tensor, size_bytes)
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (needed_bytes, kept_bytes)


class TestReplay:
    def test_the_peak_is_what_was_held_at_once(self):
        memory = [(1, 4 * MIB), (2, 3 * MIB), (1, 0), (3, 2 * MIB), (2, 0), (3, 0)]
        assert replay(memory) == Peaks(allocated_bytes=7 * MIB, reserved_bytes=20 * MIB)

    def test_only_the_last_step_makes_the_peak_but_what_earlier_ones_left_counts(self):
        memory = [(1, 100 * MIB), (2, 10 * MIB), (1, 0), (3, 5 * MIB), (3, 0)]
        assert replay(memory, last_step_at=3) == Peaks(allocated_bytes=15 * MIB, reserved_bytes=110 * MIB)

    def test_a_step_that_gives_back_first_begins_at_what_was_held(self):
        assert replay([(1, 10 * MIB), (1, 0)], last_step_at=1).allocated_bytes == 10 * MIB

    def test_a_step_that_takes_nothing_holds_what_was_held_before(self):
        memory = [(1, 100 * MIB), (2, 10 * MIB), (1, 0)]
        assert replay(memory, last_step_at=3).allocated_bytes == 10 * MIB

    def test_no_tensors_need_no_memory(self):
        assert replay([]) == Peaks(allocated_bytes=0, reserved_bytes=0)

    @given(histories, integers(0, 60))
    def test_a_part_of_the_time_has_no_higher_peak_than_all_of_it(self, history, last_step_at):
        held, memory = set(), []
        for tensor, size_bytes in history:
            memory.append((tensor, 0 if tensor in held else size_bytes))
            held ^= {tensor}
        whole, part = replay(memory), replay(memory, last_step_at=last_step_at)
        assert part.allocated_bytes <= whole.allocated_bytes <= whole.reserved_bytes
        assert part.reserved_bytes == whole.reserved_bytes
