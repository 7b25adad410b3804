"""What every test relies on."""

from pathlib import Path

import pytest
from hypothesis import settings

# How long one example takes says nothing on a shared machine; pytest-timeout catches what hangs.
settings.register_profile("house", deadline=None)
settings.load_profile("house")


def pytest_runtest_setup(item: pytest.Item) -> None:
    # The device file, not the library: the simulated driver gives a library too.
    if item.get_closest_marker("gpu") and not Path("/dev/nvidiactl").exists():
        pytest.skip("needs a real NVIDIA GPU, and this machine has none")
