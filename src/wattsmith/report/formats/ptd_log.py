"""ptd_logs.txt: what the power daemon said. A banner, then `MM-DD-YYYY hh:mm:ss.mmm: text`.

Two messages may share a line, because the daemon buffers what it writes.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from wattsmith.report.formats.lines import Line, Source, lines_of
from wattsmith.report.formats.stamps import PATTERN, stamp, stamp_s

_WIDTH = len("MM-DD-YYYY hh:mm:ss.mmm")
_LATER = re.compile(PATTERN + ": ")
_AVERAGES = re.compile(
    r"Avg watts ([^,]+), min watts ([^,]+), max watts ([^,]+), samples (\d+), errors (\d+), valid (\d+)"
)
_UNCERTAINTY = re.compile(r"Uncertainty (\d+(?:\.\d+)?)%(?:, which is)? above 1\.00% limit")
_RANGE = re.compile(r"(Volt|Amp)(?:ere)? range set to (\S+)")  # "Ampere" when it is automatic, "Amp" when not


@dataclass(frozen=True, slots=True)
class Said:
    """One message of the daemon."""

    time_s: float  # since 1970, of the daemon's clock
    text: str
    before: int  # where in the line it begins


@dataclass(frozen=True, slots=True)
class PtdLine:
    """One line, with the messages in it: none in the banner and in what the meter answered, seldom two."""

    number: int
    text: str
    ending: str
    messages: tuple[Said, ...]

    @property
    def line(self) -> str:
        return self.text + self.ending


@dataclass(frozen=True, slots=True, kw_only=True)
class Averages:
    """What the daemon counted itself, once at the end of each measurement."""

    mean_w: float
    min_w: float
    max_w: float
    samples: int
    errors: int
    valid: int


def ptd_lines(source: Source, name: str | None = None) -> Iterator[PtdLine]:
    """Every line of the file in order, streamed."""
    for line in lines_of(source, name):
        yield PtdLine(line.number, line.text, line.ending, _messages(line))


def _messages(line: Line) -> tuple[Said, ...]:
    text = line.text
    if text[_WIDTH : _WIDTH + 2] != ": " and text[_WIDTH:] != ":":
        return ()
    try:
        first_s = stamp_s(text[:_WIDTH])
    except ValueError:
        return ()
    # Looked for only where the day stands a second time in the line, which is seldom.
    later = list(_LATER.finditer(text, _WIDTH)) if text.find(text[:11], _WIDTH) > 0 and "Time," not in text else []
    starts = [0, *(found.start() for found in later)]
    said = []
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        try:
            moment_s = first_s if start == 0 else stamp_s(text[start : start + _WIDTH])
        except ValueError:
            continue
        said.append(Said(moment_s, text[start + _WIDTH + 1 : end].strip(), start))
    return tuple(said)


def ptd_line(time_s: float, text: str) -> str:
    """A new line, without its ending."""
    return f"{stamp(time_s)}: {text}"


def averages_in(text: str) -> Averages | None:
    """The daemon's own averages in a message; None when it holds none."""
    found = _AVERAGES.search(text)
    if found is None:
        return None
    try:
        mean_w, min_w, max_w = float(found[1]), float(found[2]), float(found[3])
    except ValueError:
        return None
    return Averages(
        mean_w=mean_w, min_w=min_w, max_w=max_w, samples=int(found[4]), errors=int(found[5]), valid=int(found[6])
    )


def watts_reply(reply: str) -> Averages | None:
    """The same from the answer to the command Watts: `Watts,<avg>,<min>,<max>,<samples>,<errors>,<valid>`."""
    parts = reply.split(",")
    if len(parts) != 7 or parts[0] != "Watts":
        return None
    try:
        mean_w, min_w, max_w = (float(part) for part in parts[1:4])
        samples, errors, valid = (int(part) for part in parts[4:])
    except ValueError:
        return None
    return Averages(mean_w=mean_w, min_w=min_w, max_w=max_w, samples=samples, errors=errors, valid=valid)


def uncertainty_in(text: str) -> float | None:
    """The uncertainty of a sample that the daemon found above the limit of 1 %, as a share of 1; None: nothing such."""
    found = _UNCERTAINTY.search(text)
    return None if found is None else float(found[1]) / 100


def range_in(text: str) -> tuple[str, str] | None:
    """Which range was set ("Volt" or "Amp") and to what, in a message."""
    found = _RANGE.search(text)
    return None if found is None else (found[1], found[2])
