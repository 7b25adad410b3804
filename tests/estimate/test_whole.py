"""Whole steps predicted from whole steps."""

import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some
from tests.estimate.steps_made_up import PLAIN, family_of_steps, record, step

from wattsmith.estimate.costs import TERMS, Regime, cost_terms
from wattsmith.estimate.standing import Level
from wattsmith.estimate.whole import Whole, folds_of, nonnegative, weights_for

np = pytest.importorskip("numpy")


@pytest.fixture(scope="module")
def whole():
    return Whole.learn(record())


def test_a_family_between_measured_ones_is_predicted_to_a_few_per_cent(whole):
    for row in family_of_steps("new", 1.5**3.5, 8):
        assert whole.estimate(row.step).step_s.value == pytest.approx(row.step_s, rel=0.05)


def test_a_family_beyond_the_measured_ones_is_predicted_by_what_its_operators_cost(whole):
    for row in family_of_steps("heavier than all", 1.5**9, 8):
        assert whole.estimate(row.step).step_s.value == pytest.approx(row.step_s, rel=0.15)


def test_a_measured_step_is_measured_and_lies_in_its_interval(whole):
    row = record()[30]
    said = whole.estimate(row.step)
    assert said.standing.level is Level.MEASURED
    assert said.step_s.low <= row.step_s <= said.step_s.high
    assert said.from_runs == 64


def test_parts_by_class_add_up_to_the_whole(whole):
    said = whole.estimate(record()[12].step)
    assert sum(said.by_class_s.values()) == pytest.approx(said.step_s.value)
    assert set(said.by_class_s) <= {"matmul", "elementwise", "parameters", "input", "launches", "step"}


def test_a_device_that_was_not_measured_is_outside_and_goes_by_its_data_sheet(whole):
    twice = replace(PLAIN, name="twice as fast", peak_flops={"fp32": 2e13}, bandwidth=2e12)
    large = record()[7 * 8 + 7].step
    here, there = whole.estimates([large, replace(large, device=twice)])
    assert there.step_s.value == pytest.approx(here.step_s.value / 2, rel=0.1)
    assert there.standing.outside
    assert "rests on its data sheet" in there.standing.reasons[0]


def test_a_regime_that_was_not_measured_is_outside(whole):
    said = whole.estimate(replace(record()[9].step, regime=Regime(precision="bf16", compiled=True)))
    assert said.standing.outside
    assert "bf16, train, compiled" in said.standing.reasons[0]


def test_a_class_of_operators_that_was_not_measured_is_outside(whole):
    said = whole.estimate(step(matmul=(1e12, 1e10), attention=(1e12, 1e10), elementwise=(0.0, 1e10)))
    assert said.standing.outside
    assert any("no measured step does much attention" in reason for reason in said.standing.reasons)


def test_what_like_steps_show_is_carried_over_and_fades_with_distance():
    """One family takes twice what its operators cost. Its like are corrected; what is unlike it is not."""
    rows = [*record(), *family_of_steps("odd", 60.0, 30, slower=2.0)]
    whole = Whole.learn(rows)
    near = family_of_steps("odd too", 66.0, 30, slower=2.0)[10]
    far = family_of_steps("plain", 1.2, 8)[4]
    assert whole.estimate(near.step).step_s.value == pytest.approx(near.step_s, rel=0.1)
    assert whole.estimate(far.step).step_s.value == pytest.approx(far.step_s, rel=0.1)


def test_devices_that_were_measured_apart_teach_about_one_that_was_not():
    slow = replace(PLAIN, name="slow", peak_flops={"fp32": 5e12}, bandwidth=5e11)
    fast = replace(PLAIN, name="fast", peak_flops={"fp32": 2e13}, bandwidth=2e12)

    def on(device, factor):
        return [replace(row, step_s=(row.step_s - 1e-3) / factor + 1e-3) for row in record(device)]

    whole = Whole.learn([*on(PLAIN, 1.0), *on(slow, 0.5)])
    for row in on(fast, 2.0):
        assert whole.estimate(row.step).step_s.value == pytest.approx(row.step_s, rel=0.1)


def test_too_few_runs_still_give_an_answer_that_is_marked():
    said = Whole.learn(family_of_steps("alone", 2.0, 4)).estimate(family_of_steps("alone", 2.0, 6)[5].step)
    assert said.step_s.value > 0
    assert said.step_s.high > 1.9 * said.step_s.value
    assert said.standing.outside


def test_an_empty_record_gives_what_is_usual_and_says_how_to_take_one():
    said = Whole.learn([]).estimate(step(matmul=(1e13, 1e12), launches=1_000))
    assert said.step_s.value == pytest.approx(2.0 + 1.0, rel=0.01)  # twice a second of operations, a second of bytes
    assert said.step_s.high == pytest.approx(4 * said.step_s.value)
    assert said.from_runs == 0
    assert said.standing.outside
    assert "wattsmith record run" in said.standing.reasons[0]


def test_regimes_with_few_runs_lean_on_the_device_as_a_whole():
    few = [replace(row, step=replace(row.step, regime=Regime(mode="infer"))) for row in record()[::8]]
    whole = Whole.learn([*record(), *few])
    asked = replace(record()[21].step, regime=Regime(mode="infer"))
    said = whole.estimate(asked)
    assert said.from_runs == 72
    assert said.step_s.value == pytest.approx(record()[21].step_s, rel=0.1)
    assert "too little was measured in this regime: fp32, infer" in said.standing.reasons


def cpu_s(work) -> float:
    """What WORK takes of the processor, whatever else runs on it."""
    began_s = time.process_time()
    work()
    return time.process_time() - began_s


def test_one_estimate_takes_less_than_fifty_milliseconds(whole):
    one = record()[11].step
    whole.estimate(one)
    assert cpu_s(lambda: whole.estimate(one)) < 0.05


def test_a_thousand_take_less_than_a_second(whole):
    asked = [row.step for row in record()] * 16
    assert len(asked) == 1_024
    assert cpu_s(lambda: whole.estimates(asked)) < 1.0


@settings(deadline=None)
@given(flops=some.floats(0.0, 1e15), moved=some.floats(1.0, 1e13), more=some.floats(1.0, 100.0))
def test_more_work_never_costs_less_before_like_steps_correct_it(whole, flops, moved, more):
    weights = whole.lessons[Regime(), "plain"].fit.weights
    little = cost_terms(step(matmul=(flops, moved), elementwise=(0.0, moved)))
    much = cost_terms(step(matmul=(flops * more, moved * more), elementwise=(0.0, moved)))
    assert np.dot(much, weights) >= np.dot(little, weights)


def test_nonnegative_keeps_what_would_be_negative_at_zero():
    matrix = np.array([[1.0, 1.0], [1.0, 2.0], [1.0, 3.0]])
    assert nonnegative(matrix, np.array([1.0, 2.0, 3.0])) == pytest.approx([0.0, 1.0])
    assert nonnegative(matrix, np.array([3.0, 2.0, 1.0]))[1] == 0.0


@settings(deadline=None)
@given(some.lists(some.lists(some.floats(-10, 10), min_size=3, max_size=3), min_size=4, max_size=8))
def test_no_small_change_of_a_nonnegative_solution_is_better(rows):
    matrix = np.vstack([np.array(rows), 0.1 * np.eye(3)])
    target = np.arange(len(matrix), dtype=float)
    found = nonnegative(matrix, target)
    least = ((matrix @ found - target) ** 2).sum()
    for at in range(3):
        for change in (-0.01, 0.01):
            tried = found.copy()
            tried[at] = max(0.0, tried[at] + change)
            assert ((matrix @ tried - target) ** 2).sum() >= least - 1e-6 * (1 + least)


def test_a_few_wild_rows_do_not_rule_the_weights():
    rows = record()
    terms = np.array([cost_terms(row.step) for row in rows])
    actual_s = np.array([row.step_s for row in rows])
    wild_s = actual_s * np.where(np.arange(len(rows)) % 16 == 0, 20.0, 1.0)
    assert terms @ weights_for(terms, wild_s) == pytest.approx(actual_s, rel=0.1)


def test_what_no_run_did_costs_what_it_usually_does():
    rows = record()
    weights = weights_for(np.array([cost_terms(row.step) for row in rows]), np.array([row.step_s for row in rows]))
    assert weights[TERMS.index("conv: operations")] == pytest.approx(2.0)
    assert weights[TERMS.index("softmax: bytes")] == pytest.approx(1.5)


def test_five_runs_are_enough_to_come_near():
    rows = record()
    whole = Whole.learn(rows[::13])
    errors = [abs(whole.estimate(row.step).step_s.value / row.step_s - 1) for row in rows]
    assert sorted(errors)[len(errors) // 2] < 0.2


def test_a_group_is_never_split_over_parts():
    groups = ["a"] * 5 + ["b"] * 3 + ["c"] * 3 + ["d"]
    parts = folds_of(groups, 2)
    assert len({*zip(groups, parts, strict=True)}) == 4
    assert sorted(parts.count(at) for at in (0, 1)) == [6, 6]
