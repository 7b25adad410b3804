"""A command at one setting, with all that it starts: ended together, and with this process. What it told of that."""

import contextlib
import math
import os
import select
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import IO, Any, NoReturn

from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed, Level
from wattsmith.tune.goals import is_number
from wattsmith.tune.judge import SPENT
from wattsmith.tune.result import SIMULATED

ENVIRONMENT = "WATTSMITH_"  # before the name of a knob, in capitals
QUERIES = "queries"  # the metric that counts them
SHOWN = 300  # characters of what a failing command said


@contextlib.contextmanager
def ended_by_signals() -> Iterator[None]:
    """Turn what would end this process at once into an exception, so that the command ends with it."""

    def end(number: int, _frame: object) -> NoReturn:
        raise SystemExit(128 + number)

    ours = threading.current_thread() is threading.main_thread()
    numbers = [one for one in (signal.SIGTERM, signal.SIGHUP) if ours and signal.getsignal(one) is signal.SIG_DFL]
    for number in numbers:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def running(
    command: Sequence[str], setting: Mapping[str, Level], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """COMMAND, just started at SETTING in a group of its own. What is left of that group at the end is killed."""
    process = None
    try:
        with _signals_kept():  # or one that comes just now would find a command that nobody knows of
            process = _started(command, setting, out, err)
        yield process
    finally:
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _started(
    command: Sequence[str], setting: Mapping[str, Level], out: IO[bytes], err: IO[bytes]
) -> subprocess.Popen[bytes]:
    environment = {ENVIRONMENT + name.upper().replace("-", "_"): str(level) for name, level in setting.items()}
    try:
        return subprocess.Popen(
            [filled(part, setting) for part in command],
            env=os.environ | environment,
            stdin=subprocess.DEVNULL,
            stdout=out,  # a file, since what is left running would keep a pipe open
            stderr=err,
            process_group=0,
        )
    except OSError as refused:
        raise BadInput(f"{command[0]!r} cannot be run: {refused.strerror}") from refused
    except ValueError as impossible:
        raise BadInput(f"the command {list(command)!r} cannot be run: {impossible}") from impossible


@contextlib.contextmanager
def _signals_kept() -> Iterator[None]:
    """Keep what would interrupt this process until the end of the block; then it comes."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handled = [one for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if callable(signal.getsignal(one))]
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    for one in came:
        signal.raise_signal(one)


def end_gently(process: subprocess.Popen[bytes], grace_s: float) -> None:
    """Ask a command and all that it has started to end, and give it GRACE_S to do so."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    ends_within(process, grace_s)


def why_it_failed(process: subprocess.Popen[bytes], err: IO[bytes]) -> str:
    """Its exit code and the end of what it said."""
    said = " ".join(text_in(err).split())[-SHOWN:]
    return f"exit code {process.returncode}" + (f": {said}" if said else "")


def ends_within(process: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
    """Whether it ends by itself within TIMEOUT_S; known at once, as its time is measured."""
    if timeout_s is None:
        process.wait()
        return True
    try:
        pidfd = os.pidfd_open(process.pid)
    except OSError:  # a kernel that has none: then it is looked at now and then
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout_s)
    else:
        select.select([pidfd], [], [], min(timeout_s, threading.TIMEOUT_MAX))
        os.close(pidfd)
    return process.poll() is not None


def text_in(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def filled(part: str, setting: Mapping[str, Level]) -> str:
    """PART of a command with the levels of SETTING in place of {name}."""
    for name, level in setting.items():
        part = part.replace("{" + name + "}", str(level))
    return part


def judged(told: Mapping[str, Any], window: Window) -> Mapping[str, float] | Failed:
    """What a command TOLD, with what was measured meanwhile; Failed where it says that it answered nothing."""
    if is_number(told.get(QUERIES)) and not told[QUERIES] > 0:
        return Failed(why=f"it answered nothing: {QUERIES} is {told[QUERIES]}", spent_j=window.energy_j)
    metrics = with_measured(told, window.duration_s, window.energy_j)
    return metrics | {SIMULATED: 1.0} if window.simulated and "energy_j" not in told else metrics


def with_measured(told: Mapping[str, Any], duration_s: float, energy_j: float | None) -> dict[str, Any]:
    """What a command TOLD, and beside it what was measured meanwhile, per query where queries were counted."""
    count = float(told[QUERIES]) if is_number(told.get(QUERIES)) else 1.0
    metrics: dict[str, Any] = {"time_s": duration_s / count}
    own_j: Any = told.get("energy_j")
    if energy_j is not None and (energy_j > 0 or own_j is None):
        metrics |= {"energy_j": energy_j / count, SPENT: energy_j}
        if own_j is None:  # who measures himself may mean another part of the machine
            metrics["power_w"] = energy_j / duration_s
    elif is_number(own_j) and math.isfinite(own_j):
        metrics[SPENT] = own_j * count
    return metrics | dict(told)
