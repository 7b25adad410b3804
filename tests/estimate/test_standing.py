"""Where a prediction stands to what was measured."""

from dataclasses import replace

import pytest

from wattsmith.estimate.standing import Level, Reach, Signs

USUAL = Signs(distance=0.3, dispute=0.1, shares={"matmul": 0.9, "norm": 0.1})
SEEN = [replace(USUAL, distance=at / 100, dispute=at / 1000) for at in range(100)]
REACH = Reach.of(SEEN, [f"family {at % 5}" for at in range(100)])


def test_what_is_usual_is_inside():
    standing = REACH.judge(replace(USUAL, dispute=0.05), factor=1.2)
    assert standing.level is Level.INSIDE
    assert standing.reasons == ()


def test_the_same_step_again_is_measured():
    assert REACH.judge(replace(USUAL, distance=0.0, dispute=0.0), 1.1).level is Level.MEASURED


def test_as_far_as_families_go_is_the_edge():
    assert REACH.judge(replace(USUAL, distance=0.9, dispute=0.0), 1.1).level is Level.EDGE


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ({"distance": 1.5}, "less like any measured step"),
        ({"dispute": 0.5}, "other ways to predict it disagree"),
        ({"shares": {"matmul": 0.9, "attention": 0.1}}, "no measured step does much attention, which is 10%"),
    ],
)
def test_a_sign_that_is_out_of_the_ordinary_puts_it_outside_and_says_why(odd, why):
    usual = replace(USUAL, dispute=0.0)
    standing = REACH.judge(replace(usual, **odd), 1.1)
    assert standing.outside
    assert len(standing.reasons) == 1
    assert why in standing.reasons[0]


def test_an_interval_beyond_a_factor_of_two_is_outside():
    standing = REACH.judge(replace(USUAL, dispute=0.0), factor=2.5)
    assert standing.reasons == ("the interval is as wide as a factor of 2.5 either way",)


def test_a_class_that_hardly_matters_may_be_new():
    assert not REACH.judge(replace(USUAL, dispute=0.0, shares={"attention": 0.04}), 1.1).outside


def test_a_class_that_one_family_alone_has_counts_as_new():
    seen = [replace(USUAL, shares={"grouped-conv": 0.5}), *[USUAL] * 9]
    reach = Reach.of(seen, ["odd", *["usual"] * 5, *["other"] * 4])
    assert "grouped-conv" not in reach.classes
    assert "matmul" in reach.classes


def test_what_was_never_measured_comes_first():
    standing = REACH.judge(replace(USUAL, distance=1.5), 1.1, ["nothing was measured on it"])
    assert standing.outside
    assert standing.reasons[0] == "nothing was measured on it"
