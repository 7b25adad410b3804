"""What a step keeps from one call to the next by putting one thing in the place of another.

A tensor that is written into is followed by its version. One that is replaced (`self.mean = 0.9 * self.mean + …`), or a
number that counts the calls, is not: a trace would hold what was there first, for ever.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from types import BuiltinFunctionType, CellType, FunctionType, MethodType
from typing import Any

from wattsmith.split.handing import is_tensor

MODULE_INTERNALS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
PLAIN = (bool, int, float, complex, str, bytes, type(None))
_TOLD = 3  # names in a message
_LOOKED_AT = 1_000  # numbers in a list that are looked at in every step
_LATER = 1_000  # calls after which a list that grows is looked at once more


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step keeps things until the next call. KEYS: those that count; None: all.

    HOLDER: a dict, such as an object's attributes; a class, or an object with slots; a list, deque or set; a variable
    of a function; an array.
    """

    name: str
    holder: Any
    keys: frozenset[str] | None = None
    is_registered: bool = False  # whether others look there, too: an optimiser at its settings

    def entries(self) -> dict[Any, Any]:
        """What is there now, by key; a list, a set or an array is one entry."""
        if isinstance(self.holder, CellType):
            try:
                return {"": self.holder.cell_contents}
            except ValueError:  # a variable that is not set yet
                return {}
        if isinstance(self.holder, type):
            return {key: one for key, one in vars(self.holder).items() if not key.startswith("__")}
        if slots := slots_of(self.holder):
            return {key: getattr(self.holder, key) for key in slots if hasattr(self.holder, key)}
        if isinstance(self.holder, dict):
            return {key: one for key, one in self.holder.items() if self.keys is None or key in self.keys}
        if isinstance(self.holder, list | deque | set):
            return {"": tuple(self.holder)}
        return {"": self.holder.copy()}

    def put_back(self, before: dict[Any, Any]) -> None:
        """Put everything of BEFORE where it was."""
        now = self.entries()
        for key in [key for key in {**before, **now} if is_another(before, now, key)]:
            if isinstance(self.holder, CellType):
                self.holder.cell_contents = before[""]
            elif isinstance(self.holder, type) or slots_of(self.holder):
                setattr(self.holder, key, before[key]) if key in before else delattr(self.holder, key)
            elif isinstance(self.holder, dict):
                if key in before:
                    self.holder[key] = before[key]
                else:
                    del self.holder[key]
            elif isinstance(self.holder, list | deque | set):
                self.holder.clear()
                self.holder.update(before[""]) if isinstance(self.holder, set) else self.holder.extend(before[""])
            else:
                self.holder[...] = before[""]

    def named(self, key: Any) -> str:
        return f"{self.name}.{key}".strip(".")


def slots_of(thing: Any) -> list[str]:
    """Names of the attributes that THING has in slots, if it has no others."""
    if isinstance(thing, type) or hasattr(thing, "__dict__"):
        return []
    every = (vars(kind).get("__slots__", ()) for kind in type(thing).__mro__)
    return [name for many in every for name in ((many,) if isinstance(many, str) else many)]


def is_another(before: Mapping[Any, Any], now: Mapping[Any, Any], key: Any) -> bool:
    """Whether something else is at KEY than before. Lists and dicts that stay are places of their own."""
    if key not in before or key not in now:
        return True
    return not is_it_still(before[key], now[key])


def is_it_still(one: Any, other: Any) -> bool:
    """Whether OTHER is the very same thing as ONE, or a number or text that is worth the same."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(is_it_still, one, other))
    if isinstance(one, MethodType) or (type(one).__module__ == "torch" and not is_tensor(one)):
        return bool(one == other)
    return (isinstance(one, PLAIN) or _is_an_array(one)) and alike(one, other)


def _is_an_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and hasattr(value, "tobytes")


def copied(value: Any) -> Any:
    """VALUE as it is now, to be compared later."""
    if is_tensor(value):
        return value.detach().clone()
    if isinstance(value, Mapping):
        return {key: copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple | deque):
        return (deque if isinstance(value, deque) else list)(copied(one) for one in value)
    return value.copy() if isinstance(value, set) or _is_an_array(value) else value


def alike(one: Any, other: Any) -> bool:
    """Whether two things that were copied are worth the same; of what is not known, whether it is of one type."""
    import torch

    if is_tensor(one) or is_tensor(other):
        return is_tensor(one) and is_tensor(other) and same_tensor(one, other)
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple | deque) and isinstance(other, list | tuple | deque):
        return len(one) == len(other) and all(map(alike, one, other))
    if _is_an_array(one) and _is_an_array(other):
        return bool(one.shape == other.shape and one.dtype == other.dtype and (one.tobytes() == other.tobytes()))
    if isinstance(one, (*PLAIN, set, frozenset)) or isinstance(other, (*PLAIN, set, frozenset)):
        traced = (torch.SymInt, torch.SymFloat, torch.SymBool)
        return isinstance(one, traced) or isinstance(other, traced) or one == other or (one != one and other != other)
    return type(one) is type(other)


def same_tensor(one: Any, other: Any) -> bool:
    """Whether two tensors are the same, bit for bit; numbers that are none are alike."""
    import torch

    if one.shape != other.shape or one.dtype != other.dtype or one.layout != other.layout:
        return False
    if one.layout != torch.strided:
        one, other = one.to_dense(), other.to_dense()
    return bool(torch.equal(one, other)) or bool(
        one.is_floating_point() and torch.allclose(one, other, 0, 0, equal_nan=True)
    )


@dataclass(slots=True)
class Kept:
    """All places of a step, as they were at one moment."""

    places: Sequence[Place]
    modules: Mapping[str, Any]
    _entries: list[dict[Any, Any]] = field(init=False)
    _attributes: list[dict[str, Any]] = field(init=False)

    def __post_init__(self) -> None:
        self._entries = [one.entries() for one in self.places]
        self._attributes = [copied_attributes(one) for one in self.modules.values()]

    def put_back(self) -> None:
        for module, attributes in zip(self.modules.values(), self._attributes, strict=True):
            restore_attributes(module, attributes)
        for place, entries in zip(self.places, self._entries, strict=True):
            place.put_back(entries)

    def moved(self) -> dict[str, Any]:
        """By name, what is now where something else was; as it is, not copied."""
        found: dict[str, Any] = {}
        for (name, module), attributes in zip(self.modules.items(), self._attributes, strict=True):
            now = copied_attributes(module)
            for kind in sorted(MODULE_INTERNALS - {"_non_persistent_buffers_set"}):
                mine, was = now.pop(kind, {}), attributes[kind]
                found |= {
                    f"{name}.{key}".strip("."): Registered(mine.get(key))
                    for key in {**was, **mine}
                    if mine.get(key) is not was.get(key)
                }
            changed = [key for key in {**attributes, **now} if is_another(attributes, now, key)]
            found |= {f"{name}.{key}".strip("."): now.get(key, None) for key in changed if key not in MODULE_INTERNALS}
        for place, entries in zip(self.places, self._entries, strict=True):
            now = place.entries()
            live = {"": place.holder} if isinstance(place.holder, list | deque) else now
            changed = [key for key in {**entries, **now} if is_another(entries, now, key)]
            wrap = Registered if place.is_registered else _as_it_is
            found |= {place.named(key): wrap(live.get(key)) for key in changed}
        return found


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Registered:
    """A parameter, a buffer or an optimiser's setting that took the place of another: others would miss the change."""

    value: Any


def accumulating(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """Of what one call moved, copied after the FIRST and after a SECOND that was just like it: what went on changing.

    What is overwritten with the same again (`self.attention = …`) is not, nor is a list that only grows, such as a log.
    """
    return [
        name
        for name, one in first.items()
        if isinstance(one, Registered)
        or (name in second and not (alike(one, second[name]) or grows(one, second[name])))
    ]


def grows(first: Any, second: Any) -> bool:
    if isinstance(first, deque) and isinstance(second, deque):
        return True
    is_longer = isinstance(first, list) and isinstance(second, list) and len(second) > len(first)
    return is_longer and alike(first, second[: len(first)])


def age(moved: Mapping[str, Any]) -> bool:
    """Make lists among what was MOVED as long as after many calls; whether there are any."""
    lists = [one for one in moved.values() if isinstance(one, list | deque) and one]
    for one in lists:
        one.extend([one[-1]] * _LATER)
    return bool(lists)


def copied_attributes(module: Any) -> dict[str, Any]:
    found = dict(vars(module))
    return found | {key: found[key].copy() for key in MODULE_INTERNALS if key in found}


def restore_attributes(module: Any, before: dict[str, Any]) -> None:
    """Give MODULE the attributes of BEFORE again."""
    for key in set(vars(module)) - set(before):
        del vars(module)[key]
    for key, value in before.items():
        if key in MODULE_INTERNALS:
            mine = vars(module)[key]
            mine.clear()
            mine.update(value)
        else:
            vars(module)[key] = value


def frozen_by_a_trace(place: Place, names: frozenset[str] | None) -> dict[Any, Any]:
    """What stands in PLACE under NAMES, or under any, and a trace would hold as it is now: numbers, texts, tensors.

    Of a list, all of it, if it is one of numbers.
    """
    entries = place.entries()
    if isinstance(place.holder, list | deque):
        plain = len(entries[""]) <= _LOOKED_AT and all(isinstance(one, PLAIN) for one in entries[""])
        return entries if plain and (names is None or place.name.rpartition(".")[2] in names) else {}
    if not isinstance(place.holder, dict | type | CellType) and not slots_of(place.holder):
        return {}
    return {
        key: one
        for key, one in entries.items()
        if _is_a_setting(one)
        if names is None or not isinstance(key, str) or key in names or key == ""
    }


def _is_a_setting(value: Any) -> bool:
    """Whether VALUE is what it is for good, so that another one must have been put there if it differs."""
    if isinstance(value, tuple):
        return all(map(_is_a_setting, value))
    kinds = (*PLAIN, Enum, FunctionType, MethodType, BuiltinFunctionType)
    return isinstance(value, kinds) or is_tensor(value) or type(value).__module__ == "torch"


def told(moved: Sequence[str]) -> str:
    """The names of what a step puts other things in the place of, for a message."""
    names = sorted(moved)[:_TOLD]
    return ", ".join(names) + (" and more" if len(moved) > _TOLD else "")
