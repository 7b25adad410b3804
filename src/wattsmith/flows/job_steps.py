"""The steps of a job from the file that it writes a line to after each, with the time where it likes."""

import math
import os
import statistics
from dataclasses import dataclass, field
from pathlib import Path

LOOK_S = 0.2  # how often the file is looked at
COARSENESS = 20  # times without stamps are known to LOOK_S: of something so many times as long, to 5 %
SKEW_S = 60.0  # a stamp that lies so far outside of the job is no time
READ_BYTES = 1 << 20  # at most, each time
KEPT = 100_000  # durations of single steps, of which the spread is that of the first so many


@dataclass(slots=True)
class Steps:
    """Counts lines of PATH. BEGAN_S and what lines carry are seconds since 1970."""

    path: Path
    began_s: float
    count: int = 0
    _offset: int = 0
    _rest: bytes = b""
    _first_s: float | None = None  # when the first step was done
    _last_s: float | None = None
    _stamped: bool = True  # every line had a time
    _each_s: list[float] = field(default_factory=list)

    def look(self, now_s: float) -> None:
        """Read what is new."""
        try:
            handle = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            return
        try:
            new = os.pread(handle, READ_BYTES, self._offset)
        except OSError:
            return  # not a file
        finally:
            os.close(handle)
        self._offset += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        self._rest = self._rest[-100:]  # no line that carries a time is longer
        for line in lines:
            self._take(self._stamp_s(line, now_s), now_s)

    def _stamp_s(self, line: bytes, now_s: float) -> float | None:
        try:
            time_s = float(line)
        except ValueError:
            return None
        return time_s if self.began_s - SKEW_S <= time_s <= now_s + SKEW_S else None

    def _take(self, stamp_s: float | None, now_s: float) -> None:
        self._stamped &= stamp_s is not None
        time_s = now_s if stamp_s is None else stamp_s
        self.count += 1
        if self._first_s is None:
            self._first_s = time_s
        elif self._last_s is not None and len(self._each_s) < KEPT:
            self._each_s.append(time_s - self._last_s)
        self._last_s = time_s

    @property
    def first_s(self) -> float | None:
        """How long the first step took, with all before it."""
        return None if self._first_s is None else self._resolved_s(self._first_s - self.began_s)

    @property
    def mean_s(self) -> float | None:
        """Of the steps after the first."""
        if self._first_s is None or self._last_s is None or self.count < 2:
            return None
        passed_s = self._resolved_s(self._last_s - self._first_s)
        return None if passed_s is None else passed_s / (self.count - 1)

    @property
    def spread_s(self) -> float | None:
        """Standard deviation of the steps after the first; None: there are too few, or their times are not known."""
        return statistics.stdev(self._each_s) if self._stamped and len(self._each_s) >= 2 else None

    def _resolved_s(self, passed_s: float) -> float | None:
        least_s = 0.0 if self._stamped else COARSENESS * LOOK_S
        return passed_s if passed_s > 0 and least_s <= passed_s < math.inf else None
