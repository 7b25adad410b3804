"""Jobs on a Ray cluster. One for all tests, to which nodes are added that are lost: it takes seconds to start."""

import contextlib
import json
import os
import signal
import tempfile
import time
from pathlib import Path

import pytest
from tests.contracts.job_engine import (
    NOTE,
    JobEngineContract,
    is_gone,
    lines_of,
    python,
    settled,
    until,
)
from tests.engines.ray_cluster import ray_cluster

from wattsmith.flows.job_runner import RUNNER
from wattsmith.terms.errors import BadTerm, NoSuch
from wattsmith.terms.jobs import Stage

pytest.importorskip("ray", reason="JOBS ON RAY ARE NOT TESTED: Ray is not installed; see the extra `ray`")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the collector
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def cluster():
    """A head with two cards."""
    with ray_cluster(
        num_cpus=4,
        num_gpus=2,
        resources={"wattsmith_kind:H200": 1},
        # A node that was killed is noticed in 4 seconds, not in 15.
        _system_config={"health_check_period_ms": 1000, "health_check_failure_threshold": 3},
    ) as started:
        yield started


class TestRayJobEngine(JobEngineContract):
    ROUNDS = 4

    @pytest.fixture
    def again(self, cluster, tmp_path, monkeypatch):
        from wattsmith.engines import ray_jobs

        monkeypatch.setattr(ray_jobs, "BEGIN_S", 3.0)
        return lambda: ray_jobs.RayJobEngine(tmp_path / "home", RUNNER, address=cluster.address)

    @pytest.fixture
    def making(self, cluster, tmp_path):
        return f"""
from pathlib import Path
from wattsmith.engines.ray_jobs import RayJobEngine
from wattsmith.flows.job_runner import RUNNER
engine = RayJobEngine(Path({str(tmp_path / "home")!r}), RUNNER, address={cluster.address!r})
"""

    def test_it_knows_its_nodes_by_kind(self, engine, cluster):
        node = cluster.add_node(num_cpus=3, node_name="third")
        try:
            cluster.wait_for_nodes()
            kinds = {(node.kind, node.count) for node in engine.nodes()}
            assert kinds == {("h200", 2), ("cpu", 3)}
            assert "third" in [node.name for node in engine.nodes()]
        finally:
            cluster.remove_node(node)
        _until(lambda: "third" not in [node.name for node in engine.nodes()])

    def test_attempts_of_two_services_on_one_cluster_may_have_the_same_name(self, engine, cluster, named, tmp_path):
        from wattsmith.engines.ray_jobs import RayJobEngine

        other = RayJobEngine(tmp_path / "other", RUNNER, address=cluster.address, owner="other")
        for each, word in ((engine, "mine"), (other, "theirs")):
            each.start(python(named, "import sys; print(sys.argv[1])", word))
        assert [settled(each, named).result.exit_code for each in (engine, other)] == [0, 0]
        assert [each.log(named) for each in (engine, other)] == [b"mine\n", b"theirs\n"]

    def test_devices_are_free_again_once_a_job_has_ended(self, engine, named):
        for number in range(2):
            engine.start(python(f"{named}.{number}", "pass", kind="h200", devices=(0, 1)))
            assert settled(engine, f"{named}.{number}").result.exit_code == 0

    def test_a_job_for_which_there_is_no_room_waits_and_can_be_stopped(self, engine, named, tmp_path, monkeypatch):
        from wattsmith.engines import ray_jobs

        monkeypatch.setattr(ray_jobs, "STOP_S", 0.5)
        engine.start(python(f"{named}.0", "import time; time.sleep(60)", kind="h200", devices=(0, 1)))
        until(engine, f"{named}.0", lambda status: status.stage is Stage.RUNNING)
        engine.start(python(named, NOTE + "note('ran')", tmp_path / "notes", kind="h200", devices=(0,)))
        assert engine.look(named).stage is Stage.STARTING
        engine.stop(named)
        result = settled(engine, named).result
        assert (result.exit_code, result.why) == (None, "it was stopped before it began")
        engine.stop(f"{named}.0")
        assert settled(engine, f"{named}.0").result.exit_code == 143
        assert not (tmp_path / "notes").exists()

    def test_a_job_is_lost_with_its_actor_and_nothing_of_it_runs_on(self, engine, named, tmp_path):
        code = NOTE + "import subprocess\nchild = subprocess.Popen(['sleep', '60'], start_new_session=True)\n"
        engine.start(python(named, code + "note(child.pid); time.sleep(60)", tmp_path / "notes"))
        ((child, pid, runner),) = lines_of(tmp_path / "notes", 1)
        until(engine, named, lambda status: status.stage is Stage.RUNNING)
        actor = int(Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(actor, signal.SIGKILL)
        assert settled(engine, named).stage is Stage.LOST
        assert [is_gone(one) for one in (runner, pid, child)] == [True] * 3

    def test_what_ended_before_its_actor_was_gone_is_found_on_its_node_and_does_not_run_again(
        self, engine, again, named, tmp_path
    ):
        code = NOTE + "note('begun')\nwhile not os.path.exists(sys.argv[2]): time.sleep(0.02)\nprint('all done')"
        engine.start(python(named, code, tmp_path / "notes", tmp_path / "go"))
        until(engine, named, lambda status: status.stage is Stage.RUNNING)
        ((_, _, runner),) = lines_of(tmp_path / "notes", 1)
        actor = int(Path(f"/proc/{runner}/stat").read_text().rpartition(")")[2].split()[1])
        (tmp_path / "go").touch()
        _until(lambda: is_gone(runner))  # its result is written, and nobody has asked for it
        os.kill(actor, signal.SIGKILL)
        ended = settled(again(), named)  # as a service that was started again does
        assert (ended.stage, ended.result.exit_code) == (Stage.ENDED, 0)
        assert again().log(named) == b"all done\n"
        _until(lambda: not _homes(f"attempt wattsmith {named}"))  # and nothing stays on its node

    def test_what_a_killed_actor_left_on_its_node_is_removed_by_a_later_one_unless_it_is_a_result(self, tmp_path):
        from wattsmith.engines.ray_jobs import _new_home

        left, ended, alive = (_new_home(tmp_path, name) for name in ("left", "ended", "alive"))
        for home in (left, ended):
            owner = json.loads((home / "owner").read_text())
            (home / "owner").write_text(json.dumps(owner | {"start_ticks": 1}))
        (ended / "attempts" / "j-000001.1").mkdir(parents=True)
        (ended / "attempts" / "j-000001.1" / "result.json").write_text("{}")
        mine = _new_home(tmp_path, "mine")
        assert set(tmp_path.iterdir()) == {ended, alive, mine}
        os.utime(ended / "owner", (0, 0))
        last = _new_home(tmp_path, "last")
        assert set(tmp_path.iterdir()) == {alive, mine, last}

    def test_a_job_on_a_node_that_dies_is_lost_and_the_next_attempt_runs_elsewhere(
        self, engine, again, cluster, named, tmp_path
    ):
        node = cluster.add_node(num_cpus=2, node_name="doomed")
        cluster.wait_for_nodes()
        code = NOTE + "note('begun'); time.sleep(float(sys.argv[2])); note('done')"
        engine.start(python(named, code, tmp_path / "notes", 60, node="doomed"))
        until(engine, named, lambda status: status.stage is Stage.RUNNING)
        assert engine.look(named).node == "doomed"
        ((_, pid, _),) = lines_of(tmp_path / "notes", 1)
        cluster.remove_node(node, allow_graceful=False)
        status = settled(engine, named)
        assert (status.stage, status.node) == (Stage.LOST, "doomed")
        assert "gone" in status.why
        assert again().look(named).stage is Stage.LOST
        assert is_gone(pid)
        following = named.removesuffix(".1") + ".2"
        engine.start(python(following, code, tmp_path / "notes", 0.1, node="doomed"))
        status = settled(engine, following)
        assert status.result.exit_code == 0
        assert status.node != "doomed"
        assert [line[0] for line in lines_of(tmp_path / "notes")] == ["begun", "begun", "done"]


def _homes(name):
    """Folders on this machine that actors of attempts called NAME have made."""
    found = []
    for path in Path(tempfile.gettempdir()).glob("wattsmith-attempt-*/name"):
        with contextlib.suppress(OSError):
            found += [path] if path.read_text() == name else []
    return found


def _until(reached, within_s=15.0):
    give_up_s = time.monotonic() + within_s
    while not reached():
        assert time.monotonic() < give_up_s
        time.sleep(0.05)


class Counting:
    """What an agent may be."""

    def __init__(self, node):
        self.node = node
        self.count = 0

    def add(self, number):
        if number < 0:
            raise BadTerm(f"number must not be negative, got {number}")
        self.count += number
        return self.node, self.count, os.getpid()


def test_each_node_has_an_agent_that_outlives_who_made_it_and_comes_back(cluster):
    from wattsmith.engines.ray_agents import NodeAgents

    node = cluster.add_node(num_cpus=1, node_name="second")
    cluster.wait_for_nodes()
    agents = NodeAgents("counting", Counting)
    try:
        nodes = agents.tend()
        assert len(nodes) == 2
        assert agents.call("second", "add", 2, timeout_s=20)[:2] == ("second", 2)
        another = NodeAgents("counting", Counting)
        another.tend()
        assert another.call("second", "add", 3)[:2] == ("second", 5)
        assert {name: answer[:2] for name, answer in agents.call_all("add", 1, timeout_s=20).items()} == {
            "second": ("second", 6),
            nodes[1 - nodes.index("second")]: (nodes[1 - nodes.index("second")], 1),
        }
        with pytest.raises(BadTerm, match="must not be negative, got -1"):
            agents.call("second", "add", -1)
        with pytest.raises(BadTerm, match="'_held' of an agent is its own"):
            agents.call("second", "_held")
        with pytest.raises(NoSuch, match="no agent on 'third'"):
            agents.call("third", "add", 1)

        os.kill(agents.call("second", "add", 0)[2], signal.SIGKILL)
        _until(lambda: _answers(agents, "second") == 1)

        cluster.remove_node(node, allow_graceful=False)
        _until(lambda: "second" not in agents.tend())
        assert list(agents.call_all("add", 0)) == [name for name in nodes if name != "second"]
    finally:
        agents.end()


def _answers(agents, node):
    from wattsmith.engines.ray_agents import AgentLost

    agents.tend()
    try:
        return agents.call(node, "add", 1)[1]
    except AgentLost:
        return None
