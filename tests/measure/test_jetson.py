import re
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.jetson import find_jetson
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.energy import PowerSample
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable

ORIN_NX = {1: "VDD_IN", 2: "VDD_CPU_GPU_CV", 3: "VDD_SOC"}


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


@pytest.fixture
def sysfs(tmp_path: Path) -> SimulatedSysfs:
    return SimulatedSysfs(tmp_path / "sys")


class TestJetsonMeter(MeterContract):
    @pytest.fixture(params=["hwmon", "iio"])
    def meter(self, sysfs, clock, request):
        sysfs.add_ina3221({1: "VDD_IN"}, layout=request.param)
        return find_jetson(clock, sysfs.root)[0]

    @pytest.fixture
    def advance(self, sysfs, clock):
        def advance(duration_s: float) -> None:
            clock.sleep_s(duration_s)
            sysfs.advance(duration_s, {"VDD_IN": 7.0})

        return advance


def test_power_is_voltage_times_current(sysfs, clock):
    chip = sysfs.add_ina3221(ORIN_NX)
    (chip / "in1_input").write_text("5000\n")
    (chip / "curr1_input").write_text("1500\n")
    meter = find_jetson(clock, sysfs.root)[0]
    assert meter.read(counter=False).power == (PowerSample(100.0, 7.5),)


def test_the_older_layout_gives_milliwatts(sysfs, clock):
    sysfs.add_ina3221({0: "POM_5V_IN", 1: "POM_5V_GPU", 2: "POM_5V_CPU"}, layout="iio", address="6-0040")
    sysfs.advance(1.0, {"POM_5V_IN": 4.2})
    meters = {meter.card.domain: meter for meter in find_jetson(clock, sysfs.root)}
    assert set(meters) == {"soc:POM_5V_IN", "soc-rail:POM_5V_GPU", "soc-rail:POM_5V_CPU"}
    assert meters["soc:POM_5V_IN"].read(counter=False).power[0].power_w == pytest.approx(4.2)


def test_the_input_rail_encloses_the_others(sysfs, clock):
    sysfs.add_ina3221(ORIN_NX)
    cards = [meter.card for meter in find_jetson(clock, sysfs.root)]
    assert [card.domain for card in cards] == ["soc:VDD_IN", "soc-rail:VDD_CPU_GPU_CV", "soc-rail:VDD_SOC"]
    assert [card.encloses for card in cards] == [("soc-rail",), (), ()]
    assert {card.note for card in cards} == {None}


def test_a_board_without_an_input_rail_says_that_its_rails_are_parts(sysfs, clock):
    sysfs.add_ina3221({1: "VDD_GPU_SOC", 2: "VDD_CPU_CV", 3: "VIN_SYS_5V0"})
    cards = [meter.card for meter in find_jetson(clock, sysfs.root)]
    assert {card.kind for card in cards} == {"soc-rail"}
    assert all("no input rail" in card.note for card in cards)


def test_a_channel_that_is_not_wired_is_left_out(sysfs, clock):
    sysfs.add_ina3221({1: "NC", 2: "VDDQ_VDD2_1V8AO", 3: "NC"}, address="1-0041")
    assert [m.card.domain for m in find_jetson(clock, sysfs.root)] == ["soc-rail:VDDQ_VDD2_1V8AO"]


def test_a_channel_that_is_switched_off_is_left_out(sysfs, clock):
    chip = sysfs.add_ina3221(ORIN_NX)
    (chip / "in3_enable").write_text("0\n")
    (chip / "in3_input").unlink()
    assert [m.card.domain for m in find_jetson(clock, sysfs.root)] == [
        "soc:VDD_IN",
        "soc-rail:VDD_CPU_GPU_CV",
    ]


def test_the_sum_of_shunt_voltages_is_no_rail(sysfs, clock):
    chip = sysfs.add_ina3221({1: "VDD_IN"})
    (chip / "in7_label").write_text("sum of shunt voltages\n")
    (chip / "in7_input").write_text("12\n")
    assert [m.card.domain for m in find_jetson(clock, sysfs.root)] == ["soc:VDD_IN"]


def test_a_machine_without_the_chip_says_what_to_do(tmp_path, clock):
    with pytest.raises(MeterUnavailable, match=r"no INA3221 rail under .*--meters gpu"):
        find_jetson(clock, tmp_path)


def test_a_sensor_that_fails_once_is_missed(sysfs, clock):
    chip = sysfs.add_ina3221(ORIN_NX)
    meter = find_jetson(clock, sysfs.root)[0]
    with sysfs.unreadable(chip / "curr1_input"), pytest.raises(MeterMissed, match="curr1_input failed"):
        meter.read(counter=False)
    assert meter.read(counter=False).power


def test_a_sensor_that_vanishes_is_lost(sysfs, clock):
    chip = sysfs.add_ina3221(ORIN_NX)
    meter = find_jetson(clock, sysfs.root)[0]
    (chip / "curr1_input").unlink()
    with pytest.raises(MeterLost, match="is gone"):
        meter.read(counter=False)


def test_a_small_backward_current_is_no_power(sysfs, clock):
    chip = sysfs.add_ina3221(ORIN_NX)
    (chip / "curr1_input").write_text("-8\n")
    assert find_jetson(clock, sysfs.root)[0].read(counter=False).power[0].power_w == 0.0


@settings(max_examples=60, deadline=None)
@given(
    garbage=st.binary(max_size=30).filter(
        lambda text: not re.fullmatch(r"-?[0-9]{1,9}", text.decode("latin-1").strip())
    ),
    name=st.sampled_from(["in1_input", "curr1_input"]),
)
def test_garbage_is_missed_or_unavailable_never_no_power(garbage, name):
    with tempfile.TemporaryDirectory() as folder:
        sysfs = SimulatedSysfs(Path(folder))
        chip = sysfs.add_ina3221({1: "VDD_IN"})
        meter = find_jetson(SimulatedClock(), sysfs.root)[0]
        (chip / name).write_bytes(garbage)
        with pytest.raises(MeterMissed):
            meter.read(counter=False)
        with pytest.raises(MeterUnavailable, match="--meters gpu"):
            find_jetson(SimulatedClock(), sysfs.root)
