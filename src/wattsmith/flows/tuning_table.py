"""Search a table of settings that were all measured, as if each had to be tried."""

import csv
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wattsmith.flows.tuning import Goal, Watch, in_order, knob_of, level_of, tune
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed, Level, Tuned
from wattsmith.tune.judge import SPENT

Row = Mapping[str, str]


def replay_table(
    path: Path, names: Mapping[str, str | None], goal: Goal | None = None, *, watch: Watch | None = None
) -> Tuned:
    """Search a table of settings that were all measured: a CSV file with a row per setting.

    NAMES are its columns that are knobs, each with its present level, or None for the last; all other columns of
    numbers are metrics. One row counts as one query; several rows of one setting are given in turn. A setting without a
    row, or without figures, failed.
    """
    rows = _rows(path)
    if not names:
        raise BadInput(f"say which columns of {path} are knobs: {', '.join(rows[0])}")
    missing = [name for name in names if name not in rows[0]]
    if missing:
        raise BadInput(f"{path} has no column {missing[0]}; it has {', '.join(rows[0])}")
    table = _by_setting(path, rows, names)
    knobs = [
        knob_of(name, sorted({setting[at] for setting in table}, key=in_order), present)
        for at, (name, present) in enumerate(names.items())
    ]
    given: dict[tuple[Level, ...], int] = defaultdict(int)

    def measure(setting: Mapping[str, Level]) -> Mapping[str, float] | Failed:
        cell = tuple(setting.values())
        if cell not in table:
            return Failed(why="it is not in the table")
        metrics = _figures(table[cell][given[cell] % len(table[cell])], names)
        given[cell] += 1
        energy_j = metrics.get("energy_j")
        return metrics if energy_j is None else {SPENT: energy_j, **metrics}

    return tune(measure, knobs, goal, watch=watch)


def _rows(path: Path) -> list[Row]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows: list[Any] = list(csv.DictReader(file, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as refused:
        raise BadInput(f"{path} cannot be read as a table: {refused}") from refused
    if not rows:
        raise BadInput(f"{path} holds no rows: a line of names and a line per setting are needed")
    for number, row in enumerate(rows, 1):
        if None in row:
            raise BadInput(f"{path}, row {number}, has more cells than there are names: {row[None]}")
    return rows


def _by_setting(path: Path, rows: Sequence[Row], knobs: Iterable[str]) -> dict[tuple[Level, ...], list[Row]]:
    """Rows by setting. Those of one setting must be alike in words: else the table holds more than one workload."""
    table: dict[tuple[Level, ...], list[Row]] = defaultdict(list)
    for number, row in enumerate(rows, 1):
        if gap := next((name for name in knobs if not row[name].strip()), None):
            raise BadInput(f"{path}, row {number}, does not say {gap}, which is a knob")
        setting = tuple(level_of(row[name].strip()) for name in knobs)
        table[setting].append(row)
    _check_one_workload(path, table)
    return dict(table)


def _check_one_workload(path: Path, table: Mapping[tuple[Level, ...], Sequence[Row]]) -> None:
    """Raise BadInput where one setting has rows of several kinds: words that are at other settings too."""
    settings_by_word: dict[tuple[str, str], set[tuple[Level, ...]]] = defaultdict(set)
    for setting, rows in table.items():
        for row in rows:
            for name, text in row.items():
                if _number(text) is None:
                    settings_by_word[name, text].add(setting)
    for setting, rows in table.items():
        for name in rows[0]:
            kinds = {row[name] for row in rows if len(settings_by_word[name, row[name]]) > 1}
            if len(kinds) > 1:
                raise BadInput(
                    f"{path} has several rows of the setting {', '.join(map(str, setting))}, which differ in {name} "
                    f"({', '.join(sorted(kinds))}): keep the rows of one, or make {name} a knob"
                )


def _figures(row: Row, knobs: Iterable[str]) -> dict[str, float]:
    """The columns of ROW that are numbers, whatever number; words and gaps are passed over."""
    numbers = {name: _number(text) for name, text in row.items() if name not in knobs}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
