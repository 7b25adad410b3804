"""One pool of data workers, several jobs."""

import itertools

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from wattsmith.feed.allot import Share, allot
from wattsmith.feed.demand import waiting_share
from wattsmith.terms.errors import BadTerm

needs = some.floats(0.1, 12.0)
weights = some.floats(0.1, 10.0)
several = some.lists(some.tuples(needs, weights, some.integers(1, 32)), min_size=1, max_size=3).map(
    lambda jobs: [
        Share(name=f"job {place}", need=need, weight=weight, buffer=buffer, least=0)
        for place, (need, weight, buffer) in enumerate(jobs)
    ]
)


def waiting_of(shares: list[Share], given_: dict[str, int]) -> float:
    return sum(one.weight * waiting_share(given_[one.name], one.need, one.buffer) for one in shares)


def test_a_pool_is_divided_by_need():
    shares = [Share(name="small", need=2.0, buffer=64), Share(name="large", need=6.0, buffer=64)]
    assert allot(shares, 8) == {"small": 2, "large": 6}


def test_the_dearer_accelerator_is_fed_first():
    shares = [Share(name="eight GPUs", need=4.0, weight=8.0), Share(name="one GPU", need=4.0, weight=1.0)]
    assert allot(shares, 5) == {"eight GPUs": 4, "one GPU": 1}


def test_nobody_gets_more_than_is_wanted():
    assert allot([Share(name="a", need=8.0, most=3)], 10) == {"a": 3}


def test_a_worker_that_costs_more_than_it_saves_stays_free():
    eager = allot([Share(name="a", need=4.0, weight=100.0)], 64)
    frugal = allot([Share(name="a", need=4.0, weight=100.0)], 64, worth=10.0)
    assert eager["a"] > frugal["a"]
    assert frugal["a"] in (4, 5)  # up to the need each saves a quarter of 100 W


def test_a_job_that_needs_nothing_gets_what_it_asked_for_at_least():
    assert allot([Share(name="idle", need=0.0, least=1), Share(name="a", need=3.0)], 4)["idle"] == 1


def test_equal_jobs_keep_the_workers_they_have():
    one, other = Share(name="one", need=4.0, has=2), Share(name="other", need=4.0, has=3)
    assert allot([one, other], 5) == {"one": 2, "other": 3}
    assert allot([other, one], 5) == {"one": 2, "other": 3}


def test_a_pool_that_is_too_small_says_so():
    with pytest.raises(BadTerm, match="1 workers are fewer than the 2"):
        allot([Share(name="a", need=1.0), Share(name="b", need=1.0)], 1)


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(BadTerm, match="one name"):
        allot([Share(name="a", need=1.0), Share(name="a", need=1.0)], 4)


@pytest.mark.parametrize("wrong", [{"need": -1.0}, {"weight": 0.0}, {"least": -1}, {"least": 3, "most": 2}])
def test_a_share_that_makes_no_sense_is_refused(wrong):
    with pytest.raises(BadTerm, match="job 7"):
        Share(**{"name": "job 7", "need": 1.0} | wrong)


@given(need=needs, buffer=some.integers(1, 64), workers=some.integers(0, 40))
def test_each_further_worker_saves_no_more_than_the_one_before(need, buffer, workers):
    share = Share(name="a", need=need, buffer=buffer)
    assert share.saves(workers + 1) <= share.saves(workers) + 1e-9


@given(shares=several, pool=some.integers(0, 10))
def test_no_other_division_leaves_less_waiting(shares, pool):
    names = [share.name for share in shares]
    best = min(
        waiting_of(shares, dict(zip(names, counts, strict=True)))
        for counts in itertools.product(range(pool + 1), repeat=len(shares))
        if sum(counts) <= pool
    )
    assert waiting_of(shares, allot(shares, pool)) <= best + 1e-9


@given(shares=several, pool=some.integers(3, 10), have=some.lists(some.integers(0, 5), min_size=3, max_size=3))
def test_staying_where_they_are_costs_little(shares, pool, have):
    assume(sum(have) <= pool)
    settled = [
        Share(name=one.name, need=one.need, weight=one.weight, buffer=one.buffer, least=0, has=has)
        for one, has in zip(shares, have, strict=False)
    ]
    saved, best_saved = (
        sum(one.weight for one in shares) - waiting_of(shares, allot(division, pool)) for division in (settled, shares)
    )
    assert saved >= best_saved / 1.05 - 1e-9
