"""Metrics for Prometheus: 100 W for 10 s is 1000 J; what is unknown is absent."""

import socket
import urllib.request

import pytest
from tests.measure.playing import LOST, PlayedMeter

from wattsmith.measure.prometheus import SessionCollector, serving_metrics
from wattsmith.measure.session import Session
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.errors import BadInput
from wattsmith.terms.machine import GaugeReading

GPU = {"domain": "gpu:0", "name": "played", "source": "polled", "simulated": "false"}


class StandingGauge:
    domain = "gpu:0"

    def look(self):
        return GaugeReading(time_s=0.0, domain="gpu:0", busy_ratio=0.5, memory_used_bytes=2**30)


@pytest.fixture
def clock():
    return SimulatedClock(1000.0)


def let_pass(session, clock, duration_s):
    for _ in range(round(duration_s / 0.1)):
        clock.sleep_s(0.1)
        session.read()


def scraped(session, window):
    """Value by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in SessionCollector(session, window).collect()
        for sample in metric.samples
    }


def value(samples, metric, /, **labels):
    return samples[metric, frozenset(labels.items())]


def names(samples):
    return {name for name, _ in samples}


def test_energy_and_power_of_a_steady_load(clock):
    session = Session([PlayedMeter(clock, lambda _: 100.0)], clock=clock, background=False)
    window = session.begin("work")
    let_pass(session, clock, 10.0)
    samples = scraped(session, window)
    assert value(samples, "wattsmith_energy_joules_total", **GPU) == pytest.approx(1000.0, rel=0.01)
    assert value(samples, "wattsmith_power_watts", **GPU) == 100.0
    assert value(samples, "wattsmith_meter_up", **GPU) == 1.0
    assert value(samples, "wattsmith_missed_readings_total", **GPU) == 0
    assert value(samples, "wattsmith_window_seconds") == pytest.approx(10.0)
    assert value(samples, "wattsmith_energy_error_joules", **GPU) < 20.0


def test_the_energy_counter_never_goes_back(clock):
    session = Session(
        [PlayedMeter(clock, lambda time_s: 50.0 + 50.0 * (time_s % 2 > 1))], clock=clock, background=False
    )
    window = session.begin("work")
    seen_j = []
    for _ in range(20):
        let_pass(session, clock, 0.3)
        seen_j.append(value(scraped(session, window), "wattsmith_energy_joules_total", **GPU))
    assert seen_j == sorted(seen_j)


def test_gauges_are_given_as_far_as_they_tell(clock):
    meters = [PlayedMeter(clock, lambda _: 100.0)]
    session = Session(meters, gauges=[StandingGauge()], clock=clock, background=False)
    samples = scraped(session, session.begin("work"))
    assert value(samples, "wattsmith_busy_ratio", domain="gpu:0") == 0.5
    assert value(samples, "wattsmith_memory_used_bytes", domain="gpu:0") == 2**30
    assert "wattsmith_temperature_celsius" not in names(samples)


def test_without_meters_there_is_no_energy(clock):
    session = Session([], clock=clock, background=False)
    window = session.begin("work")
    clock.sleep_s(5.0)
    samples = scraped(session, window)
    assert value(samples, "wattsmith_window_seconds") == pytest.approx(5.0)
    assert names(samples) == {"wattsmith_window_seconds"}


def test_a_lost_meter_keeps_its_energy_and_is_down(clock):
    meter = PlayedMeter(clock, lambda _: 100.0)
    session = Session([meter], clock=clock, background=False)
    window = session.begin("work")
    let_pass(session, clock, 2.0)
    meter.fails_with = LOST
    let_pass(session, clock, 2.0)
    samples = scraped(session, window)
    assert value(samples, "wattsmith_energy_joules_total", **GPU) == pytest.approx(200.0, rel=0.02)
    assert value(samples, "wattsmith_meter_up", **GPU) == 0.0
    assert "wattsmith_power_watts" not in names(samples)


def test_a_meter_that_never_gave_anything_has_no_energy(clock):
    meter = PlayedMeter(clock, lambda _: 100.0)
    meter.fails_with = LOST
    session = Session([meter], clock=clock, background=False)
    window = session.begin("work")
    clock.sleep_s(1.0)
    samples = scraped(session, window)
    assert value(samples, "wattsmith_meter_up", **GPU) == 0.0
    assert "wattsmith_energy_joules_total" not in names(samples)


def test_it_is_served_on_this_machine_alone(clock):
    session = Session([PlayedMeter(clock, lambda _: 100.0)], clock=clock, background=False)
    window = session.begin("work")
    let_pass(session, clock, 1.0)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serving_metrics(session, window, port):
        text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
        with socket.socket() as elsewhere:
            elsewhere.bind(("127.0.0.2", port))  # free: only 127.0.0.1 is listened on
    assert "wattsmith_energy_joules_total{" in text
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


def test_a_port_that_is_taken_is_refused(clock):
    session = Session([], clock=clock, background=False)
    window = session.begin("work")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(BadInput, match=f"cannot serve metrics on port {port}"),
            serving_metrics(session, window, port),
        ):
            pass
