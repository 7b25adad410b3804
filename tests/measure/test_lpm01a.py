import contextlib
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.discover import find_meters
from wattsmith.measure.lpm01a import energies_in, find_lpm01a
from wattsmith.report.tiers import MeterKind, kind_of
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.lpm01a import SimulatedLpm01a, sample_text
from wattsmith.terms.clock import RealClock
from wattsmith.terms.energy import DomainEnergy, Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterUnavailable


class TestRecordedMonitor(MeterContract):
    @pytest.fixture
    def clock(self):
        return SimulatedClock(50.0)

    @pytest.fixture
    def advance(self, clock):
        return clock.sleep_s

    @pytest.fixture
    def meter(self, tmp_path, clock):
        path = tmp_path / "monitor.txt"
        path.write_text(f"{sample_text(1e-5)}\n" * 20_000)  # 10 mW for 20 s
        meter = find_lpm01a(clock, str(path))[0]
        yield meter
        meter.close()


@pytest.fixture
def monitor():
    with SimulatedLpm01a(power_w=0.02) as monitor:
        yield monitor


def test_a_live_monitor_is_set_up_and_tells_the_power(monitor):
    meter = find_lpm01a(RealClock(), str(monitor.path))[0]
    meter.read(counter=True)
    time.sleep(0.2)
    readings = meter.read(counter=True)
    assert readings.power[0].power_w == pytest.approx(0.02)
    assert readings.counter.energy_j == pytest.approx(0.02 * 0.2, rel=0.5)
    assert meter.card.simulated
    assert "simulated" in meter.card.name
    meter.close()
    deadline_s = time.monotonic() + 1.0
    while monitor.commands[-1] != "hrc" and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert monitor.commands[-2:] == ["stop", "hrc"]
    assert monitor.commands[0] == "htc"
    assert "pwr on" not in monitor.commands


def test_power_that_was_given_is_taken_away_again(monitor):
    meter = find_lpm01a(RealClock(), f"{monitor.path}@3.0V")[0]
    meter.close()
    deadline_s = time.monotonic() + 1.0
    while monitor.commands[-1] != "hrc" and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert [c for c in monitor.commands if c.startswith(("volt", "pwr"))] == ["volt 3000m", "pwr on", "pwr off"]


@pytest.mark.parametrize(("failure", "said"), [("silent", "did not answer `htc`"), ("refuses", "refuses `htc`")])
def test_a_monitor_that_does_not_follow_is_not_there(monitor, failure, said):
    monitor.failure = failure
    with pytest.raises(MeterUnavailable, match=said):
        find_lpm01a(RealClock(), str(monitor.path), timeout_s=0.2)


def test_lines_that_say_nothing_are_counted_as_missed(monitor):
    meter = find_lpm01a(RealClock(), str(monitor.path))[0]
    monitor.failure = "garbage"
    time.sleep(0.1)
    readings = meter.read(counter=False)
    assert readings.missed > 0
    meter.close()


def test_a_recording_that_is_over_is_lost(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("1234-09\n" * 100)
    clock = SimulatedClock(0.0)
    meter = find_lpm01a(clock, str(path))[0]
    clock.sleep_s(1.0)
    assert meter.read(counter=True).counter.energy_j == pytest.approx(100 * 1.234e-6)
    clock.sleep_s(1.0)
    with pytest.raises(MeterLost, match=r"over after 0\.1 s"):
        meter.read(counter=True)
    meter.close()


def test_a_live_monitor_is_a_tiny_meter_and_a_recording_is_not_shown_to_be_one():
    told = {"domain": "tiny:0", "source": Source.EXTERNAL, "energy_j": 1.0, "error_j": 0.0, "resolution_s": 0.1}
    assert kind_of(DomainEnergy(name="LPM01A at ttyACM0", **told)) is MeterKind.TINY
    assert kind_of(DomainEnergy(name="replay of x.txt", **told)) is MeterKind.UNSTATED


def test_it_is_found_by_name(tmp_path):
    path = tmp_path / "m.txt"
    path.write_text("1234-09\n")
    found = find_meters(f"tiny:{path}", RealClock())
    assert found.meters[0].card.domain == "tiny:0"
    found.meters[0].close()


@pytest.mark.parametrize("place", ["/no/such/port", "/dev/null"])
def test_a_place_without_a_monitor_is_named(place):
    with pytest.raises(MeterUnavailable):
        find_lpm01a(RealClock(), place, timeout_s=0.1)


@pytest.mark.parametrize("volts", ["5V", "1V", "3", "..V", "xV"])
def test_a_voltage_that_it_cannot_give_is_refused(monitor, volts):
    with pytest.raises(BadInput, match=r"1\.8V to 3\.3V"):
        find_lpm01a(RealClock(), f"{monitor.path}@{volts}")


def test_a_file_powers_nothing(tmp_path):
    (tmp_path / "f").write_text("")
    with pytest.raises(BadInput, match="powers no device"):
        find_lpm01a(RealClock(), f"{tmp_path / 'f'}@3V")


def test_mantissa_and_exponent():
    assert energies_in(["1234-09", "event 1 ris", "timestamp 3 s", ""]) == ([1.234e-6], 0)
    assert energies_in(["nonsense", "12"]) == ([], 2)


@given(energy_j=st.floats(1e-10, 1e-3))
def test_a_sample_is_read_as_it_was_written(energy_j):
    (told,), unknown = energies_in([sample_text(energy_j)])
    assert unknown == 0
    assert told == pytest.approx(energy_j, rel=0.01)


@given(line=st.text(max_size=40))
def test_no_line_breaks_it(line):
    with contextlib.suppress(BadInput):
        energies_in([line])
