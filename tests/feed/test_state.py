"""A run can be saved anywhere and goes on as if nothing had been, with any number of workers."""

import itertools
import json

import pytest
import torch
from tests.feed.sets import Chancy, Counting, Plain, Shards, digest
from torch.utils.data import DistributedSampler, RandomSampler, Sampler

from wattsmith import Feeder
from wattsmith.terms.errors import BadInput

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


class Wild(Sampler):
    """Shuffles with Python's global generator, and knows nothing of states."""

    def __iter__(self):
        import random

        numbers = list(range(12))
        random.shuffle(numbers)
        return iter(numbers)

    def __len__(self):
        return 12


def first_part(feeder, count):
    """A digest of the first COUNT batches, and the state behind them."""
    iterator = iter(feeder)
    return [next(iterator) for _ in range(count)], feeder.state_dict(), iterator


def numbers(batches):
    return [int(number) for batch in batches for number in (batch[0] if isinstance(batch, list) else batch)]


def test_a_run_goes_on_from_every_batch_with_every_number_of_workers():
    whole = digest(Feeder(Chancy(14, side=8), 3, shuffle=True, seed=1))
    for count, (before, after) in zip(range(6), itertools.cycle([(2, 0), (0, 2), (1, 3), (3, 1)]), strict=False):
        begun = Feeder(Chancy(14, side=8), 3, shuffle=True, seed=1, num_workers=before)
        head, state, _ = first_part(begun, count)
        resumed = Feeder(Chancy(14, side=8), 3, shuffle=True, num_workers=after)
        resumed.load_state_dict(json.loads(json.dumps(state)))
        assert digest([*head, *resumed]) == whole


@pytest.mark.parametrize(("before", "after"), [(3, 1), (3, 0), (0, 2), (2, 4), (1, 1)])
def test_shards_are_read_on_by_other_numbers_of_workers(before, after):
    feeder = Feeder(Shards(23), 2, num_workers=before, seed=1)
    head, state, rest = first_part(feeder, 5)
    resumed = Feeder(Shards(23), 2, num_workers=after)
    resumed.load_state_dict(state)
    assert digest(resumed) == digest(rest)
    assert sorted(numbers([*head, *Feeder_from(state, after)])) == list(range(23))


def Feeder_from(state, workers):  # noqa: N802 - reads as the class does
    feeder = Feeder(Shards(23), 2, num_workers=workers)
    feeder.load_state_dict(state)
    return feeder


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_knows_where_it_is_is_asked_and_told(workers):
    feeder = Feeder(Counting(10), num_workers=workers)
    _, state, rest = first_part(feeder, 7)
    expected = [batch.tolist() for batch in rest]
    resumed = Feeder(Counting(10), num_workers=workers)
    resumed.load_state_dict(state)
    assert [batch.tolist() for batch in resumed] == expected


def test_the_epochs_that_follow_are_the_same_too():
    feeder = Feeder(Plain(20), 4, shuffle=True)
    first = [batch.tolist() for batch in feeder]
    _, state, rest = first_part(feeder, 2)
    expected = [batch.tolist() for batch in rest], [batch.tolist() for batch in feeder]
    resumed = Feeder(Plain(20), 4, shuffle=True, num_workers=2)
    resumed.load_state_dict(state)
    assert ([batch.tolist() for batch in resumed], [batch.tolist() for batch in resumed]) == expected
    assert first != expected[1]


def test_behind_the_last_batch_nothing_is_left_and_behind_the_end_a_new_epoch_begins():
    feeder = Feeder(Plain(6), 2, num_workers=1)
    _, last, rest = first_part(feeder, 3)
    assert list(rest) == []
    resumed = Feeder(Plain(6), 2)
    resumed.load_state_dict(last)
    assert list(resumed) == []
    resumed.load_state_dict(feeder.state_dict())
    assert len(list(resumed)) == 3


def test_asking_for_the_state_does_not_move_anything():
    feeder = Feeder(Plain(20), 2, shuffle=True, num_workers=2)
    before = feeder.state_dict()
    assert feeder.state_dict() == before
    iterator = iter(feeder)
    assert next(iterator).tolist() == next(iter(Feeder_loaded(before))).tolist()
    assert feeder.state_dict() == feeder.state_dict()


def Feeder_loaded(state):  # noqa: N802
    feeder = Feeder(Plain(20), 2, shuffle=True)
    feeder.load_state_dict(state)
    return feeder


def test_a_state_that_was_loaded_is_the_state():
    state = first_part(Feeder(Plain(20), 2, shuffle=True), 3)[1]
    assert Feeder_loaded(state).state_dict() == state


def test_resuming_in_every_epoch_gives_the_same_stream():
    whole = Feeder(Chancy(10, side=4), 2, shuffle=True, seed=9)
    expected = [digest(whole) for _ in range(3)]
    got, state = [], None
    for epoch, workers in enumerate((0, 2, 1)):
        feeder = Feeder(Chancy(10, side=4), 2, shuffle=True, seed=9)
        if state is not None:
            feeder.load_state_dict(state)
        head, state, _ = first_part(feeder, epoch + 1)
        resumed = Feeder(Chancy(10, side=4), 2, shuffle=True, seed=9, num_workers=workers)
        resumed.load_state_dict(state)
        got.append(digest([*head, *resumed]))
        state = resumed.state_dict()
    assert got == expected


class Rewinding(Counting):
    """Begins anew by itself when it has ended."""

    def __next__(self):
        if self.at == self.length:
            self.at = 0
            raise StopIteration
        return super().__next__()


def test_behind_the_last_batch_a_dataset_that_rewinds_itself_is_not_read_again():
    feeder = Feeder(Rewinding(3), 2, num_workers=1)
    head, state, _ = first_part(feeder, 2)
    resumed = Feeder(Rewinding(3), 2, num_workers=1)
    resumed.load_state_dict(state)
    assert numbers([*head, *resumed]) == [0, 1, 2]


@pytest.mark.parametrize("workers", [0, 1])
def test_without_an_order_a_resumed_run_neither_loses_nor_repeats(workers):
    feeder = Feeder(Plain(40), 2, num_workers=3, in_order=False)
    head, state, _ = first_part(feeder, 6)
    resumed = Feeder(Plain(40), 2, num_workers=workers, in_order=False)
    resumed.load_state_dict(state | {"delivered": 0, "ahead": [1, 2, 3, 4, 5, 19]})
    assert sorted(numbers(resumed)) == [0, 1, *range(12, 38)]
    resumed.load_state_dict(state)
    assert sorted(numbers([*head, *resumed])) == list(range(40))


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: RandomSampler(range(12), generator=torch.Generator().manual_seed(4)),
        lambda: RandomSampler(range(12)),
        lambda: DistributedSampler(range(24), num_replicas=2, rank=1, seed=3),
        Wild,
    ],
    ids=["own generator", "torch's generator", "by epoch", "python's generator"],
)
def test_any_sampler_is_put_back_where_it_was(sampler):
    feeder = Feeder(Plain(24), 2, sampler=sampler())
    if hasattr(feeder.sampler, "set_epoch"):
        feeder.sampler.set_epoch(5)
    _, state, rest = first_part(feeder, 2)
    expected = [batch.tolist() for batch in rest]
    resumed = Feeder(Plain(24), 2, sampler=sampler(), num_workers=1)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    assert [batch.tolist() for batch in resumed] == expected


def test_a_state_that_is_not_whole_says_what_it_lacks():
    state = Feeder(Plain(4)).state_dict()
    del state["seed"], state["epoch"]
    with pytest.raises(BadInput, match=r"not whole: it lacks epoch, seed\."):
        Feeder(Plain(4)).load_state_dict(state)


@pytest.mark.parametrize("state", [{"_num_yielded": 3}, {"wattsmith": 99}, 5], ids=str)
def test_a_state_of_something_else_is_refused(state):
    with pytest.raises(BadInput, match="no state of a Feeder"):
        Feeder(Plain(4)).load_state_dict(state)


def test_a_state_of_the_other_kind_of_dataset_is_refused():
    state = Feeder(Plain(4)).state_dict()
    with pytest.raises(BadInput, match="another kind of dataset"):
        Feeder(Shards(4)).load_state_dict(state)
