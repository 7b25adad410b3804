"""How the host and one tree of processes are: CPU share, memory, input and output. Not energy."""

import os
import platform
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.terms.errors import MeterLost, MeterUnavailable
from wattsmith.terms.machine import GaugeReading, Machine
from wattsmith.terms.ports import Clock


def this_host() -> Machine:
    """This machine, without its GPUs and meters."""
    import psutil

    return Machine(
        hostname=socket.gethostname(),
        system=_system(),
        cpu=_cpu_model(Path("/proc/cpuinfo")),
        cpu_count=cpu_count(),
        memory_bytes=psutil.virtual_memory().total,
    )


def cpu_count() -> int:
    """Logical CPUs that are switched on, of the whole machine."""
    return os.cpu_count() or 1


def cpu_busy_s() -> float:
    """CPU seconds spent on work since boot, all CPUs of the whole machine together."""
    import psutil

    times = psutil.cpu_times()
    # Guest time is inside user time already; waiting and what a hypervisor gave to others are no work.
    return float(sum(getattr(times, kind, 0.0) for kind in ("user", "nice", "system", "irq", "softirq")))


class HostGauge:
    """The whole machine. `busy_ratio` is the mean over all CPUs since the last look; None at the first."""

    domain = "host:0"

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._cpus = cpu_count()
        self._last: tuple[float, float] | None = None  # time, busy CPU seconds
        self._io_at_start = _disk_bytes()

    def look(self) -> GaugeReading:
        import psutil

        now_s, busy_s = self._clock.now_s(), cpu_busy_s()
        busy_ratio = None if self._last is None else _share(self._last, (now_s, busy_s), self._cpus)
        self._last = (now_s, busy_s)
        memory = psutil.virtual_memory()
        read_bytes, written_bytes = _since(self._io_at_start, _disk_bytes())
        return GaugeReading(
            time_s=now_s,
            domain=self.domain,
            busy_ratio=busy_ratio,
            memory_used_bytes=memory.total - memory.available,
            read_bytes=read_bytes,
            written_bytes=written_bytes,
            processes=len(psutil.pids()),
        )


@dataclass(slots=True)
class _Seen:
    """One process as it was when last looked at, less what it had done before the measurement began."""

    process: Any
    ended: bool = False
    cpu_s: float = 0.0
    read_bytes: int | None = 0
    written_bytes: int | None = 0
    resident_bytes: int = 0


class ProcessGauge:
    """A process and all it started. `busy_ratio` is their share of all CPUs since the last look.

    What a process did stays in the sums after it ended, as of the last look at it; one that came and went between
    two looks was never seen. Memory shared by several processes is counted in each.
    """

    def __init__(self, clock: Clock, pid: int) -> None:
        import psutil

        self.domain = f"process:{pid}"
        self._clock = clock
        self._cpus = cpu_count()
        self._last: tuple[float, float] | None = None
        self._tree: dict[tuple[int, float], _Seen] = {}
        self._before: dict[tuple[int, float], _Seen] = {}  # what each had done before the measurement began
        try:
            self._add(psutil.Process(pid))
        except psutil.Error as absent:
            raise MeterUnavailable(
                f"there is no process {pid} that this user may look at ({absent}); check the number with `ps`"
            ) from absent
        self._look_at_tree()
        self._before = {key: _copy(seen) for key, seen in self._tree.items()}

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the tree since the measurement began, as of the last look."""
        return sum(seen.cpu_s - self._start(key).cpu_s for key, seen in self._tree.items())

    def look(self) -> GaugeReading:
        """How the tree is now. Raises MeterLost when all of it has ended."""
        self._look_at_tree()
        alive = [seen for seen in self._tree.values() if not seen.ended]
        if not alive:
            raise MeterLost(f"{self.domain} and all it started have ended")
        now_s, cpu_s = self._clock.now_s(), self.cpu_s
        busy_ratio = None if self._last is None else _share(self._last, (now_s, cpu_s), self._cpus)
        self._last = (now_s, cpu_s)
        return GaugeReading(
            time_s=now_s,
            domain=self.domain,
            busy_ratio=busy_ratio,
            memory_used_bytes=sum(seen.resident_bytes for seen in alive),
            read_bytes=self._sum("read_bytes"),
            written_bytes=self._sum("written_bytes"),
            processes=len(alive),
        )

    def _look_at_tree(self) -> None:
        import psutil

        # Asking every known process, not the first alone, keeps grandchildren whose parent ended.
        for seen in [seen for seen in self._tree.values() if not seen.ended]:
            try:
                for child in seen.process.children(recursive=True):
                    self._add(child)
            except psutil.Error:
                continue  # it ended just now; the look below finds out
        for seen in self._tree.values():
            if not seen.ended:
                _look_at(seen)

    def _add(self, process: Any) -> None:
        key = (process.pid, process.create_time())
        if key not in self._tree:
            self._tree[key] = _Seen(process)

    def _start(self, key: tuple[int, float]) -> _Seen:
        return self._before.get(key) or _Seen(None)

    def _sum(self, field: str) -> int | None:
        """None when one process of the tree does not tell: a sum that leaves something out is none."""
        total = 0
        for key, seen in self._tree.items():
            now, before = getattr(seen, field), getattr(self._start(key), field)
            if now is None or before is None:
                return None
            total += now - before
        return total


def _look_at(seen: _Seen) -> None:
    """Bring SEEN up to date, or mark it ended and leave its sums as they are."""
    import psutil

    try:
        with seen.process.oneshot():
            times = seen.process.cpu_times()
            seen.cpu_s = max(seen.cpu_s, times.user + times.system)
            if seen.process.status() == psutil.STATUS_ZOMBIE:
                seen.ended = True
                return
            seen.resident_bytes = seen.process.memory_info().rss
            seen.read_bytes, seen.written_bytes = _io_bytes(seen.process)
    except psutil.NoSuchProcess:  # a zombie is one as well
        seen.ended = True
    except psutil.AccessDenied:
        seen.read_bytes = seen.written_bytes = None


def _io_bytes(process: Any) -> tuple[int, int] | tuple[None, None]:
    import psutil

    try:
        moved = process.io_counters()
    except (psutil.AccessDenied, AttributeError):  # another user's process; a system without such counters
        return None, None
    return moved.read_bytes, moved.write_bytes


def _disk_bytes() -> tuple[int, int] | None:
    import psutil

    moved = psutil.disk_io_counters()
    return None if moved is None else (moved.read_bytes, moved.write_bytes)


def _since(before: tuple[int, int] | None, now: tuple[int, int] | None) -> tuple[int, int] | tuple[None, None]:
    if before is None or now is None:
        return None, None
    return now[0] - before[0], now[1] - before[1]


def _share(before: tuple[float, float], after: tuple[float, float], cpus: int) -> float | None:
    """Share of CPUS that was busy between two pairs of time and busy seconds; None when no time passed."""
    span_s = after[0] - before[0]
    return None if span_s <= 0 else min(1.0, max(0.0, (after[1] - before[1]) / (span_s * cpus)))


def _copy(seen: _Seen) -> _Seen:
    return _Seen(None, cpu_s=seen.cpu_s, read_bytes=seen.read_bytes, written_bytes=seen.written_bytes)


def _system() -> str:
    kernel = f"{platform.system()} {platform.release()}"
    try:
        return f"{platform.freedesktop_os_release()['PRETTY_NAME']}, {kernel}"
    except (OSError, KeyError):
        return kernel


def _cpu_model(cpuinfo: Path) -> str:
    """The processor's name; on ARM, which has none there, its architecture."""
    try:
        lines = cpuinfo.read_text(errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "model name" and value.strip():
            return value.strip()
    return platform.processor() or platform.machine() or "unknown"
