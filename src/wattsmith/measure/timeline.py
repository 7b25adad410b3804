"""A measurement as a table: every reading, window and phase, in the order they came, as CSV or Parquet.

Rows are written as CSV while the measurement runs, so that whatever ends it leaves a readable file behind; Parquet
is made from them at the end. Replaying a timeline gives the same figures.
"""

import csv
import dataclasses
import json
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattsmith.measure.session import Span
from wattsmith.measure.track import Fed
from wattsmith.terms.energy import MeterCard
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.machine import GaugeReading

VERSION = 1
FLUSH_EVERY_S = 1.0
GAUGE_COLUMNS = tuple(f.name for f in dataclasses.fields(GaugeReading) if f.name not in ("time_s", "domain"))
COLUMNS = ("time_s", "batch", "domain", "power_w", "counter_j", "event", "detail", *GAUGE_COLUMNS)
TEXT_COLUMNS = ("domain", "event", "detail", "throttled_by")
WHOLE_COLUMNS = ("batch", "memory_used_bytes", "read_bytes", "written_bytes", "processes")


class Timeline:
    """Writes a timeline. Its methods are listeners of a session and may be called from several threads.

    A disk that is full stops the writing, never the measurement: `failed` says so, and what was written stays.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix not in (".csv", ".parquet"):
            raise BadInput(f"a timeline is written as .csv or .parquet, not {path.name!r}")
        self.path = path
        self.failed: str | None = None
        self.rows = 0
        self._batch = 0
        self._lock = threading.Lock()
        self._spool = path if path.suffix == ".csv" else path.with_name(path.name + ".partial.csv")
        self._flush_due_s = 0.0
        try:
            self._file = self._spool.open("w", newline="", encoding="utf-8")
        except OSError as refused:
            raise NotWritten(
                f"cannot write the timeline {path}: {refused.strerror}. Choose another place."
            ) from refused
        self._writer = csv.writer(self._file)
        self._write([list(COLUMNS)])

    def start(self, cards: Sequence[MeterCard], missing: Mapping[str, str], wall_ahead_s: float) -> None:
        """Say what will follow. The wall clock reads WALL_AHEAD_S more than the monotonic one."""
        head = {"wattsmith_timeline": VERSION, "wall_ahead_s": wall_ahead_s, "missing": dict(missing)}
        rows = [_row(event="timeline", detail=json.dumps(head))]
        rows += [_row(domain=card.domain, event="meter", detail=_card_text(card)) for card in cards]
        self._write(rows)

    def on_fed(self, fed: Fed) -> None:
        readings = fed.readings
        rows = [_row(domain=fed.domain, time_s=s.time_s, power_w=s.power_w) for s in readings.power]
        if readings.counter is not None:
            counter = readings.counter
            rows.append(_row(domain=fed.domain, time_s=counter.time_s, counter_j=counter.energy_j))
        if readings.missed:
            detail = json.dumps({"missed": readings.missed, "why": readings.why_missed})
            rows.append(_row(domain=fed.domain, event="missed", detail=detail))
        if fed.held_until_s is not None:
            rows.append(_row(domain=fed.domain, time_s=fed.held_until_s, event="held"))
        if fed.lost is not None:
            rows.append(_row(domain=fed.domain, event="lost", detail=fed.lost))
        self._write(rows)

    def on_gauge(self, reading: GaugeReading) -> None:
        plain = dataclasses.asdict(reading)
        plain["throttled_by"] = None if reading.throttled_by is None else "; ".join(reading.throttled_by)
        self._write([_row(event="gauge", **plain)])

    def on_span(self, span: Span) -> None:
        event = "window" if span.phase is None else "phase"
        self._write([_row(time_s=span.begin_s, event=event, detail=json.dumps(as_plain(span)))])

    def _write(self, rows: list[list[Any]]) -> None:
        with self._lock:
            if self.failed is not None or not rows:
                return
            self._batch += 1
            try:
                for row in rows:
                    row[1] = row[1] if row[0] == "time_s" else self._batch
                self._writer.writerows(rows)
                self.rows += len(rows)
                if time.monotonic() >= self._flush_due_s:
                    self._file.flush()
                    self._flush_due_s = time.monotonic() + FLUSH_EVERY_S
            except OSError as refused:
                self._fail(refused)

    def _fail(self, refused: OSError) -> None:
        self.failed = f"writing {self.path} failed after {self.rows} rows: {refused.strerror}"

    def close(self) -> None:
        """Finish the file. Raises NotWritten, with what is left where, when it could not be finished."""
        with self._lock:
            try:
                self._file.close()
            except OSError as refused:
                self._fail(refused)
        if self.failed is None and self._spool != self.path:
            self._finish_parquet()
        if self.failed is not None:
            raise NotWritten(f"{self.failed}. The rows that were written are in {self._spool}.")

    def discard(self) -> None:
        """Remove what was written: there was nothing to measure."""
        with self._lock, suppress(OSError):
            self._file.close()
        if not self._spool.is_symlink() and self._spool.is_file():
            self._spool.unlink()

    def _finish_parquet(self) -> None:
        try:
            csv_to_parquet(self._spool, self.path)
            self._spool.unlink()
        except OSError as refused:
            self.failed = f"writing {self.path} failed: {refused.strerror or refused}"


def _row(**values: Any) -> list[Any]:
    return [_text(values.get(column)) for column in COLUMNS]


def _text(value: Any) -> Any:
    return "" if value is None else repr(value) if isinstance(value, float) else value


def _card_text(card: MeterCard) -> str:
    return json.dumps({f.name: as_plain(getattr(card, f.name)) for f in dataclasses.fields(card)})


def csv_to_parquet(source: Path, target: Path) -> None:
    """The same rows and columns, typed."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    types = {
        c: pa.string() if c in TEXT_COLUMNS else pa.int64() if c in WHOLE_COLUMNS else pa.float64() for c in COLUMNS
    }
    convert = arrow_csv.ConvertOptions(column_types=types, strings_can_be_null=True, quoted_strings_can_be_null=False)
    parse = arrow_csv.ParseOptions(newlines_in_values=True)
    partial = target.with_name(target.name + ".partial")
    try:
        with (
            arrow_csv.open_csv(source, convert_options=convert, parse_options=parse) as rows,
            parquet.ParquetWriter(partial, rows.schema) as writer,
        ):
            for chunk in rows:
                writer.write_batch(chunk)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
