"""Carry out a work schedule on this machine: its settings under leases, renewed, watched, and always given back."""

import time
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Self

from wattsmith.flows import child
from wattsmith.flows.controlling import hold
from wattsmith.flows.measuring import open_session
from wattsmith.flows.tuning_hardware import Held, Means
from wattsmith.measure.session import OpenWindow
from wattsmith.schedule import following
from wattsmith.schedule.documents import read_schedule
from wattsmith.schedule.following import Course, GiveBack, Seen, Turn, is_later
from wattsmith.terms.control import LeaseOver, Value
from wattsmith.terms.errors import BadInput, WattsmithError
from wattsmith.terms.work_schedule import Phase, WorkSchedule

__all__ = ["Follower", "Looking", "Means", "Seen", "Tick", "follow", "is_later"]

Look = Callable[[], Mapping[str, Seen]]
Take = Callable[[str, float], Held]
RENEW_AFTER = 1 / 3  # of a lease's time


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What was done at a moment, and how things stand then. Values go by knob."""

    now_s: float
    serial: int | None  # of the schedule that is followed; None: none is
    state: str  # "nothing", "valid", "over": the safe default holds
    in_force: Mapping[str, Value]  # as set by us; what is not here is as it was found
    wanted: Mapping[str, Value]  # where that is to go, at the pace that is allowed
    done: tuple[str, ...] = ()  # in this tick: "gpu:0/power_limit=300.0", "gpu:0 given back"
    refused: Mapping[str, str] = field(default_factory=dict)  # by knob, why
    match_again: Mapping[str, str] = field(default_factory=dict)  # by job that has drifted by now, why
    works: Mapping[str, str] = field(default_factory=dict)  # by job: "waits", "runs", "pauses", "is over"
    seen: Mapping[str, Seen] = field(default_factory=dict)  # by device
    notes: tuple[str, ...] = ()

    @property
    def settled(self) -> bool:
        """Whether everything that may be set is where it should be."""
        return all(self.in_force.get(knob) == value or knob in self.refused for knob, value in self.wanted.items())


class Follower:
    """Follows one client's schedules: `accept` them as they come, `tick` every `watch.sample_s`, `close` at the end.

    Every device is held by a lease of its own, so that one that is refused costs the others nothing. When this process
    dies in whatever way, the leases put everything back as it was found.
    """

    def __init__(self, means: Means | None = None, *, look: Look | None = None, take: Take | None = None) -> None:
        """LOOK tells what devices did since it was last called. TAKE stands in for a lease of a device, for so long."""
        how = means or Means(shared=True)  # the work that is to be set runs on the device already
        self._take = take or partial(_leased, how)
        self._look = look or dict
        self._course = Course()
        self._leases: dict[str, Held] = {}
        self._renewed_s: dict[str, float] = {}

    def accept(self, schedule: WorkSchedule, now_s: float) -> None:
        """Follow SCHEDULE from when it is valid. Raises BadInput for one that is older, over, or another client's."""
        self._course = following.accepted(self._course, schedule, now_s)

    def tick(self, now_s: float, phases: Mapping[str, Phase] | None = None) -> Tick:
        """Do what is due at NOW_S (seconds since 1970). PHASES says by device what its program does; else steady."""
        self._course = following.at_time(self._course, now_s)
        done: list[str] = []
        notes = [*self._renewed(now_s), *self._held(now_s, phases)]
        for action in following.next_turns(self._course, now_s, phases):
            said = self._given_back(action.device) if isinstance(action, GiveBack) else self._turned(action, now_s)
            done += said
        looks = dict(self._look())
        self._course, _ = following.seen(self._course, looks, now_s, phases)
        self._course = following.ticked(self._course, now_s)
        notes += self._too_hot(looks)
        return self._told(now_s, following.wanted(self._course, now_s, phases), done, looks, notes)

    def close(self) -> None:
        """Give everything back. Raises KnobLost when something could not be put back: `wattsmith restore` will."""
        problems = []
        for device in list(self._leases):
            try:
                self._leases.pop(device).close()
            except WattsmithError as kept:
                problems.append(kept)
            self._course = following.given_back(self._course, device)
        if problems:
            raise problems[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- leases

    def _renewed(self, now_s: float) -> list[str]:
        schedule = self._course.schedule
        notes = []
        for device, lease in list(self._leases.items()):
            lease_s = schedule.watch.lease_s if schedule is not None else 1.0
            if now_s - self._renewed_s[device] < RENEW_AFTER * lease_s:
                continue
            try:
                lease.renew(lease_s)
                self._renewed_s[device] = now_s
            except WattsmithError as over:
                notes.append(f"{device}: {over}")
                self._lost(device)
        return notes

    def _held(self, now_s: float, phases: Mapping[str, Phase] | None) -> list[str]:
        """Take a lease of every device of which something is wanted, and see where its knobs stand."""
        notes = []
        targets = following.wanted(self._course, now_s, phases)
        for device in dict.fromkeys(map(following.device_of, targets)):
            mine = {knob: value for knob, value in targets.items() if following.device_of(knob) == device}
            unknown = [knob for knob in mine if knob not in self._course.found]
            if not unknown or not following.may_try(self._course, {knob: mine[knob] for knob in unknown}, now_s):
                continue
            for knob in unknown:
                try:
                    lease = self._lease(device, now_s)
                    self._course = following.found_at(self._course, {knob: lease.read(knob)})
                except WattsmithError as refused:
                    notes.append(f"{knob}: {refused}")
                    self._course = following.refused(self._course, knob, mine[knob], str(refused), now_s)
        return notes

    def _lease(self, device: str, now_s: float) -> Held:
        if device not in self._leases:
            assert self._course.schedule is not None
            self._leases[device] = self._take(device, self._course.schedule.watch.lease_s)
            self._renewed_s[device] = now_s
        return self._leases[device]

    def _turned(self, turn: Turn, now_s: float) -> list[str]:
        device = following.device_of(turn.knob)
        try:
            told = self._lease(device, now_s).set(turn.knob, turn.value)
        except LeaseOver as over:
            self._lost(device)
            self._course = following.refused(self._course, turn.knob, turn.target, str(over), -following.TRY_AGAIN_S)
            return []
        except WattsmithError as refused:
            self._course = following.refused(self._course, turn.knob, turn.target, str(refused), now_s)
            return []
        self._course = following.turned(self._course, turn, now_s)
        note = f" ({told.note})" if told.in_force is False and told.note else ""
        return [f"{turn.knob}={turn.value}{note}"]

    def _given_back(self, device: str) -> list[str]:
        lease = self._leases.pop(device, None)
        said = f"{device} given back"
        try:
            if lease is not None:
                lease.close()
        except WattsmithError as kept:
            said = f"{device} could not be put back: {kept}"
        self._course = following.given_back(self._course, device)
        return [said]

    def _lost(self, device: str) -> None:
        """A lease that is over has put its settings back; the next tick takes a new one."""
        with suppress(WattsmithError):
            self._leases.pop(device).close()
        self._course = following.given_back(self._course, device)

    # -- telling

    def _too_hot(self, looks: Mapping[str, Seen]) -> list[str]:
        schedule = self._course.schedule
        most_c = None if schedule is None else schedule.limits.max_temperature_c
        return [
            f"{device} has {one.temperature_c:.0f} °C, above the {most_c:.0f} °C of its schedule"
            for device, one in looks.items()
            if most_c is not None and one.temperature_c is not None and one.temperature_c > most_c
        ]

    def _told(
        self, now_s: float, wanted: Mapping[str, Value], done: list[str], looks: Mapping[str, Seen], notes: list[str]
    ) -> Tick:
        course = self._course
        schedule = course.schedule
        over = schedule is not None and now_s >= schedule.valid_until_s
        return Tick(
            now_s=now_s,
            serial=None if schedule is None else schedule.serial,
            state="nothing" if schedule is None else "over" if over else "valid",
            in_force=dict(course.now),
            wanted=wanted,
            done=tuple(done),
            refused={knob: one.why for knob, one in course.refusals.items()},
            match_again={one.job: one.why for one in course.drifts.values()},
            works={}
            if schedule is None
            else {one.job: following.state_of(one.timing, now_s) for one in schedule.works},
            seen=looks,
            notes=tuple(notes),
        )


def _leased(means: Means, device: str, duration_s: float) -> Held:
    return hold([device], socket=means.socket, duration_s=duration_s, state=means.state, shared=means.shared)


class Looking:
    """What meters and progress files tell of devices since the last look."""

    def __init__(self, meters: str = "auto", progress: Mapping[str, Path] | None = None) -> None:
        """PROGRESS: by device, a file to which the program there adds a line each step."""
        self._session = open_session(meters)
        self._progress = dict(progress or {})
        self._window: OpenWindow = self._session.begin("look")
        self._steps = {device: (time.monotonic(), _lines(path)) for device, path in self._progress.items()}

    def __call__(self) -> dict[str, Seen]:
        window, self._window = self._window.end().result(), self._session.begin("look")
        steps_s = {device: self._step_s(device) for device in self._progress}
        powers_w = {
            one.domain: one.energy_j / window.duration_s
            for one in window.domains
            if one.energy_j is not None and window.duration_s > 0
        }
        found = {}
        for device in {**powers_w, **steps_s}:
            gauge = self._session.look_at(device)
            temperature_c = None if gauge is None else gauge.temperature_c
            found[device] = Seen(power_w=powers_w.get(device), step_s=steps_s.get(device), temperature_c=temperature_c)
        return found

    def _step_s(self, device: str) -> float | None:
        """The time of a step since a step was last seen; None: none was taken since."""
        (before_s, before), now_s, steps = self._steps[device], time.monotonic(), _lines(self._progress[device])
        if steps <= before:
            self._steps[device] = (now_s, steps) if steps < before else (before_s, before)
            return None
        self._steps[device] = (now_s, steps)
        return (now_s - before_s) / (steps - before)

    def close(self) -> None:
        self._session.close()


def _lines(path: Path) -> int:
    with suppress(OSError):
        return path.read_bytes().count(b"\n")
    return 0


def follow(
    path: Path,
    tell: Callable[[Tick], None],
    *,
    means: Means | None = None,
    meters: str = "auto",
    progress: Mapping[str, Path] | None = None,
    longest_s: float | None = None,
) -> Tick:
    """Carry out the schedule in PATH until it is over, LONGEST_S have passed or we are interrupted; then put all back.

    PROGRESS: by job, a file to which it adds a line each step. TELL is given every tick; the last one is the answer.
    """
    schedule = read_schedule(path)
    files = _by_device(schedule, progress or {})
    until_s = min(schedule.valid_until_s, float("inf") if longest_s is None else time.time() + longest_s)
    last: list[Tick] = []

    def tick() -> None:
        last[:] = [follower.tick(time.time())]
        tell(last[0])

    # Signals first: threads that meters start must hold them back too.
    with (
        child.signals_held() as held,
        closing(Looking(meters, files)) as looking,
        Follower(means, look=looking) as follower,
    ):
        follower.accept(schedule, time.time())
        tick()
        child.wait_for_other(lambda: time.time() < until_s, held, tick, schedule.watch.sample_s)
    return last[0]


def _by_device(schedule: WorkSchedule, progress: Mapping[str, Path]) -> dict[str, Path]:
    works = {work.job: work for work in schedule.works}
    if strange := sorted(set(progress) - set(works)):
        raise BadInput(f"the schedule has no work called {strange[0]!r}; it has {', '.join(works) or 'none'}")
    return {device: path for job, path in progress.items() for device in works[job].site.devices}
