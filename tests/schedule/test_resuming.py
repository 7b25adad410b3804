"""The state of a pool in which machines come and go, and an engine places jobs by itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.schedule.deciding import decide, empty_pool
from wattsmith.schedule.resuming import moved, set_aside, with_node, with_running, without_node
from wattsmith.terms.dispatch import JobEnded, JobSubmitted, StartJob
from wattsmith.terms.schedule import Job, Need, OperatingPoint, PoolNode, Response
from wattsmith.terms.work import Setting

EAST, WEST = PoolNode(name="east", kind="h200", count=2, idle_w=50.0), PoolNode(name="west", kind="h200", idle_w=50.0)


def a_job(name, devices=1, kind="h200"):
    response = Response(points=(OperatingPoint(setting=Setting(), rate=1.0, power_w=300.0),), idle_w=50.0)
    return Job(name=name, steps=100.0, needs=(Need(kind=kind, devices=devices, response=response),))


def pool(*nodes, running=()):
    state = empty_pool({node.name: node for node in nodes})
    for job, node, devices in running:
        state = with_running(state, job, node=node, devices=devices, setting=Setting(), since_s=0.0)
    return state


def test_a_job_that_was_put_elsewhere_leaves_its_devices_to_others():
    state = moved(pool(EAST, WEST, running=[(a_job("one"), "west", (0,))]), "one", "east", (1,))
    assert (state.running["one"].node, state.running["one"].devices) == ("east", (1,))
    assert state.free == {"east": (0,), "west": (0,)}
    assert state.drawn_w == 250.0


def test_two_jobs_that_changed_places_are_both_counted_once():
    state = pool(EAST, WEST, running=[(a_job("one"), "west", (0,)), (a_job("two"), "east", (0,))])
    state = moved(state, "one", "east", (0,))
    assert state.free == {"east": (1,), "west": (0,)}  # where two is, is not known yet
    state = moved(state, "two", "west", (0,))
    assert state.free == {"east": (1,)}
    for time_s, name in enumerate(("one", "two"), start=1):
        state, _ = decide(state, JobEnded(time_s=time_s, job=name))
    assert state.free == {"east": (0, 1), "west": (0,)}


def test_devices_that_are_not_told_are_taken_from_the_free_ones():
    state = pool(EAST, WEST, running=[(a_job("one"), "east", (0,)), (a_job("two"), "west", (0,))])
    assert moved(state, "two", "east", None).running["two"].devices == (1,)
    full = pool(WEST, EAST, running=[(a_job("one"), "east", (0, 1)), (a_job("two"), "west", (0,))])
    assert len(moved(full, "two", "east", None).running["two"].devices) == 1


def test_work_for_processors_on_a_machine_with_cards_takes_none_of_them():
    processors = PoolNode(name="many", kind="cpu", count=8)
    state = moved(pool(EAST, processors, running=[(a_job("one", kind="cpu"), "many", (0,))]), "one", "east", None)
    assert state.running["one"].devices == ()
    assert state.free == {"east": (0, 1), "many": tuple(range(8))}


def test_a_node_that_is_set_aside_gets_no_work_and_keeps_what_runs_there():
    state = set_aside(pool(EAST, WEST, running=[(a_job("one"), "east", (0,))]), "east")
    assert (state.lost, state.idle_w, list(state.running)) == ({"east"}, 50.0, ["one"])
    state, actions = decide(state, JobEnded(time_s=1.0, job="one", done=False))
    assert [(one.job, one.node) for one in actions if isinstance(one, StartJob)] == [("one", "west")]


def test_a_node_that_is_back_has_the_devices_that_nobody_uses_and_may_have_more():
    state = set_aside(pool(EAST, running=[(a_job("one"), "east", (0,))]), "east")
    assert with_node(state, EAST).free == {"east": (1,)}
    larger = with_node(state, PoolNode(name="east", kind="h200", count=3, idle_w=50.0))
    assert (larger.free, larger.lost, larger.idle_w) == ({"east": (1, 2)}, frozenset(), 150.0)


def test_what_was_found_on_a_machine_that_nobody_knows_leaves_no_devices_behind():
    state = pool(WEST, running=[(a_job("one"), "gone", (0, 1))])
    state, _ = decide(state, JobEnded(time_s=1.0, job="one"))
    state, actions = decide(state, JobSubmitted(time_s=2.0, job=a_job("two")))
    assert [(one.job, one.node) for one in actions if isinstance(one, StartJob)] == [("two", "west")]


@given(
    moves=st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["east", "west"]), st.integers(0, 1)), max_size=12)
)
def test_however_jobs_are_moved_power_is_theirs_and_no_device_that_is_used_is_free(moves):
    ones = [(a_job("a"), "east", (0,)), (a_job("b"), "east", (1,)), (a_job("c"), "west", (0,))]
    state = pool(EAST, WEST, running=ones)
    for job, node, place in moves:
        state = moved(state, job, node, (place,))
    assert state.drawn_w == pytest.approx(750.0)
    used = {(one.node, place) for one in state.running.values() for place in one.devices}
    assert not used & {(node, place) for node, places in state.free.items() for place in places}


@given(order=st.permutations(["east", "west", "east"]))
def test_nodes_that_come_and_go_leave_the_idle_power_right(order):
    state = pool(EAST, WEST)
    for name in order:
        gone = set_aside(state, name)
        state = with_node(gone, state.nodes[name])
    assert (state.idle_w, state.free) == (150.0, {"east": (0, 1), "west": (0,)})
    assert without_node(state, "east").idle_w == 50.0
