"""Many devices under one power budget: the most work per second.

Each device runs at one of its settings, or pauses. By default a greedy walk: each device begins at its least power and
the step that gives most work per watt comes next, along the concave hulls; then a few devices near the end of the walk
are settled anew together, off their hulls too, by dynamic programming. The exact answer comes from HiGHS.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.schedule.curves import rate_hull
from wattsmith.terms.errors import BadTerm, ExtraNeeded
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import NoPlan, OperatingPoint, Response

CORE = 12  # devices that are settled together after the walk
CELLS = 16384  # into which the power between their least and the budget is divided
FITS = 1 + 1e-12
PAUSED = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What each device does under the budget."""

    choice: tuple[int | None, ...]  # place of each device's point among its points; None: it pauses
    power_w: float  # all together, paused devices at their idle power
    worth: float  # weighted rates, all together
    bound: float  # no choice is worth more
    method: str

    def points(self, responses: Sequence[Response]) -> list[OperatingPoint | None]:
        """The chosen points; None: paused."""
        return [None if place is None else one.points[place] for place, one in zip(self.choice, responses, strict=True)]


class Fleet:
    """Responses as rows of numbers: powers and worths, the pause last where it is allowed; missing ones never fit."""

    def __init__(self, responses: Sequence[Response], weights: Sequence[float] | None, *, may_pause: bool) -> None:
        np = _numpy()
        if not responses:
            raise BadTerm("there is no device to share the power among")
        if weights is not None and len(weights) != len(responses):
            raise BadTerm(f"{len(responses)} devices have {len(weights)} weights; give one for each")
        widest = max(len(one.points) for one in responses)
        size = (len(responses), widest + 1)
        self.power_w = np.full(size, math.inf)
        self.worth = np.full(size, -math.inf)
        for row, one in enumerate(responses):
            weight = 1.0 if weights is None else weights[row]
            if not 0 < weight < math.inf:
                raise BadTerm(f"a weight must be positive and finite, got {weight}")
            self.power_w[row, : len(one.points)] = [point.power_w for point in one.points]
            self.worth[row, : len(one.points)] = [weight * point.rate for point in one.points]
            if may_pause:
                self.power_w[row, widest] = one.idle_w
                self.worth[row, widest] = 0.0
        self.widest = widest

    @property
    def least_w(self) -> Any:
        """By device."""
        return self.power_w.min(axis=1)

    def shared(self, places: Any, bound: float, method: str) -> Shared:
        rows = range(len(places))
        return Shared(
            choice=tuple(None if place == self.widest else int(place) for place in places),
            power_w=float(self.power_w[rows, places].sum()),
            worth=float(self.worth[rows, places].sum()),
            bound=float(bound),
            method=method,
        )


def share_budget(
    responses: Sequence[Response],
    budget_w: float,
    *,
    weights: Sequence[float] | None = None,
    exact: bool = False,
    may_pause: bool = True,
    within_s: float = 60.0,
) -> Shared:
    """Settings of most weighted work per second whose mean powers stay within BUDGET_W together.

    Weights make rates comparable: without them a step of one job is worth as much as a step of another. EXACT: by
    mixed-integer programming, which may take WITHIN_S. Raises NoPlan where even the least power is too much.
    """
    if math.isnan(budget_w) or budget_w <= 0:
        raise BadTerm(f"a power budget must be positive, got {budget_w} W")
    fleet = Fleet(responses, weights, may_pause=may_pause)
    least_w = float(fleet.least_w.sum())
    if least_w > budget_w * FITS:
        doing = "when all pause" if may_pause else "at their lowest settings"
        raise NoPlan(
            f"{len(responses)} devices draw {format_quantity(least_w, 'power')} {doing}, which is more than the budget "
            f"of {format_quantity(budget_w, 'power')}; allow that much, or take devices away"
        )
    return _exact(fleet, budget_w, within_s) if exact else _greedy(fleet, budget_w)


def _numpy() -> Any:
    try:
        import numpy
    except ImportError as missing:
        raise ExtraNeeded("planning needs numpy and scipy: `pip install 'wattsmith[plan]'`") from missing
    return numpy


def _greedy(fleet: Fleet, budget_w: float) -> Shared:
    np = _numpy()
    places, _spent_w, bound, slope, ends = _walk(fleet, budget_w)
    best = _filled(fleet, places, budget_w)
    core = np.argsort(ends, kind="stable")[:CORE] if slope else []
    if len(core):
        settled = _settled(fleet, places, core, budget_w)
        if _worth(fleet, settled) > _worth(fleet, best):
            best = settled
    return fleet.shared(best, max(bound, _worth(fleet, best)), "greedy")


def _worth(fleet: Fleet, places: Any) -> float:
    return float(fleet.worth[range(len(places)), places].sum())


def _walk(fleet: Fleet, budget_w: float) -> tuple[Any, float, float, float, Any]:
    """Places after the walk, what they draw, the fractional bound, the worth per watt where the walk ends, and by
    device how far its own steps are from there."""
    np = _numpy()
    places = np.zeros(len(fleet.power_w), dtype=int)
    steps: list[tuple[float, int, int, float, float]] = []
    spent_w = worth = 0.0
    for row, (powers, worths) in enumerate(zip(fleet.power_w.tolist(), fleet.worth.tolist(), strict=True)):
        known = [place for place, power in enumerate(powers) if power < math.inf]
        hull = [known[place] for place in rate_hull([(powers[place], worths[place]) for place in known])]
        places[row] = hull[0]
        spent_w, worth = spent_w + powers[hull[0]], worth + worths[hull[0]]
        for before, after in itertools.pairwise(hull):
            more_w, gain = powers[after] - powers[before], worths[after] - worths[before]
            steps.append((gain / more_w if more_w > 0 else math.inf, row, after, more_w, gain))
    steps.sort(key=lambda step: -step[0])  # stable, so that steps of one device stay in their order
    ends = np.full(len(places), math.inf)
    slope = 0.0
    stopped: set[int] = set()
    bound = worth
    for each, row, after, more_w, gain in steps:
        if not slope and spent_w + more_w <= budget_w * FITS:
            places[row], spent_w, bound = after, spent_w + more_w, bound + gain
        elif not slope:
            slope = each
            bound += each * max(0.0, budget_w - spent_w)
            stopped.add(row)
        elif row not in stopped and spent_w + more_w <= budget_w * FITS:
            places[row], spent_w = after, spent_w + more_w
        else:
            stopped.add(row)  # its later steps build on this one
    if slope:
        for each, row, *_ in steps:
            away = abs(math.log(each / slope)) if 0 < each < math.inf else math.inf
            ends[row] = min(ends[row], away)
    return places, spent_w, bound, slope, ends


def _filled(fleet: Fleet, places: Any, budget_w: float) -> Any:
    """PLACES raised, one device at a time, as long as something better fits."""
    np = _numpy()
    places = places.copy()
    rows = np.arange(len(places))
    while True:
        left_w = budget_w * FITS - fleet.power_w[rows, places].sum()
        more_w = fleet.power_w - fleet.power_w[rows, places][:, None]
        gain = np.where(more_w <= left_w, fleet.worth - fleet.worth[rows, places][:, None], -math.inf)
        row, place = divmod(int(gain.argmax()), gain.shape[1])
        if gain[row, place] <= 1e-12 * abs(fleet.worth[row, places[row]]):
            return places
        places[row] = place


def _settled(fleet: Fleet, places: Any, core: Any, budget_w: float) -> Any:
    """PLACES with the devices of CORE settled anew, the best of all their choices up to rounding of their powers."""
    np = _numpy()
    others = np.setdiff1d(np.arange(len(places)), core)
    least_w = fleet.least_w
    room_w = budget_w - fleet.power_w[others, places[others]].sum() - least_w[core].sum()
    if room_w <= 0:
        return places
    cell_w = room_w / CELLS
    best = np.zeros(CELLS + 1)
    chosen = np.zeros((len(core), CELLS + 1), dtype=np.int16)
    for depth, row in enumerate(core):
        reached = np.full(CELLS + 1, -math.inf)
        for place in range(fleet.power_w.shape[1]):
            above_w = fleet.power_w[row, place] - least_w[row]
            cells = math.ceil(above_w / cell_w - 1e-9) if above_w < math.inf else CELLS + 1
            if cells > CELLS:
                continue
            here = best[: CELLS + 1 - cells] + fleet.worth[row, place]
            better = here > reached[cells:]
            reached[cells:][better] = here[better]
            chosen[depth, cells:][better] = place
        best = reached
    settled = places.copy()
    cell = int(best.argmax())
    for depth in range(len(core) - 1, -1, -1):
        row = core[depth]
        settled[row] = chosen[depth, cell]
        cell -= math.ceil((fleet.power_w[row, settled[row]] - least_w[row]) / cell_w - 1e-9)
    return _filled(fleet, settled, budget_w)


def _exact(fleet: Fleet, budget_w: float, within_s: float) -> Shared:
    np = _numpy()
    try:
        from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
        from scipy.sparse import csr_matrix  # type: ignore[import-untyped]
    except ImportError as missing:
        raise ExtraNeeded("exact plans need scipy: `pip install 'wattsmith[plan]'`") from missing
    rows, columns = np.nonzero(np.isfinite(fleet.power_w))
    worth, power_w = fleet.worth[rows, columns], fleet.power_w[rows, columns]
    one_each = csr_matrix((np.ones(len(rows)), (rows, np.arange(len(rows)))))
    solved = milp(
        -worth,
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(csr_matrix(power_w[None, :]), -np.inf, budget_w),
        ],
        integrality=np.ones(len(rows)),
        bounds=Bounds(0, 1),
        options={"time_limit": within_s, "mip_rel_gap": 1e-6},
    )
    if solved.x is None:
        raise NoPlan(f"the exact method found no plan within {format_quantity(within_s, 'time')}: {solved.message}")
    places = np.zeros(len(fleet.power_w), dtype=int)
    picked = solved.x > 0.5
    places[rows[picked]] = columns[picked]
    bound = -solved.mip_dual_bound if solved.mip_dual_bound is not None else _worth(fleet, places)
    return fleet.shared(_filled(fleet, places, budget_w), max(bound, _worth(fleet, places)), "exact")
