"""What the questions share: how to start the tools, how much of everything, tables and bars."""

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from peers.talk import Tool
from results.shape import Cell, shown
from wattsmith.sim.nvml import SimulatedNvml

OURS, ZEUS, CODECARBON = "Wattsmith", "Zeus", "CodeCarbon"
MODULES = {OURS: "with_wattsmith", ZEUS: "with_zeus", CODECARBON: "with_codecarbon"}
POLL_S = 0.1
COUNTER_READ_S = 0.003  # what a read of the energy counter takes on an H200
CONSTANT_LOAD = 1 / 3  # 300 W on the simulated H200


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything."""

    cost_rounds: int
    stretch_s: float  # of load, in which windows lie
    windows: Mapping[float, int]  # how many of each length, at random moments; they overlap
    tasks_s: Sequence[float]  # for a tool that can do only one after another
    cpu_s: float
    cpu_rounds: int
    imports: int


FULL = Scale(
    cost_rounds=20,
    stretch_s=28.0,
    windows={2.0: 12, 5.0: 8, 10.0: 6},
    tasks_s=(2.0, 5.0, 10.0, 2.0, 5.0),
    cpu_s=10.0,
    cpu_rounds=3,
    imports=9,
)
QUICK = Scale(
    cost_rounds=4,
    stretch_s=8.0,
    windows={2.0: 5, 5.0: 2},
    tasks_s=(2.0, 5.0),
    cpu_s=3.0,
    cpu_rounds=1,
    imports=2,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What must hold. `met` of None: there was nothing to compare with."""

    what: str
    figure: str
    met: bool | None

    @property
    def verdict(self) -> str:
        return "not compared" if self.met is None else "met" if self.met else "NOT MET"


@dataclass(slots=True, kw_only=True)
class Table:
    """The answer to one question. Numbers are shown to three digits, None as a dash."""

    title: str
    heads: Sequence[str]
    rows: list[list[Cell]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Bench:
    """How to start the tools that take part."""

    tools: tuple[str, ...]
    peers_python: str
    scale: Scale
    folder: Path

    def machine(self, **options: Any) -> SimulatedNvml:
        return SimulatedNvml.create(Path(tempfile.mkdtemp(dir=self.folder)), **options)

    @contextmanager
    def running(self, machine: SimulatedNvml | None) -> Iterator[dict[str, Tool]]:
        """All tools, each in a process that sees MACHINE; with None, one without any driver."""
        environment = without_driver(os.environ) if machine is None else {**os.environ, **machine.environment()}
        with ExitStack() as stack:
            yield {
                tool: stack.enter_context(Tool(MODULES[tool], self.python_of(tool), environment)) for tool in self.tools
            }

    def python_of(self, tool: str) -> str:
        return sys.executable if tool == OURS else self.peers_python


def without_driver(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in {"LD_LIBRARY_PATH", "WATTSMITH_SIM_NVML"}}


def ratio_heads(bench: Bench) -> list[str]:
    return [f"{tool} ÷ ours" for tool in bench.tools if tool != OURS]


def ratios(bench: Bench, figures: Mapping[str, float | None]) -> list[Cell]:
    ours = figures[OURS]
    peers = [figures.get(tool) for tool in bench.tools if tool != OURS]
    return [None if peer is None or not ours else peer / ours for peer in peers]


def show(table: Table) -> None:
    lines = [list(table.heads), *([shown(cell) for cell in row] for row in table.rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.heads))]
    print(f"\n{table.title}\n")
    for number, line in enumerate(lines):
        print("| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |")
        if number == 0:
            print("|" + "|".join("-" * (width + 2) for width in widths) + "|")
    for note in table.notes:
        print(f"\n{note}")
    sys.stdout.flush()


def bars_table(bars: Sequence[Bar]) -> Table:
    rows: list[list[Cell]] = [[bar.what, bar.figure, bar.verdict] for bar in bars]
    return Table(title="Bars", heads=["bar", "figure", "verdict"], rows=rows)
