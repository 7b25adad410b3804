import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.amd import find_amd, find_amd_gauges
from wattsmith.sim.amdsmi import (
    STATUS_NOT_FOUND,
    STATUS_NOT_SUPPORTED,
    STATUS_TIMEOUT,
    SimulatedAmdGpu,
    SimulatedAmdSmi,
)
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.energy import PowerSample, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


class TestAmdMeter(MeterContract):
    @pytest.fixture
    def smi(self) -> SimulatedAmdSmi:
        return SimulatedAmdSmi([SimulatedAmdGpu()])

    @pytest.fixture
    def meter(self, smi, clock):
        return find_amd(clock, smi)[0]

    @pytest.fixture
    def advance(self, smi, clock):
        def advance(duration_s: float) -> None:
            clock.sleep_s(duration_s)
            smi.advance(duration_s)

        return advance


def one(clock, **fields):
    gpu = SimulatedAmdGpu(**fields)
    smi = SimulatedAmdSmi([gpu])
    return find_amd(clock, smi)[0], gpu, smi


def test_the_accumulator_counts_power_times_time(clock):
    meter, _, smi = one(clock, power_w=400.0)
    before_j = meter.read(counter=True).counter.energy_j
    smi.advance(10.0)
    assert meter.read(counter=True).counter.energy_j - before_j == pytest.approx(4_000.0)


def test_the_counter_is_asked_for_only_when_wanted(clock):
    meter, _, _ = one(clock)
    assert meter.read(counter=False).counter is None


@pytest.mark.parametrize("key", ["current_socket_power", "average_socket_power", "socket_power"])
def test_power_is_taken_from_the_key_that_is_filled(clock, key):
    meter, _, _ = one(clock, power_key=key, power_w=250.0)
    assert meter.read(counter=False).power == (PowerSample(100.0, 250.0),)


def test_a_gpu_that_tells_only_energy_has_no_power_on_its_card(clock):
    meter, _, _ = one(clock, power_key=None)
    assert meter.card.power_period_s is None
    assert meter.card.source is Source.COUNTER
    assert meter.read(counter=True).power == ()


def test_a_counter_that_stands_at_zero_is_not_one(clock):
    meter, _, _ = one(clock, has_counter=False)
    assert meter.card.counter_period_s is None
    assert meter.card.source is Source.POLLED


def test_the_second_die_without_any_reading_is_left_out_and_keeps_its_number(clock):
    dies = [SimulatedAmdGpu(), SimulatedAmdGpu(power_key=None, has_counter=False), SimulatedAmdGpu()]
    assert [meter.card.domain for meter in find_amd(clock, SimulatedAmdSmi(dies))] == ["gpu:0", "gpu:2"]


def test_gpus_without_any_reading_are_unavailable_and_named(clock):
    smi = SimulatedAmdSmi([SimulatedAmdGpu(power_key=None, has_counter=False)])
    with pytest.raises(MeterUnavailable, match=r"1 AMD GPU.*gpu:0.*none tells energy or power"):
        find_amd(clock, smi)


def test_a_missing_driver_says_which_groups_and_module(clock):
    with pytest.raises(MeterUnavailable, match=r"34.*modprobe amdgpu.*render"):
        find_amd(clock, SimulatedAmdSmi([], driver_loaded=False))


def test_no_gpu_at_all_says_so(clock):
    with pytest.raises(MeterUnavailable, match="lists no GPU"):
        find_amd(clock, SimulatedAmdSmi([]))


def test_a_timeout_is_missed_and_the_next_read_works(clock):
    meter, gpu, _ = one(clock)
    gpu.failures = [STATUS_TIMEOUT]
    with pytest.raises(MeterMissed, match="gpu:0 did not answer"):
        meter.read(counter=True)
    assert meter.read(counter=True).counter is not None


def test_a_gpu_that_is_not_found_any_more_is_lost(clock):
    meter, gpu, _ = one(clock)
    gpu.failures = [STATUS_NOT_FOUND]
    with pytest.raises(MeterLost):
        meter.read(counter=True)


def test_a_gpu_that_stops_telling_power_is_missed_not_zero(clock):
    meter, gpu, _ = one(clock)
    gpu.power_key = None
    with pytest.raises(MeterMissed, match="told no power"):
        meter.read(counter=False)


def test_after_a_reset_the_counter_goes_on_and_owns_up(clock):
    meter, gpu, _ = one(clock, energy_j=5_000.0)
    meter.read(counter=True)
    gpu.energy_j = 20.0
    readings = meter.read(counter=True)
    assert readings.counter.energy_j == pytest.approx(5_020.0, abs=0.001)
    assert readings.missed == 1
    assert "was reset" in readings.why_missed


def test_the_library_is_shut_down_with_the_last_meter(clock):
    smi = SimulatedAmdSmi([SimulatedAmdGpu(), SimulatedAmdGpu()])
    first, second = find_amd(clock, smi)
    first.close()
    assert smi.users == 1
    second.close()
    assert smi.users == 0


def test_the_gauge_converts_every_unit(clock):
    gpu = SimulatedAmdGpu(busy_ratio=0.8, memory_used_bytes=3 << 30, power_cap_w=750.0)
    reading = find_amd_gauges(clock, SimulatedAmdSmi([gpu]))[0].look()
    assert reading.domain == "gpu:0"
    assert reading.time_s == 100.0
    assert reading.busy_ratio == pytest.approx(0.8)
    assert reading.memory_busy_ratio == pytest.approx(0.4)
    assert reading.memory_used_bytes == 3 << 30
    assert reading.clock_hz == 2.1e9
    assert reading.memory_clock_hz == 1.3e9
    assert reading.temperature_c == 55.0
    assert reading.power_limit_w == 750.0


def test_the_gauge_leaves_out_what_is_not_supported(clock):
    gpu = SimulatedAmdGpu()
    gauge = find_amd_gauges(clock, SimulatedAmdSmi([gpu]))[0]
    gpu.failures = [STATUS_NOT_SUPPORTED]
    reading = gauge.look()
    assert reading.busy_ratio is None
    assert reading.clock_hz == 2.1e9


def test_the_gauge_is_lost_with_its_gpu(clock):
    gpu = SimulatedAmdGpu()
    gauge = find_amd_gauges(clock, SimulatedAmdSmi([gpu]))[0]
    gpu.failures = [STATUS_NOT_FOUND]
    with pytest.raises(MeterLost):
        gauge.look()


odd = st.one_of(st.none(), st.text(max_size=5), st.integers(), st.floats(), st.booleans())


class OddAmdSmi(SimulatedAmdSmi):
    """A version of the library that fills its dictionaries with something else."""

    def __init__(self, energy, power) -> None:
        super().__init__([SimulatedAmdGpu()])
        self._energy, self._power = energy, power

    def amdsmi_get_energy_count(self, processor_handle):  # noqa: ARG002
        return self._energy

    def amdsmi_get_power_info(self, processor_handle):  # noqa: ARG002
        return self._power


@given(
    energy=st.fixed_dictionaries({}, optional={"energy_accumulator": odd, "counter_resolution": odd}),
    power=st.fixed_dictionaries({}, optional={"current_socket_power": odd, "average_socket_power": odd}),
)
def test_odd_answers_are_unavailable_or_positive_never_zero(energy, power):
    try:
        meter = find_amd(SimulatedClock(), OddAmdSmi(energy, power))[0]
    except MeterUnavailable:
        return
    readings = meter.read(counter=True)
    assert all(0 < sample.power_w < 65_535 for sample in readings.power)
    assert readings.counter is None or 0 < readings.counter.energy_j < float("inf")


LOAD = (
    "from wattsmith.measure.amd import load_amdsmi; from wattsmith.terms.errors import MeterUnavailable\n"
    "try: load_amdsmi()\n"
    "except MeterUnavailable as told: print(told)\n"
)


def told_by_loading(path) -> str:
    child = f"import sys; sys.path.insert(0, {str(path)!r})\n{LOAD}"
    return subprocess.run([sys.executable, "-c", child], capture_output=True, text=True, check=True).stdout


def test_a_missing_package_and_a_missing_library_are_told_apart(tmp_path):
    absent, broken = tmp_path / "absent", tmp_path / "broken"
    for folder, text in [
        (absent, "raise ImportError('No module named amdsmi')"),
        # The real package prints and then fails like this when libamd_smi.so is not there.
        (broken, "print('Unable to find libamd_smi.so library')\n{}['libamd_smi.so']"),
    ]:
        folder.mkdir()
        (folder / "amdsmi.py").write_text(text)
    assert told_by_loading(absent).startswith("AMD GPUs need the package amdsmi")
    assert told_by_loading(broken).startswith("the package amdsmi is there, but the library libamd_smi.so is not")
