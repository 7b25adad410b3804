"""The host's time to queue a step."""

from dataclasses import astuple

import pytest

from wattsmith.estimate.host import ENOUGH, HostModel, host_time_s
from wattsmith.terms.run import OperatorCall, StepTimes

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

HOST = HostModel(step_s=1e-3, light_s=1e-5, forward_s=2e-5, backward_s=3e-5, tensor_s=2e-6)


def call(operator, kind, calls=1, shapes=((8, 8),)):
    return OperatorCall(operator=operator, kind=kind, dtype="float32", shapes=shapes, calls=calls)


def step(light, forward, backward, tensors):
    """The calls of a step with so many operators of each sort."""
    return [
        call("relu", "elementwise", light),
        call("mm", "matmul", forward),
        call("convolution_backward", "conv", backward),
        call("_foreach_add_", "update", shapes=((tensors, 1000 * tensors),)),
    ]


def steps(count=40):
    chance = np.random.default_rng(0)
    return [step(*(int(one) for one in chance.integers(1, 200, 4))) for _ in range(count)]


def factors(model):
    return astuple(model)[:5]


class TestCalls:
    @pytest.mark.parametrize("kind", ["elementwise", "copy", "reduce", "softmax", "embedding"])
    def test_moving_elements_is_light_forward_and_back(self, kind):
        assert HOST.call_s(call("gelu", kind)) == HOST.call_s(call("gelu_backward", kind)) == 1e-5

    @pytest.mark.parametrize("kind", ["matmul", "conv", "norm", "attention", "pool"])
    def test_any_other_operator_takes_longer_and_its_gradient_longer_still(self, kind):
        assert HOST.call_s(call("that", kind)) == 2e-5
        assert HOST.call_s(call("that_backward", kind)) == 3e-5

    def test_an_update_takes_its_time_for_each_tensor(self):
        told_as_one = call("_foreach_add_", "update", shapes=((100, 5000),))
        told_each = call("_fused_adam_", "update", shapes=((8, 8), (8,), (1,)))
        assert HOST.call_s(told_as_one) == pytest.approx(200e-6)
        assert HOST.call_s(told_each) == pytest.approx(6e-6)

    def test_a_step_is_its_own_time_and_that_of_all_calls(self):
        assert HOST.whole_s(step(10, 10, 10, 100)) == pytest.approx(1e-3 + 100e-6 + 200e-6 + 300e-6 + 200e-6)

    def test_a_step_of_nothing_takes_its_own_time(self):
        assert HOST.whole_s([]) == 1e-3


class TestFit:
    def test_a_host_is_found_again_from_its_steps(self):
        found = HostModel.fit([(calls, HOST.whole_s(calls), "a session") for calls in steps()])
        assert factors(found) == pytest.approx(factors(HOST), rel=0.1)
        assert found.steps == 40

    def test_sessions_of_different_speed_do_not_bend_it(self):
        """One session is four times as slow as the other, so the host in the middle is twice as slow as the first."""
        rows = [
            (calls, HOST.whole_s(calls) * (4.0 if at % 2 else 1.0), f"session {at % 2}")
            for at, calls in enumerate(steps())
        ]
        assert factors(HostModel.fit(rows)) == pytest.approx([2 * one for one in factors(HOST)], rel=0.1)

    def test_a_session_with_many_steps_has_no_more_say_than_one_with_few(self):
        rows = [
            (calls, HOST.whole_s(calls) * (4.0 if at < 8 else 1.0), "slow" if at < 8 else "quick")
            for at, calls in enumerate(steps())
        ]
        assert HostModel.fit(rows).whole_s(steps()[0]) == pytest.approx(2 * HOST.whole_s(steps()[0]), rel=0.05)

    def test_a_few_steps_that_hung_do_not_rule(self):
        rows = [
            (calls, HOST.whole_s(calls) * (10.0 if at % 13 == 0 else 1.0), "a session")
            for at, calls in enumerate(steps())
        ]
        for calls in steps():
            assert HostModel.fit(rows).whole_s(calls) == pytest.approx(HOST.whole_s(calls), rel=0.1)

    def test_noise_leaves_steps_about_right(self):
        chance = np.random.default_rng(1)
        rows = [(calls, HOST.whole_s(calls) * chance.lognormal(0.0, 0.1), "a session") for calls in steps(100)]
        found = HostModel.fit(rows)
        for calls in steps():
            assert found.whole_s(calls) == pytest.approx(HOST.whole_s(calls), rel=0.15)

    def test_too_few_steps_leave_what_is_usual(self):
        few = [(calls, HOST.whole_s(calls), "a session") for calls in steps(ENOUGH - 1)]
        assert HostModel.fit(few) == HostModel.usual()
        assert HostModel.usual().steps == 0

    def test_no_part_is_ever_negative(self):
        chance = np.random.default_rng(2)
        rows = [(calls, float(chance.uniform(1e-4, 1e-2)), "a session") for calls in steps(10)]
        assert min(factors(HostModel.fit(rows))) >= 0.0


class TestMeasured:
    @staticmethod
    def times(**more):
        return StepTimes(steps=20, mean_s=0.01, median_s=0.01, spread_s=0.0, error_ratio=0.01, first_s=0.1, **more)

    def test_a_device_that_mostly_waits_shows_the_host_in_the_step_itself(self):
        assert host_time_s(self.times(busy_s=0.006, host_s=0.008)) == 0.01

    def test_beside_a_busy_device_it_is_what_was_timed_on_an_idle_one(self):
        assert host_time_s(self.times(busy_s=0.009, host_s=0.004)) == 0.004

    def test_beside_a_busy_device_it_is_unknown_if_nobody_timed_it(self):
        assert host_time_s(self.times(busy_s=0.009)) is None

    def test_a_step_that_was_not_profiled_has_what_was_timed(self):
        assert host_time_s(self.times(host_s=0.004)) == 0.004
        assert host_time_s(self.times()) is None
