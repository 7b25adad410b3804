"""Loads that a simulated GPU can be given: constant, step, ramp, sawtooth, burst, and any chain of them."""

from dataclasses import dataclass

from wattsmith.terms.errors import BadTerm


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Part of a load curve, in force from start_s (after the curve's start) until the next one starts.

    "ramp" goes from load_begin to load_end within duration_s, then holds load_end. "square" is at load_end for the
    first duty_ratio of each period, then at load_begin; "sawtooth" rises from load_begin to load_end in each period.
    Waves go on for duration_s (0: for ever), then hold load_begin.
    """

    kind: str = "ramp"
    start_s: float = 0.0
    duration_s: float = 0.0
    load_begin: float
    load_end: float
    period_s: float = 1.0
    duty_ratio: float = 0.5

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadTerm(f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        for name in ("load_begin", "load_end", "duty_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise BadTerm(f"{name} must lie in 0 … 1, got {getattr(self, name)}")
        if self.start_s < 0 or self.duration_s < 0 or self.period_s <= 0:
            raise BadTerm(f"start_s and duration_s must not be negative and period_s be positive: {self}")


Curve = tuple[Segment, ...]
KINDS = ("ramp", "square", "sawtooth")


def constant(load: float) -> Curve:
    """The same load for ever."""
    return (Segment(load_begin=load, load_end=load),)


def step(first: float, then: float, after_s: float) -> Curve:
    """One load, and another after after_s."""
    return (*constant(first), Segment(start_s=after_s, load_begin=then, load_end=then))


def ramp(load_begin: float, load_end: float, duration_s: float) -> Curve:
    """A straight line from one load to another, which then stays."""
    return (Segment(load_begin=load_begin, load_end=load_end, duration_s=duration_s),)


def sawtooth(low: float, high: float, period_s: float, duration_s: float = 0.0) -> Curve:
    """Rises from low to high and drops back, once per period; for ever when duration_s is 0."""
    return (Segment(kind="sawtooth", load_begin=low, load_end=high, period_s=period_s, duration_s=duration_s),)


def burst(high: float, period_s: float, duty_ratio: float = 0.5, low: float = 0.0, duration_s: float = 0.0) -> Curve:
    """High for duty_ratio of each period, low for the rest; for ever when duration_s is 0."""
    return (
        Segment(
            kind="square",
            load_begin=low,
            load_end=high,
            period_s=period_s,
            duty_ratio=duty_ratio,
            duration_s=duration_s,
        ),
    )
