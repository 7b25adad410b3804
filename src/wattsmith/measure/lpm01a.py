"""Energy of a tiny device as an LPM01A monitor tells it: live over its serial port, or from a file of its output."""

import errno
import os
import re
import stat
import time
from pathlib import Path

from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

RATE_HZ = 1000.0
_POLL_S = 0.1
_SET_UP = (
    *("htc", "acqtime inf", "trigdelay 0", "trigsrc sw", "eventsrc d7 fal"),
    *("output energy", "format ascii_dec", "freq 1k"),
)
_SAMPLE = re.compile(r"(\d{1,9})([+-]\d{1,3})")
_EXPECTED = re.compile(r"(?:event \d+ \w+|time.*|ack.*|info.*|summary.*|\s*)", re.I)  # lines that are no samples
_MOST_BYTES = 1 << 16  # that one read takes
_MOST_LINE_BYTES = 4096


def find_lpm01a(clock: Clock, place: str, *, timeout_s: float = 2.0) -> list[Meter]:
    """The monitor at PLACE: "/dev/ttyACM0", or "/dev/ttyACM0@3.3V" to power the device as well, until it is closed.

    A plain file is taken for what a monitor sent once, and is played in its own time.
    """
    path_text, _, volts_text = place.partition("@")
    path = Path(path_text)
    try:
        kind = path.stat().st_mode
    except OSError as refused:
        raise MeterUnavailable(f"there is no monitor at {path}: {refused.strerror}. Check its port.") from refused
    if stat.S_ISREG(kind):
        if volts_text:
            raise BadInput(f"{path} is a file; it powers no device. Leave @{volts_text} out.")
        return [Lpm01aMeter(clock, _Played(path, clock), name=f"replay of {path.name}", simulated=False)]
    volts = None if not volts_text else _volts(volts_text)
    port = _Port(path)
    try:
        said = [port.ask(command, timeout_s) for command in _SET_UP]
        if volts is not None:
            said += [port.ask(f"volt {round(volts * 1000)}m", timeout_s), port.ask("pwr on", timeout_s)]
        port.powers = volts is not None
        said.append(port.ask("start", timeout_s))
    except (MeterMissed, MeterLost) as failed:
        port.close()
        raise MeterUnavailable(f"{failed}. Is this an LPM01A, and does nobody else use it?") from failed
    simulated = any("simulated" in line.lower() for line in said)
    name = f"LPM01A at {path.name}" + (" (simulated)" if simulated else "")
    return [Lpm01aMeter(clock, port, name=name, simulated=simulated)]


def _volts(text: str) -> float:
    found = re.fullmatch(r"([0-9.]{1,6})V", text)
    volts = float(found[1]) if found and found[1].count(".") <= 1 and found[1] != "." else 0.0
    if not 1.8 <= volts <= 3.3:
        raise BadInput(f"an LPM01A gives from 1.8V to 3.3V, not {text!r}")
    return volts


class Lpm01aMeter:
    """Joules of one device, a thousand samples a second added up."""

    def __init__(self, clock: Clock, port: "_Port | _Played", *, name: str, simulated: bool) -> None:
        self._clock, self._port = clock, port
        self._energy_j, self._last_s = 0.0, clock.now_s()
        self.card = MeterCard(
            domain="tiny:0",
            name=name,
            source=Source.EXTERNAL,
            counter_period_s=_POLL_S,
            power_period_s=_POLL_S,
            power_window_s=_POLL_S,
            poll_period_s=_POLL_S,
            simulated=simulated,
            note="the device alone, as the monitor feeds it; up to 50 mA",
        )

    def read(self, *, counter: bool) -> Readings:
        lines = self._port.lines()
        energies_j, missed = energies_in(lines)
        now_s = self._clock.now_s()
        why = "lines of the monitor could not be read" if missed else None
        if not energies_j or now_s <= self._last_s:
            self._energy_j += sum(energies_j)
            return Readings(missed=missed, why_missed=why)
        gained_j = sum(energies_j)
        self._energy_j += gained_j
        self._last_s = now_s
        return Readings(
            power=(PowerSample(now_s, gained_j * RATE_HZ / len(energies_j)),),
            counter=CounterReading(now_s, self._energy_j) if counter else None,
            missed=missed,
            why_missed=why,
        )

    def close(self) -> None:
        self._port.close()


def energies_in(lines: list[str]) -> tuple[list[float], int]:
    """The joules of each sample in LINES ("1234-09" is 1.234 µJ), and how many lines say nothing that is known."""
    energies_j, unknown = [], 0
    for line in lines:
        found = _SAMPLE.fullmatch(line.strip())
        if found is not None and -30 <= int(found[2]) <= 3:
            energies_j.append(float(f"{found[1]}e{found[2]}"))
        elif _EXPECTED.fullmatch(line) is None:
            unknown += 1
    return energies_j, unknown


class _Port:
    """The serial port. Its speed is set by USB, whatever a terminal says of it."""

    powers = False

    def __init__(self, path: Path) -> None:
        import termios
        import tty

        self._waiting = b""
        try:
            self._file = os.open(path, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
            tty.setraw(self._file)
        except (OSError, termios.error) as refused:
            raise MeterUnavailable(
                f"the port {path} cannot be used ({refused.args[-1]}). You may need to be in the group `dialout`."
            ) from refused
        self._path = path

    def ask(self, command: str, timeout_s: float) -> str:
        """Say COMMAND and wait for its ack. Raises MeterMissed when it is refused or unanswered."""
        self._send(command)
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            for line in self.lines():
                if line.lower().startswith("ack"):
                    return line
                if line.lower().startswith("error"):
                    raise MeterMissed(f"the monitor refuses `{command}`: {line[:80]}")
            time.sleep(0.005)
        raise MeterMissed(f"the monitor at {self._path} did not answer `{command}` within {timeout_s:g} s")

    def lines(self) -> list[str]:
        """The whole lines that have come."""
        try:
            self._waiting += os.read(self._file, _MOST_BYTES)
        except BlockingIOError:
            pass
        except OSError as gone:
            raise MeterLost(
                f"the monitor at {self._path} is gone: {errno.errorcode.get(gone.errno or 0, gone)}"
            ) from gone
        *whole, self._waiting = self._waiting.split(b"\n")
        if len(self._waiting) > _MOST_LINE_BYTES:
            raise MeterLost(f"the port {self._path} sends no lines; it is no LPM01A")
        return [line.decode("ascii", "replace").strip("\r\x00") for line in whole]

    def close(self) -> None:
        """Stop it, take the power away that was given, and hand control back."""
        for command in ("stop", *(["pwr off"] if self.powers else []), "hrc"):
            try:
                self._send(command)
            except (MeterLost, MeterMissed):
                break  # there is nobody to tell
        os.close(self._file)

    def _send(self, command: str) -> None:
        try:
            os.write(self._file, command.encode() + b"\n")
        except OSError as gone:
            raise MeterLost(f"the monitor at {self._path} is gone: {gone.strerror}") from gone


class _Played:
    """A file of a monitor's output, in its own time."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path, self._now_s = path, clock.now_s
        self._began_s: float = clock.now_s()
        self._given = 0
        try:
            self._file = path.open(encoding="ascii", errors="replace")
        except OSError as refused:
            raise MeterUnavailable(f"{path} cannot be read: {refused.strerror}") from refused

    def lines(self) -> list[str]:
        due = int((self._now_s() - self._began_s) * RATE_HZ)
        lines: list[str] = []
        while self._given < due:
            line = self._file.readline(_MOST_LINE_BYTES)
            if not line:
                if lines:
                    break
                raise MeterLost(f"the recording {self._path.name} is over after {self._given / RATE_HZ:g} s")
            lines.append(line)
            self._given += _SAMPLE.fullmatch(line.strip()) is not None
        return lines

    def close(self) -> None:
        self._file.close()
