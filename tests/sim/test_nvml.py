"""The simulated NVML driver, seen through nvidia-ml-py as it comes.

An H200 draws 100 W idle and 700 W at full load: 100 W + load × 600 W.
"""

import fcntl
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wattsmith.sim import nvml_driver
from wattsmith.sim.nvml import (
    GPU_IS_LOST,
    NO_PERMISSION,
    STATE_VARIABLE,
    SUCCESS,
    TIMEOUT,
    Curve,
    GpuProcess,
    GpuProfile,
    Segment,
    SimulatedNvml,
    burst,
    constant,
    library,
    ramp,
    sawtooth,
    step,
)
from wattsmith.terms.errors import BadTerm, ExtraNeeded

pynvml = pytest.importorskip("pynvml")

MakeMachine = Callable[..., SimulatedNvml]
COUNTER = "nvmlDeviceGetTotalEnergyConsumption"


def gpu(index: int = 0):
    return pynvml.nvmlDeviceGetHandleByIndex(index)


def counter_j(index: int = 0) -> float:
    return pynvml.nvmlDeviceGetTotalEnergyConsumption(gpu(index)) / 1_000


def field_w(field: int, index: int = 0) -> float:
    value = pynvml.nvmlDeviceGetFieldValues(gpu(index), [field])[0]
    if value.nvmlReturn != pynvml.NVML_SUCCESS:
        raise pynvml.NVMLError(value.nvmlReturn)
    return value.value.uiVal / 1_000


def instant_w(index: int = 0) -> float:
    return field_w(pynvml.NVML_FI_DEV_POWER_INSTANT, index)


def samples(seen_us: int = 0, index: int = 0) -> list[tuple[int, float]]:
    """(microseconds of the wall clock, watts)"""
    _, held = pynvml.nvmlDeviceGetSamples(gpu(index), pynvml.NVML_TOTAL_POWER_SAMPLES, seen_us)
    return [(each.timeStamp, each.sampleValue.uiVal / 1_000) for each in held]


def until_power_is(watts: float, index: int = 0) -> None:
    """Waits until the sensor has seen nothing but this power; fails if it does not come to that."""
    deadline_s = time.monotonic() + 10
    while instant_w(index) != pytest.approx(watts, abs=0.001):
        assert time.monotonic() < deadline_s, f"still at {instant_w(index)} W"
        time.sleep(0.02)


def assert_counter_is_true(
    machine: SimulatedNvml, index: int = 0, period_s: float = 0.1, sensor_error_j: float = 0.0
) -> None:
    """The counter lies between the true joules of one refresh ago and those of now."""
    before_s = time.monotonic()
    counted_j = counter_j(index)
    after_s = time.monotonic()
    assert counted_j <= machine.true_energy_j(index, machine.booted_s, after_s) + sensor_error_j + 0.001
    assert counted_j >= machine.true_energy_j(index, machine.booted_s, before_s - period_s) - sensor_error_j - 0.002


# ---- Energy and power


CURVES = {
    "constant": (constant(0.5), 400.0),
    "step": (step(0.0, 1.0, after_s=500.0), 400.0),
    "sawtooth": (sawtooth(0.0, 1.0, period_s=0.7), 400.0),
    "burst": (burst(1.0, period_s=0.13, duty_ratio=0.25), 250.0),
    "ramp": (ramp(1.0, 0.0, duration_s=1_000.0), 400.0),
}


@pytest.mark.parametrize("name", CURVES)
def test_the_counter_agrees_with_the_true_joules_of_a_curve(nvml_machine: MakeMachine, name: str) -> None:
    curve, mean_w = CURVES[name]
    machine = nvml_machine(up_s=1_000.0)
    machine.play(0, curve, start_s=machine.booted_s)
    assert_counter_is_true(machine)
    true_j = machine.true_energy_j(0, machine.booted_s, machine.booted_s + 1_000)
    assert true_j == pytest.approx(1_000 * mean_w, rel=0.001)


def test_the_counter_moves_every_tenth_of_a_second_and_never_back(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(counter_read_s=0.0)
    machine.play(0, 0.5)
    read_j = []
    until_s = time.monotonic() + 0.6
    while time.monotonic() < until_s:
        read_j.append(counter_j())
        time.sleep(0.005)
    assert read_j == sorted(read_j)
    steps_j = [b - a for a, b in pairwise(read_j) if b != a]
    # Each step is a tenth of a second at 100 to 400 W, or several of them if this process was held up.
    assert steps_j
    assert min(steps_j) >= 9.9


def test_gpus_refresh_at_different_moments(nvml_machine: MakeMachine) -> None:
    nvml_machine(gpus=2)
    assert samples(index=0)[-1][0] % 20_000 != samples(index=1)[-1][0] % 20_000


def test_a_load_played_later_adds_to_the_true_joules(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    begin_s = machine.booted_s
    machine.play(0, 1.0, start_s=begin_s + 2)
    machine.play(0, 0.5, start_s=begin_s + 3)
    assert machine.true_energy_j(0, begin_s, begin_s + 5) == pytest.approx(2 * 100 + 1 * 700 + 2 * 400)
    assert_counter_is_true(machine)


def test_a_past_that_is_rewritten_is_counted_anew(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    assert_counter_is_true(machine)
    machine.play(0, 1.0, start_s=machine.booted_s)
    assert counter_j() > 9 * 700
    assert_counter_is_true(machine)


def test_a_new_load_takes_the_place_of_what_was_planned(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    begin_s = machine.play(0, step(0.0, 1.0, after_s=60.0))
    machine.play(0, 0.5, start_s=begin_s + 1)
    assert machine.true_power_w(0, begin_s + 0.5) == 100.0
    assert machine.true_power_w(0, begin_s + 100) == pytest.approx(400.0)


def test_a_finished_wave_rests_at_its_low_load(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    begin_s = machine.play(0, burst(1.0, period_s=1.0, duty_ratio=0.5, duration_s=2.0), start_s=machine.booted_s)
    assert machine.true_energy_j(0, begin_s, begin_s + 4) == pytest.approx(700 + 3 * 100)
    assert_counter_is_true(machine)


def test_samples_are_in_order_and_twenty_milliseconds_apart(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    held = samples()
    now_us = time.time_ns() // 1_000
    gaps_us = {b[0] - a[0] for a, b in pairwise(held)}
    assert len(held) == 119
    assert gaps_us <= {19_999, 20_000, 20_001}
    assert 0 <= now_us - held[-1][0] < 5_000_000


def test_only_samples_not_yet_seen_come_back(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    first = samples()
    time.sleep(0.1)
    second = samples(seen_us=first[-1][0])
    assert 1 <= len(second) <= 119
    assert second[0][0] - first[-1][0] in {19_999, 20_000, 20_001}


def test_asking_for_samples_of_the_future_finds_none(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    with pytest.raises(pynvml.NVMLError) as refused:
        samples(seen_us=time.time_ns() // 1_000 + 60_000_000)
    assert refused.value.value == pynvml.NVML_ERROR_NOT_FOUND


def test_samples_show_a_step_where_it_happened(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    step_s = time.monotonic() - 1.0
    machine.play(0, 1.0, start_s=step_s)
    step_us = time.time_ns() / 1_000 - (time.monotonic() - step_s) * 1e6
    held = samples()
    assert all(watts == 100.0 for at_us, watts in held if at_us < step_us - 1_000)
    assert all(watts == 700.0 for at_us, watts in held if at_us > step_us + 21_000)


def test_jitter_moves_samples_but_loses_no_energy(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(sensor_jitter_s=0.015, up_s=100.0)
    machine.play(0, burst(1.0, period_s=0.05), start_s=machine.booted_s)
    held = samples()
    gaps_us = [b[0] - a[0] for a, b in pairwise(held)]
    assert min(gaps_us) < 17_000 < 23_000 < max(gaps_us)
    assert statistics.mean(gaps_us) == pytest.approx(20_000, rel=0.01)
    assert_counter_is_true(machine, period_s=0.14)  # a late sample waits for the next refresh


def test_average_power_lags_behind_instant_power(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.play(0, 1.0, start_s=time.monotonic() - 0.5)
    before_s = time.monotonic()
    average_w = field_w(pynvml.NVML_FI_DEV_POWER_AVERAGE)
    usage_w = pynvml.nvmlDeviceGetPowerUsage(gpu()) / 1_000
    now_w = instant_w()
    after_s = time.monotonic()
    least_w = machine.true_energy_j(0, before_s - 1.13, before_s - 0.13)
    most_w = machine.true_energy_j(0, after_s - 1.0, after_s)
    assert now_w == 700.0
    assert least_w <= average_w <= usage_w <= most_w
    assert most_w <= 700.0


def test_a_sensor_that_looks_a_quarter_of_the_time_mistakes_bursts_for_full_load(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(profile="a100", up_s=100.0)
    # It looks at the last 25 ms of each 100 ms, and the load comes in just those.
    machine.play(0, burst(1.0, period_s=0.1, duty_ratio=0.25), start_s=machine.booted_s + 0.075)
    true_w = machine.true_energy_j(0, machine.booted_s, machine.booted_s + 100) / 100
    assert instant_w() == pytest.approx(400.0, abs=0.001)
    assert true_w == pytest.approx(50 + 350 / 4, rel=0.001)
    assert counter_j() == pytest.approx(100 * 400, rel=0.05)


def test_a_wrong_gain_shows_in_power_but_not_in_the_counter(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(sensor_gain=1.1)
    machine.play(0, 0.5, start_s=machine.booted_s)
    assert instant_w() == pytest.approx(440.0)
    assert samples()[-1][1] == pytest.approx(440.0)
    assert_counter_is_true(machine)


def test_noise_scatters_readings_around_the_truth(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(sensor_noise_w=2.0)
    machine.play(0, 0.5, start_s=machine.booted_s)
    read_w = [watts for _, watts in samples()]
    assert len(set(read_w)) > 50
    assert 398.0 <= min(read_w) < max(read_w) <= 402.0
    assert_counter_is_true(machine)


@pytest.mark.parametrize(
    ("missing", "read"),
    [
        ("has_counter", counter_j),
        ("has_counter", lambda: field_w(pynvml.NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION)),
        ("has_samples", samples),
        ("has_instant_field", instant_w),
        ("has_average_field", lambda: field_w(pynvml.NVML_FI_DEV_POWER_AVERAGE)),
        ("has_gpm", lambda: pynvml.nvmlGpmSampleGet(gpu(), pynvml.nvmlGpmSampleAlloc())),
    ],
)
def test_what_a_card_does_not_have_is_not_supported(
    nvml_machine: MakeMachine, missing: str, read: Callable[[], object]
) -> None:
    machine = nvml_machine()
    read()
    machine.change(0, **{missing: False})
    with pytest.raises(pynvml.NVMLError) as refused:
        read()
    assert refused.value.value == pynvml.NVML_ERROR_NOT_SUPPORTED


def test_reading_the_counter_takes_as_long_as_told_and_burns_cpu(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(counter_read_s=0.005)
    begin_s, begin_cpu_s = time.monotonic(), time.thread_time()
    for _ in range(10):
        counter_j()
    assert time.monotonic() - begin_s >= 0.050
    assert time.thread_time() - begin_cpu_s >= 0.010  # less than it spun if others have the processor too
    machine.change(0, counter_read_s=0.0)
    took_s = []
    for _ in range(50):
        begin_s = time.monotonic()
        counter_j()
        took_s.append(time.monotonic() - begin_s)
    assert statistics.median(took_s) < 0.001


# ---- The same energy twice, worked out in two ways


LOADS = st.floats(0, 1)
SEGMENTS = st.builds(
    Segment,
    kind=st.sampled_from(["ramp", "square", "sawtooth"]),
    start_s=st.floats(0, 60),
    duration_s=st.one_of(st.just(0.0), st.floats(0.001, 30)),
    load_begin=LOADS,
    load_end=LOADS,
    period_s=st.floats(0.05, 5),
    duty_ratio=LOADS,
)
CURVES_OF_ANY_KIND = st.lists(SEGMENTS, min_size=1, max_size=8).map(
    lambda segments: tuple(sorted(segments, key=lambda segment: segment.start_s))
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(curve=CURVES_OF_ANY_KIND, limit_w=st.integers(200, 700), gapless=st.booleans())
def test_driver_and_truth_agree_on_any_curve_under_any_limit(
    nvml_machine: MakeMachine, curve: Curve, limit_w: int, gapless: bool
) -> None:
    # A counter that moves every millisecond, so that little of the energy can hide between two refreshes.
    machine = nvml_machine(
        up_s=70.0,
        limit_default_w=float(limit_w),
        counter_period_s=0.001,
        counter_read_s=0.0,
        sensor_period_s=0.001,
        sensor_window_s=0.001 if gapless else 0.000999,
    )
    machine.play(0, curve, start_s=machine.booted_s)
    assert_counter_is_true(machine, period_s=0.002, sensor_error_j=0.0 if gapless else 5.0)


def test_settings_changed_in_the_middle_of_bursts_are_accounted_for(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(counter_period_s=0.001, counter_read_s=0.0, sensor_period_s=0.001, sensor_window_s=0.001)
    machine.play(0, burst(1.0, period_s=0.01))
    for change in list(SETTERS.values())[:7]:
        change()
        counter_j()
        time.sleep(0.03)
    assert_counter_is_true(machine, period_s=0.002)


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(curve=CURVES_OF_ANY_KIND)
def test_true_energy_is_true_power_summed_up(nvml_machine: MakeMachine, curve: Curve) -> None:
    machine = nvml_machine(up_s=70.0)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 400_000)
    begin_s = machine.play(0, curve)
    middles_s = [begin_s + (i + 0.5) * 0.02 for i in range(500)]
    summed_j = sum(machine.true_power_w(0, at_s) * 0.02 for at_s in middles_s)
    # A wave's edge may fall anywhere within one of the 20 ms: two edges per 50 ms, 300 W, half a step each.
    assert machine.true_energy_j(0, begin_s, begin_s + 10) == pytest.approx(summed_j, abs=0.02 * 300 * 200 / 2)


# ---- Settings


def test_a_power_limit_holds_power_down_by_lowering_the_clock(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.play(0, 1.0)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 1980
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == 0
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
    until_power_is(300.0)
    clock_mhz = pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM)
    assert 345 < clock_mhz < 990
    assert (clock_mhz - 345) % 15 == 0
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu()) == pynvml.nvmlClocksEventReasonSwPowerCap
    assert pynvml.nvmlDeviceGetEnforcedPowerLimit(gpu()) == 300_000
    assert machine.setting(0).power_limit_w == 300.0
    assert_counter_is_true(machine)


def test_the_clock_falls_between_bursts(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(gpus=2, up_s=1_000.0)
    machine.play(0, burst(1.0, period_s=1_000.0), start_s=machine.booted_s + 900)  # in the middle of a burst
    machine.play(1, burst(1.0, period_s=1_000.0), start_s=machine.booted_s + 300)  # after one
    assert [pynvml.nvmlDeviceGetClockInfo(gpu(i), pynvml.NVML_CLOCK_SM) for i in range(2)] == [1980, 345]
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(0)) == pynvml.nvmlClocksEventReasonNone
    assert pynvml.nvmlDeviceGetCurrentClocksEventReasons(gpu(1)) == pynvml.nvmlClocksEventReasonGpuIdle


def test_setting_what_is_set_already_takes_no_room(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    for _ in range(5_000):
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 700_000)
    assert machine.setting(0).power_limit_w == 700.0
    assert len(machine.setting_calls()) == 4_096


def test_half_the_clock_draws_less_than_half_the_power_of_the_sms(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.play(0, 1.0)
    pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 990, 990)
    until_power_is(100 + 550 * 0.5 * 0.8**2 + 50)  # 326 W
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 990
    assert machine.setting(0).locked_clock_hz == (990e6, 990e6)
    pynvml.nvmlDeviceResetGpuLockedClocks(gpu())
    until_power_is(700.0)
    assert machine.setting(0).locked_clock_hz is None
    assert_counter_is_true(machine)


def test_a_lower_memory_clock_draws_less(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(profile="a100")
    machine.play(0, 1.0)
    assert pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu()) == [1593, 1215]
    pynvml.nvmlDeviceSetMemoryLockedClocks(gpu(), 1215, 1215)
    until_power_is(50 + 325 + 25 * 1215 / 1593)
    assert pynvml.nvmlDeviceGetClockInfo(gpu(), pynvml.NVML_CLOCK_MEM) == 1215
    pynvml.nvmlDeviceResetMemoryLockedClocks(gpu())
    until_power_is(400.0)


def test_application_clocks_are_chosen_from_the_tables(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    assert pynvml.nvmlDeviceGetSupportedMemoryClocks(gpu()) == [3201]
    clocks = pynvml.nvmlDeviceGetSupportedGraphicsClocks(gpu(), 3201)
    assert (clocks[0], clocks[-1], len(clocks)) == (1980, 345, 110)
    pynvml.nvmlDeviceSetApplicationsClocks(gpu(), 3201, 1005)
    assert pynvml.nvmlDeviceGetApplicationsClock(gpu(), pynvml.NVML_CLOCK_SM) == 1005
    assert machine.setting(0).application_clock_hz == 1005e6
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        pynvml.nvmlDeviceSetApplicationsClocks(gpu(), 3201, 1006)
    pynvml.nvmlDeviceResetApplicationsClocks(gpu())
    assert pynvml.nvmlDeviceGetApplicationsClock(gpu(), pynvml.NVML_CLOCK_SM) == 1980


def test_limits_outside_the_range_are_refused(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    assert pynvml.nvmlDeviceGetPowerManagementLimitConstraints(gpu()) == [200_000, 700_000]
    assert pynvml.nvmlDeviceGetPowerManagementDefaultLimit(gpu()) == 700_000
    for limit_mw in (199_999, 700_001):
        with pytest.raises(pynvml.NVMLError_InvalidArgument):
            pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), limit_mw)


SETTERS = {
    "nvmlDeviceSetPowerManagementLimit": lambda: pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000),
    "nvmlDeviceSetGpuLockedClocks": lambda: pynvml.nvmlDeviceSetGpuLockedClocks(gpu(), 990, 990),
    "nvmlDeviceResetGpuLockedClocks": lambda: pynvml.nvmlDeviceResetGpuLockedClocks(gpu()),
    "nvmlDeviceSetMemoryLockedClocks": lambda: pynvml.nvmlDeviceSetMemoryLockedClocks(gpu(), 3201, 3201),
    "nvmlDeviceResetMemoryLockedClocks": lambda: pynvml.nvmlDeviceResetMemoryLockedClocks(gpu()),
    "nvmlDeviceSetApplicationsClocks": lambda: pynvml.nvmlDeviceSetApplicationsClocks(gpu(), 3201, 990),
    "nvmlDeviceResetApplicationsClocks": lambda: pynvml.nvmlDeviceResetApplicationsClocks(gpu()),
    "nvmlDeviceSetPersistenceMode": lambda: pynvml.nvmlDeviceSetPersistenceMode(gpu(), 0),
    "nvmlDeviceSetComputeMode": lambda: pynvml.nvmlDeviceSetComputeMode(gpu(), 2),
    "nvmlDeviceSetMigMode": lambda: pynvml.nvmlDeviceSetMigMode(gpu(), 1),
}


@pytest.mark.parametrize("name", SETTERS)
def test_only_root_may_set(nvml_machine: MakeMachine, name: str) -> None:
    machine = nvml_machine(root=False)
    before = machine.setting(0)
    with pytest.raises(pynvml.NVMLError_NoPermission):
        SETTERS[name]()
    assert machine.setting(0) == before
    machine.act_as_root(True)
    SETTERS[name]()
    refused, let_through = machine.setting_calls()
    assert (refused.code, let_through.code) == (NO_PERMISSION, SUCCESS)
    assert {refused.function, let_through.function} == {name}
    assert (let_through.pid, let_through.gpu) == (os.getpid(), 0)
    assert machine.booted_s < refused.time_s <= let_through.time_s <= time.monotonic()


# ---- Faults


def test_a_lost_gpu_answers_nothing_and_its_neighbour_everything(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(gpus=2)
    first, second = gpu(0), gpu(1)
    machine.lose(1)
    for ask in (
        lambda: pynvml.nvmlDeviceGetPowerUsage(second),
        lambda: pynvml.nvmlDeviceGetName(second),
        lambda: gpu(1),
        lambda: pynvml.nvmlDeviceGetHandleByUUID(machine.uuid(1)),
    ):
        with pytest.raises(pynvml.NVMLError_GpuIsLost):
            ask()
    assert pynvml.nvmlDeviceGetPowerUsage(first) == 100_000
    assert pynvml.nvmlDeviceGetCount() == 2
    machine.heal()
    assert pynvml.nvmlDeviceGetPowerUsage(second) == 100_000


def test_a_gpu_can_be_lost_later(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.lose(0, from_s=time.monotonic() + 3_600)
    assert counter_j() > 0
    machine.fail(0, GPU_IS_LOST, function=COUNTER, from_s=time.monotonic() + 0.1)
    time.sleep(0.11)
    with pytest.raises(pynvml.NVMLError_GpuIsLost):
        counter_j()
    assert instant_w() == 100.0


def test_two_calls_time_out_and_the_third_answers(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.fail(0, TIMEOUT, function=COUNTER, times=2)
    for _ in range(2):
        with pytest.raises(pynvml.NVMLError_Timeout):
            counter_j()
    assert instant_w() == 100.0
    assert counter_j() > 0


def test_a_call_can_be_made_slow(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.fail(0, SUCCESS, function="nvmlDeviceGetPowerUsage", times=1, delay_s=0.2)
    begin_s = time.monotonic()
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 100_000
    assert time.monotonic() - begin_s >= 0.2


def test_a_fault_names_a_function_that_exists(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    with pytest.raises(BadTerm, match="nvmlDeviceGetPowerUsgae"):
        machine.fail(0, TIMEOUT, function="nvmlDeviceGetPowerUsgae")
    with pytest.raises(BadTerm, match="there is no GPU 7"):
        machine.lose(7)


def test_calls_are_counted_by_function(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    assert machine.calls(COUNTER) == 0
    counter_j()
    counter_j()
    assert machine.calls(COUNTER) == 2
    assert machine.calls("nvmlDeviceGetHandleByIndex_v2") == 2
    assert set(machine.all_calls()) == {"nvmlInit", "nvmlDeviceGetHandleByIndex", COUNTER}


# ---- What a card says about itself


def test_everything_names_itself_as_simulated(nvml_machine: MakeMachine) -> None:
    nvml_machine(mig=("1g.18gb",))
    mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 0)
    assert pynvml.nvmlDeviceGetName(gpu()) == "NVIDIA H200 (simulated)"
    assert pynvml.nvmlDeviceGetName(mig) == "NVIDIA H200 MIG 1g.18gb (simulated)"
    assert pynvml.nvmlSystemGetDriverVersion() == "580.159.04-simulated"
    assert "simulated" in pynvml.nvmlSystemGetNVMLVersion()


def test_every_gpu_is_found_by_uuid_bus_and_serial(nvml_machine: MakeMachine) -> None:
    nvml_machine(gpus=16)
    uuids = [pynvml.nvmlDeviceGetUUID(gpu(i)) for i in range(16)]
    assert len(set(uuids)) == 16
    assert all(uuid.startswith("GPU-") and len(uuid) == 40 for uuid in uuids)
    for index, uuid in enumerate(uuids):
        bus = pynvml.nvmlDeviceGetPciInfo(gpu(index)).busId
        serial = pynvml.nvmlDeviceGetSerial(gpu(index))
        for handle in (
            pynvml.nvmlDeviceGetHandleByUUID(uuid),
            pynvml.nvmlDeviceGetHandleByPciBusId(bus),
            pynvml.nvmlDeviceGetHandleBySerial(serial),
        ):
            assert pynvml.nvmlDeviceGetIndex(handle) == index
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
    with pytest.raises(pynvml.NVMLError_InvalidArgument):
        gpu(16)


def test_an_h200_is_described_as_one(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    assert pynvml.nvmlDeviceGetArchitecture(gpu()) == pynvml.NVML_DEVICE_ARCH_HOPPER
    assert pynvml.nvmlDeviceGetCudaComputeCapability(gpu()) == (9, 0)
    assert pynvml.nvmlDeviceGetBrand(gpu()) == pynvml.NVML_BRAND_NVIDIA
    assert pynvml.nvmlDeviceGetPersistenceMode(gpu()) == 1
    assert pynvml.nvmlDeviceGetPerformanceState(gpu()) == 0
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [0, 0]
    assert pynvml.nvmlDeviceGetPciInfo(gpu()).pciDeviceId == 0x233510DE
    assert pynvml.nvmlDeviceGetMaxClockInfo(gpu(), pynvml.NVML_CLOCK_SM) == 1980


def test_mig_devices_have_memory_but_no_power(nvml_machine: MakeMachine) -> None:
    nvml_machine(mig=("1g.18gb", "2g.35gb"))
    assert pynvml.nvmlDeviceGetMigMode(gpu()) == [1, 1]
    migs = [pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), i) for i in range(2)]
    with pytest.raises(pynvml.NVMLError_NotFound):
        pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu(), 2)
    assert [pynvml.nvmlDeviceGetMemoryInfo(mig).total for mig in migs] == [18 * 2**30, 35 * 2**30]
    assert all(pynvml.nvmlDeviceGetUUID(mig).startswith("MIG-") for mig in migs)
    parent = pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(migs[1])
    assert pynvml.nvmlDeviceGetName(parent) == "NVIDIA H200 (simulated)"
    by_uuid = pynvml.nvmlDeviceGetHandleByUUID(pynvml.nvmlDeviceGetUUID(migs[1]))
    assert pynvml.nvmlDeviceGetGpuInstanceId(by_uuid) == 2
    for ask in (
        lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(migs[0]),
        lambda: pynvml.nvmlDeviceGetPowerUsage(migs[0]),
        lambda: pynvml.nvmlDeviceGetUtilizationRates(gpu()),
    ):
        with pytest.raises(pynvml.NVMLError_NotSupported):
            ask()
    assert counter_j() > 0


def test_utilisation_and_activity_follow_the_load(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    machine.play(0, 0.5, start_s=machine.booted_s)
    rates = pynvml.nvmlDeviceGetUtilizationRates(gpu())
    assert (rates.gpu, rates.memory) == (50, 8)
    get = pynvml.c_nvmlGpmMetricsGet_t()
    get.version = pynvml.NVML_GPM_METRICS_GET_VERSION
    get.sample1 = pynvml.nvmlGpmSampleGet(gpu(), pynvml.nvmlGpmSampleAlloc())
    get.sample2 = pynvml.nvmlGpmSampleGet(gpu(), pynvml.nvmlGpmSampleAlloc())
    wanted = {
        pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL: 50.0,
        pynvml.NVML_GPM_METRIC_SM_UTIL: 47.5,
        pynvml.NVML_GPM_METRIC_SM_OCCUPANCY: 7.0,
        pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: 45.0,
        pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL: 8.0,
    }
    get.numMetrics = len(wanted)
    for place, metric in enumerate(wanted):
        get.metrics[place].metricId = metric
    pynvml.nvmlGpmMetricsGet(get)
    assert [get.metrics[i].value for i in range(len(wanted))] == pytest.approx(list(wanted.values()))
    for sample in (get.sample1, get.sample2):
        pynvml.nvmlGpmSampleFree(sample)


def test_temperature_follows_power_slowly(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(gpus=3, up_s=400.0)
    machine.play(1, 1.0, start_s=machine.booted_s)
    machine.play(2, 1.0, start_s=time.monotonic() - 20.0)
    idle_c, hot_c, warming_c = (pynvml.nvmlDeviceGetTemperature(gpu(i), pynvml.NVML_TEMPERATURE_GPU) for i in range(3))
    assert idle_c == 31  # 25 °C and 0.06 K for each of 100 W
    assert hot_c == 67  # 25 °C and 0.06 K for each of 700 W
    assert 48 <= warming_c <= 60  # about two thirds of the way after one time constant


def test_memory_and_processes_are_as_told(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine(memory_bytes=100 * 2**30)
    machine.use_memory(0, 40 * 2**30)
    machine.run_processes(0, [GpuProcess(pid=11, memory_bytes=5), GpuProcess(pid=12, memory_bytes=6, graphics=True)])
    memory = pynvml.nvmlDeviceGetMemoryInfo(gpu())
    assert (memory.total, memory.used, memory.free) == (100 * 2**30, 40 * 2**30, 60 * 2**30)
    compute = pynvml.nvmlDeviceGetComputeRunningProcesses(gpu())
    graphics = pynvml.nvmlDeviceGetGraphicsRunningProcesses(gpu())
    assert [(each.pid, each.usedGpuMemory) for each in compute] == [(11, 5)]
    assert [(each.pid, each.usedGpuMemory) for each in graphics] == [(12, 6)]


def test_a_machine_may_have_different_gpus(nvml_machine: MakeMachine) -> None:
    nvml_machine(gpus=[GpuProfile(), GpuProfile(name="NVIDIA Thing", has_counter=False)])
    assert pynvml.nvmlDeviceGetName(gpu(1)) == "NVIDIA Thing (simulated)"
    assert counter_j(0) > 0
    with pytest.raises(pynvml.NVMLError_NotSupported):
        counter_j(1)


def test_a_machine_that_cannot_be_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadTerm, match="at most 16 GPUs"):
        SimulatedNvml.create(tmp_path, gpus=17)
    with pytest.raises(BadTerm, match="no profile 'h300'"):
        SimulatedNvml.create(tmp_path, profile="h300")
    with pytest.raises(BadTerm, match="has no idle_kw"):
        SimulatedNvml.create(tmp_path, idle_kw=1)
    with pytest.raises(BadTerm, match="raise limit_min_w"):
        SimulatedNvml.create(tmp_path, limit_min_w=100.0)
    with pytest.raises(BadTerm, match="load_end"):
        burst(1.5, period_s=1.0)


# ---- Processes, files and the compiler


READ_FOR_EVER = """
import pynvml, sys
pynvml.nvmlInit()
gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
ready = False
while True:
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu, 250_000)
    pynvml.nvmlDeviceGetPowerUsage(gpu)
    if not ready:
        ready = True
        print("ready", flush=True)
"""
HOLD_THE_LOCK = """
import fcntl, sys, time
file = open(sys.argv[1], "r+b")
fcntl.flock(file, fcntl.LOCK_EX)
print("ready", flush=True)
time.sleep(600)
"""


def started(machine: SimulatedNvml, code: str, *arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | machine.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def killed(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()


def test_the_driver_goes_on_when_a_process_is_killed_while_it_writes(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    for _ in range(3):
        process = started(machine, READ_FOR_EVER)
        killed(process)
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 700_000)
        assert machine.setting(0).power_limit_w == 700.0
    assert {call.pid for call in machine.setting_calls()} > {os.getpid()}
    assert machine.calls("nvmlDeviceGetPowerUsage") > 0
    assert_counter_is_true(machine)


def test_a_lock_is_free_again_when_its_holder_is_killed(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    process = started(machine, HOLD_THE_LOCK, str(machine.state_file))
    assert pynvml.nvmlDeviceGetPowerUsage(gpu()) == 100_000  # readers do not wait for writers
    with machine.state_file.open("r+b") as file, pytest.raises(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    killed(process)
    pynvml.nvmlDeviceSetPowerManagementLimit(gpu(), 300_000)
    machine.play(0, 1.0)
    assert machine.setting(0).power_limit_w == 300.0


def test_a_process_may_turn_from_one_machine_to_the_next(nvml_machine: MakeMachine) -> None:
    nvml_machine(gpus=2, profile="a100")
    assert pynvml.nvmlDeviceGetCount() == 2
    nvml_machine(gpus=5)
    assert pynvml.nvmlDeviceGetCount() == 5
    assert pynvml.nvmlDeviceGetName(gpu()) == "NVIDIA H200 (simulated)"


def test_another_process_may_play_the_load(nvml_machine: MakeMachine) -> None:
    machine = nvml_machine()
    SimulatedNvml(machine.state_file).play(0, 1.0, start_s=machine.booted_s)
    assert instant_w() == 700.0
    assert machine.true_power_w(0, time.monotonic()) == 700.0


def test_without_a_state_file_there_is_no_driver(nvml_machine: MakeMachine, tmp_path: Path) -> None:
    nvml_machine()  # so that the library is loaded
    pynvml.nvmlShutdown()
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "zeros").write_bytes(bytes((tmp_path / "machine-0" / "nvml.state").stat().st_size))
    seen = {}
    for name in ("missing", "empty", "zeros"):
        os.environ[STATE_VARIABLE] = str(tmp_path / name)
        with pytest.raises(pynvml.NVMLError) as refused:
            pynvml.nvmlInit()
        seen[name] = refused.value.value
    os.environ[STATE_VARIABLE] = str(tmp_path / "machine-0" / "nvml.state")
    pynvml.nvmlInit()
    assert seen == {
        "missing": pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        "empty": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
        "zeros": pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }


def test_nothing_answers_before_init_and_after_shutdown(nvml_machine: MakeMachine) -> None:
    nvml_machine()
    handle = gpu()
    pynvml.nvmlShutdown()
    with pytest.raises(pynvml.NVMLError_Uninitialized):
        pynvml.nvmlDeviceGetPowerUsage(handle)
    pynvml.nvmlInit()
    assert pynvml.nvmlDeviceGetPowerUsage(handle) == 100_000


def test_processes_that_compile_at_once_end_up_with_one_library(tmp_path: Path) -> None:
    ask = "from wattsmith.sim.nvml import library; print(library())"
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}
    racing = [
        subprocess.Popen([sys.executable, "-c", ask], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    answers = {process.communicate()[0] for process in racing}
    assert {process.returncode for process in racing} == {0}
    assert len(answers) == 1
    built = Path(answers.pop().strip())
    assert sorted(each.name for each in built.parent.iterdir()) == ["bin", "libnvidia-ml.so.1"]


def test_the_driver_compiles_without_a_warning(tmp_path: Path) -> None:
    sources = Path(nvml_driver.__file__).parent.glob("nvml*.c")
    command = ["cc", *nvml_driver._FLAGS, "-Werror", *map(str, sources), "-o", str(tmp_path / "driver"), "-lm"]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""


def test_without_a_compiler_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(ExtraNeeded, match="no-such-compiler"):
        library()


def test_a_command_runs_on_a_simulated_driver() -> None:
    ask = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetName(n.nvmlDeviceGetHandleByIndex(1)))"
    command = [sys.executable, "-m", "wattsmith.sim.nvml", "--gpus", "2", "--load", "0.5", "--"]
    finished = subprocess.run([*command, sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert finished.stdout == "NVIDIA H200 (simulated)\n"
    assert "simulated gpu:1 used" in finished.stderr


def test_importing_the_simulation_loads_nothing_heavy() -> None:
    ask = "import sys, wattsmith.sim.nvml; print([m for m in ('numpy', 'pynvml', 'torch') if m in sys.modules])"
    finished = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"
