"""Times of operators, learned from measured calls."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats, lists, tuples

from wattsmith.estimate.likeness import Reach
from wattsmith.estimate.operators import (
    LEAST_S,
    MOST,
    SPREAD,
    Example,
    Kind,
    OperatorTimes,
    Peak,
    relative_fit,
    thinned,
)
from wattsmith.estimate.shapes import Features

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

PEAK = Peak(flops_per_s={"fp32": 1e12, "bf16": 1e13}, bandwidth_bytes_per_s=1e11)
REACH = Reach(sizes=(2.0,) * 3, words=(0.5,), spread=0.5, noise=0.05)


def product(m, n, k, arithmetic="fp32", model="matmul", word="mm"):
    """The features of a product of 2**M × 2**K by 2**K × 2**N, of 4-byte elements."""
    rows, columns, depth = 2.0**m, 2.0**n, 2.0**k
    return Features(
        model=model,
        sizes=(m, n, k),
        words=(word,),
        flops=2 * rows * columns * depth,
        moved_bytes=4 * (rows * depth + depth * columns + rows * columns),
        serial=depth,
        arithmetic=arithmetic,
    )


def at_half_the_peak_s(one, slower=1.0):
    """2 µs for the call, operations at half the peak, bytes at eight tenths of the bandwidth."""
    rate = PEAK.flops_per_s[one.arithmetic]
    return slower * (2e-6 + one.flops / rate / 0.5 + one.moved_bytes / 1e11 / 0.8)


def example(one, busy_s=None):
    return Example(features=one, busy_s=busy_s or at_half_the_peak_s(one))


GRID = [product(m, n, k) for m in range(4, 13, 2) for n in range(4, 13, 2) for k in range(4, 13, 2)]


class TestPeak:
    def test_a_call_costs_a_microsecond_its_operations_its_bytes_and_what_must_wait(self):
        one = Features("matmul", (), (), flops=1e9, moved_bytes=1e8, serial=1e3, arithmetic="fp32")
        assert PEAK.costs_s(one) == pytest.approx((1e-6, 1e-3, 1e-3, 1e-6))

    def test_an_arithmetic_that_the_device_has_no_units_for_goes_as_fp32(self):
        one = Features("matmul", (), (), flops=1e9, moved_bytes=0.0, serial=0.0, arithmetic="float64")
        assert PEAK.costs_s(one)[1] == pytest.approx(1e-3)


class TestRelativeFit:
    def test_costs_that_made_the_times_are_found_again(self):
        costs = np.array([PEAK.costs_s(one) for one in GRID])
        actual_s = np.array([at_half_the_peak_s(one) for one in GRID])
        assert relative_fit(costs, actual_s) == pytest.approx([2.0, 2.0, 1.25, 0.0], abs=1e-6)

    def test_a_few_wild_times_change_little(self):
        costs = np.array([PEAK.costs_s(one) for one in GRID])
        actual_s = np.array([at_half_the_peak_s(one) for one in GRID])
        actual_s[::20] *= 10
        assert costs @ relative_fit(costs, actual_s) == pytest.approx(costs @ [2.0, 2.0, 1.25, 0.0], rel=0.1)

    def test_a_cost_that_would_have_to_be_negative_is_zero(self):
        costs = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
        assert relative_fit(costs, np.array([3.0, 2.0, 1.0]))[1] == 0.0

    @given(lists(tuples(floats(0.1, 10), floats(0.1, 10), floats(1e-6, 10)), min_size=3, max_size=10))
    def test_no_cost_is_ever_below_zero_and_not_all_are_zero(self, rows):
        table = np.array(rows)
        factors = relative_fit(table[:, :2], table[:, 2])
        assert np.all(factors >= 0)
        assert factors.any()


class TestKind:
    def test_calls_in_between_are_what_they_cost(self):
        kind = Kind([example(one) for one in GRID], PEAK)
        between = [product(m, n, 7) for m in (5, 9) for n in (5, 9)]
        busy_s, doubt = kind.guess(between)
        assert busy_s == pytest.approx([at_half_the_peak_s(one) for one in between], rel=0.03)
        assert np.all(doubt < 0.1)

    def test_calls_far_beyond_are_too_with_more_doubt(self):
        kind = Kind([example(one) for one in GRID], PEAK, REACH)
        beyond = product(18, 18, 18)
        busy_s, doubt = kind.guess([beyond])
        assert busy_s[0] == pytest.approx(at_half_the_peak_s(beyond), rel=0.03)
        assert doubt[0] == pytest.approx(REACH.spread, rel=0.01)

    def test_what_is_like_slow_calls_is_slow_and_what_is_unlike_them_is_not(self):
        slow = [product(m, 14, 14) for m in (14, 15)]
        kind = Kind(
            [*map(example, GRID), *(example(one, at_half_the_peak_s(one, slower=2.0)) for one in slow)], PEAK, REACH
        )
        near, far = product(14.5, 14, 14), product(5, 5, 5)
        busy_s, _ = kind.guess([near, far])
        assert busy_s[0] == pytest.approx(at_half_the_peak_s(near, slower=2.0), rel=0.1)
        assert busy_s[1] == pytest.approx(at_half_the_peak_s(far), rel=0.1)

    def test_measured_calls_are_as_they_were_though_most_are_quicker_than_their_costs(self):
        short = Reach(sizes=(0.5,) * 3, words=(0.5,), spread=1.0, noise=0.01)
        uneven = [example(one, at_half_the_peak_s(one, 1.5 if at % 7 < 3 else 1.0)) for at, one in enumerate(GRID)]
        kind = Kind(uneven, PEAK, short)
        assert abs(kind.offset) > 0.05
        assert kind.guess(GRID)[0] == pytest.approx([one.busy_s for one in uneven], rel=0.01)

    def test_a_word_never_heard_is_answered_with_more_doubt(self):
        kind = Kind([example(one) for one in GRID], PEAK, REACH)
        _, doubt = kind.guess([GRID[0], product(4, 4, 4, word="novel")])
        assert doubt[1] > 2 * doubt[0]

    def test_no_call_takes_less_than_a_microsecond(self):
        quick = [example(one, busy_s=1e-8) for one in GRID]
        assert Kind(quick, PEAK, REACH).guess([GRID[0]])[0][0] == LEAST_S

    def test_one_measured_call_is_enough_to_answer_for_itself(self):
        busy_s, _ = Kind([example(GRID[0], busy_s=5e-5)], PEAK).guess([GRID[0]])
        assert busy_s[0] == pytest.approx(5e-5, rel=0.05)

    def test_calls_that_are_all_slow_alike_are_guessed_slow_far_away_too(self):
        kind = Kind([example(one, at_half_the_peak_s(one, slower=3.0)) for one in GRID], PEAK, REACH)
        beyond = product(18, 18, 18)
        assert kind.guess([beyond])[0][0] == pytest.approx(at_half_the_peak_s(beyond, slower=3.0), rel=0.05)


class TestOperatorTimes:
    def test_kinds_are_learned_apart(self):
        slow = [product(*one.sizes, model="attention") for one in GRID]
        examples = [*map(example, GRID), *(example(one, at_half_the_peak_s(one, slower=4.0)) for one in slow)]
        times = OperatorTimes.fit(examples, PEAK, {"matmul": REACH, "attention": REACH})
        said = times.guess([slow[7], GRID[7], slow[100]])
        was_s = [at_half_the_peak_s(slow[7], 4.0), at_half_the_peak_s(GRID[7]), at_half_the_peak_s(slow[100], 4.0)]
        assert said.busy_s == pytest.approx(was_s, rel=0.03)
        assert times.kinds == {"matmul": 125, "attention": 125}

    def test_a_kind_never_measured_goes_by_the_data_sheet(self):
        times = OperatorTimes.fit([example(GRID[0])], PEAK)
        heavy = Features("conv", (), (), flops=7e9, moved_bytes=1.0, serial=0.0, arithmetic="fp32")
        wide = Features("copy", (), (), flops=0.0, moved_bytes=7e8, serial=0.0, arithmetic="bf16")
        said = times.guess([heavy, wide])
        assert said.busy_s == pytest.approx([10.002e-3, 10.002e-3])  # at seven tenths of the peak, after 2 µs
        assert said.doubt.tolist() == [SPREAD, SPREAD]

    def test_nothing_measured_at_all_leaves_the_data_sheet(self):
        times = OperatorTimes.fit([], PEAK)
        assert times.kinds == {}
        assert times.guess([GRID[-1]]).busy_s[0] == pytest.approx(2e-6 + GRID[-1].flops / 1e12 / 0.7)

    def test_reaches_from_before_are_taken_as_they_are(self):
        times = OperatorTimes.fit(map(example, GRID[:20]), PEAK, {"matmul": REACH})
        assert times.reaches == {"matmul": REACH}

    def test_reaches_are_found_where_none_are_known(self):
        reaches = OperatorTimes.fit(map(example, GRID[:20]), PEAK).reaches
        again = OperatorTimes.fit(map(example, GRID[:20]), PEAK, reaches)
        assert again.guess(GRID).busy_s == pytest.approx(
            OperatorTimes.fit(map(example, GRID[:20]), PEAK).guess(GRID).busy_s
        )

    def test_calls_that_took_no_time_tell_nothing(self):
        unseen = Example(features=GRID[1], busy_s=0.0)
        assert OperatorTimes.fit([example(GRID[0]), unseen], PEAK).kinds == {"matmul": 1}

    def test_no_calls_take_no_time(self):
        assert len(OperatorTimes.fit([example(GRID[0])], PEAK).guess([]).busy_s) == 0


class TestThinned:
    def test_the_same_call_measured_twice_is_one_at_the_middle(self):
        one, two = example(GRID[0], 1e-5), example(GRID[0], 4e-5)
        (kept,) = thinned([one, two])
        assert kept.busy_s == pytest.approx(2e-5)

    def test_calls_that_differ_in_a_word_are_two(self):
        assert len(thinned([example(product(4, 4, 4)), example(product(4, 4, 4, word="addmm"))])) == 2

    def test_no_more_than_the_most_are_kept_from_the_first_to_the_last(self):
        many = [example(product(at / 1000, 4, 4)) for at in range(2 * MOST)]
        kept = thinned(many)
        assert len(kept) == MOST
        assert (kept[0].features, kept[-1].features) == (many[0].features, many[-1].features)

    def test_few_are_all_kept(self):
        assert len(thinned([example(one) for one in GRID])) == len(GRID)
