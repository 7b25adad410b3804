"""What a step keeps from one call to the next by putting one thing in the place of another.

A tensor that is written into is followed by its version. One that is replaced (`self.mean = 0.9 * self.mean + …`), or a
number that counts the calls, is not: a trace would hold what was there first, for ever.
"""

from collections import deque
from dataclasses import dataclass
from types import CellType
from typing import Any

from wattsmith.split.handing import is_tensor

MODULE_INTERNALS = {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"}
_TOLD = 3  # names in a message


@dataclass(frozen=True, slots=True)
class Place:
    """Where a step keeps tensors outside of modules: a dict, a list, a variable. KEYS: those that count; None: all."""

    name: str
    holder: dict[Any, Any] | list[Any] | deque[Any] | CellType
    keys: frozenset[str] | None = None

    def entries(self) -> dict[Any, Any]:
        if isinstance(self.holder, CellType):
            try:
                return {"": self.holder.cell_contents}
            except ValueError:  # a variable that is not set yet
                return {}
        if isinstance(self.holder, dict):
            return {key: one for key, one in self.holder.items() if self.keys is None or key in self.keys}
        return dict(enumerate(self.holder))

    def put_back(self, before: dict[Any, Any]) -> list[str]:
        """Put every tensor of BEFORE where it was. Gives the names of those that others had taken the place of.

        Numbers stay as they are: a step that counts its calls shows in that it is not traced alike twice.
        """
        now = self.entries()
        moved = [key for key in {**before, **now} if _is_another_tensor(before.get(key), now.get(key))]
        if moved and isinstance(self.holder, CellType):
            self.holder.cell_contents = before[""]
        elif moved and isinstance(self.holder, dict):
            for key in moved:
                if key in before:
                    self.holder[key] = before[key]
                else:
                    del self.holder[key]
        elif moved:
            assert not isinstance(self.holder, dict | CellType)
            self.holder.clear()
            self.holder.extend(before.values())
        return [f"{self.name}.{key}".strip(".") for key in moved]


def _is_another_tensor(before: Any, now: Any) -> bool:
    return before is not now and (is_tensor(before) or is_tensor(now))


def copied_attributes(module: Any) -> dict[str, Any]:
    copied = dict(vars(module))
    return copied | {key: copied[key].copy() for key in MODULE_INTERNALS if key in copied}


def restore_attributes(module: Any, before: dict[str, Any]) -> list[str]:
    """Give MODULE the attributes of BEFORE again. Gives the names of those that had others."""
    moved = []
    for key in set(vars(module)) - set(before):
        moved.append(key)
        del vars(module)[key]
    for key, value in before.items():
        if key in MODULE_INTERNALS:
            mine = vars(module)[key]
            names = {*value, *mine}
            if isinstance(value, dict):
                moved += [name for name in names if mine.get(name) is not value.get(name)]
            mine.clear()
            mine.update(value)
        else:
            if vars(module).get(key) is not value:
                moved.append(key)
            vars(module)[key] = value
    return moved


def told(moved: list[str]) -> str:
    """The names of what a step puts other things in the place of, for a message."""
    names = sorted(moved)[:_TOLD]
    return ", ".join(names) + (" and more" if len(moved) > _TOLD else "") if names else "something that is not followed"
