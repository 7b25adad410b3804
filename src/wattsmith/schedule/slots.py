"""Jobs planned over slots of time, for least energy, cost, carbon or time, on a pool under a power budget.

One job after the other takes what is best for it in what the others have left; several orders are tried. Before that, a
linear program without any wholeness gives a bound that no plan can beat, and what a watt is worth in each slot, so that
a job with a choice leaves scarce slots to those without.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from wattsmith.schedule.curves import energy_hull
from wattsmith.schedule.needs import has_memory
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Job, Need, NoPlan, Objective, OperatingPoint, PoolNode, Stretch

EPSILON = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Slots of time, what a joule costs in each (g, money, or 1), and what may be drawn above idle."""

    begin_s: float
    slot_s: float
    prices: tuple[float, ...]
    free_w: tuple[float, ...]  # above what idle devices draw; infinite: no budget

    def __post_init__(self) -> None:
        if not 0 < self.slot_s < math.inf:
            raise BadTerm(f"slot_s must be positive, got {self.slot_s}")
        if len(self.prices) != len(self.free_w) or not self.prices:
            raise BadTerm(
                f"a grid needs a price and a budget for each slot, got {len(self.prices)}, {len(self.free_w)}"
            )

    @property
    def count(self) -> int:
        return len(self.prices)

    @property
    def end_s(self) -> float:
        return self.begin_s + self.count * self.slot_s

    def slot_from(self, time_s: float | None) -> int:
        """The first slot that begins at TIME_S or later."""
        return 0 if time_s is None else max(0, math.ceil((time_s - self.begin_s) / self.slot_s - EPSILON))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of one slot in which a job runs at one setting."""

    slot: int
    from_s: float  # since the slot began
    until_s: float
    point: OperatingPoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """Where and when one job runs."""

    job: Job
    need: Need
    node: PoolNode
    devices: tuple[int, ...]
    pieces: tuple[Piece, ...]
    cost: float  # in the unit of the grid's prices

    def ends_s(self, grid: Grid) -> float:
        last = self.pieces[-1]
        return grid.begin_s + last.slot * grid.slot_s + last.until_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Slotted:
    """Jobs that found a place, and those that did not, with the reason."""

    placed: tuple[Placed, ...]
    missed: Mapping[str, str] = field(default_factory=dict)

    @property
    def cost(self) -> float:
        return sum(one.cost for one in self.placed)


class Room:
    """What is left of power and devices in each slot."""

    def __init__(self, grid: Grid, nodes: Sequence[PoolNode], sigmas: float) -> None:
        import numpy as np

        self.grid = grid
        self.nodes = nodes
        self.sigmas = sigmas
        self.free_w = np.array(grid.free_w)
        self.prices = np.array(grid.prices)
        self.drawn_w = np.zeros(grid.count)
        self.squares = np.zeros(grid.count)  # of the errors of what is drawn
        self.common = 0.0
        self.free = {node.name: _usable(node, grid.count) for node in nodes}
        self.untouched = {node.name: True for node in nodes}

    def fits(self, need: Need, point: OperatingPoint) -> Any:
        """By slot: whether NEED at POINT stays within the budget beside what runs there, its doubt included."""
        import numpy as np

        more_w, square, common = self._adds(need, point)
        drawn_w = self.drawn_w + more_w
        spread = np.sqrt(self.squares + square + (max(self.common, common) * drawn_w) ** 2)
        return drawn_w + self.sigmas * spread <= self.free_w * (1 + EPSILON)

    def alone_w(self, need: Need, point: OperatingPoint) -> tuple[float, float]:
        """What NEED at POINT takes of an empty pool: above idle, and with the guard for its doubt."""
        more_w, square, common = self._adds(need, point)
        return more_w, more_w + self.sigmas * math.sqrt(square + (common * more_w) ** 2)

    def _adds(self, need: Need, point: OperatingPoint) -> tuple[float, float, float]:
        doubt = need.response.doubt
        more_w = need.devices * max(0.0, point.known_w - need.response.idle_w)
        return more_w, need.devices * (doubt.power_ratio * point.known_w) ** 2, doubt.common_ratio

    def take(self, placed: Placed) -> None:
        most: dict[int, OperatingPoint] = {}
        for piece in placed.pieces:
            if piece.slot not in most or piece.point.known_w > most[piece.slot].known_w:
                most[piece.slot] = piece.point
        for slot, point in most.items():
            more_w, square, common = self._adds(placed.need, point)
            self.drawn_w[slot] += more_w
            self.squares[slot] += square
            self.common = max(self.common, common)
            self.free[placed.node.name][list(placed.devices), slot] = False
        self.untouched[placed.node.name] = False


def _usable(node: PoolNode, count: int) -> Any:
    import numpy as np

    free = np.ones((node.count, count), dtype=bool)
    free[list(node.excluded)] = False
    return free


def place_all(
    jobs: Sequence[Job],
    room: Room,
    objective: Objective,
    worth_w: Sequence[float] | None = None,
) -> Slotted:
    """JOBS placed one after the other, in this order; WORTH_W: what a watt is worth to others in each slot."""
    import numpy as np

    prices = room.prices * room.grid.slot_s
    extra = np.zeros(room.grid.count) if worth_w is None else np.array(worth_w)
    ends_s: dict[str, float] = {}
    placed: list[Placed] = []
    missed: dict[str, str] = {}
    for job in jobs:
        waits = [name for name in job.after if name in missed]
        if waits:
            missed[job.name] = f"it waits for {waits[0]!r}, which is not planned"
            continue
        release_s = max([job.release_s or room.grid.begin_s, *(ends_s[name] for name in job.after)])
        try:
            found = place(job, room, objective, release_s, prices, extra)
        except NoPlan as refused:
            missed[job.name] = str(refused)
            continue
        room.take(found)
        placed.append(found)
        ends_s[job.name] = found.ends_s(room.grid)
    return Slotted(placed=tuple(placed), missed=missed)


def place(job: Job, room: Room, objective: Objective, release_s: float, prices: Any, extra: Any) -> Placed:
    """The best place for JOB in what is left. Raises NoPlan that says why there is none."""
    grid = room.grid
    first = grid.slot_from(release_s)
    deadline_s = min(grid.end_s, job.deadline_s if job.deadline_s is not None else math.inf)
    best: tuple[tuple[float, ...], Placed] | None = None
    seen: set[tuple[Any, ...]] = set()
    for need in sorted(job.needs, key=lambda one: one.devices):
        if best is not None and job.fewest_devices and need.devices > best[1].need.devices:
            break
        for node in sorted(room.nodes, key=lambda one: not room.untouched[one.name]):
            if node.kind != need.kind or node.usable < need.devices or not has_memory(need, node):
                continue
            if not any(node.allows(point) for point in need.response.points):
                continue
            free = room.free[node.name]
            like = (node.kind, need.devices, node.memory_bytes, node.power_limits_w, node.cores_each)
            alike, whole = (*like, free.tobytes()), (*like, node.usable)
            if alike in seen or (whole in seen and node.usable == need.devices):
                continue  # another node is just as free, or is wholly free and no larger
            seen.add(alike)
            if bool(free.all()):
                seen.add(whole)
            devices = _devices(free, need.devices, first)
            usable = free[list(devices)].all(axis=0)
            for pieces, cost, rank in _ways(job, need, node, room, objective, usable, first, deadline_s, prices, extra):
                ends_s = grid.begin_s + pieces[-1].slot * grid.slot_s + pieces[-1].until_s
                key = (rank, ends_s, float(free.any(axis=1).sum() - need.devices), float(node.memory_bytes or 0))
                if best is None or key < best[0]:
                    best = key, Placed(job=job, need=need, node=node, devices=devices, pieces=tuple(pieces), cost=cost)
    if best is None:
        raise NoPlan(_why_not(job, room, release_s, deadline_s))
    return best[1]


def _devices(free: Any, count: int, first: int) -> tuple[int, ...]:
    """The devices of a node that are free most of the time from FIRST on."""
    import numpy as np

    order = np.argsort(-free[:, first:].sum(axis=1), kind="stable")
    return tuple(sorted(int(place) for place in order[:count]))


def _why_not(job: Job, room: Room, release_s: float, deadline_s: float) -> str:
    fastest_s = min(job.steps / max(point.rate for point in need.response.points) for need in job.needs)
    if fastest_s > deadline_s - release_s + EPSILON:
        return (
            f"it takes {format_quantity(fastest_s, 'time')} at its fastest, and there are "
            f"{format_quantity(max(0.0, deadline_s - release_s), 'time')} between its release and its deadline"
        )
    least_w, guarded_w = min(room.alone_w(need, point) for need in job.needs for point in need.response.points)
    free_w = float(room.free_w.max())
    if guarded_w > free_w:
        guard = "" if least_w > free_w else f", {format_quantity(guarded_w, 'power')} with the guard for its doubt"
        return (
            f"it draws at least {format_quantity(least_w, 'power')} above idle{guard}, and the budget leaves "
            f"{format_quantity(free_w, 'power')}"
        )
    until = "its deadline" if job.deadline_s is not None else "the plan's end"
    return f"no device and no power is left for it long enough before {until}; allow more power, devices or time"


def _ways(
    job: Job,
    need: Need,
    node: PoolNode,
    room: Room,
    objective: Objective,
    usable: Any,
    first: int,
    deadline_s: float,
    prices: Any,
    extra: Any,
) -> list[tuple[list[Piece], float, float]]:
    """Ways to run JOB so, each with its cost and its rank: the lower the better."""
    settable = replace(need.response, points=tuple(point for point in need.response.points if node.allows(point)))
    points = list(energy_hull(settable))
    if objective is Objective.TIME:
        points = sorted(settable.points, key=lambda point: (-point.rate, point.known_w))
    fits = {point: room.fits(need, point) & usable for point in points}
    ways = [_whole(job, need, room.grid, objective, fits, first, deadline_s, prices, extra)]
    if job.pausable:
        paused = _in_parts if objective is not Objective.TIME else _at_once
        ways.append(paused(job, need, room.grid, fits, first, deadline_s, prices, extra))
    return [way for way in ways if way is not None]


def _whole(
    job: Job,
    need: Need,
    grid: Grid,
    objective: Objective,
    fits: Mapping[OperatingPoint, Any],
    first: int,
    deadline_s: float,
    prices: Any,
    extra: Any,
) -> tuple[list[Piece], float, float] | None:
    """Without a pause, at one setting: the best start and the best setting."""
    import numpy as np

    best: tuple[float, int, OperatingPoint, float] | None = None
    starts = np.arange(first, grid.count)
    paid = np.concatenate([[0.0], np.cumsum(prices)])
    asked = np.concatenate([[0.0], np.cumsum(extra)])
    slots = np.arange(grid.count + 1)
    for point, fit in fits.items():
        length = job.steps * point.step_s / grid.slot_s
        last = np.ceil(starts + length - EPSILON).astype(int)
        inside = (last <= grid.count) & (
            grid.begin_s + (starts + length) * grid.slot_s <= deadline_s + EPSILON * grid.slot_s
        )
        blocked = np.concatenate([[0], np.cumsum(~fit)])
        good = inside & (blocked[np.minimum(last, grid.count)] - blocked[starts] == 0)
        if not good.any():
            continue
        power_w = need.devices * point.known_w
        cost = power_w * (np.interp(starts + length, slots, paid) - paid[starts])
        rank = cost + power_w * (np.interp(starts + length, slots, asked) - asked[starts])
        if objective is Objective.TIME:
            rank = (starts + length) * grid.slot_s
        rank = np.where(good, rank, math.inf)
        # Of starts that are as good, the first: sums in another order differ in their last digits.
        place = int(np.argmax(rank <= rank.min() + EPSILON * abs(rank.min())))
        if best is None or rank[place] < best[0] - EPSILON * abs(best[0]):
            best = float(rank[place]), int(starts[place]), point, float(cost[place])
    if best is None:
        return None
    rank, start, point, cost = best
    return _filled(start, job.steps * point.step_s, point, grid), cost, rank


def _filled(start: int, duration_s: float, point: OperatingPoint, grid: Grid) -> list[Piece]:
    pieces, slot = [], start
    while duration_s > EPSILON * grid.slot_s:
        lasts_s = min(duration_s, grid.slot_s)
        pieces.append(Piece(slot=slot, from_s=0.0, until_s=lasts_s, point=point))
        duration_s, slot = duration_s - lasts_s, slot + 1
    return pieces


def _in_parts(
    job: Job,
    need: Need,
    grid: Grid,
    fits: Mapping[OperatingPoint, Any],
    first: int,
    deadline_s: float,
    prices: Any,
    extra: Any,
) -> tuple[list[Piece], float, float] | None:
    """With pauses: in each slot as much as is worth it there, the cheapest steps first."""
    last = min(grid.count, math.ceil((deadline_s - grid.begin_s) / grid.slot_s - EPSILON))
    rises: list[tuple[float, int, int, float]] = []  # per step, slot, place on the slot's ladder, steps
    ladders: dict[int, list[OperatingPoint]] = {}
    lengths_s: dict[int, float] = {}  # the last slot may end at the deadline
    for slot in range(first, last):
        # From the most frugal to the fastest: each further step of a slot costs more than the one before it.
        ladder = [point for point in reversed(list(fits)) if fits[point][slot]]
        per_joule = float(prices[slot] + extra[slot]) * need.devices / grid.slot_s
        if per_joule < 0:
            ladder = ladder[-1:]  # who is paid for a joule takes the most of them
        ladders[slot] = ladder
        lasts_s = lengths_s[slot] = min(grid.slot_s, deadline_s - grid.begin_s - slot * grid.slot_s)
        before, slope = (0.0, 0.0), -math.inf
        for place, point in enumerate(ladder):
            here = (point.rate * lasts_s, per_joule * point.known_w * lasts_s)
            if here[0] > before[0]:
                # Rounding must not put a rise before the one that it builds on.
                slope = max(slope, (here[1] - before[1]) / (here[0] - before[0]))
                rises.append((slope, slot, place, here[0] - before[0]))
                before = here
    rises.sort()
    lost = job.resume_s + (job.pause_every_s or 0.0)
    asked = job.steps
    for _ in range(8):  # each pause adds work, which may add a slot, which may add a pause
        taken = _taken(rises, asked)
        if taken is None:
            return None
        pieces = _pieces(taken, ladders, lengths_s)
        pauses = sum(_pauses_between(a, b, grid) for a, b in itertools.pairwise(pieces))
        due = job.steps + pauses * lost * max(point.rate for point in fits)
        if due <= asked * (1 + EPSILON):
            break
        asked = due
    else:
        return None
    cost = rank = 0.0
    for piece in pieces:
        energy_ratio = need.devices * piece.point.known_w * (piece.until_s - piece.from_s) / grid.slot_s
        cost += energy_ratio * float(prices[piece.slot])
        rank += energy_ratio * float(prices[piece.slot] + extra[piece.slot])
    return pieces, cost, rank


def _pauses_between(one: Piece, other: Piece, grid: Grid) -> bool:
    ends_s, begins_s = one.slot * grid.slot_s + one.until_s, other.slot * grid.slot_s + other.from_s
    return begins_s > ends_s + EPSILON * grid.slot_s


def _taken(rises: Sequence[tuple[float, int, int, float]], steps: float) -> dict[int, tuple[int, float]] | None:
    """By slot: how high on its ladder, and which share of its last rise; None: all slots together do less."""
    taken: dict[int, tuple[int, float]] = {}
    for _, slot, place, more in rises:
        share = min(1.0, steps / more)
        if slot in taken and taken[slot][1] < 1:
            continue
        taken[slot] = place, share
        steps -= share * more
        if steps <= EPSILON * more:
            return taken
    return None


def _pieces(
    taken: Mapping[int, tuple[int, float]],
    ladders: Mapping[int, Sequence[OperatingPoint]],
    lengths_s: Mapping[int, float],
) -> list[Piece]:
    """A share of a rise is a part of the slot at the higher setting, and the rest at the lower, or not at all."""
    pieces = []
    for slot in sorted(taken):
        place, share = taken[slot]
        cut_s = share * lengths_s[slot]
        pieces.append(Piece(slot=slot, from_s=0.0, until_s=cut_s, point=ladders[slot][place]))
        if share < 1 and place > 0:
            pieces.append(Piece(slot=slot, from_s=cut_s, until_s=lengths_s[slot], point=ladders[slot][place - 1]))
    return pieces


def _at_once(
    job: Job,
    need: Need,
    grid: Grid,
    fits: Mapping[OperatingPoint, Any],
    first: int,
    deadline_s: float,
    prices: Any,
    extra: Any,  # noqa: ARG001 - called in place of _in_parts
) -> tuple[list[Piece], float, float] | None:
    """With pauses, and as early as can be: in each slot the fastest setting that fits."""
    left, cost = job.steps, 0.0
    pieces: list[Piece] = []
    lost = (job.resume_s + (job.pause_every_s or 0.0)) * max(point.rate for point in fits)
    for slot in range(first, grid.count):
        point = next((one for one in fits if fits[one][slot]), None)
        if point is None:
            continue
        if pieces and pieces[-1].slot < slot - 1:
            left += lost
        lasts_s = min(grid.slot_s, left * point.step_s)
        pieces.append(Piece(slot=slot, from_s=0.0, until_s=lasts_s, point=point))
        cost += need.devices * point.known_w * lasts_s / grid.slot_s * float(prices[slot])
        left -= lasts_s * point.rate
        if left <= EPSILON * job.steps:
            ends_s = slot * grid.slot_s + lasts_s
            return (pieces, cost, ends_s) if grid.begin_s + ends_s <= deadline_s + EPSILON * grid.slot_s else None
    return None


def stretches_of(slotted: Slotted, grid: Grid) -> list[Stretch]:
    """What was placed, with neighbouring pieces at one setting joined."""
    found: list[Stretch] = []
    for one in slotted.placed:
        open_at: tuple[float, float, OperatingPoint] | None = None
        for piece in one.pieces:
            from_s = grid.begin_s + piece.slot * grid.slot_s + piece.from_s
            until_s = grid.begin_s + piece.slot * grid.slot_s + piece.until_s
            if open_at and open_at[2] == piece.point and abs(open_at[1] - from_s) < EPSILON * grid.slot_s + 1e-6:
                open_at = open_at[0], until_s, piece.point
                continue
            if open_at:
                found.append(_stretch(one, open_at))
            open_at = from_s, until_s, piece.point
        if open_at:
            found.append(_stretch(one, open_at))
    return sorted(found, key=lambda stretch: (stretch.from_s, stretch.job))


def _stretch(one: Placed, open_at: tuple[float, float, OperatingPoint]) -> Stretch:
    from_s, until_s, point = open_at
    return Stretch(
        job=one.job.name,
        node=one.node.name,
        devices=one.devices,
        from_s=from_s,
        until_s=until_s,
        point=point,
        steps=(until_s - from_s) * point.rate,
    )
