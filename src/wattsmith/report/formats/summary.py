"""mlperf_log_summary.txt: LoadGen's result for people, `name : value` with headings between."""

from collections.abc import Mapping
from dataclasses import dataclass

from wattsmith.report.formats.lines import Line, Source, bad, lines_of, name_of, written

MOST_LINES = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The file: its lines as they stand, and the values by name."""

    lines: tuple[Line, ...]
    values: Mapping[str, str]  # the first of a name counts

    def encode(self) -> bytes:
        return written(self.lines)

    def number(self, name: str) -> float | None:
        """The value called NAME; None when there is none, or it is no number."""
        try:
            return float(self.values[name])
        except (KeyError, ValueError):
            return None


def read_summary(source: Source, name: str | None = None) -> Summary:
    """Raises BadInput, with file and line, for what is no text or has lines beyond all reason."""
    lines: list[Line] = []
    values: dict[str, str] = {}
    for line in lines_of(source, name):
        if line.number > MOST_LINES:
            raise bad(name_of(source, name), line.number, f"a summary has no more than {MOST_LINES} lines")
        lines.append(line)
        key, colon, value = line.text.partition(":")
        if colon:
            values.setdefault(key.strip(), value.strip())
    return Summary(lines=tuple(lines), values=values)
