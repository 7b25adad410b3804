"""A Ray cluster on this machine for tests. It takes seconds to start: one for all tests of a module."""

import contextlib
import logging
import os
import warnings


@contextlib.contextmanager
def ray_cluster(**head):
    """A cluster with a HEAD, to which this process is connected."""
    import ray
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    with quietly():
        started = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **head})
        ray.init(address=started.address, logging_level=logging.ERROR, log_to_driver=False)
        started.wait_for_nodes()
    try:
        yield started
    finally:
        ray.shutdown()
        started.shutdown()


@contextlib.contextmanager
def quietly():
    """Without what Ray says while it starts."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        yield
