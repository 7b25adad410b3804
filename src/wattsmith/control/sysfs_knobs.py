"""What Linux lets be turned through files: CPU clocks, governors, RAPL power limits, Jetson's GPU and memory clock."""

import errno
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path

from wattsmith.terms.control import Knob, KnobCard, KnobLost, NotPermitted, Value, Verified
from wattsmith.terms.errors import BadTerm

SYSFS = Path("/sys")
MARKER = "wattsmith-simulated"  # lies at the root of a tree that is not real
_JETSON_GPU = re.compile(r"gp10b|gv11b|ga10b|gpu|gpc")
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ENODEV, errno.ENXIO, errno.EIO)


def find_sysfs_knobs(root: Path = SYSFS) -> list[Knob]:
    """Every knob under ROOT, which is laid out like /sys. None: an empty list."""
    return [*_cpufreq(root), *_rapl(root), *_devfreq(root), *_emc(root)]


# ---- files


def read_line(path: Path, knob: str) -> str:
    """The first line of a file of the kernel's."""
    try:
        return path.read_text().partition("\n")[0].strip()
    except OSError as failed:
        raise _as_ours(failed, path, knob) from failed


def write_line(path: Path, text: str, knob: str, *, simulated: bool) -> None:
    """Give TEXT to the kernel in one write, as it wants it."""
    try:
        descriptor = os.open(path, os.O_WRONLY)
        try:
            os.write(descriptor, f"{text}\n".encode())
            if simulated:  # a plain file keeps what was longer before; `read_line` looks at the first line alone
                os.ftruncate(descriptor, len(text) + 1)
        finally:
            os.close(descriptor)
    except OSError as failed:
        raise _as_ours(failed, path, knob) from failed


def _as_ours(failed: OSError, path: Path, knob: str) -> NotPermitted | KnobLost | BadTerm:
    if failed.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return NotPermitted(
            f"{knob}: not permitted; {path} may not be opened by this user ({failed.strerror}). Run as root, or go "
            "through `wattsmith control serve`."
        )
    if failed.errno in _GONE:
        return KnobLost(f"{knob}: {path} is gone ({failed.strerror})")
    return BadTerm(f"{knob}: the kernel refuses this value at {path} ({failed.strerror})")


def _number(path: Path, knob: str) -> int:
    text = read_line(path, knob)
    try:
        return int(text)
    except ValueError as odd:
        raise KnobLost(f"{knob}: {path} holds {text[:40]!r}, no number") from odd


def _number_or_none(path: Path) -> int | None:
    try:
        return _number(path, "")
    except (KnobLost, NotPermitted, BadTerm):
        return None


def identity_of(root: Path, place: str) -> str:
    """Names a device of the machine; one of another tree than /sys carries that tree's mark."""
    if root == SYSFS:
        return place
    return f"{place}@{hashlib.sha256(str(root.resolve()).encode()).hexdigest()[:8]}"


def _folders(parent: Path, pattern: str) -> list[tuple[Path, re.Match[str]]]:
    """Folders in PARENT whose name matches, in the order of the numbers in it."""
    try:
        found = [(path, match) for path in parent.iterdir() if (match := re.fullmatch(pattern, path.name))]
    except OSError:
        return []
    return sorted(found, key=lambda each: [int(number) for number in re.findall(r"\d+", each[0].name)])


# ---- least and most of a clock in two files


def ordered_writes(
    now: tuple[float, float], wanted: tuple[float, float]
) -> tuple[tuple[str, float], tuple[str, float]]:
    """Which end to write first, so that the least never stands above the most: raising the most, lowering the least."""
    least, most = ("least", wanted[0]), ("most", wanted[1])
    return (most, least) if wanted[1] > now[1] else (least, most)


class ClockRange:
    """Least and most of a clock, each in a file."""

    def __init__(
        self, card: KnobCard, least_file: Path, most_file: Path, current_file: Path, *, hz_per_unit: float
    ) -> None:
        self.card = card
        self._files = {"least": least_file, "most": most_file}
        self._current_file = current_file
        self._hz_per_unit = hz_per_unit  # cpufreq counts kilohertz

    def read(self) -> Value:
        return self._ends_hz()

    def _ends_hz(self) -> tuple[float, float]:
        least, most = (_number(path, self.card.name) * self._hz_per_unit for path in self._files.values())
        return least, most

    def set(self, value: Value) -> None:
        assert isinstance(value, tuple)
        for end, clock_hz in ordered_writes(self._ends_hz(), value):
            text = str(round(clock_hz / self._hz_per_unit))
            write_line(self._files[end], text, self.card.name, simulated=self.card.simulated)

    def verify(self, value: Value) -> Verified:
        assert isinstance(value, tuple)
        told = self._ends_hz()
        current = _number_or_none(self._current_file)
        clock_hz = None if current is None else current * self._hz_per_unit
        near = all(abs(a - b) <= max(self._hz_per_unit, 0.02 * b) for a, b in zip(told, value, strict=True))
        note = "" if near else f"the kernel keeps {told[0] / 1e6:g} … {told[1] / 1e6:g} MHz"
        if near and clock_hz is not None and clock_hz < 0.98 * told[1]:
            note = f"it runs at {clock_hz / 1e6:g} MHz now, so a cap above that has no effect at the present load"
        return Verified(knob=self.card.name, asked=value, told=told, in_force=near, achieved=clock_hz, note=note)


# ---- one file


class OneFile:
    """A knob that is one file: a power limit, or a word."""

    def __init__(self, card: KnobCard, path: Path, *, per_unit: float = 1.0) -> None:
        self.card = card
        self._path = path
        self._per_unit = per_unit  # powercap counts microwatts

    def read(self) -> Value:
        if not self.card.unit:
            return read_line(self._path, self.card.name)
        return _number(self._path, self.card.name) / self._per_unit

    def set(self, value: Value) -> None:
        text = value if isinstance(value, str) else str(round(float(value) * self._per_unit))  # type: ignore[arg-type]
        write_line(self._path, text, self.card.name, simulated=self.card.simulated)

    def verify(self, value: Value) -> Verified:
        told = self.read()
        taken = told == value
        if isinstance(told, float) and isinstance(value, float):
            taken = abs(told - value) <= 0.02 * value  # the register counts in eighths of a watt or so
        note = "" if taken else f"the kernel keeps {told}"
        return Verified(knob=self.card.name, asked=value, told=told, in_force=taken, note=note)


# ---- CPU


def _cpufreq(root: Path) -> Iterator[Knob]:
    simulated = (root / MARKER).exists()
    for folder, match in _folders(root / "devices/system/cpu/cpufreq", r"policy(\d+)"):
        least, most = (_number_or_none(folder / f"cpuinfo_{end}_freq") for end in ("min", "max"))
        device, identity = f"cpu:{match[1]}", identity_of(root, f"cpufreq-{folder.name}")
        title = f"CPU clock policy {match[1]}" + " (simulated)" * simulated
        if least is not None and most is not None:
            card = KnobCard(name=f"{device}/clock", device=device, identity=identity, title=title, unit="Hz", pair=True,
                            ends=(least * 1e3, most * 1e3), simulated=simulated)  # fmt: skip
            files = (folder / f"scaling_{which}_freq" for which in ("min", "max", "cur"))
            yield ClockRange(card, *files, hz_per_unit=1e3)
        if governors := _words(folder / "scaling_available_governors"):
            card = KnobCard(name=f"{device}/governor", device=device, identity=identity, title=title, unit="",
                            levels=governors, simulated=simulated)  # fmt: skip
            yield OneFile(card, folder / "scaling_governor")


def _words(path: Path) -> tuple[str, ...]:
    try:
        return tuple(read_line(path, "").split())
    except (KnobLost, NotPermitted, BadTerm):
        return ()


def _rapl(root: Path) -> Iterator[Knob]:
    simulated = (root / MARKER).exists()
    for zone, match in _folders(root / "class/powercap", r"intel-rapl:(\d+)"):
        device = f"cpu-package:{match[1]}"
        for limit_file, place in _folders(zone, r"constraint_(\d+)_power_limit_uw"):
            name = next(iter(_words(zone / f"constraint_{place[1]}_name")), f"constraint_{place[1]}")
            most_uw = _number_or_none(zone / f"constraint_{place[1]}_max_power_uw")
            card = KnobCard(
                name=f"{device}/power_limit_{name}",
                device=device,
                identity=identity_of(root, zone.name),
                title=f"{read_line(zone / 'name', device)} {name} power limit" + " (simulated)" * simulated,
                unit="W",
                ends=(0.0, most_uw / 1e6) if most_uw else None,  # some packages say 0 for "not known"
                simulated=simulated,
            )
            yield OneFile(card, limit_file, per_unit=1e6)


# ---- Jetson


def _devfreq(root: Path) -> Iterator[Knob]:
    simulated = (root / MARKER).exists()
    counts = {"soc-gpu": 0, "soc-memory": 0}
    for folder, _ in _folders(root / "class/devfreq", r".+"):
        levels_hz = tuple(sorted(float(word) for word in _words(folder / "available_frequencies") if word.isdigit()))
        kind = "soc-memory" if "emc" in folder.name else "soc-gpu" if _JETSON_GPU.search(folder.name) else None
        if kind is None or not levels_hz:
            continue
        device = f"{kind}:{counts[kind]}"
        counts[kind] += 1
        card = KnobCard(
            name=f"{device}/clock",
            device=device,
            identity=identity_of(root, f"devfreq-{folder.name}"),
            title=f"devfreq {folder.name}" + " (simulated)" * simulated,
            unit="Hz",
            pair=True,
            ends=(levels_hz[0], levels_hz[-1]),
            levels=levels_hz,
            simulated=simulated,
        )
        yield ClockRange(card, folder / "min_freq", folder / "max_freq", folder / "cur_freq", hz_per_unit=1.0)


def _emc(root: Path) -> Iterator[Knob]:
    folder = root / "kernel/debug/bpmp/debug/clk/emc"
    least, most = _number_or_none(folder / "min_rate"), _number_or_none(folder / "max_rate")
    if least is None or most is None:
        return
    simulated = (root / MARKER).exists()
    yield MemoryController(
        KnobCard(
            name="soc-emc/clock",
            device="soc-emc",
            identity=identity_of(root, "bpmp-emc"),
            title="memory controller" + " (simulated)" * simulated,
            unit="Hz",
            ends=(float(least), float(most)),
            lockable=True,
            simulated=simulated,
        ),
        folder,
    )


class MemoryController:
    """The memory clock of a Jetson: locked to a rate, or left to the power processor."""

    def __init__(self, card: KnobCard, folder: Path) -> None:
        self.card = card
        self._folder = folder

    def read(self) -> Value:
        locked = _number(self._folder / "mrq_rate_locked", self.card.name)
        return float(_number(self._folder / "rate", self.card.name)) if locked else None

    def set(self, value: Value) -> None:
        writes = {"mrq_rate_locked": 0} if value is None else {"rate": round(float(value)), "mrq_rate_locked": 1}  # type: ignore[arg-type]
        for file, number in writes.items():
            write_line(self._folder / file, str(number), self.card.name, simulated=self.card.simulated)

    def verify(self, value: Value) -> Verified:
        told = self.read()
        return Verified(knob=self.card.name, asked=value, told=told, in_force=told == value)
