"""A step's pace, from a host that queues and a device that works the queue off."""

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, floats, lists, tuples

from wattsmith.estimate.queue import DEEP, paced
from wattsmith.terms.run import Structure
from wattsmith.terms.trace import WAIT, Trace


def test_a_slow_device_sets_the_pace():
    step = paced([0, 0], busy_s=[2.0], host_s=[1.0])
    assert (step.step_s, step.busy_s, step.host_s) == (4.0, 4.0, 2.0)
    assert not step.host_bound


def test_a_slow_host_sets_the_pace():
    step = paced([0, 0], busy_s=[1.0], host_s=[2.0])
    assert (step.step_s, step.busy_s, step.host_s) == (4.0, 2.0, 4.0)
    assert step.host_bound


def test_each_operator_counts_as_often_as_it_is_called():
    step = paced([0, 1, 1, 0, 1], busy_s=[10.0, 1.0], host_s=[0.1, 0.1])
    assert step.step_s == step.busy_s == pytest.approx(23.0)


def test_the_hosts_own_time_comes_on_top_of_what_it_queues():
    step = paced([0, 0], busy_s=[1.0], host_s=[2.0], apart_s=3.0)
    assert step.step_s == step.host_s == 7.0


def test_a_device_that_is_busy_nine_tenths_of_the_time_sets_the_pace():
    assert not paced([0], busy_s=[9.1], host_s=[10.0]).host_bound
    assert paced([0], busy_s=[8.9], host_s=[10.0]).host_bound


def test_without_waiting_the_host_queues_a_step_while_the_device_is_at_the_last_one():
    assert paced([0], busy_s=[3.0], host_s=[2.0]).step_s == 3.0


def test_a_host_that_waits_for_a_value_cannot_queue_meanwhile():
    assert paced([0, WAIT], busy_s=[3.0], host_s=[2.0]).step_s == 5.0


def test_a_wait_in_the_middle_costs_the_device_what_the_host_needs_to_queue_again():
    assert paced([0, WAIT, 0], busy_s=[2.0], host_s=[1.0]).step_s == 5.0


def test_waiting_is_no_operator():
    step = paced([0, WAIT, WAIT], busy_s=[2.0], host_s=[1.0])
    assert (step.busy_s, step.host_s) == (2.0, 1.0)


def test_a_host_that_is_late_anyway_loses_nothing_by_waiting():
    assert paced([0, WAIT], busy_s=[0.0], host_s=[2.0]).step_s == 2.0


def test_a_step_of_nothing_takes_the_hosts_own_time():
    assert paced([], busy_s=[], host_s=[], apart_s=0.5).step_s == 0.5


def test_a_host_can_be_a_thousand_operators_ahead_and_no_more():
    """A quarter of the step is work for the device alone, another, far from it, for the host alone."""
    far = [0] * 512 + [1] * 1024 + [2] * 512
    near = [0] * 512 + [2] * 512
    busy_s, host_s = [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]
    assert DEEP == 1024
    assert paced(near, busy_s, host_s).step_s == 512.0
    assert paced(far, busy_s, host_s).step_s == pytest.approx(1024.0, abs=2.0)


seconds = floats(0.0, 10.0)
operators = lists(tuples(seconds, seconds), min_size=1, max_size=40)


@given(operators, seconds)
def test_without_waits_a_step_takes_as_long_as_the_slower_of_the_two(each, apart_s):
    busy_s, host_s = zip(*each, strict=True)
    step = paced(range(len(each)), busy_s, host_s, apart_s)
    assert step.busy_s == pytest.approx(sum(busy_s))
    assert step.host_s == pytest.approx(apart_s + sum(host_s))
    assert step.step_s == pytest.approx(max(step.busy_s, step.host_s))


@given(lists(tuples(seconds, seconds, booleans()), min_size=1, max_size=40), seconds)
def test_with_waits_it_is_never_faster_than_either_nor_slower_than_both_in_turn(each, apart_s):
    order = [place for at, (_, _, waits) in enumerate(each) for place in ((at, WAIT) if waits else (at,))]
    step = paced(order, [busy for busy, _, _ in each], [host for _, host, _ in each], apart_s)
    assert step.step_s >= max(step.busy_s, step.host_s) - 1e-9
    assert step.step_s <= step.busy_s + step.host_s + 1e-9


@given(operators, floats(0.1, 10.0))
def test_when_both_are_slower_by_a_factor_the_step_is_too(each, factor):
    order = [*range(len(each)), WAIT]
    busy_s, host_s = zip(*each, strict=True)
    slower = paced(order, [factor * one for one in busy_s], [factor * one for one in host_s])
    assert slower.step_s == pytest.approx(factor * paced(order, busy_s, host_s).step_s)


def test_a_trace_tells_how_often_a_value_was_assumed():
    structure = Structure(
        parameters=0, parameter_bytes=0, input_bytes=0, flops=0.0, moved_bytes=0.0, launches=0, peak_bytes=0
    )
    trace = Trace(
        structure=structure,
        calls=(),
        memory=(),
        last_step_at=0,
        order=(0, WAIT, 1, WAIT),
    )
    assert trace.assumed == 2
