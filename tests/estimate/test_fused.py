"""Compiled steps: what is no product is fused away but for a share, and the host queues less."""

import math

import pytest

from wattsmith.estimate.device import Timed
from wattsmith.estimate.fused import FEWEST, Compiled, Fused
from wattsmith.estimate.shapes import features_of
from wattsmith.terms.run import OperatorCall

PRODUCT = OperatorCall(
    operator="mm", kind="matmul", dtype="float32", shapes=((8, 8), (8, 8)), calls=2, flops=1024.0, moved_bytes=768.0
)
RELU = OperatorCall(operator="relu", kind="elementwise", dtype="float32", shapes=((8, 8),), calls=5, moved_bytes=512.0)


def eager(product_s=1.0, relu_s=1.0):
    """Two products and five light calls, of so many seconds each: 7 s if each takes one."""
    calls = (PRODUCT, RELU)
    return Timed(
        features=tuple(features_of(one, tf32=False, trains=False) for one in calls),
        calls=calls,
        busy_s=(product_s, relu_s),
        doubt=0.1,
        covered_flops_ratio=1.0,
        covered_bytes_ratio=1.0,
    )


def steps(busy_s, count=FEWEST):
    return [Compiled(eager=eager(), eager_host_s=0.4, busy_s=busy_s, host_s=0.1) for _ in range(count)]


def test_the_share_that_is_left_of_light_work_is_learned():
    found = Fused.learn(steps(busy_s=2 + 0.5 * 5))
    assert found.rest == pytest.approx(0.5)
    assert found.host == pytest.approx(0.25)
    assert found.steps == FEWEST


def test_too_few_compiled_steps_teach_nothing():
    assert Fused.learn(steps(busy_s=3.0, count=FEWEST - 1)) is None


def test_a_step_that_is_faster_than_its_products_leaves_next_to_nothing_of_the_rest():
    assert Fused.learn(steps(busy_s=1.0)).rest <= 0.04


def test_products_stay_and_the_rest_takes_less_time_and_moves_less():
    found = Fused(rest=0.2, host=0.3, steps=6).applied(eager())
    assert found.busy_s == (1.0, pytest.approx(0.2))
    assert found.whole_s == pytest.approx(2 + 5 * 0.2)
    assert [one.moved_bytes for one in found.features] == [768.0 / 2, pytest.approx(0.2 * 512.0 / 5)]  # of one call
    assert math.isclose(eager().whole_s, 7.0)
