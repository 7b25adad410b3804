"""From a trace to an estimate: intervals in order, power within its limit, and a standing that says why."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, sampled_from

pytest.importorskip("numpy", reason="ESTIMATES ARE NOT TESTED: numpy is not installed")
pytest.importorskip("scipy", reason="ESTIMATES ARE NOT TESTED: scipy is not installed")

from tests.flows.knowing import h200

from wattsmith.estimate.answer import SEQUENTIAL_S, Conditions, answer, runs_out
from wattsmith.estimate.conformal import Doubt
from wattsmith.estimate.device import UNTOLD, Switches
from wattsmith.estimate.fused import Fused
from wattsmith.estimate.memory import Peaks
from wattsmith.terms.errors import BadInput
from wattsmith.terms.estimate import Basis
from wattsmith.terms.run import OperatorCall, Structure
from wattsmith.terms.trace import WAIT, Trace

GIB = 2**30
MIB = 2**20
PEAKS = Peaks(allocated_bytes=GIB, reserved_bytes=2 * GIB)


def product(size, dtype="bfloat16"):
    """A product of two square matrices."""
    width = 2 if dtype == "bfloat16" else 4
    return OperatorCall(
        operator="mm",
        kind="matmul",
        dtype=dtype,
        shapes=((size, size), (size, size)),
        flops=2.0 * size**3,
        moved_bytes=3.0 * width * size**2,
    )


def never_measured(moved_bytes):
    """An operator that no record has: it moves so much."""
    side = max(1, math.isqrt(round(moved_bytes / 8)))
    return OperatorCall(
        operator="frobnicate", kind="elementwise", dtype="float32", shapes=((side, side),), moved_bytes=moved_bytes
    )


def step_of(*calls, waits=False, **more):
    """A step that makes CALLS one after the other, and waits after each if it WAITS."""
    order = [place for at in range(len(calls)) for place in ((at, WAIT) if waits else (at,))]
    structure = Structure(
        parameters=1,
        parameter_bytes=4,
        input_bytes=4,
        flops=sum(one.flops for one in calls),
        moved_bytes=sum(one.moved_bytes for one in calls),
        launches=len(calls),
        peak_bytes=GIB,
    )
    return Trace(
        structure=structure,
        calls=calls,
        memory=(),
        last_step_at=0,
        order=tuple(order),
        **more,
    )


def knowing(**known):
    """The model of the H200, were this KNOWN of it."""
    model = h200().model
    return replace(model, known=replace(model.known, **known))


def asked(step, model=None, peaks=PEAKS, **conditions):
    how = {"switches": Switches(), "trains": True, **conditions}
    return answer(model or h200().model, step, peaks, Conditions(**how))


def doubting(**changes):
    """The H200, knowing something else about how far off it is."""
    known = h200().model.known
    return replace(h200().model, known=replace(known, doubts=replace(known.doubts, **changes)))


LARGE = step_of(product(8192), product(8192))
SMALL = step_of(*[product(64)] * 4)


@given(
    size=integers(1, 20_000),
    calls=integers(1, 3),
    basis=sampled_from([Basis.OPERATORS, Basis.SHEET]),
    trains=booleans(),
    power_ratio=floats(0.05, 2),
    limit_w=floats(250, 2000),
)
@settings(max_examples=40)
def test_whatever_is_asked_intervals_are_in_order_and_power_keeps_its_limit(
    size, calls, basis, trains, power_ratio, limit_w
):
    found = asked(
        step_of(*[product(size)] * calls),
        basis=basis,
        trains=trains,
        power_ratio=power_ratio,
        power_limit_w=limit_w,
        capacity_bytes=140 * GIB,
    )
    # An Interval complains at birth when its ends are not around its value.
    assert 0 < found.busy_s.value <= found.step_s.value * (1 + 1e-9)
    assert found.power_w.high <= limit_w * (1 + 1e-9)
    assert found.step_energy_j.value == pytest.approx(found.power_w.value * found.step_s.value)
    assert found.memory.peak_tensor_bytes.value <= found.memory.peak_held_bytes.value
    assert 0 <= found.memory.runs_out <= 1


def test_a_step_that_calls_nothing_on_the_device_is_refused():
    with pytest.raises(BadInput, match="the step calls no operator on the device: there is nothing to estimate"):
        asked(step_of())


def test_a_large_product_keeps_the_device_busy_and_small_ones_wait_for_the_host():
    assert not asked(LARGE).host_bound
    small = asked(SMALL)
    assert small.host_bound
    assert small.step_s.value == pytest.approx(small.host_s.value, rel=0.1)
    assert small.power_w.value < asked(LARGE).power_w.value / 3


def test_waiting_for_values_makes_the_host_s_time_and_the_device_s_add_up():
    free, waiting = asked(LARGE), asked(step_of(*LARGE.calls, waits=True))
    assert waiting.busy_s == free.busy_s
    assert waiting.step_s.value == pytest.approx(free.busy_s.value + free.host_s.value, rel=0.05)


class TestStanding:
    def test_like_what_was_measured_is_inside(self):
        found = asked(step_of(product(4096)))
        assert (found.standing, found.reasons) == ("inside", ("operators like its own were measured",))

    def test_the_very_step_is_measured(self):
        assert asked(step_of(product(4096)), measured=True).standing == "measured"

    def test_another_device_s_record_is_outside_and_twice_as_wide_in_the_logarithm(self):
        here, there = asked(LARGE), asked(LARGE, basis=Basis.SHEET)
        assert there.standing == "outside"
        assert "this device was not measured" in there.reasons[0]
        assert there.busy_s.value == here.busy_s.value
        assert there.busy_s.high / there.busy_s.value == pytest.approx((here.busy_s.high / here.busy_s.value) ** 2)
        factor = here.power_w.value / here.power_w.low
        assert there.power_w.value / there.power_w.low == pytest.approx(factor**2)

    def test_a_compiled_step_is_the_eager_one_and_outside_where_none_was_measured(self):
        found = asked(LARGE, knowing(fused=None), compiled=True)
        assert (found.standing, found.step_s) == ("outside", asked(LARGE).step_s)
        assert "what compiling saves was not measured" in found.reasons[0]

    def test_a_compiled_step_keeps_its_products_and_is_less_certain(self):
        model = knowing(fused=Fused(rest=0.1, host=0.25, steps=6))
        eager, found = asked(LARGE, model, trains=False), asked(LARGE, model, trains=False, compiled=True)
        assert found.busy_s.value == pytest.approx(eager.busy_s.value)
        assert found.busy_s.high > eager.busy_s.high
        assert found.host_s.value == pytest.approx(eager.host_s.value / 4)
        assert found.standing == "edge"
        assert found.reasons == ("only 6 compiled steps were measured",)

    def test_a_compiled_step_that_trains_is_outside(self):
        found = asked(LARGE, knowing(fused=Fused(rest=0.1, host=0.25, steps=6)), compiled=True)
        assert (found.standing, found.reasons[0]) == ("outside", "6 compiled steps were measured, none of which trains")

    def test_what_recurrent_layers_do_one_after_the_other_is_a_guess(self):
        found = asked(step_of(*LARGE.calls, sequential=1000))
        assert found.standing == "outside"
        assert found.busy_s.value == pytest.approx(asked(LARGE).busy_s.value + 1000 * SEQUENTIAL_S)

    @pytest.mark.parametrize(("share", "standing"), [(0.04, "inside"), (0.15, "edge"), (0.5, "outside")])
    def test_bytes_in_operators_never_measured_count(self, share, standing):
        known = product(4096)
        found = asked(step_of(known, never_measured(known.moved_bytes * share / (1 - share))))
        assert found.timed.covered_bytes_ratio == pytest.approx(1 - share, abs=0.001)
        told = [one for one in found.reasons if "of the bytes move in operators that were never measured" in one]
        assert bool(told) == (share > 0.05)
        assert found.standing == standing


class TestPowerLimit:
    def test_one_that_is_not_reached_changes_nothing(self):
        assert asked(LARGE, power_limit_w=2000.0).step_s == asked(LARGE).step_s

    def test_the_lower_the_slower(self):
        steps = [asked(LARGE, power_limit_w=limit_w) for limit_w in (650.0, 500.0, 350.0, 200.0)]
        times_s = [one.step_s.value for one in steps]
        assert times_s == sorted(times_s)
        assert times_s[-1] > 1.5 * asked(LARGE).step_s.value
        assert [one.standing for one in (steps[0], steps[-1])] == ["edge", "outside"]
        assert "response to power limits was not measured" in "; ".join(steps[0].reasons)
        assert "times as slow" in "; ".join(steps[-1].reasons)

    def test_one_below_what_the_device_draws_idle_is_refused(self):
        with pytest.raises(BadInput, match=r"a power limit of 10 W cannot hold: this device draws about \d+ W when it"):
            asked(LARGE, power_limit_w=10.0)

    def test_without_one_the_limit_of_the_record_holds(self):
        assert asked(LARGE).power_w.high <= 700
        assert asked(LARGE, power_ratio=400 / 700, basis=Basis.SHEET).power_w.high <= 400 * (1 + 1e-9)


class TestMemory:
    def test_workspaces_are_added_to_the_tensors(self):
        found = asked(LARGE).memory
        assert found.peak_tensor_bytes.value == GIB + h200().model.fixed_bytes
        assert found.peak_tensor_bytes.low == GIB
        assert found.peak_held_bytes.value == 2 * GIB + h200().model.fixed_bytes
        assert 10 * MIB < h200().model.fixed_bytes < 200 * MIB

    def test_of_a_device_of_unknown_size_nobody_can_say_whether_it_runs_out(self):
        assert asked(LARGE).memory.runs_out is None

    def test_a_doubt_that_nobody_knows_is_wide(self):
        found = asked(LARGE, doubting(memory=None, held=None), capacity_bytes=140 * GIB).memory
        assert found.peak_tensor_bytes.high == UNTOLD * found.peak_tensor_bytes.value
        assert found.runs_out is None

    def test_what_does_not_fit_runs_out(self):
        chances = [asked(LARGE, capacity_bytes=round(size * GIB)).memory.runs_out for size in (0.1, 1.06, 140)]
        assert chances == sorted(chances, reverse=True)
        assert chances[0] > 0.95
        assert chances[-1] < 0.05


@given(sizes=sampled_from([(1, 2), (50, 99), (99, 100), (100, 101), (101, 200)]))
def test_more_room_never_makes_it_likelier_to_run_out(sizes):
    doubt = Doubt.fit([1.0] * 4, [1.0, 1.01, 0.95, 1.2], "abcd")
    tight, roomy = (runs_out(100.0, size, doubt) for size in sizes)
    assert tight >= roomy


def test_without_an_energy_model_power_is_unknown():
    found = asked(LARGE, replace(h200().model, energy=None), power_limit_w=10.0)
    assert (found.power_w, found.step_energy_j) == (None, None)
