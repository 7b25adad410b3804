"""A plan from jobs, a pool and limits: what does not fit is refused first, then slots are laid and filled."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

from wattsmith.schedule.curves import thinned
from wattsmith.schedule.guard import OVERSHOOTS
from wattsmith.schedule.needs import fed, has_memory, limits_asked, settable
from wattsmith.schedule.order import in_order
from wattsmith.schedule.programs import Bound, bound_of, place_exactly
from wattsmith.schedule.series import HOUR_S, Series, iso
from wattsmith.schedule.slots import Grid, Room, Slotted, place_all, stretches_of
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.schedule import Job, Need, NoPlan, Objective, Plan, PoolNode, Stretch, idle_unknown_of

MOST_SLOTS = 400
SLOTS_TO_HOLD = 50_000  # asked for; more would take the memory of the machine
SETTINGS = 10  # of each response, at most
TRIES = 12  # orders of the jobs
NAMED = 5  # machines, where many could be
DAY_S = 86400.0
TOO_FAR_S = 3650 * DAY_S  # nobody plans for longer
TOO_SHORT_S = 1e-3  # clocks of today do not tell shorter stretches apart by much


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What a plan is to keep and to make least."""

    now_s: float
    objective: Objective = Objective.ENERGY
    budget_w: float | None = None  # of the whole pool, idle devices included; None: unlimited
    deadline_s: float | None = None  # of all jobs that have none of their own
    carbon: Series | None = None  # g per kWh
    tariff: Series | None = None  # money per kWh
    budgets: tuple[tuple[float, float], ...] = ()  # from a time on, another budget
    slot_s: float | None = None  # None: as suits the jobs
    overshoots: float = OVERSHOOTS
    exact: bool = False
    tries: int = TRIES
    seed: int = 0


def make_plan(
    jobs: Sequence[Job], nodes: Sequence[PoolNode], wish: Wish, sizes: Mapping[str, int] | None = None
) -> Plan:
    """The plan of JOBS on NODES. SIZES: memory of devices one could get, to say which would do.

    Raises NoPlan where a job can never run, the budget is below idle power, or a deadline is past. A job for which
    nothing is left in time is in the plan's `missed`, with the reason.
    """
    if not jobs:
        raise NoPlan("there is no job to plan")
    if not nodes:
        raise NoPlan("the pool is empty: there is no device to plan for")
    jobs = [_with_deadline(job, wish) for job in in_order(jobs)]
    for job in jobs:
        _check_deadline(job, wish)
    jobs = [_that_fit(job, nodes, sizes or {}, exact=wish.exact) for job in jobs]
    _check_lengths(jobs)
    jobs = _in_time_for_others(jobs, wish)
    idle_w = sum(node.known_idle_w for node in nodes)
    _check_budget(wish, idle_w)
    grid = _grid(jobs, nodes, wish, idle_w)
    sigmas = NormalDist().inv_cdf(1 - wish.overshoots)
    if wish.exact:
        jobs = [_on_the_fewest(job, grid) for job in jobs]
        soonest = wish.objective is Objective.TIME
        slotted, method = place_exactly(jobs, nodes, _narrowed(grid, jobs, sigmas), soonest=soonest), "exact"
        bound = bound_of(jobs, nodes, grid)
    else:
        bound = None if wish.objective is Objective.TIME else bound_of(jobs, nodes, grid)
        slotted, method = _best_order(jobs, nodes, grid, wish, sigmas, bound), "greedy"
    return _plan(slotted, jobs, nodes, grid, wish, idle_w, bound, method)


def _check_lengths(jobs: Sequence[Job]) -> None:
    for job in jobs:
        fastest_s = min(job.steps / max(point.rate for point in need.response.points) for need in job.needs)
        if not fastest_s <= TOO_FAR_S:
            raise NoPlan(f"{job.name}: {job.steps:.3g} steps take more than ten years at best; check steps and step")
        if fastest_s < TOO_SHORT_S:
            raise NoPlan(f"{job.name}: {job.steps:.3g} steps take less than a millisecond; check steps and step")


def _with_deadline(job: Job, wish: Wish) -> Job:
    return job if job.deadline_s is not None or wish.deadline_s is None else replace(job, deadline_s=wish.deadline_s)


def _in_time_for_others(jobs: Sequence[Job], wish: Wish) -> list[Job]:
    """JOBS with deadlines that leave those which wait for them their shortest time, where they can be kept at all."""
    latest_s: dict[str, float] = {}
    found = []
    for job in reversed(jobs):
        fastest_s = min(job.steps / max(point.rate for point in need.response.points) for need in job.needs)
        own_s = math.inf if job.deadline_s is None else job.deadline_s
        asked_s = min(own_s, latest_s.get(job.name, math.inf))
        begin_s = max(wish.now_s, job.release_s or wish.now_s)
        deadline_s = asked_s if begin_s + fastest_s <= asked_s else own_s
        for name in job.after:
            latest_s[name] = min(latest_s.get(name, math.inf), deadline_s - fastest_s)
        found.append(job if deadline_s == math.inf else replace(job, deadline_s=deadline_s))
    return found[::-1]


def _check_deadline(job: Job, wish: Wish) -> None:
    if job.deadline_s is not None and job.deadline_s <= wish.now_s:
        raise NoPlan(
            f"the deadline of {job.name!r}, {iso(job.deadline_s)}, is in the past: it is {iso(wish.now_s)} now. "
            "Give it a later one, or none"
        )
    if job.deadline_s is not None and job.release_s is not None and job.deadline_s <= job.release_s:
        raise NoPlan(
            f"{job.name!r} may begin at {iso(job.release_s)} and must have ended at {iso(job.deadline_s)}, before that"
        )


def _that_fit(job: Job, nodes: Sequence[PoolNode], sizes: Mapping[str, int], *, exact: bool) -> Job:
    """JOB with the ways to run it that some node has memory and devices for, on fewer settings where there are many."""
    kinds = [need for need in job.needs if any(node.kind == need.kind for node in nodes)]
    if not kinds:
        raise NoPlan(
            f"{job.name!r} runs on {', '.join(sorted({need.kind for need in job.needs}))}, and the pool has "
            f"{', '.join(sorted({node.kind for node in nodes}))}"
        )
    roomy = [need for need in kinds if any(node.kind == need.kind and has_memory(need, node) for node in nodes)]
    if not roomy:
        raise NoPlan(_too_large(job, kinds, nodes, sizes))
    fitting = [
        need
        for need in roomy
        if any(node.kind == need.kind and has_memory(need, node) and node.usable >= need.devices for node in nodes)
    ]
    if not fitting:
        most = max(node.usable for node in nodes)
        least = min(need.devices for need in roomy)
        raise NoPlan(f"{job.name!r} needs {least} devices of one machine, and the largest machine has {most}")
    if not any(node.kind == need.kind and settable(need, node) for need in fitting for node in nodes):
        raise NoPlan(_not_settable(job, fitting, nodes))
    if exact:
        fitting = [_settable(need, nodes) for need in fitting]
    return _fed(job, [replace(need, response=thinned(need.response, SETTINGS)) for need in fitting], nodes, exact=exact)


def _fed(job: Job, needs: Sequence[Need], nodes: Sequence[PoolNode], *, exact: bool) -> Job:
    """JOB with those of NEEDS, data workers included, that some node has cores for."""
    found = []
    for need in needs:
        mine = [n for n in nodes if n.kind == need.kind and has_memory(need, n) and n.usable >= need.devices]
        if exact:  # which counts devices by kind, so that the node with the fewest cores must do
            mine = [min(mine, key=lambda one: math.inf if one.cores_each is None else one.cores_each)]
        found.append(fed(need, mine))
    some = tuple(need for need in found if need is not None)
    if not some:
        raise NoPlan(
            f"{job.name!r} needs at least one core for the data workers of each device, and "
            f"{'some' if exact else 'every'} machine that it fits has fewer cores than devices; "
            "exclude devices of it, or correct its cores"
        )
    return replace(job, needs=some)


def _not_settable(job: Job, needs: Sequence[Need], nodes: Sequence[PoolNode]) -> str:
    kinds = {need.kind for need in needs}
    taken = [(node.name, *node.power_limits_w) for node in nodes if node.kind in kinds and node.power_limits_w]
    takes = "; ".join(f"{name} takes {least_w:g} to {most_w:g} W" for name, least_w, most_w in taken[:NAMED])
    return f"{job.name!r} has figures at {limits_asked(needs)}, and no machine may be set so: {takes}"


def _settable(need: Need, nodes: Sequence[PoolNode]) -> Need:
    """NEED with the settings that every node of its kind may have: exact plans count devices by kind."""
    mine = [node for node in nodes if node.kind == need.kind]
    points = tuple(p for p in need.response.points if all(node.allows(p) for node in mine))
    if not points:
        raise NoPlan(f"no setting is allowed on every {need.kind}; leave out --exact")
    return replace(need, response=replace(need.response, points=points))


def _on_the_fewest(job: Job, grid: Grid) -> Job:
    """JOB on the fewest devices that could keep its deadline, where as few as possible are asked for."""
    if not job.fewest_devices:
        return job
    left_s = (job.deadline_s or grid.end_s) - max(grid.begin_s, job.release_s or grid.begin_s)
    in_time = [need for need in job.needs if job.steps <= max(p.rate for p in need.response.points) * left_s]
    fewest = min(need.devices for need in in_time or job.needs)
    return replace(job, needs=tuple(need for need in in_time or job.needs if need.devices == fewest))


def _too_large(job: Job, needs: Sequence[Need], nodes: Sequence[PoolNode], sizes: Mapping[str, int]) -> str:
    least = min(needs, key=lambda need: need.memory_bytes or 0.0)
    needed = least.memory_bytes or 0.0
    most = max(node.memory_bytes or 0 for node in nodes)
    would = sorted((size, name) for name, size in sizes.items() if size >= needed)
    do = (
        f"the smallest known that would do is {would[0][1]} with {_gib(would[0][0])}"
        if would
        else ("no device that is known has as much; use more of them, or a smaller batch")
    )
    return f"{job.name!r} needs up to {_gib(needed)} of each device, and the largest of the pool has {_gib(most)}: {do}"


def _gib(size_bytes: float) -> str:
    return format_quantity(size_bytes, "memory", 3)


def _check_budget(wish: Wish, idle_w: float) -> None:
    budgets_w = [budget_w for _, budget_w in wish.budgets] + ([] if wish.budget_w is None else [wish.budget_w])
    if budgets_w and min(budgets_w) < idle_w:
        raise NoPlan(
            f"the pool draws {format_quantity(idle_w, 'power')} when idle, which is more than the budget of "
            f"{format_quantity(min(budgets_w), 'power')}; allow more, or take machines out of the pool"
        )


def _grid(jobs: Sequence[Job], nodes: Sequence[PoolNode], wish: Wish, idle_w: float) -> Grid:
    # Moments are seconds since 1970, so that their difference is good to a microsecond and no further.
    span_s = round(_horizon_s(jobs, nodes, wish) - wish.now_s, 6)
    slot_s = wish.slot_s or _slot_s(jobs, span_s, wish)
    count = max(1, math.ceil(span_s / slot_s - 1e-9))
    if count > SLOTS_TO_HOLD:
        least_s = math.ceil(span_s / SLOTS_TO_HOLD)
        raise NoPlan(f"{count} slots of {slot_s:g} s until all jobs may be done are too many; take {least_s} s or more")
    starts = [wish.now_s + place * slot_s for place in range(count)]
    series = {Objective.CARBON: wish.carbon, Objective.COST: wish.tariff}.get(wish.objective)
    if wish.objective in (Objective.CARBON, Objective.COST) and series is None:
        option = "--carbon" if wish.objective is Objective.CARBON else "--tariff"
        raise NoPlan(f"a plan for least {wish.objective} follows a series over time: give one with {option} FILE.csv")
    if series is not None:
        until_s = max(starts[0] + slot_s, min(starts[-1] + slot_s, series.until_s))
        count = max(1, math.floor((until_s - wish.now_s) / slot_s + 1e-9))
        starts = starts[:count]
    prices = [1.0 if series is None else series.mean(start_s, start_s + slot_s) for start_s in starts]
    free_w = [_budget_w(wish, start_s, start_s + slot_s) - idle_w for start_s in starts]
    return Grid(begin_s=wish.now_s, slot_s=slot_s, prices=tuple(prices), free_w=tuple(free_w))


def _budget_w(wish: Wish, from_s: float, until_s: float) -> float:
    """The least budget that holds at any time of a slot."""
    budget_w = math.inf if wish.budget_w is None else wish.budget_w
    inside = [each_w for at_s, each_w in wish.budgets if from_s < at_s < until_s]
    for at_s, each_w in sorted(wish.budgets):
        if at_s <= from_s:
            budget_w = each_w
    return min([budget_w, *inside])


def _horizon_s(jobs: Sequence[Job], nodes: Sequence[PoolNode], wish: Wish) -> float:
    """When the last job must have ended; without deadlines, long enough for all of them one after the other."""
    slowest_s = [_slowest_s(job) for job in jobs]
    devices = sum(node.usable for node in nodes)
    spread_s = sum(each * min(n.devices for n in j.needs) for each, j in zip(slowest_s, jobs, strict=True)) / devices
    latest_s = max(job.release_s or wish.now_s for job in jobs)
    chained_s = sum(each for each, job in zip(slowest_s, jobs, strict=True) if job.after) + max(slowest_s)
    free_s = max(latest_s, wish.now_s) + 2 * (spread_s + chained_s)
    if wish.objective in (Objective.CARBON, Objective.COST):
        free_s = max(free_s, wish.now_s + DAY_S)
    return max(job.deadline_s if job.deadline_s is not None else free_s for job in jobs)


def _slowest_s(job: Job) -> float:
    return max(job.steps / min(point.rate for point in need.response.points) for need in job.needs)


def _slot_s(jobs: Sequence[Job], horizon_s: float, wish: Wish) -> float:
    """A round length of slots: a quarter of the shortest job, or as few slots allow."""
    shortest_s = min(
        job.steps / max(point.rate for point in need.response.points) for job in jobs for need in job.needs
    )
    series = wish.carbon if wish.objective is Objective.CARBON else wish.tariff
    most_s = HOUR_S if series is not None and wish.objective in (Objective.CARBON, Objective.COST) else math.inf
    wanted_s = max(min(shortest_s / 4, most_s), horizon_s / MOST_SLOTS)
    for round_s in (1, 5, 10, 30, 60, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400):
        if round_s >= wanted_s * (1 - 1e-9):
            return float(round_s)
    return wanted_s


def _narrowed(grid: Grid, jobs: Sequence[Job], sigmas: float) -> Grid:
    """GRID with a guard band for all jobs at once, which is wider than that of those which run together."""
    squares = common = 0.0
    for job in jobs:
        worst = max(job.needs, key=lambda need: max(point.known_w for point in need.response.points))
        power_w = max(point.known_w for point in worst.response.points)
        squares += worst.devices * (worst.response.doubt.power_ratio * power_w) ** 2
        common = max(common, worst.response.doubt.common_ratio)
    spread_w = math.sqrt(squares)
    return replace(grid, free_w=tuple((w - sigmas * spread_w) / (1 + sigmas * common) for w in grid.free_w))


def _best_order(
    jobs: Sequence[Job], nodes: Sequence[PoolNode], grid: Grid, wish: Wish, sigmas: float, bound: Bound | None
) -> Slotted:
    """The best of several orders: jobs with the least room to move first, then others at random."""
    rng = random.Random(wish.seed)
    best: Slotted | None = None
    worth_w = None if bound is None else bound.worth_w
    for number in range(max(1, wish.tries)):
        order = _in_turn(jobs, _room_to_move(grid, rng, number, wish.objective))
        found = place_all(order, Room(grid, nodes, sigmas), wish.objective, worth_w if number % 3 != 2 else None)
        if best is None or _standing(found, grid, wish) < _standing(best, grid, wish):
            best = found
        if number == 0 and not found.missed and bound is not None and found.cost <= bound.cost * (1 + 1e-4):
            break
    assert best is not None
    return best


def _standing(found: Slotted, grid: Grid, wish: Wish) -> tuple[float, ...]:
    last_s = max((one.ends_s(grid) for one in found.placed), default=0.0)
    return (float(len(found.missed)), last_s if wish.objective is Objective.TIME else found.cost, last_s)


def _room_to_move(grid: Grid, rng: random.Random, number: int, objective: Objective) -> Callable[[Job], float]:
    def key(job: Job) -> float:
        fastest_s = min(job.steps / max(point.rate for point in need.response.points) for need in job.needs)
        shaken = math.exp(rng.gauss(0.0, 0.5)) if number else 1.0
        if objective is Objective.TIME and job.deadline_s is None:
            return -fastest_s * shaken  # the longest first, so that short ones fill the gaps
        window_s = (job.deadline_s or grid.end_s) - (job.release_s or grid.begin_s)
        return window_s / fastest_s * shaken

    return key


def _in_turn(jobs: Sequence[Job], key: Callable[[Job], float]) -> list[Job]:
    """JOBS by KEY, each after those it waits for."""
    return in_order(sorted(jobs, key=key))


def _plan(
    slotted: Slotted,
    jobs: Sequence[Job],
    nodes: Sequence[PoolNode],
    grid: Grid,
    wish: Wish,
    idle_w: float,
    bound: Bound | None,
    method: str,
) -> Plan:
    stretches = stretches_of(slotted, grid)
    end_s = max((one.until_s for one in stretches), default=grid.begin_s)
    drawn_w, guard_w = _most_w(stretches, jobs, nodes, NormalDist().inv_cdf(1 - wish.overshoots))
    value = {
        Objective.TIME: end_s - grid.begin_s,
        Objective.ENERGY: sum(one.energy_j for one in stretches),
    }.get(wish.objective, slotted.cost)
    missed = dict(slotted.missed)
    notes = []
    unknown = idle_unknown_of(nodes)
    if wish.budget_w is not None and unknown is not None:
        notes.append(f"the budget holds with this exception: {unknown}")
    if any(job.pausable and job.pause_every_s for job in jobs):
        notes.append("each pause is counted with the work since the last checkpoint, at most")
    notes += _data_notes(stretches)
    notes += _gap_notes(wish, end_s)
    return Plan(
        objective=wish.objective,
        stretches=tuple(stretches),
        begin_s=grid.begin_s,
        end_s=end_s,
        energy_j=sum(one.energy_j for one in stretches),
        emitted_g=_integral(stretches, wish.carbon),
        cost=_integral(stretches, wish.tariff),
        peak_w=drawn_w + idle_w,
        budget_w=wish.budget_w,
        guard_w=guard_w,
        bound=_shortest_s(jobs) if wish.objective is Objective.TIME else (bound.cost if bound and not missed else None),
        value=value,
        method=method,
        missed=missed,
        notes=tuple(notes),
    )


def _data_notes(stretches: Sequence[Stretch]) -> list[str]:
    """Whose data workers are too few, and whose power is not known."""
    fed_ones = [(one, one.point.data_workers) for one in stretches if one.point.data_workers is not None]
    most = {(one.job, one.node): (one, has) for one, has in sorted(fed_ones, key=lambda each: each[1].needed)}
    notes = [
        f"{job} is data-bound on {node}: for each device {has.needed:.3g} data workers are needed, and there are cores "
        f"for {has.count}, so that a step takes {format_quantity(one.point.step_s, 'time')}"
        for (job, node), (one, has) in most.items()
        if has.data_bound
    ]
    unknown = sorted({one.job for one, has in fed_ones if has.power_w is None})
    if unknown:
        named = ", ".join(unknown[:NAMED]) + (f" and {len(unknown) - NAMED} more" if unknown[NAMED:] else "")
        notes.append(
            f"what data workers of {named} draw is not known, and not counted; state it, such as "
            "data_work: {made: 400ms, worker: 8W}"
        )
    return notes


def _gap_notes(wish: Wish, end_s: float) -> list[str]:
    notes = []
    for name, series in (("carbon", wish.carbon), ("tariff", wish.tariff)):
        for from_s, until_s in () if series is None else series.gaps:
            if from_s < end_s and until_s > wish.now_s:
                notes.append(
                    f"the {name} series has no value between {iso(from_s)} and {iso(until_s)}: the one before is held"
                )
    return notes


def _shortest_s(jobs: Sequence[Job]) -> float:
    """The longest chain of jobs that wait for each other, each at its fastest."""
    ends_s: dict[str, float] = {}
    for job in in_order(jobs):
        alone_s = min(job.steps / max(point.rate for point in need.response.points) for need in job.needs)
        ends_s[job.name] = alone_s + max((ends_s[name] for name in job.after), default=0.0)
    return max(ends_s.values())


def _integral(stretches: Sequence[Stretch], series: Series | None) -> float | None:
    if series is None:
        return None
    if any(one.from_s < series.times_s[0] or one.until_s > series.until_s for one in stretches):
        return None
    return sum(one.energy_j * series.mean(one.from_s, one.until_s) for one in stretches)


def _most_w(
    stretches: Sequence[Stretch], jobs: Sequence[Job], nodes: Sequence[PoolNode], sigmas: float
) -> tuple[float, float]:
    """The most that is drawn above idle at any time, and the guard that is then kept above it."""
    places = {node.name: node for node in nodes}
    doubts = {(job.name, need.kind, need.devices): need.response.doubt for job in jobs for need in job.needs}
    changes = sorted(
        [(one.from_s, 1, place) for place, one in enumerate(stretches)]
        + [(one.until_s, 0, place) for place, one in enumerate(stretches)]
    )
    running: set[int] = set()
    most_w, guard_w = 0.0, 0.0
    for _, begins, place in changes:
        running.add(place) if begins else running.discard(place)
        now = [stretches[each] for each in running]
        drawn_w = sum(one.power_w - len(one.devices) * (places[one.node].idle_w or 0.0) for one in now)
        if drawn_w > most_w:
            doubt = {one: doubts[one.job, places[one.node].kind, len(one.devices)] for one in now}
            squares = sum(len(one.devices) * (doubt[one].power_ratio * one.point.known_w) ** 2 for one in now)
            common = max((each.common_ratio for each in doubt.values()), default=0.0)
            most_w, guard_w = drawn_w, sigmas * math.hypot(math.sqrt(squares), common * drawn_w)
    return most_w, guard_w
