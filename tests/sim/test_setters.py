"""What the simulated driver and tree offer to be changed, and to whom."""

import os
import subprocess
import sys

from wattsmith.sim.nvml import NO_PERMISSION, ORDINARY_USER_VARIABLE, SUCCESS
from wattsmith.sim.sysfs import SimulatedSysfs

LOWER = """
import pynvml
pynvml.nvmlInit()
pynvml.nvmlDeviceSetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0), 300_000)
"""


def lower_limit(machine, **variables):
    return subprocess.run(
        [sys.executable, "-c", LOWER],
        env=os.environ | machine.environment() | variables,
        capture_output=True,
        text=True,
    )


def test_one_process_is_refused_as_an_ordinary_user_and_the_next_is_root(nvml_machine):
    machine = nvml_machine()
    refused = lower_limit(machine, **{ORDINARY_USER_VARIABLE: "1"})
    assert "NVMLError_NoPermission" in refused.stderr
    assert machine.setting(0).power_limit_w == 700.0
    assert lower_limit(machine, **{ORDINARY_USER_VARIABLE: "0"}).returncode == 0
    assert [call.code for call in machine.setting_calls()] == [NO_PERMISSION, SUCCESS]


def test_what_one_process_sets_outlives_it(nvml_machine):
    machine = nvml_machine()
    assert lower_limit(machine).returncode == 0
    assert machine.setting(0).power_limit_w == 300.0


def test_a_zone_has_the_power_limits_it_was_given(tmp_path):
    tree = SimulatedSysfs(tmp_path)
    tree.add_zone("intel-rapl:0", "package-0")
    zone = tree.add_power_limits("intel-rapl:0", {"long_term": 125.0, "short_term": 200.0}, max_w=125.0)
    assert (zone / "constraint_0_name").read_text() == "long_term\n"
    assert (zone / "constraint_1_power_limit_uw").read_text() == "200000000\n"
    assert (zone / "constraint_1_max_power_uw").read_text() == "125000000\n"


def test_a_devfreq_device_is_free_between_its_ends(tmp_path):
    folder = SimulatedSysfs(tmp_path).add_devfreq("17000000.gpu", [918e6, 306e6])
    assert (folder / "available_frequencies").read_text() == "306000000 918000000\n"
    assert (folder / "min_freq").read_text() == "306000000\n"
    assert (folder / "max_freq").read_text() == "918000000\n"


def test_the_memory_clock_of_a_jetson_is_not_locked(tmp_path):
    folder = SimulatedSysfs(tmp_path).add_emc(min_hz=204e6, max_hz=3_199e6)
    assert (folder / "mrq_rate_locked").read_text() == "0\n"
    assert (folder / "max_rate").read_text() == "3199000000\n"
