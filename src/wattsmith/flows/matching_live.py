"""Telemetry of a program that runs: one that is started here, or one that runs already."""

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from wattsmith.flows import child
from wattsmith.flows.layer_files import VARIABLE, read_layers
from wattsmith.flows.measuring import open_session
from wattsmith.flows.telemetry_files import NoPower, read_telemetry
from wattsmith.measure.gpm import GpmReader, gpu_count
from wattsmith.measure.perf import PerfCounters
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.telemetry import Series, Telemetry

TICK_S = 0.2
LONGEST_S = 3_600.0


@dataclass(slots=True)
class Extra:
    """Channels that no timeline has: activity, instructions, and progress from a file that grows a line a step."""

    pid: int
    progress: Path | None
    notes: list[str] = field(default_factory=list)
    _seen: dict[tuple[str | None, str], list[tuple[float, float]]] = field(default_factory=dict)
    _gpms: list[GpmReader] = field(default_factory=list)
    _absent: dict[str, str] = field(default_factory=dict)  # by device, why it has no activity counters
    _perf: PerfCounters | None = None

    def open(self) -> None:
        # All of them: which device the program works on shows only when it has been watched.
        for gpu in range(max(1, gpu_count())):
            try:
                self._gpms.append(GpmReader(gpu))
            except MeterUnavailable as absent:
                self._absent[f"gpu:{gpu}"] = f"no activity counters: {absent}"
        try:
            self._perf = PerfCounters(self.pid)
        except MeterUnavailable as absent:
            self.notes.append(f"no instruction counters: {absent}")

    def look(self) -> None:
        """Read what there is; one that fails is passed over this time."""
        now_s = time.monotonic()
        for gpm in self._gpms:
            with suppress(MeterMissed, MeterLost):
                self._keep(now_s, gpm.domain, gpm.read())
        with suppress(MeterLost, OSError):
            self._keep(now_s, None, {} if self._perf is None else self._perf.read())
        if self.progress is not None:
            with suppress(OSError):
                self._keep(now_s, None, {"steps": float(self.progress.read_bytes().count(b"\n"))})

    def _keep(self, now_s: float, domain: str | None, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._seen.setdefault((domain, name), []).append((now_s, value))

    def close(self) -> None:
        for gpm in self._gpms:
            gpm.close()
        if self._perf is not None:
            self._perf.close()

    def added_to(self, telemetry: Telemetry) -> Telemetry:
        """TELEMETRY with what was seen here of its device and of the process."""
        series = {
            name: Series(time_s=tuple(time_s for time_s, _ in pairs), values=tuple(value for _, value in pairs))
            for (domain, name), pairs in self._seen.items()
            if domain in (None, telemetry.domain)
        }
        absent = [self._absent[telemetry.domain]] if telemetry.domain in self._absent else []
        notes = (*telemetry.notes, *absent, *self.notes)
        return replace(telemetry, series={**telemetry.series, **series}, notes=notes)


def watch_command(
    command: Sequence[str],
    *,
    meters: str = "auto",
    progress: Path | None = None,
    domain: str | None = None,
    tell: Callable[[str], None],
) -> tuple[Telemetry, int]:
    """Run COMMAND to its end; its telemetry, and its exit code. DOMAIN: as in `read_telemetry`."""
    child.require_command(command)
    with child.signals_held() as held, _watched(meters, progress, domain) as watched:
        layers = Path(os.environ.get(VARIABLE, watched.path.with_name("layers.json")))
        pid = child.start(command, held, **{VARIABLE: str(layers)})
        watched.follow(pid)
        tell(f"watching process {pid} until it ends")
        ended = child.wait_for(pid, held, watched.look, TICK_S)
        structure = read_layers(layers) if layers.exists() else None
    return replace(watched.telemetry(), structure=structure), ended.exit_code


def watch_process(
    pid: int,
    *,
    seconds_s: float = 20.0,
    meters: str = "auto",
    progress: Path | None = None,
    domain: str | None = None,
    tell: Callable[[str], None],
) -> Telemetry:
    """Look at process PID for SECONDS_S, or until it ends or we are interrupted. DOMAIN: as in `read_telemetry`."""
    if not 0 < seconds_s <= LONGEST_S:
        raise BadInput(f"a process is watched for up to {LONGEST_S:g} s, not {seconds_s:g}")
    _, is_running = child.find_process(pid)
    until_s = time.monotonic() + seconds_s
    with child.signals_held() as held, _watched(meters, progress, domain) as watched:
        watched.follow(pid)
        tell(f"watching process {pid} for {seconds_s:g} s")
        child.wait_for_other(lambda: time.monotonic() < until_s and is_running(), held, watched.look, TICK_S)
    return watched.telemetry()


@dataclass(slots=True)
class _Watched:
    """A session that writes a timeline, with the extra channels beside it."""

    path: Path
    progress: Path | None
    extra: Extra | None = None
    read: Telemetry | None = None

    def follow(self, pid: int) -> None:
        self.extra = Extra(pid, self.progress)
        self.extra.open()

    def look(self) -> None:
        if self.extra is not None:
            self.extra.look()

    def telemetry(self) -> Telemetry:
        assert self.read is not None
        return self.read if self.extra is None else self.extra.added_to(self.read)


@contextmanager
def _watched(meters: str, progress: Path | None, domain: str | None) -> Iterator[_Watched]:
    with tempfile.TemporaryDirectory(prefix="wattsmith-match-") as folder:
        timeline = Timeline(Path(folder) / "trace.csv")
        watched = _Watched(timeline.path, progress)
        try:
            with open_session(meters, timeline=timeline) as session, session.measure("match"):
                yield watched
        finally:
            if watched.extra is not None:
                watched.extra.close()
            timeline.close()
        try:
            watched.read = read_telemetry(timeline.path, domain)
        except NoPower:  # there may be layers, counters or progress all the same
            watched.read = Telemetry(
                series={}, domain=domain or "gpu:0", notes=("no meter told any power; see `wattsmith machine`",)
            )
