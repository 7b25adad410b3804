"""`wattsmith demo`: the main job end to end on this machine, and a page of it."""

import json
import sys
import time
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status
from rich.table import Table

from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.flows.demo.running import Demo, Stage, run_demo
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity

SOMETIMES_S = 5.0  # where the output is no terminal, progress is a line so often


def demo_command(
    out: Annotated[Path, typer.Option("--out", help="Folder for the page and the record.", metavar="DIR")] = Path(
        "wattsmith-demo"
    ),
    quick: Annotated[bool, typer.Option("--quick", help="Everything small and short: to see that it runs.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all figures as JSON.")] = False,
) -> None:
    """Measure, record, estimate, tune, split and feed on this machine, in minutes, and write one page of it all.

    Example: wattsmith demo --out first-look
    """
    shown = Shown(as_json=as_json)
    with redirect_stdout(sys.stderr):  # what libraries print is no part of the answer
        demo = run_demo(out, quick=quick, begins=shown.begins, tell=shown.tell, ends=shown.ends)
    shown.close()
    if as_json:
        typer.echo(json.dumps(plain(demo), indent=2))
    else:
        took = format_quantity(demo.took_s, "time", 2)
        typer.echo(f"All of it, after {took}, on one page: open it in a browser.\n{demo.page}")
    if demo.broken:
        raise typer.Exit(1)


def plain(demo: Demo) -> dict[str, object]:
    """DEMO without its pictures, which are in the page."""
    told: dict[str, object] = as_plain(replace(demo, stages=tuple(replace(one, pictures=()) for one in demo.stages)))
    return told


class Shown:
    """Tells a person how far it is: on standard error what goes on, on standard output what came of it."""

    def __init__(self, *, as_json: bool) -> None:
        self._answers, self._quiet = sys.stdout, as_json
        self._console = Console(stderr=True, highlight=False)
        self._status: Status | None = None
        self._told_s = time.monotonic()

    def begins(self, number: int, count: int, title: str) -> None:
        self._say(f"[bold]{number} of {count}  {escape(title)}[/bold]")
        if self._console.is_terminal:
            self._status = self._console.status("…")
            self._status.start()

    def tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(escape(text))
        elif time.monotonic() - self._told_s > SOMETIMES_S:
            self._told_s = time.monotonic()
            sys.stderr.write(f"  {text}\n")

    def ends(self, stage: Stage) -> None:
        self.close()
        if stage.status != "done":
            self._say(f"[yellow]{stage.status}[/yellow]: {escape(stage.why or '')}\n")
            return
        table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
        for one in stage.figures:
            table.add_row(escape(one.name), f"[bold]{escape(one.text)}[/bold]", f"[dim]{escape(one.source)}[/dim]")
        self._say(table)
        self._say(f"→ {escape(stage.means)}\n")

    def close(self) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def _say(self, what: object) -> None:
        if self._quiet:
            return
        width = None if self._answers.isatty() else WIDTH_OF_FILES
        Console(file=self._answers, highlight=False, width=width).print(what)
