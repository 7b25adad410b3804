"""Find the setting that needs the least energy, time or money within limits: of a command, a function or a table."""

import csv
import importlib.util
import json
import math
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.flows.tuning_hardware import Means, Measure, Say, turned
from wattsmith.measure.session import Session
from wattsmith.terms.errors import BadInput, BadTerm, ExtraNeeded, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.tuning import Curve, Failed, Knob, Level, Space, Trial, Tuned
from wattsmith.tune.goals import Limit
from wattsmith.tune.plot import plot_tuned
from wattsmith.tune.result import SIMULATED, SPENT, tuned
from wattsmith.tune.search import Manner, Tuner

__all__ = ["Goal", "Manner", "curve_in", "draw", "knob_of", "parse_knobs", "replay_table", "tune", "tune_command"]

ENVIRONMENT = "WATTSMITH_"  # before the name of a knob, in capitals
SAVES = {"batch": "up", "power_limit": "down", "clock": "down", "frequency": "down", "threads": "down"}
SHOWN = 300  # characters of what a failing command said

Watch = Callable[[int, Mapping[str, Level], Trial], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """What is sought."""

    objective: str = "energy"
    limits: tuple[str | Limit, ...] = ()
    manner: Manner = field(default_factory=Manner)
    curves: tuple[Curve, ...] = ()  # of other workloads: what the search is primed with
    noise: Mapping[str, float] | None = None  # relative standard errors by metric; None: the usual
    canary: bool = False  # measure the present setting once more at the end, to see whether the machine has drifted


Knobs = Sequence[Knob] | Mapping[str, Sequence[Level]]


def as_knobs(knobs: Knobs) -> list[Knob]:
    """KNOBS as facts: by name with their levels, of which the first is the present one, or ready-made."""
    if isinstance(knobs, Mapping):
        made = [knob_of(name, list(levels), None) for name, levels in knobs.items()]
        return [replace(knob, present=knob.levels[0]) for knob in made]
    return list(knobs)


def tune(
    measure: Measure,
    knobs: Knobs,
    goal: Goal | None = None,
    *,
    trials: Path | None = None,
    watch: Watch | None = None,
    means: Means | None = None,
    say: Say = lambda _: None,
) -> Tuned:
    """Search the settings of KNOBS, where MEASURE gives the metrics of one, a Trial with their noise too, or Failed.

    KNOBS by name with their levels, `{"batch": [1, 2, 4]}`, are at the first of them now; a Knob says more.
    TRIALS is a file of what was tried: what it holds is not tried again, and every trial is added to it at once. A knob
    that is named as `wattsmith control` names it ("gpu:0/power_limit") is turned under a lease, by MEANS, around each
    trial, and comes back; MEASURE does not see it. SAY is told what may not be turned, and what has no effect.
    """
    _require_scipy()
    with turned(measure, as_knobs(knobs), means or Means(), say) as (measured, usable):
        return _searched(measured, usable, goal or Goal(), trials, watch, say)


def _searched(
    measure: Measure, knobs: Sequence[Knob], goal: Goal, trials: Path | None, watch: Watch | None, say: Say
) -> Tuned:
    space = Space(knobs=tuple(knobs))
    tuner = Tuner(space, goal.objective, goal.limits, curves=goal.curves, manner=goal.manner)
    kept = [] if trials is None else _kept_trials(trials, space)
    for trial in kept:
        tuner.tell(
            trial.setting, Failed(why=trial.failed) if trial.failed else trial.metrics, trial.noise or goal.noise
        )

    def one_trial(setting: Mapping[str, Level]) -> None:
        outcome = measure(setting)
        if isinstance(outcome, Trial):
            tuner.tell(setting, outcome.metrics, {**outcome.noise, **(goal.noise or {})})
        else:
            tuner.tell(setting, outcome, goal.noise)
        trial = tuner.trials[-1]
        if trials is not None:
            _keep(trials, trial)
        if watch is not None:
            watch(len(tuner.trials), setting, trial)

    while (setting := tuner.ask()) is not None:
        one_trial(setting)
    finished = len(tuner.trials) < goal.manner.budget
    if goal.canary and len(tuner.trials) > len(kept):
        one_trial(space.setting(space.present))
        _tell_drift(tuner, say)
    return tuned(tuner, goal.objective, finished=finished)


def _tell_drift(tuner: Tuner, say: Say) -> None:
    """Say so where the present setting by now needs another amount than at first, by more than what is to be saved."""
    first, last = tuner.judge.seen[0], tuner.judge.seen[-1]
    if last.failed is not None:
        say(f"the present setting worked at first, and failed at the end: {last.failed}")
        return
    drift, saving = math.expm1(last.objective - first.objective), tuner.recommend().saving.value
    if abs(drift) > max(abs(saving), 3 * first.noise[0], 3 * last.noise[0]):
        say(
            f"the present setting needed {drift:+.1%} at the end against the beginning, and {saving:.1%} is to be "
            "saved: the machine has drifted, so do not rely on it; try again when nothing else runs"
        )


def _require_scipy() -> None:
    if importlib.util.find_spec("scipy") is None or importlib.util.find_spec("numpy") is None:
        raise ExtraNeeded("a search needs numpy and scipy; install them with `pip install 'wattsmith[tune]'`")


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
    line of its own; the last such line counts. What it does not print of time_s and energy_j is measured here, per
    query if it prints how many "queries" there were. A command that fails is a setting that cannot be used.
    """
    if not command:
        raise BadInput("there is no command to tune; write it after `--`: `wattsmith tune … -- python serve.py`")
    with open_session(meters) as session:

        def measure(setting: Mapping[str, Level]) -> Mapping[str, float] | Failed:
            return _run(command, setting, session, timeout_s)

        return tune(measure, knobs, goal, trials=trials, watch=watch, means=means, say=say)


def _run(
    command: Sequence[str], setting: Mapping[str, Level], session: Session, timeout_s: float | None
) -> Mapping[str, float] | Failed:
    environment = {ENVIRONMENT + name.upper().replace("-", "_"): str(level) for name, level in setting.items()}
    try:
        with session.measure("trial") as window:
            done = subprocess.run(
                [_filled(part, setting) for part in command],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=timeout_s,
            )
    except subprocess.TimeoutExpired:
        return Failed(why=f"it took longer than {timeout_s:g} s")
    except OSError as refused:
        raise BadInput(f"{command[0]!r} cannot be run: {refused.strerror}") from refused
    if done.returncode:
        said = " ".join(done.stderr.split())[-SHOWN:]
        return Failed(why=f"exit code {done.returncode}" + (f": {said}" if said else ""))
    printed = printed_metrics(done.stdout)
    if printed is None:
        return Failed(why="it printed no metrics: the last line of JSON must be an object of numbers")
    result = window.result()
    metrics = with_measured(printed, result.duration_s, result.energy_j)
    return metrics | {SIMULATED: 1.0} if result.simulated and "energy_j" not in printed else metrics


def _filled(part: str, setting: Mapping[str, Level]) -> str:
    for name, level in setting.items():
        part = part.replace("{" + name + "}", str(level))
    return part


def printed_metrics(text: str) -> dict[str, float] | None:
    """The last line of TEXT that is a JSON object; None: there is none."""
    for line in reversed(text.splitlines()):
        if line.strip().startswith("{"):
            try:
                found = json.loads(line)
            except ValueError:
                continue
            return {str(name): value for name, value in found.items()}
    return None


def with_measured(printed: Mapping[str, Any], duration_s: float, energy_j: float | None) -> dict[str, float]:
    """PRINTED metrics, and beside them what was measured of the whole run, per query where queries were counted."""
    queries = printed.get("queries", 1)
    count = float(queries) if isinstance(queries, int | float) and queries > 0 else 1.0
    metrics: dict[str, float] = {"time_s": duration_s / count}
    if energy_j is not None:
        metrics |= {"energy_j": energy_j / count, SPENT: energy_j}
    metrics |= printed
    own_j = metrics.get("energy_j")
    if SPENT not in metrics and isinstance(own_j, int | float) and math.isfinite(own_j):
        metrics[SPENT] = own_j * count
    return metrics


def replay_table(
    path: Path, names: Mapping[str, str | None], goal: Goal | None = None, *, watch: Watch | None = None
) -> Tuned:
    """Search a table of settings that were all measured: a CSV file with a row per setting.

    NAMES are its columns that are knobs, each with its present level, or None for the last; all other columns of
    numbers are metrics. One row counts as one query. A setting without a row, or without figures, failed.
    """
    rows = _rows(path)
    if not names:
        raise BadInput(f"say which columns of {path} are knobs: {', '.join(rows[0])}")
    missing = [name for name in names if name not in rows[0]]
    if missing:
        raise BadInput(f"{path} has no column {missing[0]}; it has {', '.join(rows[0])}")
    knobs = [knob_of(name, sorted({level_of(row[name]) for row in rows}, key=_order), at) for name, at in names.items()]
    table = {tuple(level_of(row[name]) for name in names): _figures(row, names) for row in rows}

    def measure(setting: Mapping[str, Level]) -> Mapping[str, float] | Failed:
        metrics = table.get(tuple(setting.values()))
        if not metrics:
            return Failed(why="it is not in the table")
        energy_j = metrics.get("energy_j")
        return metrics if energy_j is None else {SPENT: energy_j, **metrics}

    return tune(measure, knobs, goal, watch=watch)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as refused:
        raise BadInput(f"{path} cannot be read as a table: {refused}") from refused
    if not rows:
        raise BadInput(f"{path} holds no rows: a line of names and a line per setting are needed")
    return rows


def _figures(row: Mapping[str, str | None], knobs: Iterable[str]) -> dict[str, float]:
    found = {}
    for name, text in row.items():
        if name in knobs or text is None:
            continue
        try:
            found[name] = float(text)
        except (TypeError, ValueError):
            continue  # a column of words, or a gap
    return found


def _order(level: Level) -> tuple[bool, float, str]:
    return (True, 0.0, level) if isinstance(level, str) else (False, float(level), "")


def level_of(text: str) -> Level:
    """TEXT as a level: a whole number, a number, or the word itself."""
    for kind in (int, float):
        try:
            number = kind(text)
        except (TypeError, ValueError):
            continue
        return number if math.isfinite(number) else text
    return text


def knob_of(name: str, levels: Sequence[Level], present: str | None) -> Knob:
    """A knob with what is usual for its name: where it saves, and what it caps. PRESENT is the last level if None."""
    saves = next((way for word, way in SAVES.items() if word in name), None)
    caps = "power" if "power_limit" in name and all(not isinstance(one, str) and one > 0 for one in levels) else None
    try:
        last = levels[-1] if levels else ""  # without any, Knob says what is wrong
        at = last if present is None else level_of(present)
        return Knob(name=name, levels=tuple(levels), present=at, saves=saves, caps=caps)
    except BadTerm as refused:
        raise BadInput(str(refused)) from refused


def parse_knobs(texts: Sequence[str], present: Sequence[str], *, first: bool = False) -> list[Knob]:
    """Knobs written as "batch=8,16,32", and where they are now as "batch=16"; else at their last level, or FIRST."""
    at = dict(_split(text, "--at", "batch=16") for text in present)
    levels = {name: [level_of(one.strip()) for one in rest.split(",")] for name, rest in _named(texts)}
    unknown = [name for name in at if name not in levels]
    if unknown:
        raise BadInput(f"--at names {unknown[0]!r}, which is no knob; there are {', '.join(levels) or 'none'}")
    return [knob_of(name, its, at.get(name, str(its[0]) if first else None)) for name, its in levels.items()]


def _named(texts: Sequence[str]) -> list[tuple[str, str]]:
    found = [_split(text, "--knob", "batch=8,16,32") for text in texts]
    names = [name for name, _ in found]
    if len(set(names)) < len(names):
        raise BadInput(f"a knob is given twice: {', '.join(names)}")
    return found


def _split(text: str, option: str, example: str) -> tuple[str, str]:
    name, sign, rest = text.partition("=")
    if not sign or not name.strip() or not rest.strip():
        raise BadInput(f"{option} must be like {example}, got {text!r}")
    return name.strip(), rest.strip()


def draw(found: Tuned, limits: Sequence[str | Limit], path: Path) -> None:
    """FOUND as a picture in PATH: its trials, those that no other beats, and the recommended one."""
    plot_tuned(found, limits, path)


def curve_in(path: Path, knobs: Sequence[Knob]) -> Curve:
    """What an earlier search of another workload left in PATH, to prime one with. Its first trial was its present."""
    trials = _read_trials(path, lambda _: None)
    names = [knob.name for knob in knobs]
    if not trials or any(sorted(trial.setting) != sorted(names) for trial in trials):
        raise BadInput(f"{path} holds no trials of the knobs {', '.join(names)}, so it cannot prime this search")
    own = []
    for knob in knobs:
        levels = {trial.setting[knob.name] for trial in trials}
        # Words have the order of this search; numbers have their own.
        order = sorted(levels, key=_order) if knob.numeric else [one for one in knob.levels if one in levels]
        if len(order) < len(levels):
            raise BadInput(f"{path} has levels of {knob.name} that are none here: {', '.join(map(str, levels))}")
        own.append(replace(knob, levels=tuple(order), present=trials[0].setting[knob.name]))
    return Curve(workload=str(path), space=Space(knobs=tuple(own)), trials=trials)


def _kept_trials(path: Path, space: Space) -> list[Trial]:
    """What an earlier search of the same settings left in PATH; nothing if there is no such file."""
    if not path.exists():
        return []
    return _read_trials(path, lambda trial: space.cell(trial.setting))


def _read_trials(path: Path, check: Callable[[Trial], object]) -> list[Trial]:
    """The trials in PATH. A line that was not finished, at the end, is passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"{path} cannot be read: {refused}") from refused
    found: list[Trial] = []
    for number, line in enumerate(lines, 1):
        try:
            plain = json.loads(line)
            trial = Trial(**{name: plain[name] for name in ("setting", "metrics", "noise", "failed")})
            check(trial)
        except (ValueError, KeyError, TypeError) as wrong:
            if number == len(lines) and not isinstance(wrong, BadTerm):
                break
            raise BadInput(
                f"{path}, line {number}, is not a trial of these knobs ({wrong}); give another file for another search"
            ) from wrong
        found.append(trial)
    return found


def _keep(path: Path, trial: Trial) -> None:
    """Add TRIAL to PATH, so that it outlives whatever happens next."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        torn = path.exists() and path.stat().st_size > 0 and not path.read_bytes().endswith(b"\n")
        if torn:  # what was left of a line that was being written
            kept = path.read_bytes().rpartition(b"\n")
            path.write_bytes(kept[0] + kept[1])
        with path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(as_plain(trial)) + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as refused:
        raise NotWritten(f"{path} cannot be written: {refused.strerror}. Choose another place.") from refused
