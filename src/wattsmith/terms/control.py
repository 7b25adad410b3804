"""Knobs: what can be turned on a machine, between which ends, and what came of turning it."""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from wattsmith.terms.errors import BadTerm, WattsmithError
from wattsmith.terms.quantity import format_quantity, parse_quantity

# A power in W, a clock in Hz, least and most of one, a word such as a governor; None: not locked.
Value = float | str | tuple[float, float] | None

UNLOCKED = "unlocked"  # how None is written
BETWEEN = ".."  # how least and most are written: 345MHz..1.2GHz
_KINDS = {"W": "power", "Hz": "frequency"}


class NotPermitted(WattsmithError):
    """This user may not turn that knob, or not so far."""


class KnobLost(WattsmithError):
    """The device behind a knob is gone, or does not answer."""


class DeviceHeld(WattsmithError):
    """Somebody else holds or uses the device."""


class LeaseOver(WattsmithError):
    """The lease has run out or was given back; settings are what they were before it."""


class NoWatchdog(WattsmithError):
    """The process that would put settings back could not be started, so nothing is changed."""


class JournalDamaged(WattsmithError):
    """What was written down before a change cannot be read any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobCard:
    """What a knob is. Two ends make it a pair of least and most; levels are all there is to choose from."""

    name: str  # "gpu:0/power_limit"
    device: str  # "gpu:0": what one writer holds
    identity: str  # names the device after a restart too: a UUID, a sysfs place
    title: str  # for people
    unit: str  # "W", "Hz", or "" for words
    ends: tuple[float, float] | None = None  # least and most that may be set
    levels: tuple[float | str, ...] = ()
    pair: bool = False  # takes least and most together
    lockable: bool = False  # None, not locked, is one of its values
    readable: bool = True  # False: the hardware does not tell how it is set
    default: Value = None  # the vendor's; None: not told
    simulated: bool = False

    @property
    def kind(self) -> str:
        """The part behind the device: "power_limit"."""
        return self.name.partition("/")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """What the hardware says after a set."""

    knob: str
    asked: Value
    told: Value  # as the hardware reports it; as asked where it reports nothing
    in_force: bool | None  # None: cannot be told now
    achieved: float | None = None  # the clock or the power at this moment
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PutBack:
    """What came of putting one device back. Without problems its journal is gone."""

    device: str
    identity: str
    knobs: tuple[str, ...]
    problems: tuple[str, ...] = ()
    unfinished: bool = False  # its holder is in the middle of a change, after which it must be put back once more
    simulated: bool = False


class Knob(Protocol):
    """One thing that can be turned. All raise KnobLost when the device is gone."""

    @property
    def card(self) -> KnobCard: ...

    def read(self) -> Value:
        """How it is set now; None: not locked, or, where the card is not readable, nothing known."""

    def set(self, value: Value) -> None:
        """Turn it. Raises NotPermitted, or BadTerm where the hardware will not have VALUE."""

    def verify(self, value: Value) -> Verified:
        """Whether VALUE, which was set, is what the hardware then does."""


class Hold(Protocol):
    """A device held by one writer, whose settings come back: a lease of one's own, or one from the daemon."""

    def set(self, knob: str, value: Value) -> Verified:
        """Turn KNOB. Raises LeaseOver, NotPermitted, KnobLost or BadTerm."""

    def renew(self, duration_s: float) -> None:
        """Hold on for DURATION_S from now."""

    def close(self) -> None:
        """Put everything back and let go. Twice is harmless."""


def check_shape(card: KnobCard, value: Value) -> None:
    """Raise BadTerm unless VALUE is of the kind that this knob takes."""
    wrong = _shape(card, value)
    if wrong is not None:
        raise BadTerm(f"{card.name} cannot be set to {format_value(card, value)}: {wrong}")


def check_value(card: KnobCard, value: Value, before: Value) -> None:
    """Raise BadTerm unless VALUE may be set on this knob, which stood at BEFORE when it was first touched."""
    check_shape(card, value)
    wrong = None
    if card.levels and isinstance(value, str) and value not in card.levels:
        wrong = f"there is {', '.join(map(str, card.levels))}"
    numbers = _numbers(value)
    if wrong is None and numbers and card.ends is not None:
        least, most = card.ends
        if min(numbers) < least or max(numbers) > most:
            wrong = f"it takes {format_value(card, least)} … {format_value(card, most)}"
    if wrong is None and numbers and card.unit == "W":
        wrong = _above_default(card, max(numbers), before)
    if wrong is not None:
        raise BadTerm(f"{card.name} cannot be set to {format_value(card, value)}: {wrong}")


def _shape(card: KnobCard, value: Value) -> str | None:
    """What is wrong with the kind of VALUE, if anything."""
    if value is None:
        return None if card.lockable else "it is always set to something"
    if isinstance(value, str):
        return "it takes a number" if card.unit else None
    if not card.unit:
        return f"it takes one of {', '.join(map(str, card.levels))}"
    if isinstance(value, tuple) != card.pair:
        return "it takes least and most, such as 345MHz..1.2GHz" if card.pair else "it takes one number"
    numbers = _numbers(value)
    if any(not math.isfinite(number) or number <= 0 for number in numbers):
        return "it takes positive numbers"
    return "the least is above the most" if numbers[0] > numbers[-1] else None


def _above_default(card: KnobCard, power_w: float, before: Value) -> str | None:
    """A limit is never raised above the vendor's default; where none is told, never above what was found."""
    if isinstance(card.default, float):
        return (
            None if power_w <= card.default else f"the default is {format_value(card, card.default)}, the most we set"
        )
    if isinstance(before, float) and power_w > before:
        return f"it stood at {format_value(card, before)}, and without a default that we know of we never set more"
    return None


def _numbers(value: Value) -> Sequence[float]:
    if isinstance(value, tuple):
        return value
    return () if value is None or isinstance(value, str) else (value,)


def format_value(card: KnobCard, value: Value) -> str:
    """VALUE for people: "300 W", "345 MHz … 1.2 GHz", "powersave", "unlocked"."""
    if value is None:
        return UNLOCKED
    if isinstance(value, str):
        return value
    if isinstance(value, tuple):
        return " … ".join(format_value(card, number) for number in value)
    return format_quantity(value, _KINDS[card.unit], digits=6) if card.unit in _KINDS else f"{value:g}"


def parse_value(card: KnobCard, text: str) -> Value:
    """TEXT as a value of this knob: "300W", "345MHz..1.2GHz" ("1.2GHz": both ends), a word, or "unlocked"."""
    if not card.unit:
        return text
    if text == UNLOCKED:
        return None
    ends = tuple(parse_quantity(part, _KINDS[card.unit]) for part in text.split(BETWEEN))
    if len(ends) > 2 or (len(ends) == 2 and not card.pair):
        raise BadTerm(f"{text!r} is not a value of {card.name}: write one number with its unit")
    return (ends[0], ends[-1]) if card.pair else ends[0]


def value_from_plain(plain: object) -> Value:
    """The value that a file or a message holds: JSON knows no tuples."""
    if isinstance(plain, list) and len(plain) == 2 and all(_is_number(each) for each in plain):
        return float(plain[0]), float(plain[1])
    if plain is None or isinstance(plain, str):
        return plain
    if isinstance(plain, int | float) and _is_number(plain):
        return float(plain)
    raise BadTerm(f"{plain!r} is no value of a knob: a number, a word, two numbers or null")


def _is_number(plain: object) -> bool:
    if isinstance(plain, bool) or not isinstance(plain, int | float):
        return False
    return isinstance(plain, float) or abs(plain) <= sys.float_info.max  # JSON knows whole numbers of any length
