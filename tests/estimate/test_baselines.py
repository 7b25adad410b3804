"""The simple methods that are printed beside ours."""

from dataclasses import replace

import pytest
from tests.estimate.steps_made_up import PLAIN, family_of_steps, record, step

from wattsmith.estimate.baselines import BASELINES, predictor, roofline_s
from wattsmith.terms.errors import BadTerm


def test_roofline_takes_the_longer_of_computing_and_moving_in_each_class():
    assert roofline_s(step(matmul=(1e13, 1e11), norm=(1e13, 5e11))) == pytest.approx(1.5)  # 1 s + 0.5 s


def test_constant_says_the_median():
    rows = family_of_steps("one", 1.0, 3)
    assert predictor("constant", rows)([rows[0].step]) == [rows[1].step_s]


def test_linear_finds_what_is_linear():
    rows = record()
    said = predictor("linear", rows)([row.step for row in rows])
    assert said == pytest.approx([row.step_s for row in rows], rel=0.05, abs=0.005)


def test_two_phase_looks_only_at_the_same_device():
    twice = replace(PLAIN, name="twice as slow")
    rows = [*record(), *record(twice, slower=2.0)]
    asked = record()[20]
    here, there = predictor("two-phase", rows)([asked.step, replace(asked.step, device=twice)])
    assert there == pytest.approx(2 * here, rel=1e-6)


@pytest.mark.parametrize("name", BASELINES)
def test_every_baseline_answers_every_step_with_a_time(name):
    rows = record()
    far = step(conv=(1e16, 1e14), pool=(0.0, 1e6))
    said = predictor(name, rows)([rows[0].step, far])
    assert len(said) == 2
    assert all(0 < one < 1e9 for one in said)


def test_an_unknown_baseline_is_told_which_there_are():
    with pytest.raises(BadTerm, match="constant, linear, two-phase, roofline"):
        predictor("magic", [])


def test_without_measured_steps_only_roofline_answers():
    assert predictor("roofline", [])([step(matmul=(1e13, 0.0), norm=(0.0, 1.0))]) == [pytest.approx(1.0)]
    with pytest.raises(BadTerm, match="Take a record"):
        predictor("linear", [])
