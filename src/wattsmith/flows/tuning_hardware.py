"""Knobs of the machine in a search: turned under a lease for a trial, looked at under load, and always given back."""

import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, Self

from wattsmith.flows.controlling import hold
from wattsmith.terms.control import (
    BETWEEN,
    UNLOCKED,
    DeviceHeld,
    KnobCard,
    KnobLost,
    LeaseOver,
    NotPermitted,
    Value,
    Verified,
    parse_value,
)
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.tuning import Failed, Knob, Level, Trial

LOOK_EVERY_S = 0.25  # at what the hardware does, while a trial runs
LEASE_S = 3600.0  # how long settings outlast us if we hang

Say = Callable[[str], None]
# What came of a setting: metrics, a trial that also tells how sure they are, or a failure.
Outcome = Mapping[str, float] | Trial | Failed
Measure = Callable[[Mapping[str, Level]], Outcome]


class Held(Protocol):
    """A device under a lease."""

    def card(self, knob: str) -> KnobCard: ...
    def read(self, knob: str) -> Value: ...
    def set(self, knob: str, value: Value) -> Verified: ...
    def verify(self, knob: str, value: Value) -> Verified: ...
    def renew(self, duration_s: float) -> None: ...
    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """How the machine is turned."""

    socket: Path | None = None  # of the daemon; None: by this process itself
    state: Path | None = None  # where journals lie; None: the usual folder
    shared: bool = False  # also where others use the GPU
    duration_s: float = LEASE_S


def is_hardware(name: str) -> bool:
    """Whether a knob of this name is one of the machine's: "gpu:0/power_limit", as `wattsmith control` names them."""
    return "/" in name


@contextmanager
def turned(
    measure: Measure, knobs: Sequence[Knob], means: Means, say: Say = lambda _: None
) -> Iterator[tuple[Measure, list[Knob]]]:
    """MEASURE and KNOBS with those of the machine turned around each trial; MEASURE itself sees the others alone.

    A knob that may not be turned, or not so far, is left out, and SAY is told why. Its levels are as in `wattsmith
    control`: "300W", "1.2GHz", "345MHz..1.5GHz", "unlocked"; where it stands now is added if it is not among them.
    """
    names = [knob.name for knob in knobs if is_hardware(knob.name)]
    if not names:
        yield measure, list(knobs)
        return
    machine = _Machine(means, say)
    try:
        mine = {name: machine.usable(next(one for one in knobs if one.name == name)) for name in names}
        left = [mine.get(knob.name, knob) for knob in knobs]
        kept = [knob for knob in left if knob is not None]
        if not kept:
            raise BadInput("none of the knobs may be turned here, and there is no other; see what was said of each")
        yield machine.around(measure), kept
    finally:
        machine.close()


@dataclass(slots=True, kw_only=True)
class _Device:
    """One device: what it was found at, and what of it is turned now."""

    values: dict[str, dict[Level, Value]] = field(default_factory=dict)  # by knob: what its levels mean
    present: dict[str, Level] = field(default_factory=dict)
    now: dict[str, Level] = field(default_factory=dict)  # knobs that do not stand where they were found
    lease: Held | None = None


class _Machine:
    """Devices that are turned. A knob goes back to where it was found by the lease being given back, never by us."""

    def __init__(self, means: Means, say: Say) -> None:
        self._means, self._say = means, say
        self._devices: dict[str, _Device] = {}
        self._told: set[str] = set()

    # Before the search

    def usable(self, knob: Knob) -> Knob | None:
        """KNOB with the levels that may be set, each of which is set for a moment; None: none but the present may."""
        name = knob.name.partition("/")[0]
        device = self._devices.setdefault(name, _Device())
        try:
            lease = self._held(name, device)
        except (NotPermitted, DeviceHeld) as refused:
            self._leave_out(knob.name, refused)
            return None
        try:
            card = lease.card(knob.name)
        except BadTerm as unknown:
            raise BadInput(f"knob {knob.name}: {unknown}") from unknown
        values = self._values(knob, card)
        present = self._present(values, card, lease)
        allowed: dict[Level, Value] = {}
        for level, value in values.items():
            try:
                if level != present:
                    lease.set(knob.name, value)
                allowed[level] = value
            except BadTerm as wrong:
                raise BadInput(str(wrong)) from wrong
            except (NotPermitted, KnobLost) as refused:
                self._leave_out(f"{knob.name}={level}", refused)
        self._give_back(device)
        if len(allowed) < 2:
            return None
        device.values[knob.name], device.present[knob.name] = allowed, present
        caps = "power" if card.unit == "W" else None
        return Knob(name=knob.name, levels=tuple(allowed), present=present, saves="down", caps=caps)

    def _values(self, knob: Knob, card: KnobCard) -> dict[Level, Value]:
        """What the levels of KNOB mean, the least first; watts as numbers, so that their ratios count."""
        found: dict[Level, Value] = {}
        for level in knob.levels:
            try:
                value = parse_value(card, str(level))
            except BadTerm as wrong:
                raise BadInput(f"knob {knob.name}: {wrong}") from wrong
            found[value if card.unit == "W" and isinstance(value, float) else str(level)] = value
        return dict(sorted(found.items(), key=lambda one: _height(one[1]))) if card.unit else found

    def _present(self, values: dict[Level, Value], card: KnobCard, lease: Held) -> Level:
        """The level at which the knob stands; it is put among VALUES if it is not there."""
        now = lease.read(card.name)
        here = next((level for level, value in values.items() if _alike(value, now)), None)
        if here is not None:
            return here
        added: Level = now if isinstance(now, float) and card.unit == "W" else _written(now)
        values[added] = now
        if card.unit:
            ordered = sorted(values.items(), key=lambda one: _height(one[1]))
            values.clear()
            values.update(ordered)
        return added

    def _leave_out(self, what: str, refused: Exception) -> None:
        self._say(f"{what} is left out: not permitted. {refused}")

    # During the search

    def around(self, measure: Measure) -> Measure:
        def measured(setting: Mapping[str, Level]) -> Outcome:
            mine = {name: level for name, level in setting.items() if is_hardware(name)}
            rest = {name: level for name, level in setting.items() if not is_hardware(name)}
            try:
                self._turn(mine)
                with _Looking(self._looks(), self._renew, self._means.duration_s / 3) as looking:
                    outcome = measure(rest)
            except (NotPermitted, KnobLost, LeaseOver, DeviceHeld) as refused:
                return Failed(why=str(refused))
            self._say_what_came(looking.seen)
            return outcome

        return measured

    def _turn(self, wanted: Mapping[str, Level]) -> None:
        for name, device in self._devices.items():
            mine = {knob: level for knob, level in wanted.items() if knob.partition("/")[0] == name}
            moved = {knob: level for knob, level in mine.items() if level != device.present[knob]}
            if set(device.now) - set(moved):  # something is to be where it was found
                self._give_back(device)
            if not moved:
                continue
            lease = self._held(name, device)
            lease.renew(self._means.duration_s)
            for knob, level in moved.items():
                if device.now.get(knob) != level:
                    seen = lease.set(knob, device.values[knob][level])
                    device.now[knob] = level
                    if seen.in_force is False:
                        self._say_once(f"{knob}={level} is not in force: {seen.note}")

    def _looks(self) -> list[Callable[[], Verified]]:
        """For each knob that is turned, a look at what the hardware does about it."""
        looks = []
        for device in self._devices.values():
            for knob, level in device.now.items():
                assert device.lease is not None
                looks.append(_look(device.lease, knob, device.values[knob][level]))
        return looks

    def _renew(self) -> None:
        """A trial may take longer than a lease lasts."""
        for device in self._devices.values():
            if device.lease is not None:
                device.lease.renew(self._means.duration_s)

    def _say_what_came(self, seen: Mapping[str, Verified]) -> None:
        for device in self._devices.values():
            for knob, level in device.now.items():
                if knob in seen and seen[knob].note:
                    self._say_once(f"{knob}={level}: {seen[knob].note}")

    def _say_once(self, words: str) -> None:
        if words not in self._told:
            self._told.add(words)
            self._say(words)

    # Holding and letting go

    def _held(self, name: str, device: _Device) -> Held:
        if device.lease is None:
            means = self._means
            device.lease = hold(
                [name], socket=means.socket, state=means.state, shared=means.shared, duration_s=means.duration_s
            )
        return device.lease

    def _give_back(self, device: _Device) -> None:
        lease, device.lease = device.lease, None
        device.now.clear()
        if lease is not None:
            lease.close()

    def close(self) -> None:
        for device in self._devices.values():
            self._give_back(device)


def _look(lease: Held, knob: str, value: Value) -> Callable[[], Verified]:
    return lambda: lease.verify(knob, value)


class _Looking:
    """Looks at the hardware now and then while a trial runs, and renews leases; keeps what says most of a knob."""

    def __init__(self, looks: Sequence[Callable[[], Verified]], renew: Callable[[], None], every_s: float) -> None:
        self.seen: dict[str, Verified] = {}
        self._looks, self._renew, self._every_s = looks, renew, every_s
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True) if looks else None

    def _work(self) -> None:
        renewed_s = time.monotonic()
        while not self._over.wait(min(LOOK_EVERY_S, self._every_s)):
            if time.monotonic() - renewed_s >= self._every_s:
                renewed_s = time.monotonic()
                with suppress(LeaseOver, NotPermitted):  # the next trial tells
                    self._renew()
            for look in self._looks:
                with suppress(KnobLost, LeaseOver, NotPermitted):  # the next trial tells
                    seen = look()
                    best = self.seen.get(seen.knob)
                    # Without a word to say it does what it should: one such look outweighs those at idle moments.
                    if best is None or best.note:
                        self.seen[seen.knob] = seen

    def __enter__(self) -> Self:
        if self._thread is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()


def _height(value: Value) -> float:
    """By which levels are put in order: the most that is allowed; unlocked is above all."""
    if value is None:
        return math.inf
    if isinstance(value, str):
        return 0.0
    return value[1] if isinstance(value, tuple) else value


def _alike(one: Value, other: Value) -> bool:
    if isinstance(one, tuple) and isinstance(other, tuple):
        return all(math.isclose(a, b, rel_tol=1e-6) for a, b in zip(one, other, strict=True))
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6)
    return one == other


def _written(value: Value) -> str:
    """VALUE as one would type it."""
    if value is None:
        return UNLOCKED
    if isinstance(value, str):
        return value
    ends = value if isinstance(value, tuple) else (value,)
    return BETWEEN.join(format_quantity(one, "frequency", digits=6).replace(" ", "") for one in ends)
