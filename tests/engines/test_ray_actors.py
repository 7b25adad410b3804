"""Data workers as Ray actors. One cluster of two nodes for all tests: it takes seconds to start."""

import pytest
from tests.engines.ray_cluster import quietly, ray_cluster
from tests.feed.numbered import Numbered, stream_of

from wattsmith import Feeder

pytest.importorskip("ray", reason="ENGINE ray IS NOT TESTED: Ray is not installed; see the extra `ray`")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the collector
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two nodes with room for two workers each."""
    with ray_cluster(num_cpus=2) as started:
        with quietly():
            node = started.add_node(num_cpus=2)
            started.wait_for_nodes()
        yield started, node


def test_workers_on_ray_deliver_the_same_stream_and_a_lost_node_loses_nothing(cluster):
    started, node = cluster
    alone = stream_of(Feeder(Numbered(640, large=True), batch_size=4, shuffle=True, seed=5))
    slow = Numbered(640, large=True, takes_s=0.01)
    fed = Feeder(slow, batch_size=4, shuffle=True, seed=5, num_workers=3, engine="ray")

    def with_a_loss():
        there = [node]
        for batch in fed:
            yield batch
            if there and not fed._engine().starting:  # all workers have come, from both nodes
                started.remove_node(there.pop(), allow_graceful=False)

    assert stream_of(with_a_loss()) == alone
    assert fed.report().lost >= 1
    fed.close()
