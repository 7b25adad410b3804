"""Data workers as Ray actors. One cluster of two nodes for all tests: it takes seconds to start."""

import contextlib
import logging
import os
import warnings

import pytest
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
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        node = started.add_node(num_cpus=2)
        ray.init(address=started.address, logging_level=logging.ERROR, log_to_driver=False)
        started.wait_for_nodes()
    yield started, node
    ray.shutdown()
    started.shutdown()


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
