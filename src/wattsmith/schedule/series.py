"""Figures over time that a plan follows: how dirty or how dear a kilowatt-hour is."""

import csv
import itertools
import math
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from wattsmith.terms.errors import BadInput, BadTerm

KWH_J = 3.6e6
HOUR_S = 3600.0
MOST = 1e9  # of anything, per kWh
LAST_S = datetime(9999, 1, 1, tzinfo=UTC).timestamp()
HELD = 1.5  # times the usual distance between two rows, from which on one is missing between them
UNITS = {"mwh": 1e-3, "kg": 1e3, "lb": 453.59237}  # words in a column's name, and what makes it g, or money, per kWh
SEPARATORS = ",;\t"
_FORMATS = ("%d/%m/%Y %H:%M:%S", "%m/%d/%Y %H:%M:%S", "%d/%m/%Y %H:%M", "%m/%d/%Y %H:%M")


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """A figure per kilowatt-hour that holds from each time until the next. Times are seconds since 1970, UTC."""

    times_s: tuple[float, ...]
    values: tuple[float, ...]  # g or money per kWh
    until_s: float  # the last value holds until then
    gaps: tuple[tuple[float, float], ...] = ()  # from and until when a value holds because the next ones are missing

    def __post_init__(self) -> None:
        if not self.times_s or len(self.times_s) != len(self.values):
            raise BadTerm(f"a series needs as many times as values, got {len(self.times_s)} and {len(self.values)}")
        if any(a >= b for a, b in zip(self.times_s, (*self.times_s[1:], self.until_s), strict=True)):
            raise BadTerm("the times of a series must rise")
        if not all(math.isfinite(value) for value in self.values):
            raise BadTerm("the values of a series must be finite")

    def mean(self, from_s: float, until_s: float) -> float:
        """The mean value per joule between two moments that the series spans."""
        if from_s < self.times_s[0] or until_s > self.until_s + 1e-6:
            raise BadTerm(
                f"the series spans {iso(self.times_s[0])} … {iso(self.until_s)}, and is asked for "
                f"{iso(from_s)} … {iso(until_s)}; give a longer one"
            )
        place = bisect_right(self.times_s, from_s) - 1
        total, at_s = 0.0, from_s
        while at_s < until_s:
            ends_s = self.times_s[place + 1] if place + 1 < len(self.times_s) else math.inf
            next_s = min(until_s, ends_s)
            total += self.values[place] * (next_s - at_s)
            at_s, place = next_s, place + 1
        return total / (until_s - from_s) / KWH_J


def iso(time_s: float) -> str:
    """For people: 2026-11-16 18:00Z."""
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%MZ")


def read_series(path: Path) -> Series:
    """The series in a CSV file: a header, then a time and a figure per kWh in each row."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            header = file.readline()
            file.seek(0)
            separator = max(SEPARATORS, key=header.count)
            rows = [row for row in csv.reader(file, delimiter=separator) if any(cell.strip() for cell in row)]
    except (OSError, UnicodeDecodeError, csv.Error) as refused:
        why = refused.strerror if isinstance(refused, OSError) else f"it is no table ({refused})"
        raise BadInput(f"the series {path} cannot be read: {why}") from refused
    if len(rows) < 3:
        raise BadInput(f"the series {path} has {max(0, len(rows) - 1)} rows; it needs a header and at least two")
    time_at, value_at = _columns(rows[0], path)
    unit = _unit(rows[0][value_at])
    times_s, values = _times(path, [_cell(path, n, row, time_at) for n, row in enumerate(rows[1:], 2)]), []
    for number, row in enumerate(rows[1:], 2):
        text = _cell(path, number, row, value_at)
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not abs(value) < MOST:
            raise BadInput(f"{path}, line {number}: {rows[0][value_at]} must be a number per kWh, got {text!r}")
        values.append(value * unit)
    for number, (before, after) in enumerate(itertools.pairwise(times_s), 3):
        if after <= before:
            raise BadInput(
                f"{path}, line {number}: the time does not rise; sort the rows, and keep one of each time. "
                "Where clocks were put back, write times with their zone, as in 2026-10-25T02:00+01:00"
            )
    gap_s = sorted(b - a for a, b in itertools.pairwise(times_s))[(len(times_s) - 1) // 2]
    gaps = tuple((a, b) for a, b in itertools.pairwise(times_s) if b - a > HELD * gap_s)
    return Series(times_s=tuple(times_s), values=tuple(values), until_s=times_s[-1] + gap_s, gaps=gaps)


def _cell(path: Path, number: int, row: Sequence[str], place: int) -> str:
    if place >= len(row):
        raise BadInput(f"{path}, line {number}: has {len(row)} cells, and the header has more")
    return row[place].strip()


def _columns(header: Sequence[str], path: Path) -> tuple[int, int]:
    names = [name.strip().lower() for name in header]
    times = [place for place, name in enumerate(names) if any(word in name for word in ("time", "date"))]
    values = [
        place
        for place, name in enumerate(names)
        if place not in times
        and any(word in name for word in ("carbon", "intensity", "price", "tariff", "value", "cost"))
    ]
    if not times or not values:
        raise BadInput(
            f"{path}, line 1: one column must be called time and one carbon_intensity (g/kWh), price (per kWh) or "
            f"value; there are {', '.join(header) or 'none'}"
        )
    return times[0], values[0]


def _unit(name: str) -> float:
    """What a value must be multiplied with to be g, or money, per kWh, by the NAME of its column."""
    words = re.findall("[a-z]+", name.lower())
    return math.prod(factor for start, factor in UNITS.items() if any(word.startswith(start) for word in words))


def _times(path: Path, texts: Sequence[str]) -> list[float]:
    """TEXTS as seconds since 1970. A format in which day and month could be either is settled by the whole column."""
    for read in (float, _iso_time, *(_by(form) for form in _FORMATS)):
        try:
            found = [read(text) for text in texts]
        except ValueError:
            continue
        if not all(abs(time_s) < LAST_S for time_s in found):
            raise BadInput(f"{path}, line 2: {texts[0]!r} is no time in seconds since 1970; is it in milliseconds?")
        if all(a < b for a, b in itertools.pairwise(found)):
            return found
    for number, text in enumerate(texts, 2):
        try:
            _iso_time(text)
        except ValueError:
            raise BadInput(f"{path}, line {number}: {text!r} is no time; write 2026-11-16T18:00Z") from None
    return [_iso_time(text) for text in texts]


def _iso_time(text: str) -> float:
    at = datetime.fromisoformat(text)
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _by(form: str):  # type: ignore[no-untyped-def]
    return lambda text: datetime.strptime(text, form).replace(tzinfo=UTC).timestamp()
