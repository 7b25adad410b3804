"""Trials of a command: run at a setting, with all that it starts; what it prints are its metrics."""

import contextlib
import json
import math
import os
import select
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

from wattsmith.flows.measuring import open_session
from wattsmith.flows.tuning import Goal, Watch, tune
from wattsmith.flows.tuning_hardware import Means, Say
from wattsmith.measure.session import Session
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed, Knob, Level, Tuned
from wattsmith.tune.goals import is_number, parse_objective
from wattsmith.tune.judge import SPENT
from wattsmith.tune.result import SIMULATED

ENVIRONMENT = "WATTSMITH_"  # before the name of a knob, in capitals
SHOWN = 300  # characters of what a failing command said


def tune_command(
    command: Sequence[str],
    knobs: Sequence[Knob],
    goal: Goal | None = None,
    *,
    meters: str = "auto",
    timeout_s: float | None = None,
    trials: Path | None = None,
    watch: Watch | None = None,
    means: Means | None = None,
    say: Say = lambda _: None,
) -> Tuned:
    """Search the settings of KNOBS for COMMAND, which is run once per trial.

    It finds the setting in {name} among its arguments and in WATTSMITH_NAME, and prints metrics as a JSON object on a
    line of its own; the last such line counts. What it does not print of time_s, energy_j and power_w is measured here,
    time and energy per query if it prints how many "queries" there were. A command that fails is a setting that cannot
    be used. What it leaves running is ended before the next trial, and when the search is.
    """
    if not command:
        raise BadInput("there is no command to tune; write it after `--`: `wattsmith tune … -- python serve.py`")
    with _ended_by_signals(), open_session(meters) as session:
        if any(card.source is Source.MODELLED for card in session.cards):
            say("energy that the command does not print is modelled from how busy the CPU is, not measured")
        wanted = parse_objective((goal or Goal()).objective)

        def measure(setting: Mapping[str, Level]) -> Mapping[str, float] | Failed:
            outcome = _tried(command, setting, session, timeout_s)
            if "energy" in wanted and not session.cards:
                _check_energy(outcome)
            return outcome

        return tune(measure, knobs, goal, trials=trials, watch=watch, means=means, say=say)


@contextlib.contextmanager
def _ended_by_signals() -> Iterator[None]:
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


def _check_energy(outcome: Mapping[str, float] | Failed) -> None:
    """Raise BadInput where a command does not know that it is the one who has to tell its energy."""
    if not isinstance(outcome, Failed) and not {"energy", "energy_j"} & set(outcome):
        raise BadInput(
            "energy is to be least, but no meter measures it here and the command printed no energy_j. Let it print "
            "that, minimise something else (--minimise time), or have the CPU's energy modelled: "
            "--meters modelled:10W-65W"
        )


def _tried(
    command: Sequence[str], setting: Mapping[str, Level], session: Session, timeout_s: float | None
) -> Mapping[str, float] | Failed:
    """What came of COMMAND at SETTING."""
    environment = {ENVIRONMENT + name.upper().replace("-", "_"): str(level) for name, level in setting.items()}
    filled = [_filled(part, setting) for part in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with session.measure("trial") as window, _running(filled, environment, out, err) as process:
            in_time = _ends_within(process, timeout_s)
        result = window.result()
        if not in_time:
            return Failed(why=f"it took longer than {timeout_s:g} s", spent_j=result.energy_j)
        if process.returncode:
            said = " ".join(_text(err).split())[-SHOWN:]
            why = f"exit code {process.returncode}" + (f": {said}" if said else "")
            return Failed(why=why, spent_j=result.energy_j)
        printed = printed_metrics(_text(out))
    if printed is None:
        why = "it printed no metrics: the last line of JSON must be an object of numbers"
        return Failed(why=why, spent_j=result.energy_j)
    metrics = with_measured(printed, result.duration_s, result.energy_j)
    return metrics | {SIMULATED: 1.0} if result.simulated and "energy_j" not in printed else metrics


@contextlib.contextmanager
def _running(
    command: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
) -> Iterator[subprocess.Popen[bytes]]:
    """COMMAND, just started in a group of its own. What is left of that group at the end is killed."""
    try:
        process = subprocess.Popen(
            command,
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
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _ends_within(process: subprocess.Popen[bytes], timeout_s: float | None) -> bool:
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
        waiting = select.poll()
        waiting.register(pidfd, select.POLLIN)
        waiting.poll(timeout_s * 1000)
        os.close(pidfd)
    return process.poll() is not None


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _filled(part: str, setting: Mapping[str, Level]) -> str:
    for name, level in setting.items():
        part = part.replace("{" + name + "}", str(level))
    return part


def printed_metrics(text: str) -> dict[str, Any] | None:
    """The last line of TEXT that is a JSON object; None: there is none."""
    for line in reversed(text.splitlines()):
        if line.strip().startswith("{"):
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                continue
            return {str(name): value for name, value in found.items()}
    return None


def with_measured(printed: Mapping[str, Any], duration_s: float, energy_j: float | None) -> dict[str, Any]:
    """PRINTED metrics, and beside them what was measured of the whole run, per query where queries were counted."""
    queries = printed.get("queries", 1)
    count = float(queries) if is_number(queries) and 0 < queries < math.inf else 1.0
    metrics: dict[str, Any] = {"time_s": duration_s / count}
    if energy_j is not None:
        metrics |= {"energy_j": energy_j / count, SPENT: energy_j}
        if "energy_j" not in printed:  # who measures himself may mean another part of the machine
            metrics["power_w"] = energy_j / duration_s
    metrics |= printed
    own_j = metrics.get("energy_j")
    if SPENT not in metrics and isinstance(own_j, int | float) and math.isfinite(own_j):
        metrics[SPENT] = own_j * count
    return metrics
