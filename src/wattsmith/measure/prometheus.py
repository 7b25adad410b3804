"""A session's figures for Prometheus to scrape, on this machine alone. What is unknown is absent, never 0."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from wattsmith.measure.session import OpenWindow, Session
from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadInput
from wattsmith.terms.machine import GaugeReading

if TYPE_CHECKING:
    from prometheus_client import Metric

LOOPBACK = "127.0.0.1"
METER_LABELS = ("domain", "name", "source", "simulated")
GAUGES = {  # field of GaugeReading → name of the metric, what it is
    "busy_ratio": ("wattsmith_busy_ratio", "Share of recent time with any work on it"),
    "memory_busy_ratio": ("wattsmith_memory_busy_ratio", "Share of recent time in which memory was read or written"),
    "memory_used_bytes": ("wattsmith_memory_used_bytes", "Memory in use"),
    "clock_hz": ("wattsmith_clock_hertz", "Clock of the processor"),
    "memory_clock_hz": ("wattsmith_memory_clock_hertz", "Clock of the memory"),
    "temperature_c": ("wattsmith_temperature_celsius", "Temperature"),
    "power_limit_w": ("wattsmith_power_limit_watts", "Power limit in force"),
    "read_bytes": ("wattsmith_read_bytes", "Bytes read since the measurement began"),
    "written_bytes": ("wattsmith_written_bytes", "Bytes written since the measurement began"),
    "processes": ("wattsmith_processes", "Processes that run"),
}


class SessionCollector:
    """What WINDOW, still open, cost so far, and how the devices are, at every scrape."""

    def __init__(self, session: Session, window: OpenWindow) -> None:
        self._session = session
        self._window = window

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import GaugeMetricFamily

        yield GaugeMetricFamily(
            "wattsmith_window_seconds", "How long the measurement has run", value=self._window.duration_s
        )
        so_far = self._window.so_far()
        if so_far is not None:
            yield from self._energy(so_far)
        yield self._power()
        yield from _gauges(list(self._session.gauge_readings.values()))

    def _energy(self, so_far: Window) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        energy = CounterMetricFamily(
            "wattsmith_energy_joules", "Energy since the measurement began", labels=METER_LABELS
        )
        error = GaugeMetricFamily(
            "wattsmith_energy_error_joules", "Bound on the error of the energy", labels=METER_LABELS
        )
        missed = CounterMetricFamily(
            "wattsmith_missed_readings", "Readings that should have come and did not", labels=METER_LABELS
        )
        works = GaugeMetricFamily("wattsmith_meter_up", "1 while the meter gives readings, else 0", labels=METER_LABELS)
        for domain in so_far.domains:
            labels = _labels(domain)
            works.add_metric(labels, float(domain.complete))
            missed.add_metric(labels, domain.missed)
            if domain.energy_j is not None and domain.error_j is not None:
                energy.add_metric(labels, domain.energy_j)
                error.add_metric(labels, domain.error_j)
        yield from (energy, error, missed, works)

    def _power(self) -> "Metric":
        from prometheus_client.core import GaugeMetricFamily

        power = GaugeMetricFamily("wattsmith_power_watts", "Newest reading of the power", labels=METER_LABELS)
        latest_w = self._session.latest_power_w()
        for card in self._session.cards:
            if card.domain in latest_w:
                power.add_metric(_labels(card), latest_w[card.domain])
        return power


def _labels(meter: Any) -> list[str]:
    return [meter.domain, meter.name, str(meter.source), str(meter.simulated).lower()]


def _gauges(readings: list[GaugeReading]) -> Iterator["Metric"]:
    from prometheus_client.core import GaugeMetricFamily

    for field, (name, what) in GAUGES.items():
        family = GaugeMetricFamily(name, what, labels=("domain",))
        for reading in readings:
            value = getattr(reading, field)
            if value is not None:
                family.add_metric([reading.domain], value)
        if family.samples:
            yield family


@contextmanager
def serving_metrics(session: Session, window: OpenWindow, port: int) -> Iterator[None]:
    """Serve http://127.0.0.1:PORT/metrics meanwhile. Other machines cannot reach it."""
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(SessionCollector(session, window))
    try:
        server, thread = start_http_server(port, addr=LOOPBACK, registry=registry)
    except (OSError, OverflowError) as refused:
        raise BadInput(f"cannot serve metrics on port {port}: {refused}. Choose another port.") from refused
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
