"""CPU packages, memory and platform through Linux powercap, which Intel and AMD processors both fill."""

import errno
import re
from pathlib import Path

from wattsmith.terms.energy import CounterReading, MeterCard, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

_MOST_POWER_W = 2_000.0  # no package, memory or platform of one node draws more


def find_rapl(clock: Clock, root: Path = Path("/sys")) -> list[Meter]:
    """A meter for each package, its memory, and the platform, in that order of domain names.

    Raises MeterUnavailable when there is no RAPL here, or it may not be read.
    """
    powercap = root / "class/powercap"
    simulated = (root / "wattsmith-simulated").exists()
    meters: list[Meter] = [
        RaplMeter(clock, zone, domain, simulated=simulated) for domain, zone in sorted(_zones(powercap).items())
    ]
    if not meters:
        raise MeterUnavailable(
            f"no RAPL package under {powercap}: this machine (often a virtual one) exposes no CPU energy. "
            "On bare metal load it with `modprobe intel_rapl_msr`; otherwise measure the GPU alone with "
            "`--meters gpu`, the whole node with `--meters ipmi`, or, by a stated model, `--meters modelled:10W-65W`."
        )
    return meters


def joules_between(before_uj: int, after_uj: int, range_uj: int) -> float:
    """Energy between two looks at a counter that starts again at 0 after RANGE_UJ microjoules.

    At most one wrap can be told from two looks.
    """
    moved_uj = after_uj - before_uj
    return (moved_uj if moved_uj >= 0 else moved_uj + range_uj) / 1_000_000


class RaplMeter:
    """One zone's energy counter, made to never go back."""

    def __init__(self, clock: Clock, zone: Path, domain: str, *, simulated: bool) -> None:
        self._clock = clock
        self._path = zone / "energy_uj"
        self._range_uj = _range_uj(zone / "max_energy_range_uj")
        self._last_uj = _first_look_uj(self._path)
        self._last_s = clock.now_s()
        self._total_j = self._last_uj / 1_000_000
        self._open = True
        name = _name(zone)
        self.card = MeterCard(
            domain=domain,
            name=f"{name} (simulated)" if simulated else name,
            source=Source.COUNTER,
            counter_period_s=0.001,
            poll_period_s=0.05,
            encloses=("cpu-package", "dram") if domain.startswith("psys:") else (),
            simulated=simulated,
        )

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002  a look costs microseconds: always given
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        now_uj = self._look_uj()
        now_s = self._clock.now_s()
        gap_s, self._last_s = now_s - self._last_s, now_s
        self._total_j += joules_between(self._last_uj, now_uj, self._range_uj)
        self._last_uj = now_uj
        reading = CounterReading(now_s, self._total_j)
        if gap_s * _MOST_POWER_W <= self._range_uj / 1_000_000:
            return Readings(counter=reading)
        return Readings(
            counter=reading,
            missed=1,
            why_missed=f"{self.card.domain} was not read for {gap_s:.0f} s; its counter, which starts again "
            f"every {self._range_uj / 1_000_000:.0f} J, may have done so more than once",
        )

    def close(self) -> None:
        self._open = False

    def _look_uj(self) -> int:
        try:
            text = self._path.read_text()
        except (FileNotFoundError, NotADirectoryError, PermissionError) as gone:
            raise MeterLost(f"CPU energy counter {self._path} is gone: {gone.strerror}") from gone
        except OSError as failed:
            if failed.errno == errno.ENODEV:
                raise MeterLost(f"CPU energy counter {self._path} is gone: {failed.strerror}") from failed
            raise MeterMissed(f"CPU energy counter {self._path} failed: {failed.strerror}") from failed
        except UnicodeDecodeError as odd:
            raise MeterMissed(f"CPU energy counter {self._path} holds no text") from odd
        number = _as_microjoules(text)
        if number is None or number > self._range_uj:
            raise MeterMissed(
                f"CPU energy counter {self._path} holds {text[:40]!r}, no number of µJ up to {self._range_uj}"
            )
        return number


def _zones(powercap: Path) -> dict[str, Path]:
    """Folder of each zone worth reading, by domain."""
    try:
        folders = sorted(powercap.iterdir())
    except OSError:
        return {}
    top = [zone for zone in folders if re.fullmatch(r"intel-rapl:\d+", zone.name)]
    if not top:
        # Memory-mapped registers repeat the package's own, so they serve only where those are missing.
        top = [zone for zone in folders if re.fullmatch(r"intel-rapl-mmio:\d+", zone.name)]
    found: dict[str, Path] = {}
    for zone in top:
        name = _name(zone)
        if name == "psys":
            found[f"psys:{sum(domain.startswith('psys:') for domain in found)}"] = zone
        elif package := re.fullmatch(r"package-(\d+(?:-die-\d+)?)", name):
            found[f"cpu-package:{package[1]}"] = zone
            # Of the parts, `core` and `uncore` are already in the package; memory is not.
            for part in folders:
                if part.name.startswith(f"{zone.name}:") and _name(part) == "dram":
                    found[f"dram:{package[1]}"] = part
    return found


def _name(zone: Path) -> str:
    try:
        return (zone / "name").read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""  # a zone that will not say its name is none we know


def _range_uj(path: Path) -> int:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as failed:
        raise MeterUnavailable(
            f"cannot read {path}, without which a wrapped CPU energy counter is worthless: {failed}. "
            "Measure without it: `--meters gpu`."
        ) from failed
    number = _as_microjoules(text)
    if not number:
        raise MeterUnavailable(
            f"{path} holds {text[:40]!r}, not a positive number of µJ, so a wrapped counter cannot be told. "
            "Measure without it: `--meters gpu`."
        )
    return number


def _first_look_uj(path: Path) -> int:
    try:
        text = path.read_text()
    except PermissionError as denied:
        raise MeterUnavailable(
            f"CPU energy counter {path} is readable by root only. Open it until the next boot with\n"
            "  sudo chmod a+r /sys/class/powercap/*/energy_uj\n"
            "or for good with\n"
            """  echo 'ACTION=="add", SUBSYSTEM=="powercap", RUN+="/bin/chmod a+r /sys%p/energy_uj"' """
            "| sudo tee /etc/udev/rules.d/70-wattsmith-rapl.rules\n"
            "or measure without it: `--meters gpu`."
        ) from denied
    except (OSError, UnicodeDecodeError) as failed:
        raise MeterUnavailable(
            f"CPU energy counter {path} cannot be read: {failed}. Measure without it: `--meters gpu`."
        ) from failed
    number = _as_microjoules(text)
    if number is None:
        raise MeterUnavailable(
            f"CPU energy counter {path} holds {text[:40]!r}, which is no number of µJ. "
            "Measure without it: `--meters gpu`."
        )
    return number


def _as_microjoules(text: str) -> int | None:
    """TEXT as a whole number of microjoules; None when it is not one."""
    digits = text.strip(" \t\n")  # nothing else that counts as white space belongs here
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= 20 else None
