"""One pass over the samples and over the daemon's log, keeping sums, counts and the first cases, never the lines."""

import math
import re
import zlib
from array import array
from dataclasses import dataclass

from wattsmith.report.checks.rounds import Round
from wattsmith.report.formats.descriptor import SIMULATED
from wattsmith.report.formats.lines import Unread, readable
from wattsmith.report.formats.ptd_log import Averages, PtdLine, Said, averages_in, range_in, uncertainty_in
from wattsmith.report.formats.spl import SplSample
from wattsmith.report.window import LoadWindow, WindowTally

_LEVEL = re.compile(r"(WARNING|ERROR):")
MOST_METERS = 64
EDGE_S = 0.8  # of the window, where a sample may belong to the time outside
LEAST_PRODUCT_W = 5.0  # below, rounded volts, amps and PF say too little about watts


class SplTally:
    """What checks need of a spl.txt."""

    def __init__(self, window: LoadWindow | None, drop_non_positive: bool, offset_s: float) -> None:
        self.window = None if window is None else WindowTally(window, drop_non_positive)
        self._offset_s = offset_s
        self._sum_w = 0.0
        self._last_s = -math.inf
        self._crcs = array("I")  # after each sample, of all dates and watts up to it
        self._crc = 0
        self.count = self.valid = self.repeated = self.backwards = self.without_mark = 0
        self.first_s = self.last_s = 0.0
        self.min_w, self.max_w = math.inf, -math.inf
        self.first_backwards: int | None = None  # the line
        self.marks: set[str] = set()
        self.max_volts = [-math.inf, -math.inf]  # of the whole meter, of its channels
        self.max_amps = [-math.inf, -math.inf]
        self.rejected_w = 0.0  # sum of what over-range readings were, where the daemon kept them
        self.rejected = 0
        self.compared = self.product_wrong = self.sum_wrong = 0
        self.product_ratio = 0.0  # sum of watts over volts × amps × PF, of those compared
        self.unread: list[Unread] = []
        self.unread_count = 0

    def add(self, sample: SplSample) -> None:
        time_s, power_w = sample.time_s + self._offset_s, sample.power_w
        self.count += 1
        if self.count == 1:
            self.first_s = time_s
        self.last_s = time_s
        if time_s < self._last_s:
            self.backwards += 1
            self.first_backwards = self.first_backwards or sample.number
        elif time_s == self._last_s:
            self.repeated += 1
        self._last_s = time_s
        self._crc = _crc(sample.fields[1], sample.fields[3], self._crc)
        self._crcs.append(self._crc)
        if 0 < power_w < math.inf:
            self.valid += 1
            self._sum_w += power_w
            self.min_w, self.max_w = min(self.min_w, power_w), max(self.max_w, power_w)
        elif -math.inf < power_w < -2.0:  # -1 and -2 stand for no reading at all
            self.rejected += 1
            self.rejected_w -= power_w
        if self.window is not None:
            self.window.add(time_s, power_w)
        mark = sample.mark
        if mark is None:
            self.without_mark += 1
        elif len(self.marks) < 8:
            self.marks.add(mark)
        self._note_electric(sample)

    def _note_electric(self, sample: SplSample) -> None:
        self.max_volts[0], self.max_amps[0] = max(self.max_volts[0], sample.volts), max(self.max_amps[0], sample.amps)
        if len(sample.fields) <= 12:
            self._compare(sample.power_w, sample.volts * sample.amps * sample.pf, sample)
            return
        try:
            parts = sample.channels or sample.analyzers
        except ValueError:
            return
        for part in parts:
            self.max_volts[1], self.max_amps[1] = max(self.max_volts[1], part.volts), max(self.max_amps[1], part.amps)
            self._compare(part.power_w, part.volts * part.amps * part.pf, part)
        if parts and sample.power_w > 0 and abs(sum(abs(p.power_w) for p in parts) - sample.power_w) > _part(sample):
            self.sum_wrong += 1

    def _compare(self, power_w: float, product_w: float, at: object) -> None:
        amps, pf = getattr(at, "amps", 0.0), getattr(at, "pf", 0.0)
        if power_w > LEAST_PRODUCT_W and amps > 0 and pf > 0 and 0 < product_w < math.inf:
            self.compared += 1
            self.product_ratio += power_w / product_w
            self.product_wrong += abs(power_w / product_w - 1) > 0.05

    def note_unread(self, line: Unread) -> None:
        self.unread_count += 1
        if len(self.unread) < 3:
            self.unread.append(line)

    @property
    def mean_w(self) -> float | None:
        """Over the whole log and all valid samples."""
        return self._sum_w / self.valid if self.valid else None

    def crc(self, count: int) -> int | None:
        """Of dates and watts of the first COUNT samples, as they stand there; None: there are not so many."""
        return self._crcs[count - 1] if 0 < count <= len(self._crcs) else None


def _part(sample: SplSample) -> float:
    return 0.01 * sample.power_w + 0.2


def _crc(date: str, watts: str, before: int) -> int:
    return zlib.crc32(f"{date},{watts};".encode("utf-8", "surrogateescape"), before)


@dataclass(slots=True)
class Echo:
    """The samples as the daemon itself wrote them to its log. That may end early, when it was copied too soon."""

    count: int = 0
    crc: int = 0

    def add(self, text: str) -> None:
        fields = text.split(",", 4)
        if len(fields) == 5:  # a line may be cut off inside the watts
            self.count += 1
            self.crc = _crc(fields[1], fields[3], self.crc)


@dataclass(slots=True)
class Told:
    """How often something was said, and where first."""

    count: int = 0
    first: str = ""

    def note(self, number: int, text: str) -> None:
        if not self.count:
            self.first = f"line {number}: {readable(text)}"
        self.count += 1


class PtdTally:
    """What checks need of a ptd_logs.txt."""

    def __init__(self, rules: Round, session: str, load: LoadWindow | None, offset_s: float) -> None:
        self._rules = rules
        self._offset_s = offset_s
        self._load = load
        self._marks = {f"Go with mark '{session}_{phase}'": phase for phase in ("ranging", "testing")}
        self.began_s: dict[str, float] = {}
        self.ended_s: dict[str, float] = {}
        self.averages: dict[str, list[Averages]] = {"ranging": [], "testing": []}  # one of each meter
        self.echoes: list[Echo] = []
        self.ranges: dict[str, dict[str, str]] = {
            "ranging": {},
            "testing": {},
        }  # as set right before each began, where that is told
        self._ranges: dict[str, str] = {}
        self._phase: str | None = None
        self._echoing = False
        self.activated: tuple[float, int] | None = None
        self.simulated = False
        self.identity: str | None = None
        self.uncertain = Told()  # samples above 1 % in the window
        self.uncertain_seconds: set[float] = set()
        self.worst_uncertainty = 0.0
        self.unknown = Told()  # samples of unknown uncertainty in the window
        self.errors = Told()  # while testing
        self.errors_in_window = Told()
        self.unstamped = Told()  # warnings and errors without a date
        self.backwards = Told()
        self._last_s = -math.inf
        self._decided: tuple[str, str] | None = None
        self._last_error: tuple[float, str] | None = None  # in ranging, until we know when that ended

    def add(self, line: PtdLine) -> None:
        text = line.text
        if self._echoing and (start := text.find("Time,", 0, 120)) >= 0:
            self.echoes[-1].add(text[start:])
            return
        if not line.messages:
            if not self.simulated and SIMULATED in text.lower():
                self.simulated = True
            if _LEVEL.search(text):
                self.unstamped.note(line.number, text)
                self._decided = self._decided or ("failed", f"line {line.number} has no date: {readable(text)}")
            return
        for said in line.messages:
            self._hear(line.number, said)

    def _hear(self, number: int, said: Said) -> None:
        text, time_s = said.text, said.time_s + self._offset_s
        if time_s < self._last_s - 1.0:  # buffers may swap neighbours
            self.backwards.note(number, text)
        self._last_s = max(self._last_s, time_s)
        if text.startswith(("WARNING", "ERROR")):
            self._complaint(number, time_s, text)
            return
        if SIMULATED in text.lower():
            self.simulated = True
        if text in self._marks:
            self._phase = self._marks[text]
            if self._phase not in self.began_s:
                self.began_s[self._phase] = time_s
                self.ranges[self._phase] = self._ranges
                self._ranges = {}  # not every meter tells of ranges that are fixed
        elif text == "Completed test":
            if self._phase is not None and self._phase not in self.ended_s:
                self.ended_s[self._phase] = time_s
                self._settle(time_s)
        elif "Last " in text and "samples" in text and "Response to client" in text:
            self.echoes.append(Echo())
            self._echoing = True
        elif "Uncertainty checking for Yokogawa" in text and "is activated" in text:
            self.activated = self.activated or (time_s, number)
        elif (averages := averages_in(text)) is not None:
            if self._phase is not None and len(self.averages[self._phase]) < MOST_METERS:
                self.averages[self._phase].append(averages)
        elif (changed := range_in(text)) is not None:
            self._ranges[changed[0]] = changed[1]
        elif text.startswith("Analyzer identity response"):
            self.identity = text.partition(": ")[2]
        if "Last " not in text:
            self._echoing = False

    def _complaint(self, number: int, time_s: float, text: str) -> None:
        load = self._load
        inside = load is not None and load.begin_s + EDGE_S < time_s < load.end_s - EDGE_S
        if text.startswith("WARNING"):
            ratio = uncertainty_in(text)
            if inside and ratio is not None:
                self.uncertain.note(number, text)
                self.worst_uncertainty = max(self.worst_uncertainty, ratio)
                if len(self.uncertain_seconds) < 100_000:
                    self.uncertain_seconds.add(math.floor(time_s))
            elif inside and "Uncertainty unknown" in text:
                self.unknown.note(number, text)
            self._official_warning(number, time_s, text, ratio)
            return
        if "testing" in self.began_s and "testing" not in self.ended_s:
            self.errors.note(number, text)
            if inside:
                self.errors_in_window.note(number, text)
        self._official_error(number, time_s, text)

    # The official checker stops at the first case that decides, so later ones change nothing.

    def _official_warning(self, number: int, time_s: float, text: str, ratio: float | None) -> None:
        load, slack_s = self._load, self._rules.slack_s
        if self._decided or load is None or not load.begin_s + slack_s < time_s < load.end_s - slack_s:
            return
        fails = self._rules.uncertainty_fails and ratio is not None and "which is above" in text
        self._decided = ("failed" if fails else "remark", f"line {number}: {readable(text)}")

    def _official_error(self, number: int, time_s: float, text: str) -> None:
        if self._decided:
            return
        words = text.partition("ERROR:")[2].strip()
        where = f"line {number}: {readable(text)}"
        if self._rules.usb_forgiven and words == "USB.":
            self._decided = ("remark", where)
        elif "ranging" not in self.began_s or time_s <= self.began_s["ranging"] or "ranging" in self.ended_s:
            self._decided = ("failed", where + ", outside of ranging")
        elif not words.startswith(self._rules.usual_errors):
            self._decided = ("remark", where + ", while ranging")
        else:
            self._last_error = (time_s, where)

    def _settle(self, ended_s: float) -> None:
        if self._phase == "ranging" and self._last_error and self._last_error[0] >= ended_s and not self._decided:
            self._decided = ("failed", self._last_error[1] + ", outside of ranging")

    @property
    def official(self) -> tuple[str, str] | None:
        """What decides the official check of warnings and errors: "failed" or "remark", and why; None: nothing."""
        return self._decided
