"""Measure a command, or a process that runs already: energy by domain, and what its processes used."""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattsmith.flows import child
from wattsmith.flows.measuring import open_session
from wattsmith.measure.host import HostGauge, ProcessGauge
from wattsmith.measure.prometheus import serving_metrics
from wattsmith.measure.session import OpenWindow, Session
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.clock import RealClock
from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadInput, MeterLost, MeterUnavailable, NotWritten, WattsmithError
from wattsmith.terms.machine import GaugeReading

TICK_S = 0.2
FASTEST_HZ = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToMeasure:
    """What to measure with, and where else the readings go."""

    meters: str = "auto"
    poll_hz: float | None = None  # None: as each meter asks for
    use_counter: bool = True
    timeline: Path | None = None
    prometheus_port: int | None = None

    def __post_init__(self) -> None:
        if self.poll_hz is not None and not 0 < self.poll_hz <= FASTEST_HZ:
            raise BadInput(f"meters can be read from 0 to {FASTEST_HZ:g} times a second, not {self.poll_hz:g}")
        if self.prometheus_port is not None and not 0 < self.prometheus_port < 2**16:
            raise BadInput(f"a port lies between 1 and 65535, not at {self.prometheus_port}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessUse:
    """What a process and those it started used. None: not known."""

    cpu_s: float
    peak_memory_bytes: int | None  # of all of them together, as often as it was looked at
    read_bytes: int | None  # from disks; what came out of the page cache is not counted
    written_bytes: int | None
    processes: int | None  # most at once, as often as it was looked at


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineState:
    """What became of the timeline."""

    path: Path
    rows: int
    failed: str | None  # what went wrong, and what is left; None: it is complete


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a command cost."""

    command: tuple[str, ...]
    pid: int
    exit_code: int | None  # None: it was not ours to wait for
    ended: bool  # False: we stopped before the process did
    window: Window
    use: ProcessUse
    gauges: tuple[GaugeReading, ...]  # how each device was when last looked at
    timeline: TimelineState | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How a measurement stands. `window` is None until the first readings are in."""

    duration_s: float
    window: Window | None
    power_w: Mapping[str, float]  # newest reading by domain
    tree: GaugeReading | None  # the processes


Watch = Callable[[Progress], None]


def measure_command(command: Sequence[str], how: HowToMeasure, watch: Watch | None = None) -> Measured:
    """Run COMMAND and measure it until it ends. WATCH is told how it stands some times a second.

    Signals that would end this process are held back meanwhile, and passed on to the command.
    """
    child.require_command(command)
    with child.signals_held() as held, _measurement(shlex.join(command), how, watch) as running:
        pid = child.start(command, held)
        running.follow(pid)
        ended = child.wait_for(pid, held, running.tick, TICK_S)
    return running.measured(tuple(command), pid, ended)


def measure_process(pid: int, how: HowToMeasure, watch: Watch | None = None) -> Measured:
    """Measure process PID, which runs already, until it ends or we are interrupted. WATCH as in `measure_command`."""
    command, is_running = child.find_process(pid)
    with child.signals_held() as held, _measurement(f"process {pid}", how, watch) as running:
        running.follow(pid)
        running.look()  # what it did before now does not count
        has_ended = child.wait_for_other(is_running, held, running.tick, TICK_S)
    return running.measured(command, pid, None, has_ended=has_ended)


@contextmanager
def _measurement(name: str, how: HowToMeasure, watch: Watch | None) -> Iterator["_Running"]:
    """A window over the meters around the enclosed code; afterwards all is closed and the figures are there."""
    timeline = None if how.timeline is None else Timeline(how.timeline)
    try:
        with (
            open_session(
                how.meters,
                poll_hz=how.poll_hz,
                use_counter=how.use_counter,
                timeline=timeline,
                gauges=(HostGauge(RealClock()),),
            ) as session,
            session.measure(name) as window,
        ):
            running = _Running(session, window, watch, timeline)
            if how.prometheus_port is None:
                yield running
            else:
                with serving_metrics(session, window, how.prometheus_port):
                    yield running
    except WattsmithError:
        if timeline is not None:
            timeline.discard()  # a meter or the command could not be started
        raise
    running.close_timeline()


class _Running:
    """A measurement that runs: its window, and the tree of processes that it is about."""

    def __init__(self, session: Session, window: OpenWindow, watch: Watch | None, timeline: Timeline | None) -> None:
        self._session = session
        self._window = window
        self._watch = watch
        self._timeline = timeline
        self._written: TimelineState | None = None
        self._pid = 0
        self._tree: ProcessGauge | None = None
        self._latest: GaugeReading | None = None
        self._peak_memory_bytes = self._most_processes = 0

    def close_timeline(self) -> None:
        """Finish the timeline. One that cannot be finished is no reason to lose the figures."""
        if self._timeline is None:
            return
        failed = None
        try:
            self._timeline.close()
        except NotWritten as incomplete:
            failed = str(incomplete)
        self._written = TimelineState(path=self._timeline.path, rows=self._timeline.rows, failed=failed)

    def follow(self, pid: int) -> None:
        """Look at process PID and all it starts, from the next look on."""
        self._pid = pid

    def tick(self) -> None:
        """Look at the processes, and tell who watches."""
        self.look()
        if self._watch is not None:
            self._watch(
                Progress(
                    duration_s=self._window.duration_s,
                    window=self._window.so_far(),
                    power_w=self._session.latest_power_w(),
                    tree=self._latest,
                )
            )

    def look(self) -> None:
        """Look at the processes."""
        try:
            self._tree = self._tree or ProcessGauge(self._session.clock, self._pid)
            self._latest = self._tree.look()
        except (MeterLost, MeterUnavailable):
            return  # all have ended; whoever waits for them will notice
        self._session.take_gauge(self._latest)
        self._peak_memory_bytes = max(self._peak_memory_bytes, self._latest.memory_used_bytes or 0)
        self._most_processes = max(self._most_processes, self._latest.processes or 0)

    def measured(
        self, command: tuple[str, ...], pid: int, ended: child.Ended | None, *, has_ended: bool = True
    ) -> Measured:
        return Measured(
            command=command,
            pid=pid,
            exit_code=None if ended is None else ended.exit_code,
            ended=has_ended,
            window=self._window.result(),
            use=self._use(ended),
            gauges=tuple(self._session.gauge_readings.values()),
            timeline=self._written,
        )

    def _use(self, ended: child.Ended | None) -> ProcessUse:
        """Of what was seen and what the kernel had counted at the end, the larger: neither sees everything."""
        seen = ProcessUse(
            cpu_s=0.0 if self._tree is None else self._tree.cpu_s,
            peak_memory_bytes=self._peak_memory_bytes or None,
            read_bytes=None if self._latest is None else self._latest.read_bytes,
            written_bytes=None if self._latest is None else self._latest.written_bytes,
            processes=self._most_processes or None,
        )
        if ended is None:
            return seen
        return ProcessUse(
            cpu_s=max(seen.cpu_s, ended.cpu_s),
            peak_memory_bytes=_largest(seen.peak_memory_bytes, ended.largest_bytes),
            read_bytes=_largest(seen.read_bytes, ended.read_bytes),
            written_bytes=_largest(seen.written_bytes, ended.written_bytes),
            processes=seen.processes,
        )


def _largest(*values: int | None) -> int | None:
    return max((value for value in values if value is not None), default=None)
