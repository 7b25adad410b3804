"""A simulated sysfs tree: RAPL counters and limits, INA3221 rails, cpufreq policies, devfreq devices, Jetson's EMC.

The tree carries a file `wattsmith-simulated` at its root, by which every meter that reads it knows and says
that nothing was measured. Files are replaced in one step, so a reader sees the old value or the new one.
"""

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.ports import Clock

MARKER = "wattsmith-simulated"
PACKAGE_RANGE_J = 262_143.328_850  # what a Xeon states in max_energy_range_uj
RAIL_VOLTAGE_V = 5.0


class SimulatedSysfs:
    """A folder laid out like /sys. Zones and rails are driven by `advance`, so their joules are known."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.energy_j: dict[str, float] = {}  # by zone: true joules, which never wrap
        self._zones: dict[str, tuple[Path, float]] = {}  # by zone: its folder, and the joules at which it wraps
        self._rails: dict[str, Callable[[float], None]] = {}  # by rail: how to show a power
        self._policies: list[Path] = []
        self._lock = threading.Lock()
        _write(root / MARKER, "this tree is simulated; nothing in it was measured")

    def add_zone(
        self,
        zone: str,
        name: str,
        *,
        inside: str | None = None,
        range_j: float = PACKAGE_RANGE_J,
        start_j: float = 0.0,
    ) -> Path:
        """A powercap zone such as "intel-rapl:0" with NAME "package-0". Returns its folder."""
        parent = self._zones[inside][0] if inside else self._control(zone.partition(":")[0])
        folder = parent / zone
        _write(folder / "name", name)
        _write(folder / "max_energy_range_uj", str(_micro(range_j)))
        _link(self.root / "class/powercap" / zone, folder)
        self._zones[zone] = (folder, range_j)
        self.energy_j[zone] = start_j
        self._show_energy(zone)
        return folder

    def add_ina3221(self, rails: Mapping[int, str], *, layout: str = "hwmon", address: str = "1-0040") -> Path:
        """One INA3221 chip; RAILS maps its channels to their names. LAYOUT is "hwmon", or the older "iio"."""
        if layout == "hwmon":
            driver, inner, name_of = "ina3221", f"hwmon/hwmon{len(self._rails)}", "in{}_label"
        elif layout == "iio":
            driver, inner, name_of = "ina3221x", f"iio:device{len(self._rails)}", "rail_name_{}"
        else:
            raise BadTerm(f"layout must be hwmon or iio, got {layout!r}")
        folder = self.root / "bus/i2c/drivers" / driver / address / inner
        show = _show_hwmon_rail if layout == "hwmon" else _show_iio_rail
        for channel, rail in rails.items():
            _write(folder / name_of.format(channel), rail)
            self._rails[rail] = partial(show, folder, channel)
            self._rails[rail](0.0)
        return folder

    def add_cpufreq(self, policy: int, *, min_hz: float, max_hz: float, governor: str = "performance") -> Path:
        """A cpufreq policy with the usual limit, governor and frequency files (kHz, as the kernel writes)."""
        folder = self.root / f"devices/system/cpu/cpufreq/policy{policy}"
        for name, value_hz in {
            "cpuinfo_min_freq": min_hz,
            "cpuinfo_max_freq": max_hz,
            "scaling_min_freq": min_hz,
            "scaling_max_freq": max_hz,
            "scaling_cur_freq": max_hz,
        }.items():
            _write(folder / name, str(round(value_hz / 1_000)))
        _write(folder / "scaling_governor", governor)
        _write(folder / "scaling_available_governors", "performance powersave schedutil")
        _write(folder / "affected_cpus", str(policy))
        self._policies.append(folder)
        return folder

    def add_power_limits(self, zone: str, limits_w: Mapping[str, float], *, max_w: float | None = None) -> Path:
        """Power limits of a zone that is there, by name such as "long_term"; MAX_W is what it says the most is."""
        folder = self._zones[zone][0]
        for place, (name, limit_w) in enumerate(limits_w.items()):
            _write(folder / f"constraint_{place}_name", name)
            _write(folder / f"constraint_{place}_power_limit_uw", str(_micro(limit_w)))
            if max_w is not None:
                _write(folder / f"constraint_{place}_max_power_uw", str(_micro(max_w)))
        return folder

    def add_devfreq(self, name: str, levels_hz: Sequence[float]) -> Path:
        """A devfreq device such as "17000000.gpu", free between its lowest level and its highest."""
        folder = self.root / "class/devfreq" / name
        levels = sorted(round(level_hz) for level_hz in levels_hz)
        _write(folder / "available_frequencies", " ".join(map(str, levels)))
        for file, value in {"min_freq": levels[0], "max_freq": levels[-1], "cur_freq": levels[-1]}.items():
            _write(folder / file, str(value))
        return folder

    def add_emc(self, *, min_hz: float, max_hz: float) -> Path:
        """The memory clock of a Jetson as its power processor shows it in debugfs, not locked."""
        folder = self.root / "kernel/debug/bpmp/debug/clk/emc"
        clocks = {"min_rate": min_hz, "max_rate": max_hz, "rate": max_hz, "mrq_rate_locked": 0, "state": 1}
        for file, value in clocks.items():
            _write(folder / file, str(round(value)))
        return folder

    def advance(self, duration_s: float, power_w: Mapping[str, float]) -> None:
        """Let DURATION_S pass with each zone or rail of POWER_W at that power; others stay as they are."""
        with self._lock:
            for name, watts in power_w.items():
                if name in self._zones:
                    self.energy_j[name] += duration_s * watts
                    self._show_energy(name)
                elif name in self._rails:
                    self._rails[name](watts)
                else:
                    known = ", ".join([*self._zones, *self._rails]) or "none"
                    raise BadTerm(f"no zone or rail {name!r} in this simulated tree; it has: {known}")
            for policy in self._policies:
                # Whoever lowered scaling_max_freq sees the clock follow it.
                _write(policy / "scaling_cur_freq", (policy / "scaling_max_freq").read_text())

    @contextmanager
    def playing(
        self, clock: Clock, power_w: Callable[[float], Mapping[str, float]], *, step_s: float = 0.005
    ) -> Iterator[None]:
        """Drive the tree from a thread: POWER_W gives watts by zone at a time since the start."""
        over = threading.Event()

        def play() -> None:
            began_s = last_s = clock.now_s()
            while not over.is_set():
                clock.sleep_s(step_s)
                now_s = clock.now_s()
                self.advance(now_s - last_s, power_w(last_s - began_s))
                last_s = now_s

        player = threading.Thread(target=play, name="simulated-sysfs", daemon=True)
        player.start()
        try:
            yield
        finally:
            over.set()
            player.join()

    @contextmanager
    def unreadable(self, path: Path) -> Iterator[None]:
        """PATH fails with EISDIR on reading, for root as well, whom permission bits do not stop."""
        kept = path.read_bytes()
        path.unlink()
        path.mkdir()
        try:
            yield
        finally:
            path.rmdir()
            path.write_bytes(kept)

    def _control(self, kind: str) -> Path:
        folder = self.root / "devices/virtual/powercap" / kind
        _write(folder / "enabled", "1")
        _link(self.root / "class/powercap" / kind, folder)
        return folder

    def _show_energy(self, zone: str) -> None:
        folder, range_j = self._zones[zone]
        path = folder / "energy_uj"
        if not path.is_dir():  # made unreadable for now
            _write(path, str(_micro(self.energy_j[zone]) % _micro(range_j)))


def _show_hwmon_rail(folder: Path, channel: int, power_w: float) -> None:
    _write(folder / f"in{channel}_input", str(round(RAIL_VOLTAGE_V * 1_000)))
    _write(folder / f"curr{channel}_input", str(round(power_w / RAIL_VOLTAGE_V * 1_000)))


def _show_iio_rail(folder: Path, channel: int, power_w: float) -> None:
    _write(folder / f"in_power{channel}_input", str(round(power_w * 1_000)))


def _micro(value: float) -> int:
    if not math.isfinite(value) or value < 0:
        raise BadTerm(f"joules must be finite and not negative, got {value}")
    return round(value * 1_000_000)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f".{path.name}.new")
    fresh.write_text(text.rstrip("\n") + "\n")
    fresh.replace(path)


def _link(link: Path, target: Path) -> None:
    link.parent.mkdir(parents=True, exist_ok=True)
    if not link.is_symlink():
        link.symlink_to(target, target_is_directory=True)
