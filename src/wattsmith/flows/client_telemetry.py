"""What this machine tells of itself, again and again: its devices, and what they did since the last look."""

import os
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattsmith import __version__
from wattsmith.flows.controlling import KnobState, knobs_here
from wattsmith.flows.machine import describe_machine
from wattsmith.flows.measuring import open_session
from wattsmith.measure.gpm import GpmReader
from wattsmith.measure.session import OpenWindow, Session
from wattsmith.terms.energy import Window
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.machine import GaugeReading, Machine
from wattsmith.terms.service import ClientAbout, DeviceAbout, DomainReport

GAUGES = (
    *("busy_ratio", "memory_busy_ratio", "memory_used_bytes", "clock_hz", "memory_clock_hz"),
    *("temperature_c", "power_limit_w"),
)
PIECE_BYTES = 1 << 20


@dataclass(slots=True)
class Progress:
    """The steps that a program has done, from a file to which it adds a line each; each byte is read once."""

    path: Path
    _lines: int = 0
    _read_bytes: int = 0

    def steps(self) -> float | None:
        """None: there is no such file."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, os.SEEK_END) < self._read_bytes:
                    self._lines = self._read_bytes = 0  # a new run has begun it anew
                file.seek(self._read_bytes)
                while piece := file.read(PIECE_BYTES):
                    self._lines += piece.count(b"\n")
                    self._read_bytes += len(piece)
        except OSError:
            return None
        return float(self._lines)


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """What was seen. `duration_s` is how long ago the look before was."""

    domains: Mapping[str, DomainReport]
    steps: float | None
    duration_s: float


@dataclass(slots=True)
class ClientTelemetry:
    """Meters, gauges and activity counters of this machine, kept open. Close it when done."""

    meters: str = "auto"
    progress: Progress | None = None
    about: ClientAbout = field(init=False)
    _session: Session = field(init=False)
    _window: OpenWindow = field(init=False)
    _energy_j: dict[str, float] = field(default_factory=dict)  # since this was opened
    _activity: dict[str, GpmReader] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.about = about_here(describe_machine(self.meters), knobs_here())
        self._session = open_session(self.meters)
        self._window = self._session.begin("report")
        for device in self.about.devices:
            kind, _, number = device.domain.partition(":")
            if kind == "gpu" and number.isdecimal():
                with suppress(MeterUnavailable, ImportError):
                    self._activity[device.domain] = GpmReader(int(number))

    def look(self) -> Look:
        """What each device did since the last look. May wait half a second for the last readings of slow meters."""
        # The next one begins before this one ends, so that no moment lies in none of them.
        before, self._window = self._window, self._session.begin("report")
        window = before.end().result()
        found = {domain: _report(reading, {}) for domain, reading in self._session.gauge_readings.items()}
        for domain, seen in self._energies(window).items():
            found[domain] = _report(self._session.gauge_readings.get(domain), seen)
        return Look(
            domains={domain: found[domain] for domain in sorted(found)},
            steps=None if self.progress is None else self.progress.steps(),
            duration_s=window.duration_s,
        )

    def _energies(self, window: Window) -> dict[str, dict[str, Any]]:
        """Mean power, the growing counter and the activity of each domain that has a meter."""
        found: dict[str, dict[str, Any]] = {}
        for one in window.domains:
            seen: dict[str, Any] = {"energy_j": self._energy_j.get(one.domain), "activity": self._active(one.domain)}
            if one.energy_j is not None and one.complete:
                seen["energy_j"] = self._energy_j[one.domain] = self._energy_j.get(one.domain, 0.0) + one.energy_j
                seen["power_w"] = one.energy_j / window.duration_s if window.duration_s > 0 else None
            found[one.domain] = seen
        return found

    def _active(self, domain: str) -> dict[str, float]:
        with suppress(MeterMissed, MeterLost, KeyError):
            return self._activity[domain].read()
        return {}

    def close(self) -> None:
        for reader in self._activity.values():
            reader.close()
        self._session.close()


def _report(gauge: GaugeReading | None, seen: Mapping[str, Any]) -> DomainReport:
    gauged = {} if gauge is None else {name: getattr(gauge, name) for name in GAUGES}
    return DomainReport(**gauged, **seen)


def about_here(machine: Machine, knobs: list[KnobState]) -> ClientAbout:
    """What a client tells of itself."""
    gpus = [
        DeviceAbout(
            domain=gpu.domain,
            name=gpu.name,
            uuid=gpu.uuid,
            memory_bytes=gpu.memory_bytes,
            power_limit_w=gpu.power_limit_w,
            power_limit_range_w=gpu.power_limit_range_w,
            max_clock_hz=gpu.max_clock_hz,
            simulated=gpu.simulated,
        )
        for gpu in machine.gpus
    ]
    known = {gpu.domain for gpu in gpus}
    others = [
        DeviceAbout(domain=card.domain, name=card.name, simulated=card.simulated)
        for card in machine.meters
        if card.domain not in known
    ]
    return ClientAbout(
        version=__version__,
        host=socket.gethostname(),
        devices=(*gpus, *others),
        knobs=tuple(state.card.name for state in knobs),
        simulated=machine.simulated,
    )
