"""Intervals from errors on groups that were left out."""

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from wattsmith.estimate.conformal import Doubt
from wattsmith.terms.errors import BadTerm


def test_nine_of_ten_errors_of_a_tenth_and_one_of_a_factor_of_ten():
    predicted = [1.0] * 1_000
    actual = [1.1] * 950 + [10.0] * 50
    doubt = Doubt.fit(predicted, actual, range(1_000))
    assert doubt.factor(0.9) == pytest.approx(1.1)
    assert doubt.factor(0.96) == pytest.approx(10.0)


def test_too_low_counts_as_much_as_too_high():
    high = Doubt.fit([1.0] * 100, [2.0] * 100, range(100))
    low = Doubt.fit([1.0] * 100, [0.5] * 100, range(100))
    assert high.factor() == pytest.approx(low.factor()) == pytest.approx(2.0)


def test_an_interval_is_the_value_times_and_over_the_factor():
    interval = Doubt.fit([1.0] * 100, [2.0] * 100, range(100)).interval(10.0)
    assert (interval.low, interval.value, interval.high) == pytest.approx((5.0, 10.0, 20.0))


def test_knowing_half_as_much_squares_the_factor():
    doubt = Doubt.fit([1.0] * 100, [2.0] * 100, range(100))
    assert doubt.factor(widen=2.0) == pytest.approx(4.0)


def test_a_group_of_many_rows_counts_as_much_as_a_group_of_one():
    """Nineteen groups of one row are off by 1 %; the twentieth, off by a factor of two, has a hundred rows."""
    doubt = Doubt.fit([1.0] * 119, [1.01] * 19 + [2.0] * 100, [*range(19), *["large"] * 100])
    assert doubt.factor(0.9) == pytest.approx(1.01)
    assert doubt.factor(0.949) == pytest.approx(2.0)


def test_fewer_than_ten_groups_are_as_wide_as_their_worst():
    doubt = Doubt.fit([1.0] * 90, [1.0] * 80 + [3.0] * 10, [at // 10 for at in range(90)])
    assert doubt.factor(0.9) == pytest.approx(3.0)
    assert doubt.factor(0.5) == pytest.approx(1.0)


def test_few_groups_make_wider_intervals_than_many():
    errors = [at / 100 for at in range(100)]
    actual = [math.exp(one) for one in errors]
    few = Doubt.fit([1.0] * 100, actual, [at // 10 for at in range(100)])
    many = Doubt.fit([1.0] * 100, actual, range(100))
    assert few.factor(0.95) > many.factor(0.95)


def test_it_covers_what_it_promises_for_groups_never_seen():
    """A hundred groups of ten rows that share most of their error; the next hundred fall inside as promised."""
    chance = random.Random(7)

    def rows(count):
        shared = [chance.gauss(0, 0.3) for _ in range(count)]
        return [(group, math.exp(one + chance.gauss(0, 0.1))) for group, one in enumerate(shared) for _ in range(10)]

    known, later = rows(100), rows(1_000)
    doubt = Doubt.fit([1.0] * len(known), [actual for _, actual in known], [group for group, _ in known])
    factor = doubt.factor(0.9)
    inside = sum(1 / factor <= actual <= factor for _, actual in later) / len(later)
    assert 0.87 < inside < 0.94


@given(some.lists(some.floats(0.01, 100.0), min_size=2, max_size=40), some.floats(0.05, 0.45), some.floats(0.5, 0.95))
def test_a_higher_level_never_gives_a_narrower_interval(actual, low, high):
    doubt = Doubt.fit([1.0] * len(actual), actual, [at % 3 for at in range(len(actual))])
    assert doubt.factor(low) <= doubt.factor(high)


@pytest.mark.parametrize("level", [0.0, 1.0, 1.5])
def test_a_level_that_is_none_is_refused(level):
    with pytest.raises(BadTerm, match="between 0 and 1"):
        Doubt.fit([1.0], [1.0], ["a"]).factor(level)


def test_lists_that_do_not_fit_together_are_refused():
    with pytest.raises(BadTerm, match="2, 1 and 2"):
        Doubt.fit([1.0, 2.0], [1.0], ["a", "b"])


def test_values_without_a_ratio_are_refused():
    with pytest.raises(BadTerm, match="above zero"):
        Doubt.fit([1.0, 0.0], [1.0, 1.0], ["a", "b"])
