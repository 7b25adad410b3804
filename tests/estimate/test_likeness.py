"""What measured calls say of others: all where they are the same, nothing far away."""

import json
import math

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from wattsmith.estimate.likeness import LEAST_NOISE, SAMPLE, Process, Reach, coded, likely_reach
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

PLAIN = Reach(sizes=(2.0,), words=(0.5,), spread=1.0, noise=0.05)
SAME, OTHER = 0, 1  # words, as numbers
FAR = 1e3


def process(*measured, reach=PLAIN):
    """MEASURED: pairs of a size and what was left there, all of the same word."""
    sizes = np.array([[size] for size, _ in measured])
    words = np.full((len(measured), 1), SAME)
    return Process(sizes, words, np.array([left for _, left in measured]), reach)


def guess(one, size, word=SAME):
    left, doubt = one.guess(np.array([[size]]), np.array([[word]]))
    return float(left[0]), float(doubt[0])


class TestProcess:
    def test_at_a_measured_call_it_says_what_was_measured(self):
        one = process((0.0, 0.7), (8.0, -0.3), (16.0, 0.1))
        for size, was in ((0.0, 0.7), (8.0, -0.3), (16.0, 0.1)):
            left, doubt = guess(one, size)
            assert left == pytest.approx(was, abs=PLAIN.noise)
            assert doubt < 2 * PLAIN.noise

    def test_far_from_all_it_says_nothing_with_full_doubt(self):
        left, doubt = guess(process((0.0, 0.7)), FAR)
        assert left == pytest.approx(0.0, abs=1e-9)
        assert doubt == pytest.approx(math.hypot(PLAIN.spread, PLAIN.noise))

    def test_two_doublings_away_it_says_six_tenths_where_reach_is_two(self):
        assert guess(process((4.0, 1.0)), 6.0)[0] == pytest.approx(math.exp(-0.5), rel=0.01)

    def test_a_call_with_another_word_says_as_much_as_one_that_far_away(self):
        assert guess(process((4.0, 1.0)), 4.0, OTHER)[0] == pytest.approx(math.exp(-0.5), rel=0.01)

    def test_between_two_that_differ_it_takes_the_middle(self):
        assert guess(process((0.0, 0.2), (2.0, 0.6)), 1.0)[0] == pytest.approx(0.4, abs=0.05)

    def test_a_call_measured_often_is_believed_more_than_one_measured_once(self):
        loud = Reach(sizes=(2.0,), words=(0.5,), spread=1.0, noise=0.5)
        once, often = process((0.0, 1.0), reach=loud), process(*[(0.0, 1.0)] * 10, reach=loud)
        assert guess(once, 0.0)[0] == pytest.approx(1 / 1.25)  # a variance of 1 beside a noise of 0.25
        assert guess(often, 0.0)[0] == pytest.approx(1 / 1.025)
        assert guess(often, 0.0)[1] < guess(once, 0.0)[1]

    @given(floats(0, 20), floats(0, 20))
    def test_the_further_away_the_more_doubt_and_the_less_is_said(self, near, more):
        one = process((0.0, 1.0))
        (near_left, near_doubt), (far_left, far_doubt) = guess(one, near), guess(one, near + more)
        assert far_doubt >= near_doubt - 1e-12
        assert abs(far_left) <= abs(near_left) + 1e-12

    @given(floats(-30, 30))
    def test_doubt_lies_between_noise_and_all_there_is(self, size):
        _, doubt = guess(process((0.0, 1.0), (3.0, -1.0)), size)
        assert PLAIN.noise - 1e-12 <= doubt <= math.hypot(PLAIN.spread, PLAIN.noise) + 1e-12


def made_up(count, seed=0):
    """Calls of two sizes and two words; what is left goes with the first size and the first word alone."""
    chance = np.random.default_rng(seed)
    sizes = chance.uniform(0, 12, (count, 2))
    words = chance.integers(0, 2, (count, 2))
    left = 0.5 * np.sin(sizes[:, 0]) + 0.8 * words[:, 0]
    return sizes, words, left - np.median(left)


class TestLikelyReach:
    def test_a_size_that_does_not_matter_reaches_far(self):
        reach = likely_reach(*made_up(150))
        assert reach.sizes[0] < 3.0
        assert reach.sizes[1] > 5 * reach.sizes[0]

    def test_a_word_that_does_not_matter_sets_nothing_apart(self):
        reach = likely_reach(*made_up(150))
        assert reach.words[0] > 5 * reach.words[1]

    def test_what_depends_on_nothing_is_noise(self):
        sizes, words, _ = made_up(150)
        reach = likely_reach(sizes, words, np.random.default_rng(1).normal(0.0, 0.2, 150))
        assert reach.noise == pytest.approx(0.2, rel=0.25)

    def test_what_repeats_exactly_has_the_least_noise(self):
        assert likely_reach(*made_up(150)).noise == pytest.approx(LEAST_NOISE)

    def test_calls_left_out_are_guessed_with_it(self):
        sizes, words, left = made_up(200)
        one = Process(sizes[:150], words[:150], left[:150], likely_reach(sizes[:150], words[:150], left[:150]))
        said, doubt = one.guess(sizes[150:], words[150:])
        assert said == pytest.approx(left[150:], abs=0.15)
        assert np.all(doubt < 0.2)

    def test_many_calls_give_the_same_reach_twice(self):
        many = made_up(SAMPLE + 50)
        assert likely_reach(*many) == likely_reach(*many)

    def test_one_call_alone_leaves_the_usual(self):
        reach = likely_reach(np.array([[3.0]]), np.array([[0]]), np.array([0.0]))
        assert reach.sizes == pytest.approx((2.0,))
        assert reach.words == pytest.approx((0.5,))

    def test_a_reach_can_be_kept_in_a_file(self):
        reach = likely_reach(*made_up(20))
        assert parse_fact(Reach, json.loads(json.dumps(as_plain(reach)))) == reach


def test_words_get_numbers_and_keep_them():
    codes = {}
    assert coded([("a", "b"), ("b", "c")], codes).tolist() == [[0, 1], [1, 2]]
    assert coded([("c", "d")], codes).tolist() == [[2, 3]]
