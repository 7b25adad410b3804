"""What the devices of one job use while it runs. A job is never kept from running because it cannot be measured."""

import os
from collections.abc import Iterable
from dataclasses import dataclass

from wattsmith.flows.measuring import open_session
from wattsmith.measure.session import OpenWindow, Session
from wattsmith.terms.energy import DomainEnergy, Source, Window, not_enclosed
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.jobs import AttemptOrder

CPU = "cpu"  # the kind of a device that is no card
NOT_CPU = ("gpu", "node")  # domains that are not the CPU's


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEnergy:
    """Energy of a job's devices. None: not known; `why` says why."""

    energy_j: float | None = None
    error_j: float | None = None
    source: Source | None = None
    device: str | None = None  # as its meter calls it
    simulated: bool = False
    why: str | None = None


class JobMeters:
    """The meters of ORDER's devices."""

    def __init__(self, order: AttemptOrder) -> None:
        self._wanted = () if order.kind == CPU else tuple(f"gpu:{index}" for index in order.devices)
        self._session: Session | None = None
        self._window: OpenWindow | None = None
        self._why = "it was not measured"
        self.peak_memory_bytes: int | None = None
        # Meters, too, see the devices that they are shown.
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(name.partition(":")[2] for name in self._wanted)
        try:
            self._session = open_session(order.meters)
        except (WattsmithError, ImportError, OSError) as absent:
            self._why = str(absent)

    def begin(self) -> None:
        if self._session is not None:
            self._window = self._session.begin("job")

    def look(self) -> None:
        """See how full the devices are."""
        if self._session is None or self._window is None:
            return
        for name in self._wanted:
            seen = self._session.gauge_readings.get(name)
            if seen is not None and seen.memory_used_bytes is not None and seen.time_s >= self._window.begin.time_s:
                self.peak_memory_bytes = max(self.peak_memory_bytes or 0, seen.memory_used_bytes)

    def power_w(self) -> float | None:
        """Just now, of all of them; None: one does not tell."""
        if self._session is None:
            return None
        now_w = self._session.latest_power_w()
        names = self._wanted or tuple(name for name in now_w if name.partition(":")[0] == "cpu-package")
        return sum(now_w[name] for name in names) if names and all(name in now_w for name in names) else None

    def so_far(self) -> JobEnergy:
        """Until now."""
        if self._window is None:
            return JobEnergy(why=self._why)
        window = self._window.so_far()
        return JobEnergy(why="its meters have not been read yet") if window is None else energy_of(window, self._wanted)

    def end(self) -> JobEnergy:
        if self._session is None or self._window is None:
            return JobEnergy(why=self._why)
        return energy_of(self._window.end().result(), self._wanted)

    def close(self) -> None:
        if self._session is not None:
            self._session.close()


def energy_of(window: Window, wanted: Iterable[str]) -> JobEnergy:
    """What the domains WANTED used in WINDOW; without any, what the CPU did."""
    names = tuple(wanted)
    known = {domain.domain: domain for domain in window.domains}
    if absent := [name for name in names if name not in known]:
        boards = tuple(domain for domain in window.domains if domain.kind == "soc")
        if not boards:
            reasons = " ".join(window.missing.get(kind, "") for kind in ("nvidia", "amd")).strip()
            return JobEnergy(why=f"{', '.join(absent)} has no meter. {reasons}".strip())
        return _sum(boards)  # where CPU and GPU are one chip, that is measured
    if names:
        return _sum(tuple(known[name] for name in names))
    parts = not_enclosed(domain for domain in window.domains if domain.kind not in NOT_CPU)
    if not parts:
        return JobEnergy(why=f"the CPU has no meter. {window.missing.get(CPU, '')}".strip())
    return _sum(parts)


def _sum(parts: tuple[DomainEnergy, ...]) -> JobEnergy:
    device, simulated = parts[0].name, any(part.simulated for part in parts)
    for part in parts:
        if part.energy_j is None or part.error_j is None or not part.complete:
            return JobEnergy(device=device, simulated=simulated, why=f"{part.domain}: {part.why}")
    worst = max((part.source for part in parts), key=list(Source).index)
    return JobEnergy(
        energy_j=sum(part.energy_j or 0.0 for part in parts),
        error_j=sum(part.error_j or 0.0 for part in parts),
        source=worst,
        device=device,
        simulated=simulated,
    )
