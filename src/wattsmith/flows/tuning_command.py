"""Trials of a command: it is run at a setting, and prints its metrics, or serves them."""

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.flows.tuning import Goal, Watch, tune
from wattsmith.flows.tuning_hardware import Means, Say
from wattsmith.flows.tuning_process import ended_by_signals, ends_within, judged, running, text_in, why_it_failed
from wattsmith.flows.tuning_served import Serves, tried_serving
from wattsmith.measure.session import Session
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed, Knob, Level, Tuned
from wattsmith.tune.goals import parse_objective


def tune_command(
    command: Sequence[str],
    knobs: Sequence[Knob],
    goal: Goal | None = None,
    *,
    serves: Serves | None = None,
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
    be used. What it leaves running is ended before the next trial, and when the search is. With SERVES it does not
    print its metrics but serves them, until it is ended.
    """
    if not command:
        raise BadInput("there is no command to tune; write it after `--`: `wattsmith tune … -- python serve.py`")
    with ended_by_signals(), open_session(meters) as session:
        if any(card.source is Source.MODELLED for card in session.cards):
            say("energy that the command does not print is modelled from how busy the CPU is, not measured")
        unmetered = not session.cards and "energy" in parse_objective((goal or Goal()).objective)

        def measure(setting: Mapping[str, Level]) -> Mapping[str, float] | Failed:
            if serves is None:
                outcome = _tried(command, setting, session, timeout_s)
            else:
                outcome = tried_serving(command, setting, session, serves, timeout_s)
            if unmetered and all(setting.get(knob.name, knob.present) == knob.present for knob in knobs):
                _check_energy(outcome)
            return outcome

        return tune(measure, knobs, goal, trials=trials, watch=watch, means=means, say=say)


def _check_energy(outcome: Mapping[str, float] | Failed) -> None:
    """Raise BadInput where a command does not know that it is the one who has to tell its energy."""
    if not isinstance(outcome, Failed) and not {"energy", "energy_j"} & set(outcome):
        raise BadInput(
            "energy is to be least, but no meter measures it here and the command tells no energy_j. Let it tell "
            "that, minimise something else (--minimise time), or have the CPU's energy modelled: "
            "--meters modelled:10W-65W"
        )


def _tried(
    command: Sequence[str], setting: Mapping[str, Level], session: Session, timeout_s: float | None
) -> Mapping[str, float] | Failed:
    """What came of COMMAND at SETTING."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with session.measure("trial") as window, running(command, setting, out, err) as process:
            in_time = ends_within(process, timeout_s)
        result = window.result()
        if not in_time:
            return Failed(why=f"it took longer than {timeout_s:g} s", spent_j=result.energy_j)
        if process.returncode:
            return Failed(why=why_it_failed(process, err), spent_j=result.energy_j)
        printed = printed_metrics(text_in(out))
    if printed is None:
        why = "it printed no metrics: the last line of JSON must be an object of numbers"
        return Failed(why=why, spent_j=result.energy_j)
    return judged(printed, result)


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
