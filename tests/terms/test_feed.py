"""The seed of a batch is the same everywhere and unlike its neighbours'."""

import pytest
from hypothesis import given
from hypothesis.strategies import integers

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.feed import batch_seed

COUNTS = integers(0, 10**9)


def test_a_seed_is_the_same_on_every_machine():
    assert batch_seed(0, 0, 0) == 4898526747407105632
    assert batch_seed(7, 3, 12) == batch_seed(7, 3, 12)


@given(run_seed=integers(-(2**70), 2**70), epoch=COUNTS, batch=COUNTS)
def test_a_seed_has_63_bits(run_seed, epoch, batch):
    assert 0 <= batch_seed(run_seed, epoch, batch) < 2**63


def test_neighbours_have_other_seeds():
    seeds = {batch_seed(run, epoch, batch) for run in range(10) for epoch in range(10) for batch in range(100)}
    assert len(seeds) == 10_000


@pytest.mark.parametrize(("epoch", "batch"), [(-1, 0), (0, -1)])
def test_a_batch_before_the_first_is_refused(epoch, batch):
    with pytest.raises(BadTerm, match="counted from 0"):
        batch_seed(0, epoch, batch)
