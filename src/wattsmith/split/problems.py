"""What can be wrong with a step that is to be cut, said so that its author finds the line."""

import linecache
import sys
import sysconfig
import traceback
from pathlib import Path
from types import FrameType

from wattsmith.terms.errors import BadInput, WattsmithError

WAYS_OUT = (
    "Two ways out: mark the cut by hand, with @wattsmith.opaque on the function that cannot be traced if it is data "
    "work, or wattsmith.boundary(...) around all that crosses if it is training; or do the data work in a plain Dataset"
)


class NotSplittable(BadInput):
    """The step cannot be cut as it is written."""


class FrozenRandomness(NotSplittable):
    """A number drawn while the step was traced would be the same in every step."""


class BatchDoesNotFit(BadInput):
    """A batch is not like the one that the step was cut with."""


class HalfNotRead(BadInput):
    """A file does not hold a data half that can run here."""


class StateChanged(WattsmithError):
    """Something changed that the data half has a copy of. Cut again, and let one real step be watched."""


def first_line(failed: BaseException) -> str:
    """What FAILED says, in one line."""
    text = str(failed).strip()
    return text.partition("\n")[0].rstrip(".")[:300] or type(failed).__name__


def place_of(failed: BaseException) -> str | None:
    """File, line and text of the last line of FAILED in the user's code; None: it never was there."""
    return _last_place(list(traceback.walk_tb(failed.__traceback__)))


def calling_place() -> str | None:
    """The same for the line that runs now."""
    return line_of_frame(sys._getframe())


def line_of_frame(frame: FrameType | None) -> str | None:
    """The nearest line of the user's code in FRAME and those that called it."""
    return _last_place([] if frame is None else list(traceback.walk_stack(frame))[::-1])


def line_of_stack(stack: str | None) -> str | None:
    """The last line of the user's code in a trace as PyTorch writes it beside a node; None: there is none."""
    lines = (stack or "").splitlines()
    for at in range(len(lines) - 1, -1, -1):
        path, found, rest = lines[at].strip().partition('", line ')
        number = rest.partition(",")[0]
        if found and number.isdecimal() and not is_of_the_machine(path.removeprefix('File "')):
            return _told(path.removeprefix('File "'), int(number))
    return None


def is_of_the_machine(path: str) -> bool:
    """Whether PATH is Python's, a package's or ours, where no step is written."""
    # What is typed at a prompt or in a notebook, <stdin> or <ipython-input-3>, is a user's.
    return "site-packages" in path or path.startswith(("<frozen", "<eval_with", "<built", "torch/", _OURS, *_STANDARD))


def _last_place(frames: list[tuple[FrameType, int]]) -> str | None:
    for frame, line in reversed(frames):
        if not is_of_the_machine(frame.f_code.co_filename):
            return _told(frame.f_code.co_filename, line)
    return None


def _told(path: str, line: int) -> str:
    text = linecache.getline(path, line).strip()
    return f"{path}, line {line}" + (f": `{text}`" if text else "")


_OURS = str(Path(__file__).parents[1])
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})
