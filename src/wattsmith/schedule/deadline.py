"""One job on one device: the least energy within a deadline.

Between two neighbouring points of the convex hull of (time, energy) a job can run a part of its steps at one setting
and the rest at the other; no other mixture needs less.
"""

from dataclasses import dataclass
from itertools import pairwise

from wattsmith.schedule.curves import energy_hull
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import NoPlan, OperatingPoint, Response


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """So many steps at one setting."""

    point: OperatingPoint
    steps: float

    @property
    def duration_s(self) -> float:
        return self.steps * self.point.step_s

    @property
    def energy_j(self) -> float:
        return self.steps * self.point.step_energy_j


def least_energy(response: Response, steps: float, within_s: float, *, counts_idle: bool = False) -> tuple[Part, ...]:
    """One or two parts that together do STEPS within WITHIN_S, the faster first.

    With COUNTS_IDLE, the device stays on until WITHIN_S is over and what it draws then counts too.
    The faster part comes first, so that a job that turns out slower than thought can still be hurried.
    """
    if not steps > 0:
        raise BadTerm(f"steps must be positive, got {steps}")
    hull = energy_hull(response, idle_w=response.idle_w if counts_idle else 0.0)
    fastest, frugal = hull[0], hull[-1]
    if steps * fastest.step_s > within_s * (1 + 1e-12):
        raise NoPlan(
            f"{steps:g} steps take {format_quantity(steps * fastest.step_s, 'time')} at the fastest setting, which is "
            f"more than {format_quantity(within_s, 'time')}; allow that much time, or use more devices"
        )
    if steps * frugal.step_s <= within_s:
        return (Part(point=frugal, steps=steps),)
    step_s = max(within_s / steps, fastest.step_s)  # what is left of it is rounding
    for fast, slow in pairwise(hull):
        if step_s <= slow.step_s:
            share = (slow.step_s - step_s) / (slow.step_s - fast.step_s)
            parts = (Part(point=fast, steps=share * steps), Part(point=slow, steps=(1 - share) * steps))
            return tuple(part for part in parts if part.steps > 0)
    raise AssertionError("the deadline lies between the ends of the hull")
