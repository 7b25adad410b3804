"""Measurements of another time: timelines give their windows again, power traces act as a meter."""

import csv
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from wattsmith.measure.session import Phases, Span, add_phase, date_of, with_phases
from wattsmith.measure.tape import Mark, Tape, energy_between
from wattsmith.measure.timeline import VERSION
from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source, Window
from wattsmith.terms.errors import BadInput, MeterLost
from wattsmith.terms.ports import Clock

Row = Mapping[str, Any]
LARGEST = 1e15  # no meter gives more, in any unit
LONGEST_S = 3e10  # nor does a clock: a thousand years


def read_rows(path: Path) -> Iterator[tuple[int, Row]]:
    """The rows of a CSV or Parquet file with their numbers, header counted as line 1; empty cells are None."""
    if not path.exists():
        raise BadInput(f"there is no file {path}")
    if path.suffix.lower() == ".parquet":
        yield from enumerate(_parquet_rows(path), start=2)
    elif path.suffix.lower() == ".csv":
        with path.open(newline="", encoding="utf-8", errors="replace") as file:
            for number, row in enumerate(csv.DictReader(file), start=2):
                yield number, {key: value or None for key, value in row.items() if key is not None}
    else:
        raise BadInput(f"{path.name} is neither .csv nor .parquet")


def _parquet_rows(path: Path) -> Iterator[Row]:
    import pyarrow as pa
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield from batch.to_pylist()
    except pa.ArrowInvalid as broken:
        raise BadInput(f"{path} is not a Parquet file: {broken}") from broken


def number_in(row: Row, column: str, path: Path, line: int) -> float | None:
    """The number in one cell; None when it is empty."""
    value = row.get(column)
    if value is None:
        return None
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{path}, line {line}: {column} is {value!r}, not a number") from None
    if not math.isfinite(number):
        raise BadInput(f"{path}, line {line}: {column} is {value!r}, not a finite number")
    if abs(number) > _largest(column):
        raise BadInput(f"{path}, line {line}: {column} is {value!r}, which no meter gives")
    return number


def _largest(name: str) -> float:
    return LONGEST_S if name.endswith("_s") else LARGEST


# ---- timelines


@dataclass(frozen=True, slots=True)
class _Recorded:
    """A timeline, read back onto tapes."""

    wall_ahead_s: float
    missing: Mapping[str, str]
    tapes: Mapping[str, Tape]
    spans: list[Span]


def replay_windows(path: Path) -> list[Window]:
    """The windows of a timeline in the order they ended, worked out again from its readings."""
    recorded = _read_timeline(path)
    phases = [span for span in recorded.spans if span.phase is not None]
    return [_window(recorded, span, phases) for span in recorded.spans if span.phase is None]


def _read_timeline(path: Path) -> _Recorded:
    head: _Head | None = None
    tapes: dict[str, Tape] = {}
    spans: list[Span] = []
    readings: list[tuple[int, Row]] = []
    for line, row in read_rows(path):
        if not row.keys() >= {"event", "batch", "domain"}:
            raise BadInput(f"{path} is no timeline: it lacks one of the columns event, batch, domain")
        event = row["event"]
        if event == "timeline":
            head = _head(_json(row, path, line), path, line)
        elif event == "meter":
            card = _card(_json(row, path, line), path, line)
            tapes[card.domain] = Tape(card)
        elif event in ("window", "phase"):
            spans.append(_span(_json(row, path, line), path, line))
        elif event != "gauge":
            readings.append((line, row))
    if head is None:
        raise BadInput(f"{path} is no timeline: it has no row with event `timeline`")
    for batch in _batches(readings):
        _feed(tapes, batch, path)
    return _Recorded(head.wall_ahead_s, head.missing, tapes, spans)


def _batches(rows: list[tuple[int, Row]]) -> Iterator[list[tuple[int, Row]]]:
    batch: list[tuple[int, Row]] = []
    for line, row in rows:
        if batch and batch[-1][1]["batch"] != row["batch"]:
            yield batch
            batch = []
        batch.append((line, row))
    if batch:
        yield batch


def _feed(tapes: Mapping[str, Tape], batch: list[tuple[int, Row]], path: Path) -> None:
    first_line, first = batch[0]
    tape = tapes.get(str(first["domain"]))
    if tape is None:
        raise BadInput(f"{path}, line {first_line}: no meter is named for domain {first['domain']!r}")
    power: list[PowerSample] = []
    counter, missed, why = None, 0, None
    for line, row in batch:
        time_s = number_in(row, "time_s", path, line)
        power_w, counter_j = number_in(row, "power_w", path, line), number_in(row, "counter_j", path, line)
        if row["event"] == "missed":
            lack = _fact(_Missed, _json(row, path, line), path, line)
            missed, why = lack.missed, lack.why
        elif row["event"] == "lost":
            tape.lose(str(row["detail"]))
        elif time_s is None:
            raise BadInput(f"{path}, line {line}: time_s is empty")
        elif row["event"] == "held":
            tape.hold_until(time_s)
        elif power_w is not None:
            power.append(PowerSample(time_s, power_w))
        elif counter_j is not None:
            counter = CounterReading(time_s, counter_j)
    if power and tape.card.power_period_s is None:
        raise BadInput(f"{path}, line {first_line}: the meter of {tape.card.domain} is said to give no power")
    tape.feed(Readings(power=tuple(power), counter=counter, missed=missed, why_missed=why))


def _window(recorded: _Recorded, span: Span, phases: list[Span]) -> Window:
    def marks(time_s: float, since_s: float | None = None) -> list[Mark]:
        return [tape.mark(time_s, since_s) for tape in recorded.tapes.values()]

    cards = [tape.card for tape in recorded.tapes.values()]
    begin, end = marks(span.begin_s), marks(span.end_s, span.begin_s)
    window = Window(
        name=span.window,
        began_at=date_of(span.begin_s, recorded.wall_ahead_s),
        duration_s=span.end_s - span.begin_s,
        domains=tuple(energy_between(*ends) for ends in zip(cards, begin, end, strict=True)),
        missing=recorded.missing,
    )
    folded: Phases = {}
    for phase in phases:
        if (phase.window, phase.window_begin_s) != (span.window, span.begin_s) or phase.phase is None:
            continue
        ends = marks(phase.begin_s), marks(phase.end_s)
        add_phase(folded, phase.phase, phase.end_s - phase.begin_s, *ends)
    return with_phases(window, folded) if folded else window


def _json(row: Row, path: Path, line: int) -> dict[str, Any]:
    try:
        detail = json.loads(row.get("detail") or "")
    except ValueError as broken:
        raise BadInput(f"{path}, line {line}: detail is not JSON: {broken}") from broken
    if not isinstance(detail, dict):
        raise BadInput(f"{path}, line {line}: detail is not a JSON object")
    return detail


def _head(detail: dict[str, Any], path: Path, line: int) -> "_Head":
    version = detail.get("wattsmith_timeline")
    if version != VERSION:
        raise BadInput(f"{path}, line {line}: timeline version {version!r} is not known; this program reads {VERSION}")
    return _fact(_Head, detail, path, line)


def _card(detail: dict[str, Any], path: Path, line: int) -> MeterCard:
    card = _fact(MeterCard, detail, path, line)
    if any(name.endswith("_s") and value is not None and value <= 0 for name, value in detail.items()):
        raise BadInput(f"{path}, line {line}: a meter's periods must be positive")
    return card


def _span(detail: dict[str, Any], path: Path, line: int) -> Span:
    span = _fact(Span, detail, path, line)
    if span.end_s < span.begin_s:
        raise BadInput(f"{path}, line {line}: {span.window!r} ends before it begins")
    return span


@dataclass(frozen=True, slots=True, kw_only=True)
class _Head:
    """The first row of a timeline."""

    wattsmith_timeline: int
    wall_ahead_s: float
    missing: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Missed:
    """Readings that did not come."""

    missed: int
    why: str | None


F = TypeVar("F")


def _fact(kind: type[F], detail: dict[str, Any], path: Path, line: int) -> F:
    """A fact of KIND with the values of DETAIL, each of the type that its field wants."""
    hints = get_type_hints(kind)
    try:
        return kind(**{name: _value(name, value, hints[name]) for name, value in detail.items()})
    except KeyError as unknown:
        raise BadInput(f"{path}, line {line}: {kind.__name__.strip('_')} has no {unknown}") from unknown
    except (TypeError, ValueError) as broken:
        raise BadInput(f"{path}, line {line}: not a {kind.__name__.strip('_')}: {broken}") from broken


def _value(name: str, value: Any, wanted: Any) -> Any:
    """VALUE, which came from JSON, as the type WANTED for NAME; ValueError when it is another one."""
    if wanted is Source:
        return Source(value)
    if wanted == tuple[str, ...] and isinstance(value, list) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if wanted == dict[str, str] and isinstance(value, dict) and all(isinstance(item, str) for item in value.values()):
        return value
    allowed = get_args(wanted) or (wanted,)
    if isinstance(value, bool):
        fits = bool in allowed
    elif isinstance(value, int | float):
        fits = (float in allowed or (int in allowed and value in range(2**31))) and abs(value) <= _largest(name)
    else:
        fits = type(value) in allowed
    if not fits:
        raise ValueError(f"{name} is {value!r}")
    return value


# ---- power traces as meters


class ReplayMeter:
    """Plays a recorded power trace as if it were measured now: its first sample falls on the moment of creation."""

    def __init__(self, samples: list[PowerSample], card: MeterCard, clock: Clock) -> None:
        if not samples:
            raise BadInput(f"the trace of {card.domain} holds no sample")
        self.card = card
        self._clock = clock
        shift_s = clock.now_s() - samples[0].time_s
        self._coming = [PowerSample(s.time_s + shift_s, s.power_w) for s in reversed(samples)]

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002 - a trace of power has no counter
        if not self._coming:
            raise MeterLost("the recorded trace has ended")
        now_s = self._clock.now_s()
        fresh = []
        while self._coming and self._coming[-1].time_s <= now_s:
            fresh.append(self._coming.pop())
        return Readings(power=tuple(fresh))

    def close(self) -> None:
        self._coming = []


def read_power_trace(path: Path) -> dict[str, list[PowerSample]]:
    """Power samples by domain from a table with columns time_s, power_w and, if it has several, domain."""
    traces: dict[str, list[PowerSample]] = {}
    for line, row in read_rows(path):
        for column in ("time_s", "power_w"):
            if column not in row:
                raise BadInput(f"{path} has no column {column}; it has: {', '.join(row)}")
        time_s, power_w = number_in(row, "time_s", path, line), number_in(row, "power_w", path, line)
        if power_w is None:
            continue  # a row of another kind, such as a counter reading in a timeline
        if time_s is None:
            raise BadInput(f"{path}, line {line}: time_s is empty")
        if power_w < 0:
            raise BadInput(f"{path}, line {line}: power_w is negative: {power_w}")
        trace = traces.setdefault(str(row.get("domain") or "external:0"), [])
        if trace and time_s <= trace[-1].time_s:
            raise BadInput(f"{path}, line {line}: time_s {time_s} does not come after {trace[-1].time_s}")
        trace.append(PowerSample(time_s, power_w))
    if not traces:
        raise BadInput(f"{path} holds no power samples")
    return traces


def find_replay(path: Path, clock: Clock) -> list[ReplayMeter]:
    """One meter per domain of a recorded power trace."""
    meters = []
    for domain, samples in read_power_trace(path).items():
        gaps_s = sorted(b.time_s - a.time_s for a, b in pairwise(samples)) or [1.0]
        period_s = gaps_s[len(gaps_s) // 2]
        card = MeterCard(
            domain=domain,
            name=f"replay of {path.name}",
            source=Source.EXTERNAL,
            power_period_s=period_s,
            history_s=LONGEST_S,
            poll_period_s=max(0.05, period_s),
            note=f"a recording ({path.name}), not this machine",
        )
        meters.append(ReplayMeter(samples, card, clock))
    return meters
