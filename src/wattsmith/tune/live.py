"""Settings moved while a service runs: one safe step at a time, and back at once when the limit is broken.

Each knob has levels in order; a step moves one knob by one level. A step is tried only from a setting that keeps the
limit with room to spare. What breaks the limit is not tried again until the load changes; then all that was learned is
in doubt, and it starts again from the setting that is known to be safe.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from wattsmith.terms.errors import BadInput

Levels = tuple[int, ...]  # the level of each knob, in the knobs' order

ROOM = 0.1  # share of the limit that must be left before another step is tried
BETTER = 0.01  # less energy by such a share counts as less
CHANGED = 0.25  # the rate of queries is another when it differs by such a share
WINDOWS = 2  # that a setting is watched before it is judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was measured in one window."""

    latency_s: float  # the percentile that the limit is about
    energy_per_query_j: float | None  # None: not known, then nothing is moved
    rate_hz: float  # of queries


@dataclass(slots=True, kw_only=True)
class _Place:
    """What is known of one setting under the present load."""

    energies_j: list[float] = field(default_factory=list)
    broken: bool = False


class LiveTuner:
    """Says, window by window, which levels the knobs should have."""

    def __init__(self, knobs: Mapping[str, int], safe: Mapping[str, int], limit_s: float) -> None:
        """KNOBS: how many levels each has. SAFE: levels that keep the limit under any load, such as the default."""
        if not 0 < limit_s < float("inf"):
            raise BadInput(f"the limit must be positive and finite, got {limit_s}")
        for name, count in knobs.items():
            if not 0 <= safe.get(name, -1) < count:
                raise BadInput(f"knob {name!r} has levels 0 to {count - 1}; the safe one is {safe.get(name)!r}")
        self._names = tuple(knobs)
        self._counts = tuple(knobs.values())
        self._safe: Levels = tuple(safe[name] for name in knobs)
        self._limit_s = limit_s
        self._at = self._best = self._safe
        self._rate_hz: float | None = None
        self._places: dict[Levels, _Place] = {}

    @property
    def setting(self) -> dict[str, int]:
        """The levels to run at now."""
        return dict(zip(self._names, self._at, strict=True))

    @property
    def best(self) -> dict[str, int]:
        """The levels of least energy among those that kept the limit under the present load."""
        return dict(zip(self._names, self._best, strict=True))

    def observe(self, seen: Seen) -> dict[str, int]:
        """Take in what one window at the present setting gave; the setting for the next."""
        if self._rate_hz is not None and abs(seen.rate_hz / self._rate_hz - 1) > CHANGED:
            seen_at = self._at
            self.start_again()
            if seen_at != self._at:  # what was seen belongs to levels that are left
                self._rate_hz = seen.rate_hz
                return self.setting
        self._rate_hz = seen.rate_hz
        place = self._places.setdefault(self._at, _Place())
        if seen.latency_s > self._limit_s:
            place.broken = True
            self._at = self._safe if self._at == self._best else self._best
            if self._places.get(self._at, _Place()).broken:
                self._at = self._best = self._safe
            return self.setting
        if seen.energy_per_query_j is None:
            return self.setting
        place.energies_j.append(seen.energy_per_query_j)
        if len(place.energies_j) < WINDOWS:
            return self.setting
        if self._at != self._best and self._energy_j(self._at) >= (1 - BETTER) * self._energy_j(self._best):
            self._at = self._best  # no better: back to where it was good
            return self.setting
        self._best = self._at
        if seen.latency_s <= (1 - ROOM) * self._limit_s:
            self._at = self._next_step() or self._at
        return self.setting

    def start_again(self, at: Mapping[str, int] | None = None) -> None:
        """Forget what was learned; the load, or what runs beside, changed. Go on at the safe levels, or AT these."""
        self._places.clear()
        self._rate_hz = None
        self._at = self._best = self._safe if at is None else tuple(at[name] for name in self._names)

    def _energy_j(self, levels: Levels) -> float:
        energies = self._places.get(levels, _Place()).energies_j
        return sum(energies) / len(energies) if energies else float("inf")

    def _next_step(self) -> Levels | None:
        """A neighbour of the best that was not tried yet under this load; None: all were."""
        for at in range(len(self._counts)):
            for move in (-1, 1):
                levels = self._moved(at, move)
                if levels is not None and levels not in self._places:
                    return levels
        return None

    def _moved(self, at: int, move: int) -> Levels | None:
        level = self._best[at] + move
        if not 0 <= level < self._counts[at]:
            return None
        return (*self._best[:at], level, *self._best[at + 1 :])
