"""spl.txt: one line per sample of the power analyzer, as label and value by turns.

`Time,<date>,Watts,<w>,Volts,<v>,Amps,<a>,PF,<pf>,Mark,<session>_<ranging|testing>`, then `,Ch<n>,Watts,…` for each
channel of a meter that has several, and `,Analyzer<n>,` with a whole line of its own for each of several meters.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from wattsmith.report.formats.lines import Source, Unread, bad, lines_of, name_of, readable
from wattsmith.report.formats.stamps import stamp, stamp_s
from wattsmith.terms.errors import BadTerm

LABELS = ("Time", "Watts", "Volts", "Amps", "PF")
NO_VALUE = -1.0  # what the daemon writes for volts, amps and PF of a sum
MOST_SAMPLES = 500_000  # the daemon itself stops there


@dataclass(frozen=True, slots=True)
class Channel:
    """What one channel of a meter, or one of several meters, read."""

    name: str  # "Ch1", "Analyzer2"
    power_w: float
    volts: float
    amps: float
    pf: float


@dataclass(frozen=True, slots=True)
class SplSample:
    """One line of spl.txt. `fields` are its parts between commas, as they stand there."""

    number: int
    fields: tuple[str, ...]
    ending: str
    time_s: float  # since 1970, of the director's clock
    power_w: float  # not above 0: the reading failed, or was out of range
    volts: float
    amps: float
    pf: float

    @property
    def line(self) -> str:
        return ",".join(self.fields) + self.ending

    @property
    def mark(self) -> str | None:
        return self.fields[11] if len(self.fields) > 11 and self.fields[10] == "Mark" else None

    @property
    def channels(self) -> tuple[Channel, ...]:
        """The channels of the meter; () when it has one. Raises ValueError when their values are no numbers."""
        # Nine fields each, right behind the mark; the channels of one of several meters stand further inside.
        places = range(12, len(self.fields), 9)
        own = itertools.takewhile(lambda place: is_numbered(self.fields[place], "Ch"), places)
        return tuple(_channel(self.fields, place, place + 1) for place in own)

    @property
    def analyzers(self) -> tuple[Channel, ...]:
        """The single meters behind a sum over several; () when there is one."""
        places = [place for place, field in enumerate(self.fields) if is_numbered(field, "Analyzer")]
        return tuple(_channel(self.fields, place, place + 3) for place in places)


def is_numbered(field: str, kind: str) -> bool:
    return field.startswith(kind) and field[len(kind) :].isdecimal()


def _channel(fields: Sequence[str], place: int, first: int) -> Channel:
    if tuple(fields[first : first + 8 : 2]) != LABELS[1:] or len(fields) < first + 8:
        raise ValueError(f"after {fields[place]} there should be Watts, Volts, Amps and PF")
    watts, volts, amps, pf = (float(value) for value in fields[first + 1 : first + 8 : 2])
    return Channel(fields[place], watts, volts, amps, pf)


def spl_lines(source: Source, name: str | None = None) -> Iterator[SplSample | Unread]:
    """Every line of the file, in order. Blank lines are Unread too; their `why` is empty."""
    for line in lines_of(source, name):
        fields = line.text.split(",")
        try:
            if fields[0] != "Time" or fields[2] != "Watts" or fields[4] != "Volts" or fields[6] != "Amps":
                raise ValueError("labels are not Time, Watts, Volts, Amps, PF in this order")
            if fields[8] != "PF":
                raise ValueError("there is no PF after Amps")
            watts, volts, amps, pf = float(fields[3]), float(fields[5]), float(fields[7]), float(fields[9])
            moment_s = stamp_s(fields[1])
        except (ValueError, IndexError) as wrong:
            why = "" if not line.text.strip() else _why(wrong, line.text)
            yield Unread(line.number, line.text, line.ending, why)
        else:
            yield SplSample(line.number, tuple(fields), line.ending, moment_s, watts, volts, amps, pf)


def _why(wrong: Exception, text: str) -> str:
    return f"the line ends too early: {readable(text)}" if isinstance(wrong, IndexError) else str(wrong)


def spl_samples(source: Source, name: str | None = None) -> Iterator[SplSample]:
    """The samples of the file. Blank lines are passed over; any other bad line raises BadInput with file and line."""
    for line in spl_lines(source, name):
        if isinstance(line, SplSample):
            yield line
        elif line.why:
            raise bad(name_of(source, name), line.number, line.why)


def spl_sample(
    time_s: float,
    power_w: float,
    volts: float,
    amps: float,
    pf: float,
    mark: str | None,
    channels: Sequence[Channel] = (),
    number: int = 1,
    ending: str = "\n",
) -> SplSample:
    """A new line, as the director writes it: six decimals, and dates to the millisecond."""
    if mark is not None and ("," in mark or "\n" in mark):
        raise BadTerm(f"a mark has neither commas nor line ends, got {mark!r}")
    fields = ["Time", stamp(time_s), *_values(power_w, volts, amps, pf), *([] if mark is None else ["Mark", mark])]
    for channel in channels:
        fields += [channel.name, *_values(channel.power_w, channel.volts, channel.amps, channel.pf)]
    return SplSample(number, tuple(fields), ending, stamp_s(fields[1]), power_w, volts, amps, pf)


def _values(power_w: float, volts: float, amps: float, pf: float) -> list[str]:
    pairs = zip(LABELS[1:], (power_w, volts, amps, pf), strict=True)
    return [part for label, value in pairs for part in (label, f"{value:.6f}")]


def merged(meters: Sequence[Iterable[SplSample]]) -> Iterator[SplSample]:
    """The logs of several meters as one, line by line: watts added as absolute values, the time of the first.

    The rule of the rounds that allow several meters; what one log has more than another is left out.
    """
    for number, together in enumerate(zip(*meters, strict=False), start=1):
        first = together[0]
        total_w = sum(abs(one.power_w) for one in together)
        fields = ["Time", first.fields[1], *_values(total_w, NO_VALUE, NO_VALUE, NO_VALUE), "Mark", first.mark or ""]
        for place, one in enumerate(together, start=1):
            fields += [f"Analyzer{place}", *one.fields]
        yield SplSample(number, tuple(fields), first.ending, first.time_s, total_w, NO_VALUE, NO_VALUE, NO_VALUE)
