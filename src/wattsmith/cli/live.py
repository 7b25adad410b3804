"""One live line at the bottom of the terminal, which leaves what the command prints alone."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

from wattsmith.flows.commands import Progress
from wattsmith.terms.energy import Source
from wattsmith.terms.quantity import format_quantity

SHOWN_FROM_S = 1.0  # what is over sooner needs no live line
FEWEST_LINES = 4

SAVE, RESTORE = "\x1b7", "\x1b8"
LINE_BELOW_AND_BACK = "\x1bD\x1b[A"  # scrolls one up if the cursor is on the last line; keeps its column
REVERSED, PLAIN = "\x1b[7m", "\x1b[0m"


@contextmanager
def live_line(stream: TextIO, *, wanted: bool = True) -> Iterator[Callable[[Progress], None] | None]:
    """Something to tell progress to, for as long as STREAM is a terminal that can show it; else None."""
    if not wanted or not stream.isatty() or os.environ.get("TERM", "dumb") == "dumb":
        yield None
        return
    line = BottomLine(stream.fileno())
    try:
        yield lambda progress: line.show(progress_text(progress)) if progress.duration_s >= SHOWN_FROM_S else None
    finally:
        line.remove()


class BottomLine:
    """Takes the last line out of the terminal's scrolling, as apt does: all other output scrolls above it.

    Every change is one write that saves and restores the cursor, so it falls between two writes of the command.
    """

    def __init__(self, terminal: int) -> None:
        self._terminal = terminal
        self._size: os.terminal_size | None = None

    def show(self, text: str) -> None:
        if not self._is_ours():
            return
        with suppress(OSError):  # a terminal that was closed shows nothing; the measurement goes on
            size = os.get_terminal_size(self._terminal)
            if size.lines < FEWEST_LINES:
                return
            reserve = ""
            if size != self._size:
                reserve = f"{LINE_BELOW_AND_BACK}{SAVE}\x1b[1;{size.lines - 1}r{RESTORE}"
                self._size = size
            shown = f" {text}"[: size.columns - 1].ljust(size.columns - 1)
            self._write(f"{reserve}{SAVE}\x1b[{size.lines};1H\x1b[2K{REVERSED}{shown}{PLAIN}{RESTORE}")

    def remove(self) -> None:
        """Give the line back."""
        if self._size is not None:
            with suppress(OSError):
                self._write(f"{SAVE}\x1b[r\x1b[{self._size.lines};1H\x1b[2K{RESTORE}")
            self._size = None

    def _is_ours(self) -> bool:
        """Whether we are in the foreground: from the background nothing is painted."""
        try:
            return os.tcgetpgrp(self._terminal) == os.getpgrp()
        except OSError:
            return False

    def _write(self, text: str) -> None:
        os.write(self._terminal, text.encode())


def progress_text(progress: Progress) -> str:
    """How it stands, most important first: a narrow terminal cuts the end off."""
    parts = [format_quantity(progress.duration_s, "time", 3)]
    window = progress.window
    if window is not None and not window.domains:
        parts.append("energy unknown: no meter")
    for domain in () if window is None else window.domains:
        energy = format_quantity(domain.energy_j, "energy", 3)
        power_w = progress.power_w.get(domain.domain)
        power = "" if power_w is None else f" {format_quantity(power_w, 'power', 3)}"
        labels = " (modelled)" if domain.source == Source.MODELLED else ""
        labels += " (simulated)" if domain.simulated else ""
        labels += "" if domain.complete else " (meter lost)"
        parts.append(f"{domain.domain}{power} {energy}{labels}")
    tree = progress.tree
    if tree is not None:
        if tree.busy_ratio is not None:
            parts.append(f"CPU {tree.busy_ratio:.0%}")
        parts.append(f"{format_quantity(tree.memory_used_bytes, 'memory', 3)} in {tree.processes} processes")
    return " · ".join(parts)
