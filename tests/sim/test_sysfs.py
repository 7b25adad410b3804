import os
from pathlib import Path

import pytest

from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.clock import RealClock
from wattsmith.terms.errors import BadTerm


@pytest.fixture
def sysfs(tmp_path: Path) -> SimulatedSysfs:
    return SimulatedSysfs(tmp_path / "sys")


def test_the_tree_says_that_it_is_simulated(sysfs):
    assert "simulated" in (sysfs.root / "wattsmith-simulated").read_text()


def test_a_counter_moves_by_power_times_time(sysfs):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    sysfs.advance(10.0, {"intel-rapl:0": 50.0})
    assert (zone / "energy_uj").read_text() == "500000000\n"
    assert sysfs.energy_j == {"intel-rapl:0": 500.0}


def test_a_counter_starts_again_at_its_range(sysfs):
    zone = sysfs.add_zone("intel-rapl:0", "package-0", range_j=100.0, start_j=90.0)
    sysfs.advance(1.0, {"intel-rapl:0": 30.0})
    assert (zone / "energy_uj").read_text() == "20000000\n"
    assert sysfs.energy_j["intel-rapl:0"] == 120.0


def test_zones_appear_flat_under_class_powercap(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    sysfs.add_zone("intel-rapl:0:1", "dram", inside="intel-rapl:0")
    assert (sysfs.root / "class/powercap/intel-rapl:0:1/name").read_text() == "dram\n"
    assert (sysfs.root / "class/powercap/intel-rapl:0/intel-rapl:0:1/name").read_text() == "dram\n"


def test_a_hwmon_rail_shows_its_power_as_voltage_and_current(sysfs):
    chip = sysfs.add_ina3221({1: "VDD_IN"})
    sysfs.advance(1.0, {"VDD_IN": 10.0})
    assert (chip / "in1_input").read_text() == "5000\n"
    assert (chip / "curr1_input").read_text() == "2000\n"


def test_an_iio_rail_shows_its_power_in_milliwatts(sysfs):
    chip = sysfs.add_ina3221({0: "POM_5V_IN"}, layout="iio", address="6-0040")
    sysfs.advance(1.0, {"POM_5V_IN": 3.5})
    assert (chip / "in_power0_input").read_text() == "3500\n"


def test_the_clock_follows_a_lowered_limit(sysfs):
    policy = sysfs.add_cpufreq(0, min_hz=800e6, max_hz=3e9)
    assert (policy / "scaling_cur_freq").read_text() == "3000000\n"
    (policy / "scaling_max_freq").write_text("1200000\n")
    sysfs.advance(1.0, {})
    assert (policy / "scaling_cur_freq").read_text() == "1200000\n"


def test_an_unknown_zone_is_named_in_the_error(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    with pytest.raises(BadTerm, match=r"'intel-rapl:7'.*it has: intel-rapl:0"):
        sysfs.advance(1.0, {"intel-rapl:7": 1.0})


def test_an_unreadable_file_fails_even_for_root(sysfs):
    path = sysfs.add_zone("intel-rapl:0", "package-0") / "energy_uj"
    with sysfs.unreadable(path), pytest.raises(OSError, match="directory"):
        path.read_text()
    assert path.read_text() == "0\n"


def test_a_player_moves_the_counter_by_the_curve_it_plays(sysfs):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    clock = RealClock()
    began_s = clock.now_s()
    with sysfs.playing(clock, lambda _: {"intel-rapl:0": 100.0}):
        clock.sleep_s(0.1)
    lasted_s = clock.now_s() - began_s
    assert 0 < sysfs.energy_j["intel-rapl:0"] <= 100.0 * lasted_s
    assert int((zone / "energy_uj").read_text()) == round(sysfs.energy_j["intel-rapl:0"] * 1e6)


def test_no_half_written_file_is_left_behind(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    sysfs.advance(1.0, {"intel-rapl:0": 1.0})
    assert not [name for _, _, names in os.walk(sysfs.root) for name in names if name.endswith(".new")]
