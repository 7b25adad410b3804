import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.rapl import find_rapl, joules_between
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable

NOBODY = 65_534
FILES = ["energy_uj", "max_energy_range_uj", "name"]


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


@pytest.fixture
def sysfs(tmp_path: Path) -> SimulatedSysfs:
    return SimulatedSysfs(tmp_path / "sys")


class TestRaplMeter(MeterContract):
    @pytest.fixture
    def meter(self, sysfs, clock):
        sysfs.add_zone("intel-rapl:0", "package-0")
        return find_rapl(clock, sysfs.root)[0]

    @pytest.fixture
    def advance(self, sysfs, clock):
        def advance(duration_s: float) -> None:
            clock.sleep_s(duration_s)
            sysfs.advance(duration_s, {"intel-rapl:0": 80.0})

        return advance


def domains(sysfs: SimulatedSysfs) -> list[str]:
    return [meter.card.domain for meter in find_rapl(SimulatedClock(), sysfs.root)]


def counted_j(meter) -> float:
    return meter.read(counter=True).counter.energy_j


def test_packages_memory_and_platform_are_found_and_parts_of_a_package_are_not(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    sysfs.add_zone("intel-rapl:0:0", "core", inside="intel-rapl:0")
    sysfs.add_zone("intel-rapl:0:1", "uncore", inside="intel-rapl:0")
    sysfs.add_zone("intel-rapl:0:2", "dram", inside="intel-rapl:0")
    sysfs.add_zone("intel-rapl:1", "package-1")
    sysfs.add_zone("intel-rapl:1:0", "dram", inside="intel-rapl:1")
    sysfs.add_zone("intel-rapl:2", "psys")
    assert domains(sysfs) == ["cpu-package:0", "cpu-package:1", "dram:0", "dram:1", "psys:0"]


def test_two_dies_of_one_package_are_two_domains(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0-die-0")
    sysfs.add_zone("intel-rapl:1", "package-0-die-1")
    assert domains(sysfs) == ["cpu-package:0-die-0", "cpu-package:0-die-1"]


def test_memory_mapped_registers_are_not_counted_a_second_time(sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    sysfs.add_zone("intel-rapl-mmio:0", "package-0")
    assert domains(sysfs) == ["cpu-package:0"]


def test_memory_mapped_registers_serve_where_they_are_all_there_is(sysfs):
    sysfs.add_zone("intel-rapl-mmio:0", "package-0")
    assert domains(sysfs) == ["cpu-package:0"]


def test_the_platform_encloses_packages_and_memory(sysfs, clock):
    sysfs.add_zone("intel-rapl:1", "psys")
    card = find_rapl(clock, sysfs.root)[0].card
    assert card.encloses == ("cpu-package", "dram")
    assert card.source is Source.COUNTER
    assert card.simulated


def test_a_tree_without_the_marker_is_taken_for_real(sysfs, clock):
    sysfs.add_zone("intel-rapl:0", "package-0")
    (sysfs.root / "wattsmith-simulated").unlink()
    card = find_rapl(clock, sysfs.root)[0].card
    assert not card.simulated
    assert card.name == "package-0"


def test_eighty_watts_for_two_seconds_count_160_joules(sysfs, clock):
    sysfs.add_zone("intel-rapl:0", "package-0")
    meter = find_rapl(clock, sysfs.root)[0]
    before_j = counted_j(meter)
    clock.sleep_s(2.0)
    sysfs.advance(2.0, {"intel-rapl:0": 80.0})
    readings = meter.read(counter=False)
    assert readings.counter.energy_j - before_j == pytest.approx(160.0)
    assert readings.counter.time_s == 102.0
    assert readings.missed == 0


def test_a_wrap_adds_the_range(sysfs, clock):
    sysfs.add_zone("intel-rapl:0", "package-0", range_j=1_000.0, start_j=990.0)
    meter = find_rapl(clock, sysfs.root)[0]
    sysfs.advance(1.0, {"intel-rapl:0": 30.0})
    assert counted_j(meter) == pytest.approx(1_020.0)


def test_a_gap_long_enough_for_two_wraps_is_owned_up_to(sysfs, clock):
    sysfs.add_zone("intel-rapl:0", "package-0", range_j=1_000.0)
    meter = find_rapl(clock, sysfs.root)[0]
    clock.sleep_s(60.0)
    readings = meter.read(counter=True)
    assert readings.missed == 1
    assert "not read for 60 s" in readings.why_missed


@given(
    before_uj=st.integers(0, 10**12 - 1),
    moved_uj=st.integers(0, 10**12 - 1),
    range_uj=st.integers(10**12, 10**13),
)
def test_a_difference_below_the_range_is_told_exactly(before_uj, moved_uj, range_uj):
    after_uj = (before_uj + moved_uj) % range_uj
    assert joules_between(before_uj, after_uj, range_uj) == moved_uj / 1_000_000


@settings(max_examples=40, deadline=None)
@given(steps_j=st.lists(st.integers(0, 999), min_size=1, max_size=12), start_j=st.integers(0, 999))
def test_differences_add_up_to_the_true_joules_however_often_it_wraps(steps_j, start_j):
    with tempfile.TemporaryDirectory() as folder:
        sysfs, clock = SimulatedSysfs(Path(folder)), SimulatedClock()
        sysfs.add_zone("intel-rapl:0", "package-0", range_j=1_000.0, start_j=float(start_j))
        meter = find_rapl(clock, sysfs.root)[0]
        begin_j = counted_j(meter)
        for step_j in steps_j:
            sysfs.advance(1.0, {"intel-rapl:0": float(step_j)})
            meter.read(counter=True)
        assert counted_j(meter) - begin_j == pytest.approx(sum(steps_j))


def test_a_machine_without_powercap_says_what_to_do(tmp_path, clock):
    with pytest.raises(MeterUnavailable, match=r"no RAPL package under .*class/powercap.*--meters gpu"):
        find_rapl(clock, tmp_path)


def test_powercap_without_a_package_says_what_to_do(sysfs, clock):
    (sysfs.root / "class/powercap/dtpm").mkdir(parents=True)
    with pytest.raises(MeterUnavailable, match="modprobe intel_rapl_msr"):
        find_rapl(clock, sysfs.root)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT CHECKED: only root can start a child of another user")
def test_a_counter_for_root_only_says_how_to_open_it():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        zone = SimulatedSysfs(Path(folder)).add_zone("intel-rapl:0", "package-0")
        (zone / "energy_uj").chmod(0o400)
        # The child imports before it gives up its rights: the interpreter may live where others cannot look.
        child = (
            "import os, sys; from pathlib import Path; from wattsmith.measure.rapl import find_rapl\n"
            "from wattsmith.terms.clock import RealClock\n"
            "from wattsmith.terms.errors import MeterUnavailable\n"
            f"os.setgid({NOBODY}); os.setuid({NOBODY})\n"
            "try: find_rapl(RealClock(), Path(sys.argv[1]))\n"
            "except MeterUnavailable as told: print(told)\n"
        )
        told = subprocess.run([sys.executable, "-c", child, folder], capture_output=True, text=True, check=True).stdout
    assert "energy_uj is readable by root only" in told
    assert "sudo chmod a+r /sys/class/powercap/*/energy_uj" in told
    assert "/etc/udev/rules.d/" in told
    assert "--meters gpu" in told


def test_a_counter_that_cannot_be_read_is_unavailable(sysfs, clock):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    with (
        sysfs.unreadable(zone / "energy_uj"),
        pytest.raises(MeterUnavailable, match="energy_uj cannot be read"),
    ):
        find_rapl(clock, sysfs.root)


def test_a_counter_without_a_range_is_unavailable(sysfs, clock):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    (zone / "max_energy_range_uj").unlink()
    with pytest.raises(MeterUnavailable, match="max_energy_range_uj"):
        find_rapl(clock, sysfs.root)


def test_a_failing_read_is_missed_and_the_next_counts_everything(sysfs, clock):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    meter = find_rapl(clock, sysfs.root)[0]
    begin_j = counted_j(meter)
    with sysfs.unreadable(zone / "energy_uj"), pytest.raises(MeterMissed, match="energy_uj failed"):
        meter.read(counter=True)
    sysfs.advance(1.0, {"intel-rapl:0": 25.0})
    assert counted_j(meter) - begin_j == pytest.approx(25.0)


def test_a_vanished_counter_is_lost(sysfs, clock):
    zone = sysfs.add_zone("intel-rapl:0", "package-0")
    meter = find_rapl(clock, sysfs.root)[0]
    (zone / "energy_uj").unlink()
    with pytest.raises(MeterLost, match="is gone"):
        meter.read(counter=True)


def test_a_count_beyond_the_range_is_missed(sysfs, clock):
    zone = sysfs.add_zone("intel-rapl:0", "package-0", range_j=1_000.0)
    meter = find_rapl(clock, sysfs.root)[0]
    (zone / "energy_uj").write_text("1000000001")
    with pytest.raises(MeterMissed, match="'1000000001', no number of µJ up to 1000000000"):
        meter.read(counter=True)


def is_a_count(text: bytes) -> bool:
    return text.decode("latin-1").strip().isdigit()


@settings(max_examples=60, deadline=None)
@given(garbage=st.binary(max_size=40).filter(lambda text: not is_a_count(text)), name=st.sampled_from(FILES))
def test_garbage_in_sysfs_is_a_clear_error(garbage, name):
    with tempfile.TemporaryDirectory() as folder:
        sysfs = SimulatedSysfs(Path(folder))
        zone = sysfs.add_zone("intel-rapl:0", "package-0")
        (zone / name).write_bytes(garbage)
        with pytest.raises(MeterUnavailable, match="--meters gpu"):
            find_rapl(SimulatedClock(), sysfs.root)


@settings(max_examples=60, deadline=None)
@given(garbage=st.binary(max_size=40).filter(lambda text: not is_a_count(text)))
def test_garbage_that_comes_later_is_missed_not_counted_as_nothing(garbage):
    with tempfile.TemporaryDirectory() as folder:
        sysfs = SimulatedSysfs(Path(folder))
        zone = sysfs.add_zone("intel-rapl:0", "package-0", start_j=5.0)
        meter = find_rapl(SimulatedClock(), sysfs.root)[0]
        (zone / "energy_uj").write_bytes(garbage)
        with pytest.raises(MeterMissed):
            meter.read(counter=True)
