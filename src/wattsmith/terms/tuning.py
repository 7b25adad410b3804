"""What can be turned, what came of turning it, and what is recommended."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Interval

Level = int | float | str
Cell = tuple[int, ...]  # the place of each knob's level among its levels


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """Something that can be turned, with its levels in order."""

    name: str
    levels: tuple[Level, ...]
    present: Level  # as it is now; one of the levels
    saves: str | None = None  # "up" or "down": where energy is usually saved; None: nobody can say
    caps: str | None = None  # the metric that it holds down, such as "power" for a power limit in watts

    def __post_init__(self) -> None:
        if not self.levels:
            raise BadTerm(f"knob {self.name!r} has no level")
        if wrong := [one for one in self.levels if not _is_level(one)]:
            raise BadTerm(f"knob {self.name!r} has a level that is neither a number nor a word: {wrong[0]!r}")
        if len(set(self.levels)) != len(self.levels):
            raise BadTerm(f"knob {self.name!r} has a level twice: {', '.join(map(str, self.levels))}")
        if self.present not in self.levels:
            levels = ", ".join(map(str, self.levels))
            raise BadTerm(f"knob {self.name!r} is at {self.present}, which is not one of its levels: {levels}")
        if self.caps is not None and not self.numeric:
            raise BadTerm(f"knob {self.name!r} holds down {self.caps}, so its levels must be positive numbers")
        if self.saves not in (None, "up", "down"):
            raise BadTerm(f"knob {self.name!r}: saves must be 'up', 'down' or None, got {self.saves!r}")

    @property
    def numeric(self) -> bool:
        """Whether all levels are positive numbers, so that ratios of them mean something."""
        return all(not isinstance(one, str) and 0 < one < math.inf for one in self.levels)


def _is_level(one: object) -> bool:
    return one.strip() != "" if isinstance(one, str) else isinstance(one, int | float) and math.isfinite(one)


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """All settings: each knob at each of its levels."""

    knobs: tuple[Knob, ...]

    def __post_init__(self) -> None:
        names = [knob.name for knob in self.knobs]
        if not names:
            raise BadTerm("there is no knob to turn")
        if len(set(names)) != len(names):
            raise BadTerm(f"a knob is named twice: {', '.join(names)}")

    @property
    def present(self) -> Cell:
        return tuple(knob.levels.index(knob.present) for knob in self.knobs)

    def cells(self) -> list[Cell]:
        """Every setting, in order."""
        return list(itertools.product(*(range(len(knob.levels)) for knob in self.knobs)))

    def setting(self, cell: Cell) -> dict[str, Level]:
        """The levels at CELL, by knob."""
        return {knob.name: knob.levels[at] for knob, at in zip(self.knobs, cell, strict=True)}

    def cell(self, setting: Mapping[str, Level]) -> Cell:
        """Where SETTING stands; raises BadTerm that says what is wrong with it."""
        if set(setting) != {knob.name for knob in self.knobs}:
            names = ", ".join(knob.name for knob in self.knobs)
            raise BadTerm(f"a setting must name each of {names}; got {', '.join(map(str, setting)) or 'nothing'}")
        for knob in self.knobs:
            if setting[knob.name] not in knob.levels:
                levels = ", ".join(map(str, knob.levels))
                raise BadTerm(f"{knob.name} cannot be {setting[knob.name]}; its levels are {levels}")
        return tuple(knob.levels.index(setting[knob.name]) for knob in self.knobs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A setting that gave no figures: it counts as one that breaks the limits."""

    why: str
    spent_j: float | None = None  # what finding that out consumed; None: not known


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One setting, tried once."""

    setting: Mapping[str, Level]
    metrics: Mapping[str, float] = field(default_factory=dict)  # by name with unit: "energy_j", "latency_p99_s"
    noise: Mapping[str, float] = field(default_factory=dict)  # relative standard error; absent: the usual
    failed: str | None = None  # why there are no figures

    def __post_init__(self) -> None:
        if not self.metrics and self.failed is None:
            raise BadTerm("a trial has either figures or a reason why there are none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recommendation:
    """The setting to use, what to expect of it, and what it promises."""

    setting: Mapping[str, Level]
    objective: Interval  # expected, with the 90 % interval
    saving: Interval  # of the objective, as a share of what the present setting gives; below zero: it costs more
    holds: float  # how probable it is that all limits hold
    kept: bool  # whether a setting was found of which that is probable enough
    confirmed: bool  # whether it was measured more than once
    why: str  # in words


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """One trial, judged."""

    number: int  # from 1
    trial: Trial
    objective: float | None  # None: it failed
    excess_ratio: float | None  # of the worst limit: 0.1 is ten per cent beyond it, not positive: all hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """What a search came to."""

    objective: str
    limits: tuple[str, ...]
    trials: tuple[Tried, ...]
    recommendation: Recommendation
    pareto: tuple[int, ...]  # numbers of trials that no other beats in the objective and all limited metrics at once
    spent_j: float | None  # energy of all trials; None: not known
    pays_back_after: float | None  # queries, steps or samples until that is won back; None: never, or not known
    finished: bool = True  # False: the budget ran out before the search was done
    simulated: bool = False  # some of the energy was measured on a machine that is not there


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """How another workload, or the same one elsewhere, answered to the same knobs: what a search is primed with."""

    workload: str  # curves of one workload on several devices belong together
    space: Space
    trials: Sequence[Trial]
    same_device: bool = False
