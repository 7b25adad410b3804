"""Following a work schedule: which knobs to turn next, and whether what is seen is still what was expected.

Nothing is done here. `next_turns` says what to do at a moment, and whoever holds the machine tells what came of it with
`turned`, `refused` or `given_back`; `seen` takes what meters told. So every decision is tested without a machine.

Power goes down before anything goes up, so that what devices may draw together never rises on the way from one phase to
the next. Ramps are those of all devices together, and are kept by moving power limits in small steps; a clock moves at
once. Devices are raised one after the other, `stagger_s` apart. How much a program draws below its limit is its own.
"""

import math
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from wattsmith.schedule.documents import in_force, knob_values
from wattsmith.terms.control import Value
from wattsmith.terms.errors import BadInput
from wattsmith.terms.work_schedule import Phase, PhaseSetting, Rollback, Timing, WorkSchedule

TRY_AGAIN_S = 30.0  # after which what was refused is asked for once more: its holder may be gone
LIMIT = "power_limit"
SAME = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a device did since it was last looked at. None: not known."""

    power_w: float | None = None
    step_s: float | None = None
    temperature_c: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Set a knob now."""

    knob: str
    value: Value
    target: Value  # where it is to be in the end


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveBack:
    """Let a device go: nothing is wanted of it any more, or something that only its lease can put back."""

    device: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a knob is not where it should be."""

    value: Value
    why: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Work that is not what it was when it was matched."""

    device: str
    job: str
    why: str
    slower: bool  # the work loses more time than it was told


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How far a schedule has been carried out. Values go by knob."""

    schedule: WorkSchedule | None = None
    coming: WorkSchedule | None = None  # accepted, and not valid yet
    found: Mapping[str, Value] = field(default_factory=dict)  # before anything was turned
    now: Mapping[str, Value] = field(default_factory=dict)  # of knobs that were turned
    before: Mapping[str, Value] = field(default_factory=dict)  # the same, when the schedule took over
    refusals: Mapping[str, Refusal] = field(default_factory=dict)
    rolled_back: Mapping[str, Mapping[str, Value]] = field(default_factory=dict)  # device → knobs, in place of its own
    raising: Mapping[str, float] = field(default_factory=dict)  # device → since when
    raised_s: float = -math.inf  # when a device last began to be raised
    looked: Mapping[str, tuple[tuple[float, Seen], ...]] = field(default_factory=dict)  # since the last change
    drifts: Mapping[str, Drift] = field(default_factory=dict)  # by device, since the schedule took over
    ticked_s: float | None = None


# ---- Schedules that come


def accepted(course: Course, schedule: WorkSchedule, now_s: float) -> Course:
    """COURSE with SCHEDULE, from when it is valid. Refuses one that is older than what is there, or over."""
    for other in (course.schedule, course.coming):
        if other is not None and schedule.client != other.client:
            raise BadInput(f"this schedule is for {schedule.client!r}, and {other.client!r} is what is followed here")
        if other is not None and not is_later(schedule, other, now_s):
            raise BadInput(
                f"schedule {schedule.serial} of {schedule.client} is not later than {other.serial}, which is followed"
            )
    if schedule.valid_until_s <= now_s:
        raise BadInput(
            f"schedule {schedule.serial} of {schedule.client} was over {now_s - schedule.valid_until_s:.0f} s ago"
        )
    return at_time(replace(course, coming=schedule), now_s)


def is_later(schedule: WorkSchedule, other: WorkSchedule, now_s: float) -> bool:
    """Whether SCHEDULE takes the place of OTHER: by its serial.

    Where OTHER is over, one that was issued later does too: a service that lost its database counts anew.
    """
    if schedule.serial > other.serial:
        return True
    return other.valid_until_s <= now_s and schedule.issued_s > other.issued_s


def at_time(course: Course, now_s: float) -> Course:
    """COURSE once what is valid from NOW_S on has taken over."""
    if course.coming is None or course.coming.valid_from_s > now_s:
        return course
    return replace(
        course,
        schedule=course.coming,
        coming=None,
        before=course.now,
        refusals={},
        rolled_back={},
        looked={},
        drifts={},
    )


# ---- What is wanted


def wanted(course: Course, now_s: float, phases: Mapping[str, Phase] | None = None) -> dict[str, Value]:
    """Where knobs should be. PHASES says by device what its program does; steady, where it is silent."""
    schedule = course.schedule
    if schedule is None:
        return {}
    settings = {}
    for one in schedule.devices:
        holds = in_force(schedule, now_s, (phases or {}).get(one.device, Phase.STEADY))
        if one.device in holds:
            settings[one.device] = holds[one.device]
    values: dict[str, Value] = dict(knob_values(settings))
    for device, instead in course.rolled_back.items():
        values = {knob: value for knob, value in values.items() if device_of(knob) != device} | dict(instead)
    floor_w = schedule.limits.floor_w or 0.0
    return {knob: _not_below(knob, value, floor_w) for knob, value in values.items()}


def expected(
    schedule: WorkSchedule, now_s: float, phases: Mapping[str, Phase] | None = None
) -> dict[str, tuple[str, PhaseSetting]]:
    """By device the job that runs there and what is expected of it."""
    if not schedule.valid_from_s <= now_s < schedule.valid_until_s:
        return {}
    return {
        one.device: (work.job, one)
        for work in schedule.works
        for one in work.phases
        if one.phase is (phases or {}).get(one.device, Phase.STEADY)
        and (one.from_s is None or one.from_s <= now_s)
        and (one.until_s is None or now_s < one.until_s)
    }


def state_of(timing: Timing, now_s: float) -> str:
    """What work with TIMING does by its plan: "waits", "runs", "pauses" or "is over"."""
    runs = timing.runs
    if any(run.from_s <= now_s < run.until_s for run in runs) or not runs:
        return "runs"
    if now_s < min(run.from_s for run in runs):
        return "waits"
    return "is over" if now_s >= max(run.until_s for run in runs) else "pauses"


# ---- What to do now


def next_turns(course: Course, now_s: float, phases: Mapping[str, Phase] | None = None) -> list[Turn | GiveBack]:
    """What to do at NOW_S, in order. Knobs of which it is not known where they stand are left alone."""
    if course.schedule is None:
        return []
    targets: dict[str, Value] = wanted(course, now_s, phases)
    gone = {device_of(knob) for knob in course.now if knob not in targets and not _limits(knob, course.now[knob])}
    if gone:  # a clock that was locked is unlocked by giving back alone
        return [GiveBack(device=device) for device in sorted(gone)]
    targets |= {knob: course.found[knob] for knob in course.now if knob not in targets}
    open_ = [knob for knob in sorted(targets) if knob in course.found and _is_due(course, knob, targets[knob], now_s)]
    lower = [knob for knob in open_ if _height(targets[knob]) < _height(_at(course, knob))]
    turns = list(_ramped(course, {knob: targets[knob] for knob in lower}, now_s, up=False))
    if all(_alike(turn.value, turn.target) for turn in turns) and len(turns) == len(lower):
        upper = {knob: targets[knob] for knob in open_ if knob not in lower}
        turns += _ramped(course, _staggered(course, upper, now_s), now_s, up=True)
    return [*turns, *_idle(course, wanted(course, now_s, phases))]


def _ramped(course: Course, targets: Mapping[str, Value], now_s: float, *, up: bool) -> Iterator[Turn]:
    assert course.schedule is not None
    limits, sample_s = course.schedule.limits, course.schedule.watch.sample_s
    rate = limits.ramp_up_w_per_s if up else limits.ramp_down_w_per_s
    passed_s = sample_s if course.ticked_s is None else min(sample_s, max(0.0, now_s - course.ticked_s))
    left_w = math.inf if rate is None else rate * passed_s
    for knob, target in targets.items():
        at = _at(course, knob)
        if not (isinstance(target, float | int) and isinstance(at, float | int) and _limits(knob, target)):
            yield Turn(knob=knob, value=target, target=target)
            continue
        step_w = min(abs(target - at), left_w)
        left_w -= step_w
        if step_w > SAME:
            value = target if step_w >= abs(target - at) - SAME else at + (step_w if up else -step_w)
            yield Turn(knob=knob, value=value, target=target)


def _staggered(course: Course, targets: Mapping[str, Value], now_s: float) -> dict[str, Value]:
    """Of what is to be raised: devices that are at it already, and one more where that is due."""
    assert course.schedule is not None
    stagger_s = course.schedule.limits.stagger_s or 0.0
    let = {device for device in course.raising if device in map(device_of, targets)}
    others = [device for device in dict.fromkeys(map(device_of, targets)) if device not in let]
    if not stagger_s:
        let |= set(others)
    elif others and now_s - course.raised_s >= stagger_s - SAME:
        let.add(others[0])
    return {knob: value for knob, value in targets.items() if device_of(knob) in let}


def _idle(course: Course, targets: Mapping[str, Value]) -> list[GiveBack]:
    """Devices that are held, of which nothing is wanted, and which are back where they were found."""
    wanted_of = {device_of(knob) for knob in targets}
    held = dict.fromkeys(device_of(knob) for knob in course.now)
    return [
        GiveBack(device=device)
        for device in held
        if device not in wanted_of
        and all(_alike(course.now[knob], course.found[knob]) for knob in course.now if device_of(knob) == device)
    ]


def _is_due(course: Course, knob: str, target: Value, now_s: float) -> bool:
    if knob in course.found and _alike(_at(course, knob), target):
        return False
    refusal = course.refusals.get(knob)
    return refusal is None or not _alike(refusal.value, target) or now_s >= refusal.at_s + TRY_AGAIN_S


def may_try(course: Course, targets: Mapping[str, Value], now_s: float) -> bool:
    """Whether one of TARGETS was not refused lately."""
    return any(_is_due(course, knob, target, now_s) for knob, target in targets.items())


# ---- What came of it


def turned(course: Course, turn: Turn, now_s: float) -> Course:
    """COURSE once TURN was done."""
    device = device_of(turn.knob)
    raising = dict(course.raising)
    raised_s = course.raised_s
    if _height(turn.value) > _height(_at(course, turn.knob)) and device not in raising:
        raising[device] = raised_s = now_s
    if _alike(turn.value, turn.target):
        raising.pop(device, None)
    return replace(
        course,
        now={**course.now, turn.knob: turn.value},
        refusals={knob: one for knob, one in course.refusals.items() if knob != turn.knob},
        raising=raising,
        raised_s=raised_s,
        looked={name: rows for name, rows in course.looked.items() if name != device},
    )


def refused(course: Course, knob: str, value: Value, why: str, now_s: float) -> Course:
    """COURSE once KNOB could not be set to VALUE, where it is wanted."""
    raising = {name: since_s for name, since_s in course.raising.items() if name != device_of(knob)}
    refusal = Refusal(value=value, why=why, at_s=now_s)
    return replace(course, refusals={**course.refusals, knob: refusal}, raising=raising)


def found_at(course: Course, values: Mapping[str, Value]) -> Course:
    """COURSE once it is known where knobs stood before they were turned."""
    return replace(course, found={**course.found, **values})


def given_back(course: Course, device: str) -> Course:
    """COURSE once DEVICE is as it was found, by us or because its lease is over."""

    def without(values: Mapping[str, Value]) -> dict[str, Value]:
        return {knob: value for knob, value in values.items() if device_of(knob) != device}

    raising = {name: since_s for name, since_s in course.raising.items() if name != device}
    return replace(course, now=without(course.now), found=without(course.found), raising=raising)


def ticked(course: Course, now_s: float) -> Course:
    """COURSE once all was done that was due at NOW_S."""
    return replace(course, ticked_s=now_s)


def seen(
    course: Course, looks: Mapping[str, Seen], now_s: float, phases: Mapping[str, Phase] | None = None
) -> tuple[Course, list[Drift]]:
    """COURSE with what meters told, and the work that has drifted: each is told once, and rolled back as it says."""
    if course.schedule is None:
        return course, []
    watch, drifts = course.schedule.watch, []
    looked = dict(course.looked)
    awaited = expected(course.schedule, now_s, phases)
    settled = settled_devices(course, now_s, phases)
    for device, (job, phase) in awaited.items():
        if device not in looks or device not in settled or device in course.drifts:
            looked.pop(device, None)
            continue
        rows = (*looked.get(device, ()), (now_s, looks[device]))
        looked[device] = tuple(row for row in rows if row[0] > now_s - max(watch.drift_for_s, watch.sample_s) - SAME)
        if now_s - rows[0][0] >= watch.drift_for_s - SAME:
            drifts += _drift(course.schedule, device, job, phase, looked[device])
    looked = {device: rows for device, rows in looked.items() if device in awaited}
    course = replace(course, looked=looked, drifts={**course.drifts, **{one.device: one for one in drifts}})
    for one in drifts:
        course = _rolled_back(course, one)
    return course, drifts


def settled_devices(course: Course, now_s: float, phases: Mapping[str, Phase] | None = None) -> set[str]:
    """Devices whose knobs are all where they should be."""
    targets = wanted(course, now_s, phases)
    away = {device_of(knob) for knob, value in targets.items() if not _alike(_at(course, knob), value)}
    devices = () if course.schedule is None else (one.device for one in course.schedule.devices)
    return set(devices) - away


def _drift(
    schedule: WorkSchedule, device: str, job: str, phase: PhaseSetting, rows: tuple[tuple[float, Seen], ...]
) -> list[Drift]:
    for what, interval, ratio in (
        ("step_s", phase.step_s, schedule.watch.step_drift_ratio),
        ("power_w", phase.power_w, schedule.watch.power_drift_ratio),
    ):
        values = [value for _, one in rows if (value := getattr(one, what)) is not None]
        if interval is None or not values or interval.value <= 0:
            continue
        middle = statistics.median(values)  # a single swing is no drift
        # What was stated as possible is no news, however wide it is.
        if interval.low <= middle <= interval.high or abs(middle / interval.value - 1) <= ratio:
            continue
        name, unit = ("a step takes", "s") if what == "step_s" else ("it draws", "W")
        why = (
            f"{name} {middle:.4g} {unit} for {schedule.watch.drift_for_s:g} s, and {interval.value:.4g} "
            f"({interval.low:.4g} … {interval.high:.4g}) was expected: match again"
        )
        return [Drift(device=device, job=job, why=why, slower=what == "step_s" and middle > interval.value)]
    return []


def _rolled_back(course: Course, drift: Drift) -> Course:
    """Only where work is slower than it was told: what draws more keeps its limit, as a default would be higher."""
    assert course.schedule is not None
    rule = course.schedule.watch.rollback
    if not drift.slower or rule is Rollback.KEEP:
        return course
    default = knob_values({one.device: one.setting for one in course.schedule.safe_default})
    source: Mapping[str, Value] = default if rule is Rollback.DEFAULT else course.before
    instead = {knob: value for knob, value in source.items() if device_of(knob) == drift.device}
    return replace(course, rolled_back={**course.rolled_back, drift.device: instead})


# ---- Values


def device_of(knob: str) -> str:
    return knob.partition("/")[0]


def _at(course: Course, knob: str) -> Value:
    return course.now.get(knob, course.found.get(knob))


def _limits(knob: str, value: Value) -> bool:
    return knob.partition("/")[2].startswith(LIMIT) and isinstance(value, float | int)


def _not_below(knob: str, value: Value, floor_w: float) -> Value:
    return max(value, floor_w) if isinstance(value, float | int) and _limits(knob, value) else value


def _height(value: Value) -> float:
    """How much a value lets through: the upper end of a pair; not locked is most."""
    if isinstance(value, tuple):
        return value[1]
    return float(value) if isinstance(value, float | int) else math.inf


def _alike(one: Value, other: Value) -> bool:
    if isinstance(one, float | int) and isinstance(other, float | int):
        return abs(one - other) <= SAME
    return one == other
