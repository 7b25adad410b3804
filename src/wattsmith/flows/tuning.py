"""Find the setting that needs the least energy, time or money within limits."""

import importlib.util
import json
import math
import numbers
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from wattsmith.flows.tuning_hardware import Means, Measure, Say, is_hardware, turned
from wattsmith.terms.errors import BadInput, BadTerm, ExtraNeeded, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.tuning import Curve, Failed, Knob, Level, Space, Trial, Tuned
from wattsmith.tune.goals import Limit, parse_limits, parse_objective
from wattsmith.tune.judge import SPENT
from wattsmith.tune.plot import plot_tuned
from wattsmith.tune.result import tuned
from wattsmith.tune.search import Manner, Tuner

__all__ = ["Goal", "Manner", "check_noise", "curve_in", "draw", "knob_of", "parse_knobs", "tune"]

SAVES = {"batch": "up", "power_limit": "down", "clock": "down", "frequency": "down", "threads": "down"}

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
        made = [knob_of(name, [_own_number(one) for one in levels], None) for name, levels in knobs.items()]
        return [replace(knob, present=knob.levels[0]) for knob in made]
    return list(knobs)


def _own_number(level: Any) -> Level:
    """LEVEL as a number of Python's own, where it is one of numpy's."""
    if isinstance(level, int | float | str):
        return level
    if isinstance(level, numbers.Integral):
        return int(level)
    return float(level) if isinstance(level, numbers.Real) else level


def check_noise(goal: Goal) -> None:
    """Raise BadInput where GOAL tells the noise of something that is neither minimised nor limited."""
    wanted = [*parse_objective(goal.objective), *(one.metric for one in parse_limits(goal.limits))]
    for name in goal.noise or {}:
        if not any(name == one or name.startswith(f"{one}_") for one in wanted):
            raise BadInput(f"noise is told of {name!r}, but what is minimised or limited is {', '.join(wanted)}")


def tune(
    measure: Measure,
    knobs: Knobs,
    goal: Goal | None = None,
    *,
    trials: Path | str | None = None,
    watch: Watch | None = None,
    means: Means | None = None,
    say: Say = lambda _: None,
) -> Tuned:
    """Search the settings of KNOBS, where MEASURE gives the metrics of one, a Trial with their noise too, or Failed.

    That memory is too small (MemoryError, torch.OutOfMemoryError) is a failure of that setting too; whatever else
    MEASURE raises ends the search.

    KNOBS by name with their levels, `{"batch": [1, 2, 4]}`, are at the first of them now; a Knob says more.
    TRIALS is a file of what was tried: what it holds is not tried again, and every trial is added to it at once. A knob
    that is named as `wattsmith control` names it ("gpu:0/power_limit") is turned under a lease, by MEANS, around each
    trial, and comes back; MEASURE does not see it. SAY is told what may not be turned, and what has no effect.
    """
    _require_scipy()
    with turned(measure, as_knobs(knobs), means or Means(), say) as (measured, usable):
        kept = None if trials is None else Path(trials)
        return _searched(measured, usable, goal or Goal(), kept, watch, say)


def _searched(
    measure: Measure, knobs: Sequence[Knob], goal: Goal, trials: Path | None, watch: Watch | None, say: Say
) -> Tuned:
    space = Space(knobs=tuple(knobs))
    tuner = Tuner(space, goal.objective, goal.limits, curves=goal.curves, manner=goal.manner)
    kept = [] if trials is None else _kept_trials(trials, space)
    for trial in kept:
        tuner.tell(trial.setting, _outcome(trial), trial.noise or goal.noise)

    def one_trial(setting: Mapping[str, Level]) -> None:
        try:
            outcome = measure(setting)
        except (MemoryError, RuntimeError) as failed:
            if not _does_not_fit(failed):
                raise
            outcome = Failed(why=f"{type(failed).__name__}: {' '.join(str(failed).split()) or 'no message'}")
        if isinstance(outcome, Trial):
            tuner.tell(setting, _outcome(outcome), {**outcome.noise, **(goal.noise or {})})
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


def _does_not_fit(failed: Exception) -> bool:
    """Whether memory was too small: Python's own word for it, or PyTorch's, which need not be imported for that."""
    return isinstance(failed, MemoryError) or type(failed).__name__ == "OutOfMemoryError"


def _outcome(trial: Trial) -> Mapping[str, float] | Failed:
    return trial.metrics if trial.failed is None else Failed(why=trial.failed, spent_j=trial.metrics.get(SPENT))


def _tell_drift(tuner: Tuner, say: Say) -> None:
    """Say so where the present setting by now needs another amount than at first, by more than what is to be saved."""
    began = tuner.judge.first_of_present()
    assert began is not None  # or the search would not have come to its end
    first, last = tuner.judge.seen[began], tuner.judge.seen[-1]
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


def in_order(level: Level) -> tuple[bool, float, str]:
    """By which levels are sorted: numbers by size, then words."""
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
    if standing := [name for name in at if is_hardware(name)]:
        raise BadInput(f"--at {standing[0]}: a knob of the machine starts where it stands; leave that out")
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
    trials = read_trials(path)
    names = [knob.name for knob in knobs]
    if not trials or any(sorted(trial.setting) != sorted(names) for trial in trials):
        raise BadInput(f"{path} holds no trials of the knobs {', '.join(names)}, so it cannot prime this search")
    own = []
    for knob in knobs:
        levels = {trial.setting[knob.name] for trial in trials}
        # Words have the order of this search; numbers have their own.
        order = sorted(levels, key=in_order) if knob.numeric else [one for one in knob.levels if one in levels]
        if len(order) < len(levels):
            raise BadInput(f"{path} has levels of {knob.name} that are none here: {', '.join(map(str, levels))}")
        own.append(replace(knob, levels=tuple(order), present=trials[0].setting[knob.name]))
    return Curve(workload=str(path), space=Space(knobs=tuple(own)), trials=trials)


def _kept_trials(path: Path, space: Space) -> list[Trial]:
    """What an earlier search of the same settings left in PATH; nothing if there is no such file."""
    if not path.exists():
        return []
    if not path.is_file():
        raise NotWritten(f"trials cannot be kept in {path}, which is no plain file; choose another place")
    return read_trials(path, lambda trial: space.cell(trial.setting))


def read_trials(path: Path, check: Callable[[Trial], object] = lambda _: None) -> list[Trial]:
    """The trials in PATH, each of which CHECK may refuse. A line that was not finished, at the end, is passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"{path} cannot be read: {refused}") from refused
    found: list[Trial] = []
    for number, line in enumerate(lines, 1):
        try:
            trial = parse_fact(Trial, json.loads(line), "trial")
            check(trial)
        except (json.JSONDecodeError, BadInput, BadTerm) as wrong:
            if number == len(lines) and isinstance(wrong, json.JSONDecodeError):
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
