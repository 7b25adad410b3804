"""The record of a service as people look at it: what is in it, and how far it reaches."""

import math
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.records import opened, runs_of, shipped_records
from wattsmith.flows.service_runs import FAMILY
from wattsmith.terms.run import Run, Status
from wattsmith.terms.work import Workload

POINTS = 2_000  # that a plot of the coverage shows at most


class RecordView:
    """What is in a record; read again when it has grown, whoever made it grow."""

    def __init__(self, place: str, version: Callable[[], int]) -> None:
        self._place = place
        self._version = version
        self._lock = threading.Lock()
        self._seen: _Seen | None = None

    def runs(self) -> list[Run]:
        """All of them, the newest first."""
        return self._now().runs

    def add(self, run: Run) -> bool:
        """Let RUN join the record; False: it has joined before."""
        with opened(self._place) as store:
            return store.add(run)

    def summary(self) -> dict[str, Any]:
        return dict(self._now().summary)

    def page(self, *, family: str | None, device: str | None, limit: int, offset: int) -> list[dict[str, Any]]:
        """Runs in short, the newest first."""
        wanted = [
            run
            for run in self.runs()
            if (family is None or run.workload.family == family) and (device is None or run.device.name == device)
        ]
        return [_short(run) for run in wanted[offset : offset + limit]]

    def _now(self) -> "_Seen":
        version = self._version()
        with self._lock:  # who comes meanwhile waits, and need not read it too
            if self._seen is None or self._seen.version != version:
                runs = sorted(runs_of(self._place), key=lambda run: run.provenance.measured_at, reverse=True)
                self._seen = _Seen(version=version, runs=runs, summary=_summary(self._place, runs))
            return self._seen


@dataclass(frozen=True, slots=True, kw_only=True)
class _Seen:
    """A record as it was."""

    version: int
    runs: list[Run]
    summary: dict[str, Any]


def _summary(place: str, runs: Sequence[Run]) -> dict[str, Any]:
    networks = [run for run in runs if run.workload.kind == "network" and run.workload.family != FAMILY]
    return {
        "place": place,
        "runs": len(runs),
        "networks": len(networks),
        "operators": sum(run.workload.kind == "operator" for run in runs),
        "jobs": sum(run.workload.family == FAMILY for run in runs),
        "failed": sum(run.status is not Status.MEASURED for run in runs),
        "devices": dict(Counter(run.device.name for run in runs).most_common()),
        "families": dict(Counter(run.workload.family for run in runs).most_common()),
        "by_family": _by_family(runs),
        "shipped": list(shipped_records()),
        "coverage": _coverage(runs),
        "points": _points(runs),
    }


def _by_family(runs: Sequence[Run]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for run in runs:
        of = found.setdefault(run.workload.family, {})
        of[run.device.name] = of.get(run.device.name, 0) + 1
    return found


def _coverage(runs: Sequence[Run]) -> dict[str, list[list[float]]]:
    """By decade, how many runs there are: of operations a step, and of operations a byte."""
    flops = [run.structure.flops for run in runs if run.structure is not None and run.structure.flops > 0]
    intensities = [run.structure.intensity for run in runs if run.structure is not None and run.structure.intensity]
    return {"flops": _decades(flops), "intensity": _decades(intensities)}


def _decades(values: Sequence[float]) -> list[list[float]]:
    counts = Counter(math.floor(math.log10(value)) for value in values)
    return [[10.0**decade, 10.0 ** (decade + 1), count] for decade, count in sorted(counts.items())]


def _points(runs: Sequence[Run]) -> list[list[float]]:
    """Intensity and operations of networks, for a plot."""
    return [
        [run.structure.intensity, run.structure.flops]
        for run in runs
        if run.structure is not None and run.structure.intensity and run.structure.flops > 0
    ][:POINTS]


def _short(run: Run) -> dict[str, Any]:
    workload: Workload = run.workload
    used = run.consumption
    return {
        "key": workload.key,
        "family": workload.family,
        "kind": workload.kind,
        "batch": workload.batch,
        "precision": workload.precision,
        "mode": workload.mode,
        "devices": workload.devices,
        "device": run.device.name,
        "simulated": run.device.simulated or bool(used and used.simulated),
        "status": str(run.status),
        "step_s": None if run.times is None else run.times.mean_s,
        "step_energy_j": None if used is None else used.step_energy_j,
        "power_w": None if used is None else used.power_w,
        "memory_bytes": None if used is None else used.peak_held_bytes,
        "flops": None if run.structure is None else run.structure.flops,
        "intensity": None if run.structure is None else run.structure.intensity,
        "measured_at": run.provenance.measured_at,
        "session": run.provenance.session,
    }
