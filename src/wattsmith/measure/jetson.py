"""NVIDIA Jetson boards: the INA3221 chips that watch their supply rails."""

import errno
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from wattsmith.terms.energy import MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

# Rails that feed the whole module. The 5 V system rail of the AGX boards (VIN_SYS_5V0, SYS5V) is not one:
# their GPU and CPU regulators hang on the input beside it.
_INPUT_RAILS = frozenset({"VDD_IN", "POM_5V_IN"})
_UNUSED = frozenset({"", "NC"})  # what a channel that is not wired says
_POLL_S = 0.1


class _Rail(NamedTuple):
    name: str
    power_w: Callable[[], float]


def find_jetson(clock: Clock, root: Path = Path("/sys")) -> list[Meter]:
    """A meter for each rail; the one that feeds the whole module, where there is one, encloses the others.

    Raises MeterUnavailable when this is no Jetson, or its sensors cannot be read.
    """
    drivers = root / "bus/i2c/drivers"
    rails = [*_hwmon_rails(drivers / "ina3221"), *_iio_rails(drivers / "ina3221x")]
    if not rails:
        raise MeterUnavailable(
            f"no INA3221 rail under {drivers}: no Jetson, or its sensors are hidden from a container. "
            "Give the container `/sys/bus/i2c` and `/sys/devices`, or measure with `--meters gpu`."
        )
    simulated = (root / "wattsmith-simulated").exists()
    whole = any(rail.name in _INPUT_RAILS for rail in rails)
    for rail in rails:
        try:
            rail.power_w()
        except (MeterMissed, MeterLost) as failed:
            raise MeterUnavailable(f"{failed}. Measure without it: `--meters gpu`.") from failed
    return [JetsonMeter(clock, rail, whole=whole, simulated=simulated) for rail in rails]


class JetsonMeter:
    """Power of one rail, as the chip last converted it."""

    def __init__(self, clock: Clock, rail: _Rail, *, whole: bool, simulated: bool) -> None:
        self._clock = clock
        self._rail = rail
        self._last_s: float | None = None
        self._open = True
        feeds_all = rail.name in _INPUT_RAILS
        self.card = MeterCard(
            domain=f"soc:{rail.name}" if feeds_all else f"soc-rail:{rail.name}",
            name=f"{rail.name} (simulated)" if simulated else rail.name,
            source=Source.POLLED,
            power_period_s=_POLL_S,
            poll_period_s=_POLL_S,
            encloses=("soc-rail",) if feeds_all else (),
            simulated=simulated,
            note=None if whole else "this board has no input rail: its rails are parts, and leave some of it out",
        )

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002  the chip has no counter
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        power_w = self._rail.power_w()
        now_s = self._clock.now_s()
        if self._last_s is not None and now_s <= self._last_s:
            return Readings()
        self._last_s = now_s
        return Readings(power=(PowerSample(now_s, power_w),))

    def close(self) -> None:
        self._open = False


def _hwmon_rails(driver: Path) -> Iterator[_Rail]:
    """The layout of current kernels: volts and amperes, and channels 1 to 3."""
    for label in sorted(driver.glob("*/hwmon/hwmon*/in[1-3]_label")):
        channel, folder = label.name[2], label.parent
        volts, amperes = folder / f"in{channel}_input", folder / f"curr{channel}_input"
        switched_off = _text(folder / f"in{channel}_enable") == "0"
        if (name := _rail_name(label)) not in _UNUSED and not switched_off:
            yield _Rail(name, partial(_product_w, volts, amperes))


def _iio_rails(driver: Path) -> Iterator[_Rail]:
    """The layout of kernels before 5: power itself, and channels 0 to 2."""
    for label in sorted(driver.glob("*/iio:device*/rail_name_[0-2]")):
        power = label.parent / f"in_power{label.name[-1]}_input"
        if (name := _rail_name(label)) not in _UNUSED:
            yield _Rail(name, partial(_power_w, power))


def _product_w(volts: Path, amperes: Path) -> float:
    return _number(volts) * _number(amperes) / 1_000_000  # the kernel writes millivolts and milliamperes


def _power_w(power: Path) -> float:
    return _number(power) / 1_000  # milliwatts


def _rail_name(label: Path) -> str:
    return re.sub(r"[^A-Za-z0-9_.+-]", "_", _text(label))


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int:
    """What the sensor file holds; a current that runs backwards by an offset of the chip is 0."""
    try:
        text = path.read_text().strip()
    except (FileNotFoundError, NotADirectoryError, PermissionError) as gone:
        raise MeterLost(f"rail sensor {path} is gone: {gone.strerror}") from gone
    except OSError as failed:
        if failed.errno == errno.ENODEV:
            raise MeterLost(f"rail sensor {path} is gone: {failed.strerror}") from failed
        raise MeterMissed(f"rail sensor {path} failed: {failed.strerror}") from failed
    except UnicodeDecodeError as odd:
        raise MeterMissed(f"rail sensor {path} holds no text") from odd
    if not re.fullmatch(r"-?[0-9]{1,9}", text):
        raise MeterMissed(f"rail sensor {path} holds {text[:40]!r}, which is no reading")
    return max(0, int(text))
