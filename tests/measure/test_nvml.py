"""NVIDIA GPUs, on the simulated driver that the unmodified nvidia-ml-py loads: the true joules are known."""

import time

import pytest
from tests.contracts.meter import MeterContract

from wattsmith.measure.discover import find_meters
from wattsmith.measure.nvml import find_nvml
from wattsmith.measure.session import Session
from wattsmith.sim.nvml import GPU_IS_LOST, TIMEOUT, SimulatedNvml, burst, constant, sawtooth, step
from wattsmith.terms.clock import RealClock
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput, MeterUnavailable

CURVES = {
    "constant": constant(0.6),
    "step": step(0.1, 0.9, after_s=1.3),
    "saw-tooth": sawtooth(0.1, 0.9, period_s=0.7),
    "bursty": burst(high=1.0, period_s=0.4, duty_ratio=0.5),
}


@pytest.fixture
def gpu_machine(tmp_path, monkeypatch):
    """Makes a simulated machine that this process sees."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def make(**options):
        machine = SimulatedNvml.create(tmp_path, **options)
        machine.load_here()
        return machine

    return make


@pytest.fixture
def session_on():
    """Opens a session over the GPUs of this process, and closes it."""
    opened = []

    def open_session(**options):
        found = find_nvml(RealClock(), **options)
        opened.append(Session(found.meters, gauges=found.gauges))
        return opened[-1]

    yield open_session
    for session in opened:
        session.close()


def measured(session, duration_s):
    with session.measure("work") as window:
        time.sleep(duration_s)
    return window


def off_ratio(machine, window, gpu=0):
    truth_j = machine.true_energy_j(gpu, window.begin.time_s, window.finish.time_s)
    return abs(window.result().domain(f"gpu:{gpu}").energy_j / truth_j - 1)


class TestNvmlMeterHoldsTheContract(MeterContract):
    @pytest.fixture
    def clock(self):
        return RealClock()

    @pytest.fixture
    def meter(self, gpu_machine, clock):
        gpu_machine().play(0, 0.5)
        meter = find_nvml(clock).meters[0]
        yield meter
        meter.close()

    @pytest.fixture
    def advance(self):
        return time.sleep


@pytest.mark.parametrize("curve", CURVES)
@pytest.mark.parametrize("use_counter", [True, False], ids=["counter", "polled"])
def test_two_seconds_are_within_one_percent(gpu_machine, session_on, curve, use_counter):
    machine = gpu_machine(gpus=1)
    session = session_on(use_counter=use_counter)
    machine.play(0, CURVES[curve])
    window = measured(session, 2.2)
    assert window.result().domains[0].source == (Source.COUNTER if use_counter else Source.POLLED)
    assert off_ratio(machine, window) < 0.01


def test_a_short_window_is_within_its_stated_error(gpu_machine, session_on):
    machine = gpu_machine()
    machine.play(0, CURVES["bursty"])
    session = session_on()
    for _ in range(10):
        window = measured(session, 0.06)
        figure = window.result().domains[0]
        truth_j = machine.true_energy_j(0, window.begin.time_s, window.finish.time_s)
        # The driver keeps time in microseconds and power in milliwatts: a thousandth more for those.
        assert abs(figure.energy_j - truth_j) <= figure.error_j + 0.001 * truth_j


def test_windows_make_no_driver_call(gpu_machine):
    machine = gpu_machine(gpus=2)
    meters = find_nvml(RealClock()).meters
    session = Session(meters, background=False)
    before = machine.all_calls()
    for _ in range(100):
        session.end(session.begin("step"))
    assert machine.all_calls() == before
    session.close()


def test_a_disagreeing_power_sensor_is_reported_with_both_figures(gpu_machine, session_on):
    """The sensor reads 20 % more than the counter counts."""
    machine = gpu_machine(sensor_gain=1.2)
    machine.play(0, 0.7)
    window = measured(session_on(), 5.2)
    check = window.result().domains[0].cross_check
    assert not check.agrees
    assert check.integrated_j / check.counter_j == pytest.approx(1.2, rel=0.05)


def test_a_card_without_a_counter_is_polled(gpu_machine, session_on):
    machine = gpu_machine(has_counter=False)
    machine.play(0, 0.6)
    window = measured(session_on(), 1.0)
    assert window.result().domains[0].source == Source.POLLED
    assert off_ratio(machine, window) < 0.01


def test_a_card_without_history_is_asked_for_its_instant_power(gpu_machine, session_on):
    machine = gpu_machine(has_counter=False, has_samples=False)
    machine.play(0, 0.6)
    time.sleep(0.3)
    window = measured(session_on(), 2.0)
    assert off_ratio(machine, window) < 0.01
    assert machine.calls("nvmlDeviceGetFieldValues") >= 10


def test_a_card_with_the_averaged_power_alone_is_still_measured(gpu_machine, session_on):
    machine = gpu_machine(has_counter=False, has_samples=False, has_instant_field=False)
    machine.play(0, 0.6)
    time.sleep(1.5)
    window = measured(session_on(), 2.0)
    assert off_ratio(machine, window) < 0.02


def test_a_lost_gpu_leaves_an_incomplete_figure_and_the_other_one_whole(gpu_machine, session_on):
    machine = gpu_machine(gpus=2)
    machine.play(0, 0.5)
    machine.play(1, 0.5)
    session = session_on()
    with session.measure("work") as window:
        time.sleep(1.2)
        machine.lose(0)
        time.sleep(1.2)
    result = window.result()
    lost, well = result.domain("gpu:0"), result.domain("gpu:1")
    assert not lost.complete
    assert "lost" in lost.why.lower()
    truth_j = machine.true_energy_j(0, window.begin.time_s, window.begin.time_s + 1.2)
    assert 0 < lost.energy_j <= truth_j * 1.01
    assert well.complete
    assert off_ratio(machine, window, gpu=1) < 0.01


def test_reads_that_time_out_lose_nothing_while_the_driver_keeps_its_history(gpu_machine, session_on):
    machine = gpu_machine()
    machine.play(0, CURVES["bursty"])
    session = session_on()
    with session.measure("work") as window:
        time.sleep(1.0)
        machine.fail(0, TIMEOUT, function="nvmlDeviceGetSamples", times=2)
        time.sleep(1.6)
    assert window.result().domains[0].missed == 0
    assert off_ratio(machine, window) < 0.01


def test_samples_lost_to_time_outs_are_counted_and_the_counter_makes_up_for_them(gpu_machine, session_on):
    machine = gpu_machine()
    session = session_on()
    with session.measure("work") as window:
        time.sleep(1.0)
        machine.fail(0, TIMEOUT, function="nvmlDeviceGetSamples", times=8)
        machine.play(0, 0.8)
        time.sleep(5.0)
    figure = window.result().domains[0]
    assert figure.missed > 20
    assert "readings are missing" in figure.why
    assert off_ratio(machine, window) < 0.03


@pytest.mark.parametrize("step_s", [+30.0, -30.0])
def test_a_wall_clock_that_is_set_costs_no_energy(gpu_machine, session_on, step_s):
    """The driver stamps its samples with the wall clock; windows do not care what that says."""
    machine = gpu_machine()
    machine.play(0, 0.7)
    set_by_s = 0.0
    session = session_on(wall_s=lambda: time.time() + set_by_s)
    with session.measure("work") as window:
        time.sleep(1.2)
        machine._state.realtime_offset_ns += round(step_s * 1e9)
        set_by_s = step_s
        time.sleep(1.2)
    assert off_ratio(machine, window) < 0.02


def test_visible_devices_choose_by_index_and_by_uuid(gpu_machine):
    machine = gpu_machine(gpus=3)

    def domains(visible):
        found = find_nvml(RealClock(), visible=visible)
        for meter in found.meters:
            meter.close()
        return [meter.card.domain for meter in found.meters]

    assert domains("2,0") == ["gpu:2", "gpu:0"]
    assert domains(machine.uuid(1)) == ["gpu:1"]
    assert domains(f"0,{machine.uuid(2)}") == ["gpu:0", "gpu:2"]
    with pytest.raises(BadInput, match="GPU-nonsense"):
        domains("GPU-nonsense")
    with pytest.raises(MeterUnavailable, match="none of its 3 GPUs"):
        domains("-1")


def test_mig_instances_are_named_and_the_figure_says_that_it_is_the_whole_card(gpu_machine):
    gpu_machine(mig=("1g.18gb", "2g.35gb"))
    found = find_nvml(RealClock())
    assert [gpu.domain for gpu in found.gpus] == ["gpu:0", "gpu:0/mig:0", "gpu:0/mig:1"]
    assert "MIG 1g.18gb" in found.gpus[1].name
    assert "2 MIG instances share" in found.meters[0].card.note
    (chosen,) = find_nvml(RealClock(), visible=found.gpus[2].uuid).meters
    assert chosen.card.domain == "gpu:0"
    for meter in (*found.meters, chosen):
        meter.close()


def test_a_driver_that_samples_by_itself_is_not_asked_more_often_than_it_needs(gpu_machine):
    """Its samples come 50 times a second; 10 were asked for."""
    gpu_machine()
    found = find_meters("nvidia", RealClock(), poll_hz=10.0)
    assert found.meters[0].card.sample_period_s <= 0.1
    assert found.meters[0].card.poll_period_s == 0.5
    found.meters[0].close()
    gpu_machine(has_samples=False)
    found = find_meters("nvidia", RealClock(), poll_hz=5.0)
    assert found.meters[0].card.poll_period_s == 0.2
    found.meters[0].close()


def test_a_gauge_tells_how_the_card_is(gpu_machine):
    machine = gpu_machine()
    machine.play(0, 0.5)
    machine.use_memory(0, 8 * 2**30)
    time.sleep(1.2)
    found = find_nvml(RealClock())
    reading = found.gauges[0].look()
    assert reading.busy_ratio == pytest.approx(0.5, abs=0.1)
    assert reading.memory_used_bytes == 8 * 2**30
    assert reading.clock_hz == 1.98e9
    assert reading.power_limit_w == 700
    found.meters[0].close()


def test_what_is_simulated_says_so(gpu_machine, session_on):
    gpu_machine()
    window = measured(session_on(), 0.1)
    assert window.result().simulated
    assert "simulated" in window.result().domains[0].name


def test_a_driver_that_refuses_every_call_is_an_unavailable_meter(gpu_machine):
    gpu_machine().fail(0, GPU_IS_LOST)
    with pytest.raises(MeterUnavailable, match="nvidia-smi"):
        find_nvml(RealClock())
