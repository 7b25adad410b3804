"""Power of a whole system as a power analyzer tells it, through the daemon of MLPerf's workflow.

This is a client of the daemon's protocol alone. SPEC's licence binds the daemon to that workflow; it is not part of
this project.
"""

import math
import re
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from wattsmith.terms.energy import MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import BadInput, MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

PORT = 8888
KNOWN_VERSIONS = ("1.9.1", "1.9.2", "1.10.0", "1.11.1")  # that rounds of MLPerf have used
GREETING = "Hello, PTDaemon here!"
_MOST_BYTES = 100_000  # of one line
_MOST_SAMPLES = 500_000  # of one measurement, as the daemon itself says
_SAMPLE = re.compile(
    r"Time,(?P<time>[^,]*),Watts,(?P<watts>[^,]*),Volts,(?P<volts>[^,]*),Amps,(?P<amps>[^,]*),PF,(?P<pf>[^,]*)"
    r"(?P<rest>.*)"
)
_CHANNEL = re.compile(r",(?:Ch\d+,)?Watts,(?P<watts>[^,]*),Volts,[^,]*,Amps,[^,]*,PF,[^,]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PtdIdentity:
    """Who answers: model, version of the daemon, vendor's line, and whether it names itself as simulated."""

    text: str
    model: str
    version: str | None
    instrument: str | None  # vendor;model;serial;firmware
    channels: int

    @property
    def simulated(self) -> bool:
        return "simulated" in self.text.lower()

    @property
    def known_version(self) -> bool:
        return self.version in KNOWN_VERSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class PtdRanges:
    """The meter's ranges. None: automatic."""

    volts: float | None
    amps: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PtdSample:
    """One line of the meter. Watts that are not positive: the reading failed, or was beyond the range."""

    text: str
    wall_s: float
    power_w: float
    volts: float
    amps: float
    power_factor_ratio: float
    channels_w: tuple[float, ...] = ()

    @property
    def valid(self) -> bool:
        return self.power_w > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PtdAverage:
    """The daemon's own mean over its measurement."""

    mean_w: float | None  # None: no valid sample yet
    samples: int
    errors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PtdMessage:
    """One question and what came back."""

    command: str
    reply: str
    asked_s: float  # wall clock
    answered_s: float


class PtdClient:
    """Talks to one daemon. Every question and answer is kept in `messages`.

    MeterUnavailable: nobody there, or somebody else. MeterMissed: the daemon refused this one command. MeterLost: the
    connection is no longer to be trusted; a late or broken reply would be taken for the next one's.
    """

    def __init__(
        self, host: str, port: int = PORT, *, timeout_s: float = 10.0, wall_s: Callable[[], float] = time.time
    ) -> None:
        self.address = f"{host}:{port}"
        self.messages: list[PtdMessage] = []
        self._wall_s = wall_s
        self._timeout_s = timeout_s
        self._waiting = b""
        self._lost: str | None = None
        try:
            self._socket = socket.create_connection((host, port), timeout=timeout_s)
        except OSError as refused:
            raise MeterUnavailable(
                f"no power daemon answers at {self.address} ({refused.strerror or refused}). Start it there, or "
                "measure with `--meters` instead."
            ) from refused
        try:
            greeting = self.ask("Hello")
        except (MeterLost, MeterMissed) as failed:
            self.close()
            raise MeterUnavailable(f"{self.address} is no power daemon, or not ready: {failed}") from failed
        if greeting != GREETING:
            self.close()
            raise MeterUnavailable(f"{self.address} is no power daemon: it greets with {greeting[:60]!r}")

    def ask(self, command: str) -> str:
        """The one line that answers COMMAND. Raises MeterMissed when it is an error, MeterLost when none came."""
        if any(mark in command for mark in "\r\n") or not command.isascii():
            raise BadInput(f"{command!r} is no command: one line of plain letters is")
        asked_s = self._wall_s()
        self._send(command)
        reply = self._line(command)
        self.messages.append(PtdMessage(command=command, reply=reply, asked_s=asked_s, answered_s=self._wall_s()))
        if reply.lower().startswith("error") or reply in ("Unknown command", "Invalid number of parameters"):
            raise MeterMissed(f"the power daemon refused `{command}`: {reply}")
        return reply

    def identify(self) -> PtdIdentity:
        text = self.ask("Identify")
        try:
            return parse_identity(text)
        except BadInput as odd:
            raise self._lose(str(odd)) from odd

    def ranges(self) -> PtdRanges:
        """The ranges set now; None for one that the meter chooses."""
        auto_a, amps, auto_v, volts = self._numbers(self.ask("RR"), "Ranges", 4)
        return PtdRanges(
            volts=None if auto_v != 0 or volts <= 0 else volts, amps=None if auto_a != 0 or amps <= 0 else amps
        )

    def set_ranges(self, ranges: PtdRanges) -> None:
        """Set both; the daemon takes the next larger range that the meter has."""
        self.set_range("V", ranges.volts)
        self.set_range("A", ranges.amps)

    def set_range(self, letter: str, value: float | None) -> None:
        """Set the range of "V" or "A"; None leaves it to the meter."""
        if value is not None and not 0 < value < 1e6:
            raise BadInput(f"a range is a positive number, not {value}")
        reply = self.ask(f"SR,{letter},{'Auto' if value is None else f'{value:.6f}'}")
        if reply != f"Range {letter} changed":
            raise MeterMissed(f"the range of {letter} was not set: the power daemon said {reply!r}")

    def go(self, mark: str, *, period_s: float = 1.0) -> None:
        """Begin a measurement under MARK, one sample every PERIOD_S."""
        if re.fullmatch(r"[\w.-]{1,200}", mark, re.ASCII) is None:
            raise BadInput(f"a mark has letters, digits, - and _ alone, not {mark!r}")
        reply = self.ask(f"Go,{round(period_s * 1000)},0,{mark}")
        if not reply.startswith("Starting untimed measurement"):
            raise MeterMissed(f"the measurement did not start: the power daemon said {reply!r}")

    def stop(self) -> None:
        reply = self.ask("Stop")
        if reply != "Stopping untimed measurement":
            raise MeterMissed(f"the measurement did not stop: the power daemon said {reply!r}")

    def samples(self) -> tuple[PtdSample, ...]:
        """All samples of the latest measurement, with its channels where there are several."""
        try:
            head = self.ask("RL,*,*")
        except MeterMissed:
            last = self.messages[-1].reply
            head = self.ask("RL" if last == "Invalid number of parameters" else "DC-RL")
        found = re.match(r"Last (\d{1,9}) samples", head)
        if found is None or int(found[1]) > _MOST_SAMPLES:
            raise self._lose(f"asked for its samples, the daemon said {head[:80]!r}")
        lines = [self._line("RL") for _ in range(int(found[1]))]
        try:
            return tuple(parse_sample(line) for line in lines if line)
        except BadInput as odd:
            raise self._lose(str(odd)) from odd

    def average(self) -> PtdAverage:
        """The daemon's own figures, also while it measures."""
        mean_w, _, _, samples, errors, valid = self._numbers(self.ask("Watts"), "Watts", 6)
        return PtdAverage(mean_w=mean_w if valid > 0 else None, samples=int(samples), errors=int(errors))

    def uncertainty_ratio(self) -> float | None:
        """The mean uncertainty of the samples; None: unknown, as with an automatic range."""
        mean, *_ = self._numbers(self.ask("Uncertainty"), "Uncertainty", 7)
        return mean if mean >= 0 else None

    def close(self) -> None:
        self._lost = self._lost or "the connection was closed"
        self._socket.close()

    def _numbers(self, reply: str, label: str, count: int) -> list[float]:
        head, *fields = reply.split(",")
        try:
            numbers = [float(field) for field in fields]
        except ValueError:
            numbers = []
        if head != label or len(numbers) != count or not all(map(math.isfinite, numbers)):
            raise self._lose(f"`{label}` was answered with {reply[:80]!r}, which is not {count} numbers")
        return numbers

    def _send(self, command: str) -> None:
        if self._lost is not None:
            raise MeterLost(f"the power daemon at {self.address} is lost: {self._lost}")
        try:
            self._socket.sendall(command.encode() + b"\r\n")
        except OSError as failed:
            raise self._lose(f"`{command}` could not be sent ({failed.strerror or failed})") from failed

    def _line(self, command: str) -> str:
        deadline_s = time.monotonic() + self._timeout_s
        while b"\n" not in self._waiting:
            if len(self._waiting) > _MOST_BYTES:
                raise self._lose(f"`{command}` was answered with {len(self._waiting)} bytes and no end of line")
            try:
                self._socket.settimeout(max(0.001, deadline_s - time.monotonic()))
                received = self._socket.recv(65536)
            except TimeoutError as slow:
                raise self._lose(f"`{command}` was not answered within {self._timeout_s:g} s") from slow
            except OSError as failed:
                raise self._lose(f"the connection broke at `{command}` ({failed.strerror or failed})") from failed
            if not received:
                raise self._lose(f"the daemon closed the connection at `{command}`")
            self._waiting += received
        line, _, self._waiting = self._waiting.partition(b"\n")
        text = line.decode("ascii", "replace").rstrip("\r")
        if not text.isprintable() or "\ufffd" in text:
            raise self._lose(f"`{command}` was answered with {line[:40]!r}, which is no text")
        return text

    def _lose(self, why: str) -> MeterLost:
        self._lost = why
        self._socket.close()
        return MeterLost(f"the power daemon at {self.address} is lost: {why}")


def parse_identity(text: str) -> PtdIdentity:
    """Who gave TEXT as the answer to `Identify`. Raises BadInput."""
    fields = text.split(",")
    version = re.search(r"version=(\d+\.\d+\.\d+)", text)
    if len(fields) < 5 or version is None:
        raise BadInput(f"`Identify` was answered with {text[:80]!r}, which names no version")
    channels = re.search(r"mode=power,\d+,\d+,(\d{1,3}),", text)
    return PtdIdentity(
        text=text,
        model=fields[0],
        version=version[1],
        instrument=fields[-1] if fields[-1].count(";") == 3 else None,
        channels=1 if channels is None else max(1, int(channels[1])),
    )


def parse_sample(line: str) -> PtdSample:
    """One line of the daemon: its sum, and the channels behind it. Raises BadInput."""
    found = _SAMPLE.fullmatch(line)
    if found is None:
        raise BadInput(f"{line[:80]!r} is no sample of the power daemon")
    try:
        values = [float(found[name]) for name in ("watts", "volts", "amps", "pf")]
        channels_w = tuple(float(channel["watts"]) for channel in _CHANNEL.finditer(found["rest"]))
        moment = datetime.strptime(found["time"], "%m-%d-%Y %H:%M:%S.%f").replace(tzinfo=UTC)
    except ValueError as odd:
        raise BadInput(f"{line[:80]!r} is no sample of the power daemon: {odd}") from odd
    if not all(map(math.isfinite, (*values, *channels_w))):
        raise BadInput(f"{line[:80]!r} holds a number that is not finite")
    power_w, volts, amps, power_factor_ratio = values
    return PtdSample(
        text=line,
        wall_s=moment.timestamp(),
        power_w=power_w,
        volts=volts,
        amps=amps,
        power_factor_ratio=power_factor_ratio,
        channels_w=channels_w,
    )


# ---- as a meter of a session


def find_ptd(clock: Clock, address: str, *, timeout_s: float = 10.0) -> list[Meter]:
    """The analyzer behind the daemon at ADDRESS, "host" or "host:port". Raises MeterUnavailable, saying what to do."""
    host, port = parse_address(address)
    client = PtdClient(host, port, timeout_s=timeout_s)
    try:
        identity = client.identify()
        if not identity.known_version:
            raise MeterUnavailable(
                f"the power daemon at {client.address} is version {identity.version}; this program knows "
                f"{', '.join(KNOWN_VERSIONS)}. Start one of these."
            )
        client.go("wattsmith")
    except (MeterMissed, MeterLost) as failed:
        client.close()
        raise MeterUnavailable(f"{failed}. Is another measurement running there?") from failed
    except MeterUnavailable:
        client.close()
        raise
    return [PtdMeter(clock, client, identity)]


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of "host", "host:port" or "[::1]:port"."""
    found = re.fullmatch(
        r"(?P<host>[^:\s]+|\[[0-9a-fA-F:.]+\]|[0-9a-fA-F]*:[0-9a-fA-F:.]*:[0-9a-fA-F]*)(?P<port>:\d{1,5})?", address
    )
    host = "" if found is None else found["host"]
    port = str(PORT) if found is None or found["port"] is None else found["port"][1:]
    if not host or not 0 < int(port) < 2**16:
        raise BadInput(f"{address!r} is no address of a power daemon; write host:port, such as 127.0.0.1:{PORT}")
    return host.strip("[]"), int(port)


class PtdMeter:
    """The system at the wall: what the daemon's own mean gained since it was last read."""

    def __init__(self, clock: Clock, client: PtdClient, identity: PtdIdentity, *, period_s: float = 1.0) -> None:
        self._clock, self._client, self._period_s = clock, client, period_s
        self._seen = PtdAverage(mean_w=None, samples=0, errors=0)
        self._last_s: float | None = None
        self.card = MeterCard(
            domain="wall:0",
            name=f"{identity.model} by its power daemon {identity.version}"
            + (" (simulated)" if identity.simulated else ""),
            source=Source.EXTERNAL,
            power_period_s=period_s,
            power_window_s=period_s,
            poll_period_s=period_s,
            encloses=("node", "gpu", "cpu-package", "dram", "psys", "soc", "soc-rail"),
            simulated=identity.simulated,
            note="a mean of samples; the meter's range is left as it was found",
        )

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002 - the daemon has no counter of energy
        now = self._client.average()
        before, self._seen = self._seen, now
        time_s = self._clock.now_s()
        failed = max(0, now.errors - before.errors)
        why = "the analyzer's reading failed or was beyond its range" if failed else None
        valid, valid_before = now.samples - now.errors, before.samples - before.errors
        if now.mean_w is None or valid <= valid_before or (self._last_s is not None and time_s <= self._last_s):
            return Readings(missed=failed, why_missed=why)
        gained_w = now.mean_w * valid - (before.mean_w or 0.0) * valid_before
        self._last_s = time_s
        power = PowerSample(time_s, max(0.0, gained_w / (valid - valid_before)))
        return Readings(power=(power,), missed=failed, why_missed=why)

    def close(self) -> None:
        try:
            self._client.stop()
        except (MeterMissed, MeterLost):
            pass  # it measures on until its next Go; nobody reads it any more
        finally:
            self._client.close()


def as_messages(messages: list[PtdMessage]) -> list[dict[str, Any]]:
    """What was said, as the workflow's files keep it."""
    return [{"cmd": message.command, "reply": message.reply} for message in messages]
