"""Several trainers, one order."""

import functools
import itertools
import operator

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some
from tests.feed.numbered import Numbered

from wattsmith import Feeder
from wattsmith.feed.ranks import RankBatches
from wattsmith.terms.errors import BadTerm


def together(length, batch, ranks, epoch=0, **chosen):
    """What all trainers together see in each step."""
    samplers = [RankBatches(length, batch, rank=rank, ranks=ranks, seed=3, **chosen) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    return [list(itertools.chain.from_iterable(shares)) for shares in zip(*samplers, strict=True)]


@given(length=some.integers(0, 200), batch=some.integers(1, 32), ranks=some.integers(1, 8), drop=some.booleans())
def test_the_order_does_not_depend_on_the_number_of_trainers(length, batch, ranks, drop):
    assume(batch >= ranks and (drop or not 0 < length % batch < ranks))
    assert together(length, batch, ranks, drop_last=drop) == together(length, batch, 1, drop_last=drop)


@given(length=some.integers(0, 200), batch=some.integers(8, 32), ranks=some.integers(1, 8))
def test_every_sample_goes_to_one_trainer_once(length, batch, ranks):
    assume(not 0 < length % batch < ranks)
    seen = list(itertools.chain.from_iterable(together(length, batch, ranks)))
    assert sorted(seen) == list(range(length))


def test_epochs_differ_and_repeat():
    assert together(40, 8, 2, epoch=0) != together(40, 8, 2, epoch=1)
    assert together(40, 8, 2, epoch=1) == together(40, 8, 2, epoch=1)


def test_without_shuffling_samples_come_in_order():
    assert together(8, 4, 2, shuffle=False) == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"rank": 2, "ranks": 2}, "rank 2 of 2"),
        ({"rank": 0, "ranks": 9}, "too small for 9 trainers"),
        ({"rank": 0, "ranks": 4, "length": 17}, "last global batch has 1 samples for 4"),
    ],
)
def test_what_cannot_be_shared_is_refused(wrong, says):
    with pytest.raises(BadTerm, match=says):
        RankBatches(**{"length": 16, "global_batch": 8} | wrong)


def numbers_of(batches):
    return [values[:, 0].tolist() for values, _ in batches]


def test_two_trainers_stop_and_three_go_on():
    def feeder(rank, ranks):
        shares = RankBatches(72, 12, rank=rank, ranks=ranks, seed=5)
        return Feeder(Numbered(72), batch_sampler=shares, num_workers=1, seed=rank)

    first, states = [], []
    for rank in range(2):
        fed = feeder(rank, 2)
        first.append(numbers_of(itertools.islice(fed, 2)))
        states.append(fed.state_dict())
    rest = []
    for rank in range(3):
        fed = feeder(rank, 3)
        fed.load_state_dict(states[0])
        rest.append(numbers_of(fed))
    steps = [
        functools.reduce(operator.iadd, shares, []) for shares in [*zip(*first, strict=True), *zip(*rest, strict=True)]
    ]
    assert steps == list(RankBatches(72, 12, rank=0, ranks=1, seed=5))
