"""Cost terms are seconds at what the device can hold."""

import pytest
from tests.estimate.steps_made_up import PLAIN, step, structure

from wattsmith.estimate.costs import TERMS, Regime, Step, cost_terms, counts, shares, timed_steps, traits
from wattsmith.store.shipped import open_shipped
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Structure


def costs_of(one):
    return dict(zip(TERMS, cost_terms(one), strict=True))


def test_ten_teraflop_take_a_second_at_ten_teraflop_a_second():
    costs = costs_of(step(matmul=(1e13, 1e12)))
    assert costs["matmul: operations"] == pytest.approx(1.0)
    assert costs["matmul: bytes"] == pytest.approx(1.0)
    assert costs["matmul: calls"] == pytest.approx(10 * 1e-5)


def test_operations_in_bf16_take_a_tenth_where_the_device_is_ten_times_as_fast():
    costs = costs_of(step(regime=Regime(precision="bf16"), conv=(1e13, 0.0), norm=(0.0, 1.0)))
    assert costs["conv: operations"] == pytest.approx(0.1)


def test_a_class_nobody_foresaw_is_counted_as_element_wise():
    counted = counts(structure(elementwise=(0.0, 1e9), wavelets=(5.0, 2e9)))
    assert counted["elementwise"].moved_bytes == 3e9
    assert counted["elementwise"].calls == 20


def test_shares_name_what_the_step_has_and_add_up():
    shared = shares(step(matmul=(1e13, 0.0), wavelets=(0.0, 1e12)))
    assert shared == {"matmul": pytest.approx(0.5), "wavelets": pytest.approx(0.5)}


def test_all_steps_have_as_many_traits():
    assert len(traits(step(norm=(0.0, 1.0)))) == len(traits(step(conv=(1e9, 1e9), attention=(1e9, 1e9))))


def test_a_step_that_does_nothing_is_refused():
    nothing = Structure(
        parameters=0, parameter_bytes=0, input_bytes=0, flops=0.0, moved_bytes=0.0, launches=0, peak_bytes=0
    )
    with pytest.raises(BadTerm, match="Trace the step itself"):
        Step(structure=nothing, device=PLAIN, regime=Regime())


def test_a_regime_says_itself_in_words():
    assert (
        str(Regime(precision="bf16", layout="channels-last", compiled=True)) == "bf16, train, channels-last, compiled"
    )


def test_the_shipped_record_of_an_h200_can_be_learned_from():
    with open_shipped("h200") as store:
        timed = timed_steps(list(store.runs()))
    assert len(timed) > 50
    assert {row.step.device.name for row in timed} == {"NVIDIA H200"}
