"""Agents on the nodes of a cluster, as far as they need no cluster; tests/serve/test_story_ray.py has one."""

import time
from pathlib import Path

import pytest

from wattsmith.engines.ray_cluster import ray_nodes
from wattsmith.flows.service_nodes import nothing_to_do
from wattsmith.flows.service_options import ServiceOptions
from wattsmith.flows.service_pool import as_told, engine_for, owner_of
from wattsmith.flows.service_ray import Had, NodeAgent
from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import PoolNode

EAST = PoolNode(name="east", kind="h200", count=2)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    made = NodeAgent("east", meters="auto")
    yield made
    made.close()


def told(agent, had, reports=1, schedule=None, now_s=None):
    """What the agent tells once it has so many REPORTS."""
    give_up_s = time.monotonic() + 20
    while True:
        answer = agent.tell(time.time() if now_s is None else now_s, had, schedule)
        if len(answer.reports) >= reports or time.monotonic() > give_up_s:
            return answer
        time.sleep(0.1)


def test_reports_are_told_until_the_service_has_them(agent):
    first = told(agent, Had())
    assert first.about.version
    again = told(agent, Had())
    assert again.reports[0] == first.reports[0]
    had = Had(boot=first.boot, number=1)
    later = told(agent, had)
    assert [report.number for report in later.reports] == list(range(2, 2 + len(later.reports)))
    assert later.about is None  # the service had it with the first


def test_what_another_start_of_the_agent_has_sent_does_not_count(agent):
    found = told(agent, Had(boot="earlier", number=100))
    assert found.reports[0].number == 1
    assert found.about is not None


def test_a_schedule_is_followed_by_the_clock_of_the_service(agent):
    ahead_s = time.time() + 86_400  # the service's clock is a day ahead: by ours its schedule would not hold yet
    given = nothing_to_do(EAST, ahead_s)
    told(agent, Had(), schedule=given, now_s=ahead_s + 1)
    give_up_s = time.monotonic() + 20
    latest = None
    while (latest is None or latest.serial is None) and time.monotonic() < give_up_s:
        latest = told(agent, Had(), now_s=ahead_s + 2).reports[-1]
    assert latest.serial == given.serial
    assert latest.time_s == pytest.approx(ahead_s, abs=60)


def test_a_schedule_that_cannot_be_followed_is_told_and_the_node_is_looked_at_all_the_same(agent):
    told(agent, Had())
    over = nothing_to_do(EAST, time.time() - 86_400)
    before = len(agent.tell(time.time(), Had(), over).reports)
    give_up_s = time.monotonic() + 20
    troubles = set()
    while not any(troubles) and time.monotonic() < give_up_s:
        troubles.add(agent.tell(time.time(), Had(), None).trouble or "")
        time.sleep(0.05)
    assert any("schedule 0 of east is not followed" in one for one in troubles)
    assert len(told(agent, Had(), before + 1).reports) > before


class Cluster:
    """What Ray tells of its nodes."""

    def __init__(self, *rows):
        self._rows = rows

    def nodes(self):
        return list(self._rows)


def row(node_id, *, name=None, alive=True, host="rack7", **resources):
    address = "10.0.0.7"
    return {
        "NodeID": node_id * 8,
        "NodeName": name or address,
        "NodeManagerAddress": address,
        "NodeManagerHostname": host,
        "Alive": alive,
        "Resources": resources,
    }


def names(*rows):
    return [node.pool.name for node in ray_nodes(Cluster(*rows))]


def test_a_node_is_called_as_it_was_told_or_after_its_host():
    assert names(row("a1", name="east", CPU=4), row("b2", CPU=4)) == ["east", "rack7-b2b2b2b2"]


def test_two_nodes_of_one_name_are_told_apart_and_one_that_came_back_is_the_same():
    assert names(row("a1", name="gpu", CPU=1), row("b2", name="gpu", CPU=1)) == ["rack7-a1a1a1a1", "rack7-b2b2b2b2"]
    assert names(row("a1", name="gpu", CPU=1, alive=False), row("b2", name="gpu", CPU=1)) == ["gpu", "gpu"]


def test_a_name_that_could_not_be_a_files_is_made_one():
    assert names(row("a1", name="../rack 7/é", CPU=1)) == ["rack-7--"]


def test_what_a_pool_file_says_of_a_node_is_taken_by_name_and_else_by_kind():
    by_kind = PoolNode(name="any", kind="h200", idle_w=70.0, power_limits_w=(200.0, 700.0))
    by_name = PoolNode(name="east", kind="h200", idle_w=90.0, base_w=300.0)
    assert as_told([by_kind, by_name], EAST).base_w == 300.0
    west = as_told([by_kind, by_name], PoolNode(name="west", kind="h200", count=4))
    assert (west.name, west.count, west.idle_w, west.power_limits_w) == ("west", 4, 70.0, (200.0, 700.0))
    assert west.memory_bytes == as_told([], EAST).memory_bytes  # from the data sheet
    assert west.memory_bytes > 100e9


def test_devices_cannot_be_excluded_where_ray_gives_them_out(tmp_path):
    pool = tmp_path / "pool.yaml"
    pool.write_text("nodes:\n  - {name: east, device: h200, count: 4, excluded: [1]}\n")
    options = ServiceOptions(db="", home=Path(tmp_path), engine="ray", pool=pool)
    pytest.importorskip("ray")
    with pytest.raises(BadInput, match="east: Ray gives out all devices of a node"):
        engine_for(options, "owner")


def test_a_service_is_called_the_same_for_as_long_as_its_database_lives(tmp_path):
    names = set()
    for _ in range(2):
        store = open_service_store(str(tmp_path / "service.sqlite"))
        names.add(owner_of(store, 0.0))
        store.close()
    assert len(names) == 1
