"""Which meters are found, which are missing, and how that is said."""

import pytest

from wattsmith.measure.discover import SYSFS_VARIABLE, find_meters
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.redfish import SimulatedRedfish
from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput, MeterUnavailable


@pytest.fixture
def clock():
    return SimulatedClock(100.0)


@pytest.fixture
def sysfs(tmp_path, monkeypatch):
    tree = SimulatedSysfs(tmp_path / "sys")
    monkeypatch.setenv(SYSFS_VARIABLE, str(tmp_path / "sys"))
    return tree


def domains(found):
    return [meter.card.domain for meter in found.meters]


@pytest.mark.usefixtures("sysfs")
def test_what_is_not_there_is_named_with_its_reason(clock):
    found = find_meters("auto", clock)
    assert domains(found) == []
    assert "RAPL" in found.missing["cpu"]
    assert "ipmi" in found.missing["node"]


def test_a_processor_with_counters_is_found(clock, sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    found = find_meters("cpu", clock)
    assert domains(found) == ["cpu-package:0"]
    assert found.meters[0].card.simulated


@pytest.mark.usefixtures("sysfs")
def test_a_kind_that_is_asked_for_by_name_must_be_there(clock):
    with pytest.raises(MeterUnavailable, match="RAPL"):
        find_meters("cpu", clock)


@pytest.mark.usefixtures("sysfs")
def test_a_model_is_used_only_when_named(clock):
    found = find_meters("modelled:10W-65W", clock)
    assert [meter.card.source for meter in found.meters] == [Source.MODELLED]


def test_a_model_beside_a_measured_processor_is_refused(clock, sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    with pytest.raises(BadInput, match="count it twice"):
        find_meters("auto,modelled:10W-65W", clock)


def test_naming_a_meter_twice_is_refused(clock, sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    with pytest.raises(BadInput, match="cpu-package:0 would be measured twice"):
        find_meters("cpu,cpu", clock)


def test_a_controller_is_found_at_its_address(clock):
    with SimulatedRedfish(power_w=500.0) as service:
        found = find_meters(f"redfish:{service.url}", clock)
        assert domains(found) == ["node:0"]


def test_a_recorded_trace_is_a_meter(clock, tmp_path):
    trace = tmp_path / "plug.csv"
    trace.write_text("time_s,power_w\n0,100\n1,100\n2,100\n")
    (meter,) = find_meters(f"replay:{trace}", clock).meters
    assert meter.card.source == Source.EXTERNAL
    assert "not this machine" in meter.card.note


@pytest.mark.parametrize("wanted", ["", "gpus", "cpu:0", "redfish", "modelled", "ipmi:host", "replay:"])
def test_an_unknown_name_says_what_can_be_written(clock, wanted):
    with pytest.raises(BadInput, match="auto"):
        find_meters(wanted, clock)


def test_the_rate_of_reading_can_be_chosen(clock, sysfs):
    sysfs.add_zone("intel-rapl:0", "package-0")
    (meter,) = find_meters("cpu", clock, poll_hz=5.0).meters
    assert meter.card.poll_period_s == 0.2
