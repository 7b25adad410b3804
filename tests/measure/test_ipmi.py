import shlex
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.ipmi import PowerReading, find_ipmi, parse_power_reading
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.energy import PowerSample, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable

# As ipmitool 1.8 prints it.
IPMITOOL = """
    Instantaneous power reading:                   220 Watts
    Minimum during sampling period:                  2 Watts
    Maximum during sampling period:                468 Watts
    Average power reading over sample period:      184 Watts
    IPMI timestamp:                           Sun May  5 13:06:44 2024
    Sampling period:                          00000005 Seconds.
    Power reading state is:                   activated
"""

# As FreeIPMI's ipmi-dcmi prints it.
IPMI_DCMI = """Current Power                        : 164 Watts
Minimum Power over sampling duration : 7 watts
Maximum Power over sampling duration : 378 watts
Average Power over sampling duration : 166 watts
Time Stamp                           : 11/03/2023 - 08:36:29
Statistics reporting time period     : 1000 milliseconds
Power Measurement                    : Active
"""


class StandIn:
    """A small program in the place of ipmitool. It prints that it is simulated."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked = path.with_name("asked")
        self.answer(IPMITOOL)

    def answer(self, text: str) -> None:
        self.act(f"printf '%s\\n' 'wattsmith-simulated' {shlex.quote(text)}")

    def act(self, line: str) -> None:
        self.path.write_text(f'#!/bin/sh\necho "$@" >> {self.asked}\n{line}\n')
        self.path.chmod(0o755)


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


@pytest.fixture
def tool(tmp_path: Path) -> StandIn:
    return StandIn(tmp_path / "ipmitool-stand-in")


class TestIpmiMeter(MeterContract):
    @pytest.fixture
    def meter(self, tool, clock):
        return find_ipmi(clock, program=str(tool.path))[0]

    @pytest.fixture
    def advance(self, clock):
        return clock.sleep_s


def test_ipmitool_is_understood():
    assert parse_power_reading(IPMITOOL) == PowerReading(220.0, 5.0)


def test_freeipmi_is_understood():
    assert parse_power_reading(IPMI_DCMI) == PowerReading(164.0, 1.0)


def test_measuring_switched_off_is_unknown():
    assert parse_power_reading(IPMITOOL.replace("activated", "deactivated")) is None
    assert parse_power_reading(IPMI_DCMI.replace(": Active", ": Not Available")) is None


def test_zero_watts_is_unknown():
    assert parse_power_reading(IPMITOOL.replace("220", "0")) is None


@given(st.text())
def test_any_text_is_a_positive_power_or_unknown(text):
    reading = parse_power_reading(text)
    assert reading is None or reading.power_w > 0


@given(st.integers(0, len(IPMITOOL)), st.text(max_size=10))
def test_a_garbled_answer_is_never_zero(cut, noise):
    reading = parse_power_reading(IPMITOOL[:cut] + noise + IPMITOOL[cut:])
    assert reading is None or reading.power_w > 0


def test_the_node_is_read_by_the_program(tool, clock):
    meter = find_ipmi(clock, program=str(tool.path))[0]
    assert meter.card.source is Source.EXTERNAL
    assert meter.card.simulated
    assert "statistics over 5 s" in meter.card.note
    assert meter.read(counter=True).power == (PowerSample(100.0, 220.0),)


def test_freeipmi_is_asked_its_own_question(tmp_path, clock):
    tool = StandIn(tmp_path / "ipmi-dcmi")
    tool.answer(IPMI_DCMI)
    find_ipmi(clock, program=str(tool.path))
    assert tool.asked.read_text() == "--get-system-power-statistics\n"


def test_arguments_for_another_machine_come_before_the_question(tool, clock):
    find_ipmi(clock, program=str(tool.path), args=["-H", "bmc; rm -rf /", "-E"])
    assert tool.asked.read_text() == "-H bmc; rm -rf / -E dcmi power reading\n"


def test_a_missing_program_says_what_to_install(clock):
    with pytest.raises(MeterUnavailable, match=r"no-such-ipmitool is installed here.*Install the package"):
        find_ipmi(clock, program="no-such-ipmitool")


def test_neither_program_on_the_path_says_so(clock, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MeterUnavailable, match="neither ipmitool nor ipmi-dcmi is installed"):
        find_ipmi(clock)


def test_the_first_program_on_the_path_is_taken(clock, monkeypatch, tmp_path):
    StandIn(tmp_path / "ipmitool")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert find_ipmi(clock)[0].read(counter=False).power[0].power_w == 220.0


def test_a_program_without_a_controller_says_why_and_hides_its_arguments(tool, clock):
    tool.act("echo 'Could not open device at /dev/ipmi0' >&2; exit 1")
    with pytest.raises(MeterUnavailable, match=r"status 1: Could not open device.*root") as told:
        find_ipmi(clock, program=str(tool.path), args=["-P", "open-sesame"])
    assert "open-sesame" not in str(told.value)


def test_a_controller_without_power_says_what_it_printed(tool, clock):
    tool.answer("DCMI request failed because: Invalid command")
    with pytest.raises(MeterUnavailable, match=r"told no power: .*Invalid command"):
        find_ipmi(clock, program=str(tool.path))


def test_a_slow_answer_is_missed(tool, clock):
    meter = find_ipmi(clock, program=str(tool.path), timeout_s=0.2)[0]
    tool.act("exec sleep 5")
    with pytest.raises(MeterMissed, match=r"did not answer within 0.2 s"):
        meter.read(counter=False)


def test_a_failed_run_is_missed_and_the_next_works(tool, clock):
    meter = find_ipmi(clock, program=str(tool.path))[0]
    tool.act("exit 3")
    with pytest.raises(MeterMissed, match="status 3"):
        meter.read(counter=False)
    tool.answer(IPMITOOL)
    assert meter.read(counter=False).power


def test_a_program_that_is_removed_loses_the_meter(tool, clock):
    meter = find_ipmi(clock, program=str(tool.path))[0]
    tool.path.unlink()
    with pytest.raises(MeterLost, match="could not be started"):
        meter.read(counter=False)
