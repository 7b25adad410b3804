"""The simulated engine of jobs keeps what every engine promises, as far as that needs no real command."""

import pytest

from wattsmith.sim.jobs import STOPPED, SimulatedJobEngine
from wattsmith.terms.errors import BadTerm, Conflict
from wattsmith.terms.jobs import AttemptOrder, Stage
from wattsmith.terms.schedule import PoolNode


@pytest.fixture
def engine():
    return SimulatedJobEngine([PoolNode(name="n0", kind="h200", count=2), PoolNode(name="n1", kind="h200")])


def order(attempt="j-000001.1", node="n0"):
    return AttemptOrder(attempt=attempt, command=("python", "-V"), node=node, kind="h200", devices=(0,))


def test_what_nobody_started_is_unknown_and_can_be_stopped_and_forgotten(engine):
    engine.stop("a.1")
    engine.forget("a.1")
    assert engine.log("a.1") == b""
    assert engine.look("a.1").stage is Stage.UNKNOWN


def test_started_twice_it_runs_once(engine):
    for _ in range(2):
        engine.start(order())
    engine.end("j-000001.1", 7)
    engine.start(order())
    status = engine.look("j-000001.1")
    assert (status.stage, status.result.exit_code, status.result.simulated) == (Stage.ENDED, 7, True)
    assert list(engine.orders) == ["j-000001.1"]


def test_one_that_is_told_to_stop_stops_when_it_gets_to_it(engine):
    engine.start(order())
    engine.run("j-000001.1", steps=3.0)
    engine.stop("j-000001.1")
    assert (engine.look("j-000001.1").stage, engine.look("j-000001.1").steps) == (Stage.RUNNING, 3.0)
    with pytest.raises(Conflict, match="running: stop it"):
        engine.forget("j-000001.1")
    engine.obey()
    result = engine.look("j-000001.1").result
    assert (result.exit_code, result.why) == (STOPPED, "it was stopped")
    engine.forget("j-000001.1")
    assert engine.look("j-000001.1").stage is Stage.UNKNOWN


def test_with_a_node_goes_what_runs_there(engine):
    engine.start(order("j-000001.1", "n0"))
    engine.start(order("j-000002.1", "n1"))
    engine.lose_node("n0")
    assert [node.name for node in engine.nodes()] == ["n1"]
    assert engine.look("j-000001.1").stage is Stage.LOST
    assert engine.live == ["j-000002.1"]
    engine.bring_back("n0")
    assert [node.name for node in engine.nodes()] == ["n0", "n1"]
    assert engine.look("j-000001.1").why == "its node n0 is gone"


def test_a_log_says_that_nothing_ran(engine):
    engine.start(order())
    assert engine.log("j-000001.1", offset=11) == b"was simulated\n"
    with pytest.raises(BadTerm, match="stdout and stderr"):
        engine.log("j-000001.1", stream="../order.json")


@pytest.mark.parametrize("attempt", ["../up", "a/b", "", "."])
def test_the_name_of_an_attempt_is_no_path(engine, attempt):
    with pytest.raises(BadTerm):
        engine.start(order(attempt))
    with pytest.raises(BadTerm):
        engine.look(attempt)
