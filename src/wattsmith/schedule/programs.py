"""The same slots as linear and mixed-integer programs: a bound, the worth of a watt, and the exact plan.

In the linear program every job may pause and share slots at will, and a budget is kept on average over a slot. So no
plan of the same jobs can cost less.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattsmith.schedule.curves import energy_hull
from wattsmith.schedule.slots import EPSILON, Grid, Piece, Placed, Slotted
from wattsmith.terms.errors import ExtraNeeded
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Job, Need, NoPlan, OperatingPoint, PoolNode

TIES = 1e-4  # what cost counts beside the end, where the plan that ends first is asked for
MOST_COLUMNS = 200_000  # above that the linear program takes longer than it is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """What no plan can beat."""

    cost: float
    worth_w: tuple[float, ...]  # by slot: what one watt more all through it would save


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One job in one slot, or over several from one start, in one way."""

    job: int
    need: Need
    point: OperatingPoint
    slots: tuple[int, ...]
    last_share: float = 1.0  # of the last slot
    whole: bool = False  # it does the whole job

    def shares(self) -> Iterator[tuple[int, float]]:
        for slot in self.slots:
            yield slot, self.last_share if slot == self.slots[-1] else 1.0


def _ways(job: Job, nodes: Sequence[PoolNode]) -> Iterator[tuple[Need, OperatingPoint]]:
    for need in job.needs:
        fits = any(
            node.kind == need.kind and node.usable >= need.devices and _holds(node, need.memory_bytes) for node in nodes
        )
        if fits:
            yield from ((need, point) for point in energy_hull(need.response))


def _window(job: Job, grid: Grid) -> tuple[int, float]:
    """The first slot and the time, in slots, at which it must have ended."""
    end = grid.count if job.deadline_s is None else (job.deadline_s - grid.begin_s) / grid.slot_s
    return grid.slot_from(job.release_s), min(float(grid.count), end + EPSILON)


def _by_slot(jobs: Sequence[Job], nodes: Sequence[PoolNode], grid: Grid) -> list[Column]:
    columns = []
    for place, job in enumerate(jobs):
        first, end = _window(job, grid)
        for need, point in _ways(job, nodes):
            columns += [
                Column(job=place, need=need, point=point, slots=(slot,)) for slot in range(first, math.ceil(end))
            ]
    return columns


def _from_starts(place: int, job: Job, nodes: Sequence[PoolNode], grid: Grid) -> list[Column]:
    first, end = _window(job, grid)
    columns = []
    for need, point in _ways(job, nodes):
        length = job.steps * point.step_s / grid.slot_s
        for start in range(first, grid.count):
            if start + length > end:
                break
            count = max(1, math.ceil(length - EPSILON))
            columns.append(
                Column(
                    job=place,
                    need=need,
                    point=point,
                    slots=tuple(range(start, start + count)),
                    last_share=length - (count - 1),
                    whole=True,
                )
            )
    return columns


def _cost(column: Column, grid: Grid) -> float:
    power_w = column.need.devices * column.point.known_w
    return sum(power_w * share * grid.slot_s * grid.prices[slot] for slot, share in column.shares())


def _draws_w(column: Column) -> float:
    return column.need.devices * max(0.0, column.point.known_w - column.need.response.idle_w)


def _solvers() -> Any:
    try:
        from scipy import optimize, sparse  # type: ignore[import-untyped]
    except ImportError as missing:
        raise ExtraNeeded("bounds and exact plans need scipy: `pip install 'wattsmith[plan]'`") from missing
    return optimize, sparse


def bound_of(jobs: Sequence[Job], nodes: Sequence[PoolNode], grid: Grid) -> Bound | None:
    """What no plan of JOBS can beat; None: even shared at will they cannot all be done, or there are too many."""
    optimize, sparse = _solvers()
    import numpy as np

    columns = _by_slot(jobs, nodes, grid)
    if not columns or len(columns) > MOST_COLUMNS:
        return None
    number = np.arange(len(columns))
    job = np.array([column.job for column in columns])
    slot = np.array([column.slots[0] for column in columns])
    steps = np.array([column.point.rate * grid.slot_s for column in columns])
    scale = np.array([each.steps for each in jobs])
    does = sparse.csr_matrix((steps / scale[job], (job, number)), shape=(len(jobs), len(columns)))
    pairs, row = np.unique(job * grid.count + slot, return_inverse=True)
    once = sparse.csr_matrix((np.ones(len(columns)), (row, number)), shape=(len(pairs), len(columns)))
    ends = np.array([_window(each, grid)[1] for each in jobs])
    limits = [(once, np.minimum(1.0, ends[pairs // grid.count] - pairs % grid.count))]
    budgeted = np.isfinite(grid.free_w)
    power = sparse.csr_matrix(([_draws_w(column) for column in columns], (slot, number)), (grid.count, len(columns)))
    limits.append((power[budgeted], np.array(grid.free_w)[budgeted]))
    for kind in sorted({node.kind for node in nodes}):
        uses = np.array([column.need.devices if column.need.kind == kind else 0.0 for column in columns])
        total = sum(node.usable for node in nodes if node.kind == kind)
        limits.append(
            (sparse.csr_matrix((uses, (slot, number)), (grid.count, len(columns))), np.full(grid.count, total))
        )
    costs = np.array([_cost(column, grid) for column in columns])
    solved = optimize.linprog(
        costs,
        A_ub=sparse.vstack([matrix for matrix, _ in limits]),
        b_ub=np.concatenate([most for _, most in limits]),
        A_eq=does,
        b_eq=np.ones(len(jobs)),
        bounds=(0, 1),
        method="highs",
    )
    if solved.status != 0:
        return None
    worth_w = np.zeros(grid.count)
    worth_w[budgeted] = -solved.ineqlin.marginals[len(pairs) : len(pairs) + int(budgeted.sum())]
    return Bound(cost=float(solved.fun), worth_w=tuple(float(each) for each in worth_w))


def place_exactly(
    jobs: Sequence[Job], nodes: Sequence[PoolNode], grid: Grid, *, soonest: bool = False, within_s: float = 60.0
) -> Slotted:
    """The plan of least cost, or SOONEST that which ends first, as good as HiGHS finds it WITHIN_S.

    Budgets hold at every moment, not on average.

    Devices are counted by kind. Raises NoPlan where there is none, or none was found.
    """
    optimize, sparse = _solvers()
    import numpy as np

    if any(job.after for job in jobs):
        raise NoPlan("jobs that wait for others are not planned exactly; leave out --exact")
    columns: list[Column] = []
    for place, job in enumerate(jobs):
        columns += _from_starts(place, job, nodes, grid)
        if job.pausable:
            columns += [
                Column(job=place, need=one.need, point=one.point, slots=one.slots)
                for one in _by_slot([job], nodes, grid)
                if one.slots[0] + 1 <= _window(job, grid)[1]
            ]
    if len(columns) > MOST_COLUMNS:
        raise NoPlan(f"{len(columns)} choices are too many for an exact plan; use longer slots, or leave out --exact")
    # A column is either taken or not (it then counts in the budget), and used for a share of its time (which costs).
    count = len(columns)
    rows = Rows(variables=2 * count)
    for place, job in enumerate(jobs):
        mine = [n for n, column in enumerate(columns) if column.job == place]
        _do_the_work(rows, job, mine, columns, grid)
        _keep_to_one_way(rows, mine, columns)
    for n, column in enumerate(columns):
        rows.add({count + n: 1.0, n: -1.0}, 0.0 if column.whole else -math.inf, 0.0)
    _keep_to_what_there_is(rows, columns, nodes, grid)
    end = _end_of_all(rows, columns, grid) if soonest else None
    costs = np.array([_cost(column, grid) for column in columns])
    least = np.zeros(rows.variables)
    least[count : 2 * count] = costs / (np.abs(costs).max(initial=0.0) or 1.0)
    if end is not None:
        least *= TIES
        least[end] = 1.0
    solved = optimize.milp(
        least,
        constraints=optimize.LinearConstraint(rows.matrix(sparse), rows.least, rows.most),
        integrality=np.concatenate([np.ones(count), np.zeros(rows.variables - count)]),
        bounds=optimize.Bounds(0, 1),
        options={"time_limit": within_s, "mip_rel_gap": 1e-4},
    )
    if solved.x is None:
        raise NoPlan(
            f"no exact plan was found within {format_quantity(within_s, 'time')}: {solved.message}; "
            "allow more power, devices or time, or leave out --exact"
        )
    return _slotted(jobs, nodes, grid, columns, solved.x[count : 2 * count])


@dataclass(slots=True)
class Rows:
    """The rows of a linear program, and how many variables it has, each from 0 to 1."""

    variables: int
    values: list[dict[int, float]] = field(default_factory=list)
    least: list[float] = field(default_factory=list)
    most: list[float] = field(default_factory=list)

    def add(self, values: dict[int, float], least: float, most: float) -> None:
        self.values.append(values)
        self.least.append(least)
        self.most.append(most)

    def new(self) -> int:
        """A variable more."""
        self.variables += 1
        return self.variables - 1

    def matrix(self, sparse: Any) -> Any:
        entries = [(row, place, value) for row, values in enumerate(self.values) for place, value in values.items()]
        number, place, value = zip(*entries, strict=True)
        return sparse.csr_matrix((value, (number, place)), shape=(len(self.values), self.variables))


def _do_the_work(rows: Rows, job: Job, mine: Sequence[int], columns: Sequence[Column], grid: Grid) -> None:
    """All steps are done, one column at a time, and each time that the job goes on after a pause costs some more."""
    count = len(columns)
    done = {count + n: 1.0 if columns[n].whole else columns[n].point.rate * grid.slot_s / job.steps for n in mine}
    fastest = max((columns[n].point.rate for n in mine), default=0.0)
    lost = (job.resume_s + (job.pause_every_s or 0.0)) * fastest / job.steps if job.pausable else 0.0
    before: set[int] = set()
    starts: list[int] = []
    for slot in range(grid.count):
        here = {n for n in mine if slot in columns[n].slots}
        if here:
            rows.add(dict.fromkeys(here, 1.0), 0.0, 1.0)
        if here and lost:
            begins = rows.new()
            rows.add(
                {begins: 1.0} | dict.fromkeys(before - here, 1.0) | dict.fromkeys(here - before, -1.0), 0.0, math.inf
            )
            starts.append(begins)
            done[begins] = -lost
            # A slot before one that is taken too is used to its end: else there would be a pause that nobody counts.
            used = dict.fromkeys((count + n for n in before), 1.0)
            both = dict.fromkeys(before ^ here, -1.0) | dict.fromkeys(before & here, -2.0)
            rows.add(used | both, -1.0, math.inf)
        before = here
    if lost:
        rows.add(dict.fromkeys(starts, 1.0), 1.0, math.inf)
    rows.add(done, 1.0 - lost, 1.0 - lost)


def _end_of_all(rows: Rows, columns: Sequence[Column], grid: Grid) -> int:
    """The variable that is no less than the end of any column that is used, as a share of the grid."""
    count, end = len(columns), rows.new()
    for n, column in enumerate(columns):
        last = column.slots[-1] / grid.count
        part = column.last_share / grid.count
        rows.add({n: last + part, end: -1.0} if column.whole else {n: last, count + n: part, end: -1.0}, -math.inf, 0.0)
    return end


def _keep_to_one_way(rows: Rows, mine: Sequence[int], columns: Sequence[Column]) -> None:
    """A job that pauses goes on with as many devices of the kind that it began on."""
    ways: dict[int, list[int]] = {}
    for n in mine:
        if not columns[n].whole:
            ways.setdefault(id(columns[n].need), []).append(n)
    if len(ways) < 2:
        return
    taken = {rows.new(): way for way in ways.values()}
    rows.add(dict.fromkeys(taken, 1.0), 0.0, 1.0)
    for way_taken, way in taken.items():
        for n in way:
            rows.add({n: 1.0, way_taken: -1.0}, -math.inf, 0.0)


def _keep_to_what_there_is(rows: Rows, columns: Sequence[Column], nodes: Sequence[PoolNode], grid: Grid) -> None:
    """In each slot: no more power than is free, and of each kind no more devices than have the memory."""
    sizes = {(column.need.kind, column.need.memory_bytes or 0.0) for column in columns}
    usable = {
        (kind, size): sum(node.usable for node in nodes if node.kind == kind and _holds(node, size))
        for kind, size in sizes
    }
    for slot in range(grid.count):
        here = [n for n, column in enumerate(columns) if slot in column.slots]
        if here and math.isfinite(grid.free_w[slot]):
            rows.add({n: _draws_w(columns[n]) for n in here}, 0.0, grid.free_w[slot])
        for (kind, size), most in usable.items():
            mine = [n for n in here if columns[n].need.kind == kind and (columns[n].need.memory_bytes or 0.0) >= size]
            if mine:
                rows.add({n: float(columns[n].need.devices) for n in mine}, 0.0, float(most))


def _holds(node: PoolNode, size_bytes: float | None) -> bool:
    return not size_bytes or node.memory_bytes is None or size_bytes <= node.memory_bytes


def _slotted(
    jobs: Sequence[Job], nodes: Sequence[PoolNode], grid: Grid, columns: Sequence[Column], used: Any
) -> Slotted:
    """Used columns as placed jobs, each on devices that are free all the while; NoPlan where nodes are too small."""
    import numpy as np

    busy = {node.name: np.zeros((node.count, grid.count), dtype=bool) for node in nodes}
    for node in nodes:
        busy[node.name][list(node.excluded)] = True
    placed = []
    used_by = {columns[n].job: columns[n].need for n in range(len(columns)) if used[n] > 1e-7}
    by_size = sorted(nodes, key=lambda node: math.inf if node.memory_bytes is None else node.memory_bytes)
    for place in sorted(used_by, key=lambda place: (-used_by[place].devices, -(used_by[place].memory_bytes or 0.0))):
        mine = [(columns[n], float(used[n])) for n in range(len(columns)) if columns[n].job == place and used[n] > 1e-7]
        pieces = sorted(
            (
                Piece(slot=slot, from_s=0.0, until_s=share * part * grid.slot_s, point=column.point)
                for column, share in mine
                for slot, part in column.shares()
            ),
            key=lambda piece: piece.slot,
        )
        need = mine[0][0].need
        slots = [piece.slot for piece in pieces]
        for node in by_size:
            free = [d for d in range(node.count) if not busy[node.name][d, slots].any()]
            if node.kind == need.kind and _holds(node, need.memory_bytes) and len(free) >= need.devices:
                devices = tuple(free[: need.devices])
                busy[node.name][np.ix_(devices, slots)] = True
                cost = sum(share * _cost(column, grid) for column, share in mine)
                placed.append(
                    Placed(job=jobs[place], need=need, node=node, devices=devices, pieces=tuple(pieces), cost=cost)
                )
                break
        else:
            raise NoPlan(
                f"the exact plan counts devices by kind, and {jobs[place].name!r} finds none free on one node; "
                "leave out --exact"
            )
    return Slotted(placed=tuple(placed))
