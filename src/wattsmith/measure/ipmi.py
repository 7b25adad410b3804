"""Power of the whole node as its management controller tells it over IPMI, through ipmitool or FreeIPMI."""

import re
import shutil
import subprocess
from collections.abc import Sequence
from typing import NamedTuple

from wattsmith.terms.energy import MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed, MeterUnavailable
from wattsmith.terms.ports import Clock, Meter

_POLL_S = 1.0
# What to run, by program. Both ask the DCMI command "get power reading".
_QUESTIONS = {
    "ipmitool": ("dcmi", "power", "reading"),
    "ipmi-dcmi": ("--get-system-power-statistics",),
}
_POWER = re.compile(r"^\s*(?:instantaneous power reading|current power)\s*:\s*([0-9]{1,6})\s+watts", re.I | re.M)
_PERIOD = re.compile(
    r"^\s*(?:sampling period|statistics reporting time period)\s*:\s*([0-9]{1,12})\s+(milliseconds|seconds)",
    re.I | re.M,
)
_STATE = re.compile(r"^\s*(?:power reading state is|power measurement)\s*:\s*([a-z ]+)", re.I | re.M)
_STAND_IN = "wattsmith-simulated"  # a stand-in for these programs prints this


class PowerReading(NamedTuple):
    """What the controller said about the node."""

    power_w: float
    statistics_s: float | None  # stretch of its minimum, maximum and average; not of `power_w`


def find_ipmi(
    clock: Clock, *, program: str | None = None, args: Sequence[str] = (), timeout_s: float = 5.0
) -> list[Meter]:
    """The node's meter, by PROGRAM ("ipmitool" or "ipmi-dcmi", or a path to one); None takes the first installed.

    ARGS go before the question, for another machine's controller: ["-I", "lanplus", "-H", "bmc-17", "-U", "me", "-E"].
    Raises MeterUnavailable, saying what to do.
    """
    found = shutil.which(program) if program else next(filter(None, map(shutil.which, _QUESTIONS)), None)
    if found is None:
        raise MeterUnavailable(
            f"{program or 'neither ipmitool nor ipmi-dcmi'} is installed here. Install the package `ipmitool`, "
            "or measure the node with `--meters redfish:https://user@address`, or without it."
        )
    question = _QUESTIONS["ipmi-dcmi" if "dcmi" in found.rpartition("/")[2] else "ipmitool"]
    command = (found, *args, *question)
    try:
        output = _ask(command, timeout_s)
    except (MeterMissed, MeterLost) as failed:
        raise MeterUnavailable(
            f"{failed}. It needs root, or read access to /dev/ipmi0, and a controller that speaks DCMI; "
            "measure the node with `--meters redfish:https://user@address`, or without it."
        ) from failed
    reading = parse_power_reading(output)
    if reading is None:
        raise MeterUnavailable(
            f"{found} told no power: {_in_one_line(output)!r}. Many controllers lack this; "
            "measure the node with `--meters redfish:https://user@address`, or without it."
        )
    return [IpmiMeter(clock, command, timeout_s, reading, simulated=_STAND_IN in output)]


class IpmiMeter:
    """The node's power, one program run per reading."""

    def __init__(
        self, clock: Clock, command: Sequence[str], timeout_s: float, first: PowerReading, *, simulated: bool
    ) -> None:
        self._clock, self._command, self._timeout_s = clock, tuple(command), timeout_s
        self._last_s: float | None = None
        self._open = True
        name = "node, by its IPMI controller"
        stated = "" if first.statistics_s is None else f" (statistics over {first.statistics_s:g} s)"
        self.card = MeterCard(
            domain="node:0",
            name=f"{name} (simulated)" if simulated else name,
            source=Source.EXTERNAL,
            power_period_s=_POLL_S,
            poll_period_s=_POLL_S,
            encloses=("gpu", "cpu-package", "dram", "psys", "soc", "soc-rail"),
            simulated=simulated,
            note=f"whole watts, read by the controller about once a second{stated}",
        )

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002  DCMI has no energy counter
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        asked_s = self._clock.now_s()
        output = _ask(self._command, self._timeout_s)
        reading = parse_power_reading(output)
        if reading is None:
            raise MeterMissed(f"{self._command[0]} told no power this time: {_in_one_line(output)!r}")
        # The controller looked somewhere between question and answer.
        time_s = (asked_s + self._clock.now_s()) / 2
        if self._last_s is not None and time_s <= self._last_s:
            return Readings()
        self._last_s = time_s
        return Readings(power=(PowerSample(time_s, reading.power_w),))

    def close(self) -> None:
        self._open = False


def parse_power_reading(output: str) -> PowerReading | None:
    """The power in what ipmitool or ipmi-dcmi printed; None when it tells none.

    A running node never draws 0 W: controllers say 0 when they do not know, or when measuring is switched off.
    """
    power, state, period = _POWER.search(output), _STATE.search(output), _PERIOD.search(output)
    if power is None or int(power[1]) == 0:
        return None
    if state is not None and state[1].strip().lower() not in ("activated", "active"):
        return None
    statistics_s = None
    if period is not None and int(period[1]) > 0:
        statistics_s = int(period[1]) / (1_000 if period[2].lower() == "milliseconds" else 1)
    return PowerReading(float(power[1]), statistics_s)


def _ask(command: Sequence[str], timeout_s: float) -> str:
    """What COMMAND printed. Its arguments stay out of errors: they may hold a password."""
    program = command[0]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise MeterMissed(f"{program} did not answer within {timeout_s:g} s") from None
    except OSError as failed:
        kind = MeterLost if isinstance(failed, FileNotFoundError | PermissionError) else MeterMissed
        raise kind(f"{program} could not be started: {failed.strerror}") from None
    if done.returncode != 0:
        said = _in_one_line(done.stderr.decode(errors="replace"))
        raise MeterMissed(f"{program} failed with status {done.returncode}: {said or 'it said nothing'}")
    return done.stdout.decode(errors="replace")


def _in_one_line(text: str) -> str:
    return " ".join(text.split())[:200]
