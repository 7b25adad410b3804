"""What a figure of energy rests on, and therefore what it may be called: six tiers, from A to F.

The letter follows from the meter alone; what the tier asks for besides is listed as lacking where it is not met, and
then the figure may not bear the tier's name.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from wattsmith.terms.energy import DomainEnergy, Source, Window
from wattsmith.terms.errors import BadTerm

LEAST_WINDOW_S = 60.0
LEAST_SAMPLES = 60
NODE_ACCURACY_RATIO = 0.05
TINY_WINDOW_S = 10.0
TINY_MEASUREMENTS = 5
PLAYED = "replay of "  # how a recorded power trace is named that acts as a meter
NOT_THE_OFFICIAL_WORKFLOW = "it was not taken with MLPerf's own client and director"


class Tier(StrEnum):
    """What kind of evidence a figure rests on, best first."""

    A = "A"  # the official workflow, licensed daemon, listed meter, LoadGen; the round's checker passes
    B = "B"  # a power analyzer at the wall, our engine
    C = "C"  # telemetry of the node
    D = "D"  # counters of components
    E = "E"  # a monitor of tiny devices
    F = "F"  # declared, modelled, simulated


class MeterKind(StrEnum):
    """Where the watts come from."""

    WALL = "power analyzer at the wall"
    NODE = "telemetry of the node"
    TINY = "energy monitor of a tiny device"
    COMPONENT = "counters of components"
    MODELLED = "a stated model"
    DECLARED = "a declared figure"
    UNSTATED = "a meter that is not stated"
    NONE = "no meter"


@dataclass(frozen=True, slots=True, kw_only=True)
class Basis:
    """What a figure rests on. Unknown is None, and counts as not shown."""

    meter: MeterKind
    simulated: bool = False
    replayed: bool = False  # worked out again from a recording; the tier is that of what was recorded
    official_workflow: bool = False  # MLPerf's client and director (or its tiny runner) drove it
    listed_meter: bool | None = None  # the instrument stands on the list of the rules
    loadgen: bool = False  # the load came from LoadGen
    ranged: bool | None = None  # a ranging run came first, and its ranges were used; None: nothing to range
    check_passed: bool | None = None  # the round's official checks pass; None: not checked
    window_s: float | None = None  # the shortest scored window
    samples: int | None = None  # readings inside it
    measurements: int = 1  # how many times it was measured
    accuracy_ratio: float | None = None  # of the instrument
    complete: bool = True  # no meter was lost on the way

    def __post_init__(self) -> None:
        if self.window_s is not None and self.window_s < 0:
            raise BadTerm(f"window_s must not be negative, got {self.window_s}")
        if self.samples is not None and self.samples < 0:
            raise BadTerm(f"samples must not be negative, got {self.samples}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """The tier of a figure in words."""

    tier: Tier
    what: str  # what the figure is
    may_be_called: str
    may_not_be_called: tuple[str, ...]
    because: tuple[str, ...]  # why this tier
    lacks: tuple[str, ...]  # what it would take to bear the tier's name

    def text(self) -> str:
        """All of it, in lines."""
        lines = [f"Tier {self.tier}: {self.what}", f"  may be called      {self.may_be_called}"]
        lines += [f"  may not be called  {name}" for name in self.may_not_be_called]
        lines += [f"  because            {reason}" for reason in self.because]
        lines += [f"  lacks              {lack}" for lack in self.lacks]
        return "\n".join(lines)


def standing_of(basis: Basis) -> Standing:
    """The tier of a figure that rests on BASIS, what it may be called, and what it may not."""
    tier = tier_of(basis)
    lacks = _lacks(basis, tier)
    return Standing(
        tier=tier,
        what=_what(basis, tier),
        may_be_called=_may_be_called(basis, tier, lacks),
        may_not_be_called=_may_not_be_called(tier),
        because=_because(basis),
        lacks=lacks,
    )


def tier_of(basis: Basis) -> Tier:
    """The tier alone."""
    if basis.simulated:
        return Tier.F
    if basis.meter is MeterKind.WALL:
        return Tier.A if not _short_of_official(basis) and not _too_little(basis) else Tier.B
    return {MeterKind.NODE: Tier.C, MeterKind.COMPONENT: Tier.D, MeterKind.TINY: Tier.E}.get(basis.meter, Tier.F)


def basis_of(window: Window, *, replayed: bool = False) -> Basis:
    """What the energy of WINDOW rests on: the weakest of the meters that add up to it."""
    counted = window.counted
    known = [domain for domain in counted if domain.energy_j is not None]
    if not known or len(known) < len(counted):
        return Basis(meter=MeterKind.NONE, simulated=window.simulated, replayed=replayed, complete=False)
    stated = [domain.accuracy_ratio for domain in known if domain.accuracy_ratio is not None]
    return Basis(
        meter=weakest([kind_of(domain) for domain in known]),
        simulated=any(domain.simulated for domain in known),
        replayed=replayed,
        window_s=window.duration_s,
        samples=min(domain.readings for domain in known),
        accuracy_ratio=max(stated) if len(stated) == len(known) else None,
        complete=all(domain.complete for domain in known),
    )


def kind_of(domain: DomainEnergy) -> MeterKind:
    """The kind of meter that told the energy of DOMAIN."""
    if domain.source is Source.MODELLED:
        return MeterKind.MODELLED
    if domain.name.startswith(PLAYED):
        return MeterKind.UNSTATED  # a bare trace of power: whoever named its domain did not show what measured it
    return KIND_BY_DOMAIN.get(domain.kind, MeterKind.UNSTATED)


def weakest(kinds: Sequence[MeterKind]) -> MeterKind:
    """Of several meters whose figures are added, the one that carries least: a sum is no better than its parts."""
    return max(kinds, key=list(MeterKind).index, default=MeterKind.UNSTATED)


KIND_BY_DOMAIN = {
    "wall": MeterKind.WALL,
    "node": MeterKind.NODE,
    "tiny": MeterKind.TINY,
    **dict.fromkeys(("gpu", "cpu-package", "dram", "psys", "soc", "soc-rail"), MeterKind.COMPONENT),
}


def _short_of_official(basis: Basis) -> list[str]:
    """What keeps a wall measurement from being a candidate for submission."""
    missing = [] if basis.official_workflow else [NOT_THE_OFFICIAL_WORKFLOW]
    if not basis.listed_meter:
        missing.append("the analyzer is not shown to be on the rules' list")
    if not basis.loadgen:
        missing.append("the load did not come from LoadGen")
    if not basis.check_passed:
        missing.append("the round's checks were not run" if basis.check_passed is None else "the round's checks fail")
    if basis.ranged is False:
        missing.append("there was no ranging run")
    return missing


def _too_little(basis: Basis) -> list[str]:
    """How it falls short of the length and number of samples that every rule asks for."""
    missing = []
    if basis.window_s is None:
        missing.append("the length of its window is not stated")
    elif basis.window_s < LEAST_WINDOW_S:
        missing.append(f"its window is {basis.window_s:.3g} s long; the rules ask for {LEAST_WINDOW_S:g} s")
    if basis.samples is None:
        missing.append("the number of its samples is not stated")
    elif basis.samples < LEAST_SAMPLES:
        missing.append(f"its window holds {basis.samples} samples; the rules ask for {LEAST_SAMPLES}")
    if not basis.complete:
        missing.append("a meter was lost on the way, or its energy is unknown")
    return missing


def _lacks(basis: Basis, tier: Tier) -> tuple[str, ...]:
    if tier is Tier.B:
        official = [lack for lack in _short_of_official(basis) if lack != NOT_THE_OFFICIAL_WORKFLOW]
        return (*_too_little(basis), *official)
    if tier is Tier.C:
        return (*_too_little(basis), *_node_accuracy(basis))
    if tier is Tier.D:
        return tuple(_too_little(basis))
    if tier is Tier.E:
        return _lacks_tiny(basis)
    if basis.simulated and basis.window_s is not None:
        return tuple(_too_little(basis))
    return () if basis.complete else ("a meter was lost on the way, or its energy is unknown",)


def _node_accuracy(basis: Basis) -> tuple[str, ...]:
    if basis.accuracy_ratio is None:
        return (f"no accuracy is shown; the rules ask for {NODE_ACCURACY_RATIO:.0%} against a reference meter",)
    if basis.accuracy_ratio > NODE_ACCURACY_RATIO:
        return (f"its accuracy is {basis.accuracy_ratio:.1%}; the rules ask for {NODE_ACCURACY_RATIO:.0%}",)
    return ()


def _lacks_tiny(basis: Basis) -> tuple[str, ...]:
    missing = []
    if basis.window_s is None or basis.window_s < TINY_WINDOW_S:
        told = "not stated" if basis.window_s is None else f"{basis.window_s:.3g} s"
        missing.append(f"its shortest window is {told}; the rules ask for {TINY_WINDOW_S:g} s")
    if basis.measurements < TINY_MEASUREMENTS:
        missing.append(f"it was measured {basis.measurements} times; the rules ask for {TINY_MEASUREMENTS}")
    if not basis.listed_meter:
        missing.append("the monitor is not shown to be on the rules' list")
    if not basis.complete:
        missing.append("the monitor was lost on the way")
    return tuple(missing)


def _what(basis: Basis, tier: Tier) -> str:
    if basis.simulated:
        return "a simulation: nothing was measured"
    if basis.meter is MeterKind.NONE:
        return "no figure: the energy is unknown"
    said = {
        Tier.A: "system power at the wall, taken with MLPerf's own workflow",
        Tier.B: "system power at the wall, taken with this engine",
        Tier.C: "energy of a node as its own controller or supply tells it",
        Tier.D: "energy of components by their own counters; not that of the system",
        Tier.E: "energy of a tiny device by its monitor",
        Tier.F: f"a figure by {basis.meter.value}; nothing is shown to have been measured",
    }[tier]
    return f"{said}, worked out again from a recording" if basis.replayed else said


def _may_be_called(basis: Basis, tier: Tier, lacks: tuple[str, ...]) -> str:
    if basis.simulated:
        return "simulated energy"
    if basis.meter is MeterKind.NONE:
        return "unknown"
    if tier is Tier.E and basis.official_workflow and not lacks:
        return "a candidate for submission to MLPerf Tiny; an MLPerf result only after review"
    named, plain = {
        Tier.A: ("a candidate for submission; an MLPerf result only after review", ""),
        Tier.B: ("MLPerf-Power-style, unverified", "a measurement at the wall; it falls short of MLPerf-Power-style"),
        Tier.C: (
            "MLPerf-Training-style node energy, unverified",
            "node energy by telemetry; it falls short of its style",
        ),
        Tier.D: ("component energy", "component energy over a short window"),
        Tier.E: ("MLPerf-Tiny-style energy, unverified", "energy by a monitor; it falls short of MLPerf-Tiny-style"),
        Tier.F: ("an estimate", "an estimate"),
    }[tier]
    return plain if lacks else named


def _may_not_be_called(tier: Tier) -> tuple[str, ...]:
    result = "an MLPerf result"
    return {
        Tier.A: (f"{result}, before MLCommons has reviewed it",),
        Tier.B: (result, "verified, official or compliant"),
        Tier.C: (result, "an MLPerf Inference power figure, under any rule", "power at the wall"),
        Tier.D: (result, "system power or system energy", "comparable with any MLPerf figure"),
        Tier.E: (result, "verified, official or compliant"),
        Tier.F: (result, "a measurement", "comparable with any MLPerf figure"),
    }[tier]


def _because(basis: Basis) -> tuple[str, ...]:
    reasons = [f"the watts come from {basis.meter.value}"]
    if basis.simulated:
        reasons.append("the meter names itself as simulated")
    if basis.replayed:
        reasons.append("a recording keeps the tier of what was recorded")
    if basis.meter is MeterKind.WALL and not basis.official_workflow:
        reasons.append(NOT_THE_OFFICIAL_WORKFLOW)
    return tuple(reasons)
