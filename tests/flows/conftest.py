"""Pools for tests of the dispatcher."""

import pytest


@pytest.fixture
def pool(tmp_path):
    from tests.flows.dispatching import Pool  # which needs sqlalchemy

    made = Pool(tmp_path / "service.sqlite")
    yield made
    made.close()


@pytest.fixture
def narrow(tmp_path):
    """One machine with one device."""
    from tests.flows.dispatching import Pool

    made = Pool(tmp_path / "service.sqlite", nodes=(("n0", 1),))
    yield made
    made.close()
