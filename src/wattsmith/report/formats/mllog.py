"""Lines `:::MLLOG {json}`: LoadGen's detail log, training results, power logs of training nodes and switches."""

import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from wattsmith.report.formats.lines import Line, Source, Unread, lines_of, readable

TOKEN = ":::MLLOG"
_KEY = re.compile(r'"key"\s*:\s*"([^"\\]*)"')


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event. `text` is the whole line as it stands, with what may come before the token."""

    number: int
    text: str
    ending: str
    key: str
    value: Any
    time_s: float | None  # of the log's own clock: LoadGen's starts at 0, that of training in 1970
    body: Mapping[str, Any]  # all of the JSON, with fields that we do not know

    @property
    def line(self) -> str:
        return self.text + self.ending

    @property
    def metadata(self) -> Mapping[str, Any]:
        """{} where it is missing, or an empty text as in some published logs."""
        found = self.body.get("metadata")
        return found if isinstance(found, dict) else {}


def log_lines(
    source: Source, name: str | None = None, keys: Collection[str] | None = None
) -> Iterator[LogEvent | Line | Unread]:
    """Every line in order: an event, another line (Line), or an event that cannot be read (Unread).

    With `keys`, only events with these keys are taken apart, which is several times as quick; others come as Line.
    """
    for line in lines_of(source, name):
        start = line.text.find(TOKEN)
        if start < 0:
            yield line
            continue
        if keys is not None and (found := _KEY.search(line.text, start)) and found[1] not in keys:
            yield line
            continue
        yield _event(line, line.text[start + len(TOKEN) :])


def log_events(
    source: Source, name: str | None = None, keys: Collection[str] | None = None
) -> Iterator[LogEvent | Unread]:
    """Only the events, and those that cannot be read."""
    return (line for line in log_lines(source, name, keys) if not isinstance(line, Line))


def _event(line: Line, text: str) -> LogEvent | Unread:
    try:
        body = json.loads(text)
    except (ValueError, RecursionError) as wrong:
        why = f"the JSON after {TOKEN} is broken ({wrong}): {readable(text)}"
        return Unread(line.number, line.text, line.ending, why)
    if not isinstance(body, dict) or not isinstance(body.get("key"), str):
        return Unread(line.number, line.text, line.ending, f"the event has no key: {readable(text)}")
    moment = body.get("time_ms")
    time_s = moment / 1_000 if isinstance(moment, int | float) and abs(moment) < 1e18 else None
    return LogEvent(line.number, line.text, line.ending, body["key"], body.get("value"), time_s, body)


def loadgen_line(key: str, value: Any, time_s: float, **metadata: Any) -> str:
    """A new line, without its ending, in the order of fields that LoadGen has. time_s is since its start."""
    body = {"key": key, "value": value, "time_ms": time_s * 1_000, "namespace": "mlperf::logging"}
    return f"{TOKEN} {json.dumps({**body, 'event_type': 'POINT_IN_TIME', 'metadata': metadata})}"


def training_line(key: str, value: Any, time_s: float, event_type: str = "POINT_IN_TIME", **metadata: Any) -> str:
    """A new line, without its ending, in the order of fields that training logs have. time_s is since 1970."""
    body = {"namespace": "", "time_ms": round(time_s * 1_000), "event_type": event_type, "key": key, "value": value}
    return f"{TOKEN} {json.dumps({**body, 'metadata': metadata})}"
