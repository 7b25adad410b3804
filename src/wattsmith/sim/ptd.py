"""A stand-in for the power daemon of MLPerf's workflow: its protocol on loopback, before a meter that is not there.

It is not SPEC's PTDaemon and holds nothing of it. Model, vendor, operating system, log and banner say "simulated", so
that no check may call what it gives compliant.
"""

import argparse
import math
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Self

MODEL = "WattsmithSimulatedAnalyzer"
VERSION = "1.11.1"
FAILURES = ("dies", "cut", "garbage", "slow", "silent", "endless", "error")
VOLT_RANGES = (15.0, 30.0, 60.0, 150.0, 300.0, 600.0)
AMP_RANGES = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
LIMIT_RATIO = 0.01  # above this uncertainty the daemon warns
MOST_SAMPLES = 500_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedSample:
    """One line of the meter. Negative watts: the current was beyond the range."""

    wall_s: float
    power_w: float
    volts: float
    amps: float
    power_factor_ratio: float
    uncertainty_ratio: float | None  # None: the range is automatic, so nobody can tell

    def text(self) -> str:
        """As the daemon prints it, without its mark."""
        return (
            f"Time,{stamp(self.wall_s)},Watts,{self.power_w:.6f},Volts,{self.volts:.6f},"
            f"Amps,{self.amps:.6f},PF,{self.power_factor_ratio:.6f}"
        )


@dataclass(slots=True)
class _Run:
    """One measurement, from Go to Stop."""

    mark: str
    period_s: float
    began_s: float
    volt_range: float | None  # None: automatic
    amp_range: float | None
    samples: list[SimulatedSample] = field(default_factory=list)


def stamp(wall_s: float) -> str:
    """A moment as the daemon writes it: month first, milliseconds, UTC."""
    moment = datetime.fromtimestamp(wall_s, UTC)
    return f"{moment:%m-%d-%Y %H:%M:%S}.{moment.microsecond // 1000:03d}"


class SimulatedPtd:
    """Serves one client at a time while entered. Set `power_w`, and `failure` to see how clients take it."""

    def __init__(
        self,
        *,
        power_w: float = 300.0,
        ripple_ratio: float = 0.0,
        volts: float = 230.0,
        power_factor_ratio: float = 0.98,
        channels: int = 1,
        direct_current: bool = False,
        version: str = VERSION,
        log: Callable[[str], None] | None = None,
        data_log: Path | None = None,
        port: int = 0,
        slow_s: float = 0.5,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        """LOG is told every line that the daemon says, DATA_LOG takes every sample with its mark. WALL_S tells time."""
        self.failure: str | None = None
        self.fails_at: str | None = None  # the first word of the command that fails; None: any
        self.log_lines: list[str] = []
        self._wall_s = wall_s
        self._ripple_ratio, self._volts, self._power_factor_ratio = ripple_ratio, volts, power_factor_ratio
        self._channels, self._direct_current, self._version = channels, direct_current, version
        self._log, self._data_log, self._slow_s = log, data_log, slow_s
        self._steps: list[tuple[float, float]] = [(-math.inf, power_w)]
        self._volt_range: float | None = 300.0
        self._amp_range: float | None = 5.0
        self._running: _Run | None = None
        self._latest: _Run | None = None
        self._stop = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", port))
        self._listener.settimeout(0.02)
        self._thread = threading.Thread(target=self._serve, name="simulated-ptd", daemon=True)

    # ---- for whoever sets the scene

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    @property
    def power_w(self) -> float:
        return self._steps[-1][1]

    @power_w.setter
    def power_w(self, power_w: float) -> None:
        self._steps.append((self._wall_s(), power_w))

    def __enter__(self) -> Self:
        for line in (
            "Wattsmith simulated power daemon; this is not SPEC PTDaemon, and no meter is attached",
            f"Version {self._version}-simulated",
        ):
            self._write_log(line)
        self._say(f"Uncertainty checking for {self._model} is activated")
        self._say(f"Connected to {self._model} successfully (simulated)")
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._listener.close()

    # ---- the wire

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            with connection:
                connection.settimeout(0.02)
                self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        waiting = b""
        while not self._stop.is_set():
            try:
                received = connection.recv(4096)
            except TimeoutError:
                continue
            except OSError:
                return
            if not received:
                return
            waiting += received
            while b"\n" in waiting:
                line, _, waiting = waiting.partition(b"\n")
                if not self._reply(connection, line.decode("ascii", "replace").strip()):
                    return

    def _reply(self, connection: socket.socket, command: str) -> bool:
        """Answer COMMAND; False: the connection is over."""
        failing = self.failure if self.fails_at in (None, command.split(",")[0]) else None
        try:
            if failing is None or failing == "slow":
                if failing == "slow":
                    time.sleep(self._slow_s)
                connection.sendall(self.answer(command).encode() + b"\r\n")
                return True
            if failing == "dies":
                return False
            if failing == "silent":
                return True
            connection.sendall(_NONSENSE[failing])
            return failing != "cut"
        except OSError:
            return False  # whoever asked did not wait

    # ---- the protocol

    def answer(self, command: str) -> str:
        """What the daemon says to COMMAND, lines separated by CRLF, without the last one."""
        verb, *arguments = command.split(",")
        say = {
            "Hello": self._hello,
            "Identify": self._identify,
            "RR": self._ranges,
            "SR": self._set_range,
            "Go": self._go,
            "Stop": self._end,
            "RL": self._read_log,
            "DC-RL": self._read_log_dc,
            "Watts": self._watts,
            "Uncertainty": self._uncertainty,
        }.get(verb)
        reply = "Unknown command" if say is None else say(arguments)
        head, *samples = reply.split("\r\n")
        self._say(f"Response to client sent: {head}")
        for number, line in enumerate(samples):
            self._write_log(line) if number else self._say(f"Response to client sent: {line}")
        return reply

    @property
    def _model(self) -> str:
        return MODEL if self._channels == 1 else f"{MODEL}_multichannel"

    def _hello(self, _: list[str]) -> str:
        return "Hello, PTDaemon here!"

    def _identify(self, _: list[str]) -> str:
        return (
            f"{self._model},1000,1,1,1,1,0,1,1,version={self._version}-simulated,OS=simulated,mode=power,1,1,"
            f"{self._channels},0,0,no_cal_date,WATTSMITH;simulated;0;F0"
        )

    def _ranges(self, _: list[str]) -> str:
        amps, volts = self._amp_range, self._volt_range
        return f"Ranges,{int(amps is None)},{amps or -1:.6f},{int(volts is None)},{volts or -1:.6f}"

    def _set_range(self, arguments: list[str]) -> str:
        try:
            what, value = arguments
            ladder = {"V": VOLT_RANGES, "A": AMP_RANGES}[what]
            wanted = None if value == "Auto" else float(value)
            chosen = None if wanted is None else next(step for step in ladder if step >= wanted > 0)
        except (ValueError, KeyError):
            return "Error: invalid range command"
        except StopIteration:
            return "Error: range not supported"
        if self._running is not None:
            return "Error: measurement in progress"
        if what == "V":
            self._volt_range = chosen
        else:
            self._amp_range = chosen
        name = {"V": "Volt", "A": "Ampere"}[what]
        self._say(f"{name} range set to {'Auto' if chosen is None else f'{chosen:.6f}{what}'}")
        return f"Range {what} changed"

    def _go(self, arguments: list[str]) -> str:
        try:
            period_ms, ramp_up, mark = arguments
            period_s, ramp = int(period_ms) / 1000, int(ramp_up)
        except ValueError:
            return "Error: invalid go command"
        if period_s <= 0 or ramp < 0:
            return "Error: invalid go command"
        if self._running is not None:
            return "Error: measurement in progress"
        self._say("Go command received")
        self._say(f"Go with mark '{mark}'")
        self._running = _Run(mark, period_s, self._wall_s() + ramp * period_s, self._volt_range, self._amp_range)
        return (
            f"Starting untimed measurement, maximum {MOST_SAMPLES} samples at {period_ms}ms with {ramp} rampup samples"
        )

    def _end(self, _: list[str]) -> str:
        run = self._running
        if run is None:
            return "Error: no measurement to stop"
        self._sample(run)
        self._running, self._latest = None, run
        self._say("Completed test")
        average, least, most, total, errors, valid = self._watts([]).split(",")[1:]
        self._say(
            f"Avg watts {average}, min watts {least}, max watts {most}, samples {total}, errors {errors}, valid {valid}"
        )
        if self._data_log is not None:
            with self._data_log.open("a", encoding="utf-8") as file:
                file.writelines(f"{line},Mark,{run.mark}\n" for line in self._lines(run))
        return "Stopping untimed measurement"

    def _read_log(self, arguments: list[str]) -> str:
        if self._direct_current:
            return "Unknown command"
        if arguments and self._channels == 1:
            return "Invalid number of parameters"
        run = self._current()
        lines = [] if run is None else self._lines(run)
        which = f" from sum channel and channels 1 - {self._channels}" if arguments else ""
        return "\r\n".join([f"Last {len(lines)} samples{which}", *lines])

    def _read_log_dc(self, arguments: list[str]) -> str:
        if not self._direct_current or arguments:
            return "Unknown command"
        run = self._current()
        lines = [] if run is None else self._lines(run)
        return "\r\n".join([f"Last {len(lines)} samples", *lines])

    def _watts(self, _: list[str]) -> str:
        run = self._current()
        samples = [] if run is None else run.samples
        valid_w = [sample.power_w for sample in samples if sample.power_w > 0]
        if not valid_w:
            return f"Watts,-1.000000,-1.000000,-1.000000,{len(samples)},{len(samples)},0"
        mean_w = math.fsum(valid_w) / len(valid_w)
        return (
            f"Watts,{mean_w:.6f},{min(valid_w):.6f},{max(valid_w):.6f},"
            f"{len(samples)},{len(samples) - len(valid_w)},{len(valid_w)}"
        )

    def _uncertainty(self, _: list[str]) -> str:
        run = self._current()
        samples = [] if run is None else run.samples
        known = [sample.uncertainty_ratio for sample in samples if sample.uncertainty_ratio is not None]
        if not known:
            return f"Uncertainty,-1.0,10000000.000000,0.000000,{len(samples)},0,0,{len(samples)}"
        above = sum(ratio > LIMIT_RATIO for ratio in known)
        return (
            f"Uncertainty,{math.fsum(known) / len(known):.6f},{min(known):.6f},{max(known):.6f},"
            f"{len(samples)},{above},{len(known) - above},{len(samples) - len(known)}"
        )

    # ---- the meter that is not there

    def _current(self) -> _Run | None:
        if self._running is not None:
            self._sample(self._running)
        return self._running or self._latest

    def _sample(self, run: _Run) -> None:
        """Take the samples that are due by now."""
        due = min(MOST_SAMPLES, 1 + math.floor((self._wall_s() - run.began_s) / run.period_s + 1e-9))
        for number in range(len(run.samples), due):
            sample = self._sample_at(run, number)
            run.samples.append(sample)
            self._complain(sample)

    def _sample_at(self, run: _Run, number: int) -> SimulatedSample:
        wall_s = run.began_s + number * run.period_s
        power_w = next(step_w for since_s, step_w in reversed(self._steps) if since_s <= wall_s)
        power_w = round(power_w * (1 + self._ripple_ratio * math.sin(number)), 6)
        amps = power_w / (self._volts * self._power_factor_ratio)
        fixed = run.amp_range is not None and run.volt_range is not None
        beyond = run.amp_range is not None and amps > run.amp_range
        # A tenth of a per cent of the reading and as much of the range, which is how such meters are specified.
        uncertainty_ratio = (
            0.001 + 0.001 * (run.amp_range or 0) * (run.volt_range or 0) / power_w if fixed and power_w > 0 else None
        )
        return SimulatedSample(
            wall_s=wall_s,
            power_w=-power_w if beyond else power_w,
            volts=self._volts,
            amps=round(amps, 6),
            power_factor_ratio=self._power_factor_ratio,
            uncertainty_ratio=None if beyond else uncertainty_ratio,
        )

    def _complain(self, sample: SimulatedSample) -> None:
        at = stamp(sample.wall_s)
        if sample.power_w < 0:
            self._write_log(f"{at}: ERROR: Current exceeds the range (simulated)")
        if sample.uncertainty_ratio is None:
            self._write_log(f"{at}: WARNING: Uncertainty unknown for the last measurement sample!")
        elif sample.uncertainty_ratio > LIMIT_RATIO:
            self._write_log(
                f"{at}: WARNING: Uncertainty {sample.uncertainty_ratio:.2%}, which is above 1.00% limit "
                "for the last sample!"
            )

    def _lines(self, run: _Run) -> list[str]:
        if self._channels == 1:
            return [sample.text() for sample in run.samples]
        lines = []
        for sample in run.samples:
            share = (
                f",Watts,{sample.power_w / self._channels:.6f},Volts,{sample.volts:.6f},"
                f"Amps,{sample.amps / self._channels:.6f},PF,{sample.power_factor_ratio:.6f}"
            )
            lines.append(sample.text() + share * self._channels)
        return lines

    def _say(self, text: str) -> None:
        self._write_log(f"{stamp(self._wall_s())}: {text}")

    def _write_log(self, line: str) -> None:
        self.log_lines.append(line)
        if self._log is not None:
            self._log(line)


_NONSENSE = {
    "cut": b"Watts,30",
    "garbage": b"\xff\x00\xfe nonsense\r\n",
    "endless": b"x" * 200_000,
    "error": b"Error: the meter does not answer\r\n",
}


def main() -> None:
    """Serve until Ctrl-C: `python -m wattsmith.sim.ptd --port 8888 --watts 300`.

    Flags and device that a director gives a daemon are taken and, but for port and data log, left aside.
    """
    parser = argparse.ArgumentParser(description="A simulated power daemon, for tests. It measures nothing.")
    parser.add_argument("-p", "--port", type=int, default=8888)
    parser.add_argument("-l", "--data-log", type=Path, metavar="FILE", help="takes every sample")
    parser.add_argument("--watts", type=float, default=300.0)
    parser.add_argument("device", nargs="*", help="not used: there is none")
    asked, _ = parser.parse_known_args()
    log = partial(print, flush=True)
    with SimulatedPtd(port=asked.port, power_w=asked.watts, ripple_ratio=0.01, data_log=asked.data_log, log=log):
        log(f"simulated power daemon on 127.0.0.1:{asked.port}, {asked.watts:g} W")
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            return


if __name__ == "__main__":
    main()
