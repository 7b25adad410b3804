"""`wattsmith record run | points | show | plot | export | import`."""

import json
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from wattsmith.cli.complaining import can_be_written, one_of
from wattsmith.cli.tables import print_coverage, print_recorded, print_runs
from wattsmith.flows.recording import HowToRecord, Recorded, RecordProgress, device_called, planned, write_points
from wattsmith.flows.recording import record as take_record
from wattsmith.flows.records import coverage_of, export, plot, runs_of, take_in
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.ports import RunFilters
from wattsmith.terms.quantity import parse_quantity
from wattsmith.terms.run import Status

LONGEST_WINDOW_S = 600.0
PRESETS = ("smoke", "basic", "standard", "wide", "reference")
GRIDS = ("data-sets", "images", "topology")
DESIGNS = ("cover", "worst", *GRIDS)
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
record = typer.Typer(help="Measure synthetic networks on this machine, and remember them.", no_args_is_help=True)

Db = Annotated[
    str | None,
    typer.Option(
        "--record",
        "--db",
        help="The record: a file, or postgresql://user@host/name. By default your own.",
        metavar="NAME",
    ),
]
Name = Annotated[
    str | None,
    typer.Argument(
        help="A shipped record such as h200, a file or a URL. By default your own.",
        metavar="RECORD",
        show_default=False,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
PresetName = Annotated[str, typer.Option(help="How much: smoke, basic, standard, wide or reference.", metavar="NAME")]
DesignName = Annotated[
    str, typer.Option(help="cover, worst, or one of the grids: data-sets, images, topology.", metavar="NAME")
]
Sample = Annotated[int | None, typer.Option(help="So many points of a grid, drawn by chance.", metavar="N", min=1)]
Seed = Annotated[int, typer.Option(help="Of all that is drawn by chance.", metavar="N")]


@record.command("run")
def run(
    preset: PresetName = "basic",
    longest: Annotated[
        str | None,
        typer.Option("--for", help="Stop after so long; the points come in the order of their worth.", metavar="TIME"),
    ] = None,
    minutes: Annotated[float | None, typer.Option(help="The same, in minutes.", metavar="N")] = None,
    design: DesignName = "cover",
    sample: Sample = None,
    device: Annotated[
        str | None, typer.Option(help="cuda:N or cpu. By default the first GPU, else the CPU.", metavar="NAME")
    ] = None,
    db: Db = None,
    meters: Annotated[str, typer.Option(help="As in `wattsmith measure`.", metavar="NAMES")] = "auto",
    threads: Annotated[int | None, typer.Option(help="CPU threads that PyTorch may use.", metavar="N", min=1)] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Copies of each workload that run at once, as on a server.", metavar="N", min=1)
    ] = None,
    replicas: Annotated[
        str, typer.Option(help="Devices that networks are trained on together, such as 1,2,4.", metavar="N,N")
    ] = "1",
    points: Annotated[
        Path | None, typer.Option(help="Measure the points of this file, written by `record points`.", metavar="FILE")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option(help="Measure energy for so long at each point. By default as its meter needs.", metavar="TIME"),
    ] = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Measure what is missing in the record of this machine. Ctrl-C loses at most the point being measured.

    Example: wattsmith record run --preset basic --for 8min
    """
    _check_choice(preset, design, sample)
    how = HowToRecord(
        preset=preset,
        design=design,
        sample=sample,
        device=device,
        meters=meters,
        record=db,
        budget_s=_budget_s(longest, minutes),
        threads=threads,
        concurrency=concurrency,
        replicas=_counts(replicas),
        seed=seed,
        points=points,
        window_s=None if window is None else _window_s(window),
    )
    with _bar() as tell:
        recorded = take_record(how, tell=tell)
    _show_recorded(recorded, as_json=as_json)
    if recorded.interrupted:
        raise typer.Exit(130)


def _check_choice(preset: str, design: str, sample: int | None) -> None:
    """Before PyTorch is loaded, which takes seconds."""
    one_of("--preset", preset, PRESETS)
    one_of("--design", design, DESIGNS)
    if sample is not None and design not in GRIDS:
        raise BadInput(f"--sample {sample} is for the grids {', '.join(GRIDS)}; --design is {design}")


def _budget_s(longest: str | None, minutes: float | None) -> float | None:
    if longest is not None and minutes is not None:
        raise BadInput(f"--for {longest} and --minutes {minutes:g} say the same twice: give one of them")
    if minutes is not None:
        if not 0 < minutes < math.inf:
            raise BadInput(f"--minutes must be positive, got {minutes:g}")
        return 60 * minutes
    if longest is None:
        return None
    budget_s = parse_quantity(longest, "time")
    if budget_s <= 0:
        raise BadInput(f"--for must be positive, got {longest!r}")
    return budget_s


def _counts(text: str) -> tuple[int, ...]:
    try:
        counts = tuple(int(part) for part in text.split(","))
    except ValueError:
        counts = ()
    if not counts or min(counts) < 1:
        raise BadInput(f"--replicas takes whole numbers with commas between, such as 1,2,4; got {text!r}")
    return counts


def _show_recorded(recorded: Recorded, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(as_plain(recorded), indent=2))
    else:
        print_recorded(recorded)


@contextmanager
def _bar() -> Iterator[Callable[[RecordProgress], None]]:
    """A progress bar on standard error; plain lines where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _tell_in_lines
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("starting PyTorch, choosing points", total=None)

        def tell(progress: RecordProgress) -> None:
            latest = progress.latest
            what = "measuring" if latest is None else f"{latest.workload.family} {latest.workload.precision}"
            bar.update(task, total=progress.total, completed=progress.done, description=what)

        yield tell


def _tell_in_lines(progress: RecordProgress) -> None:
    if progress.done % 10 == 0 or progress.done == progress.total:
        left = "" if progress.remaining_s is None else f", about {progress.remaining_s:.0f} s to go"
        sys.stderr.write(f"{progress.done} of {progress.total} points{left}\n")


def _window_s(text: str) -> float:
    window_s = parse_quantity(text, "time")
    if not 0 < window_s <= LONGEST_WINDOW_S:
        raise BadInput(f"--window must be above 0 and at most {LONGEST_WINDOW_S:.0f} s, got {text}")
    return window_s


@record.command("points")
def points(
    target: Annotated[Path, typer.Argument(help="The file to write.", show_default=False, metavar="FILE")],
    for_device: Annotated[
        str,
        typer.Option("--device", "--for", help="The GPU they are for, such as 'NVIDIA H200', or cpu.", metavar="NAME"),
    ],
    memory: Annotated[str, typer.Option(help="Its memory.", metavar="SIZE")] = "80GB",
    preset: PresetName = "basic",
    design: DesignName = "cover",
    sample: Sample = None,
    seed: Seed = 0,
) -> None:
    """Choose points here to measure them on another machine, where time is dear.

    Example: wattsmith record points h200.jsonl --device 'NVIDIA H200' --memory 141GB --preset standard
    """
    can_be_written("the file of points", target)
    _check_choice(preset, design, sample)
    device = device_called(for_device, _memory_bytes(memory))
    chosen = planned(HowToRecord(preset=preset, design=design, sample=sample, seed=seed), device)
    write_points(chosen, target)
    typer.echo(f"{len(chosen)} points for {device.name} in {target}")


def _memory_bytes(text: str) -> int:
    memory_bytes = round(parse_quantity(text, "memory"))
    if memory_bytes <= 0:
        raise BadInput(f"--memory must be positive, such as 80GB, got {text!r}")
    return memory_bytes


@record.command("show")
def show(
    name: Name = None,
    family: Annotated[str | None, typer.Option(help="Only this family.", metavar="NAME")] = None,
    kind: Annotated[str | None, typer.Option(help="Only network, or only operator.", metavar="NAME")] = None,
    precision: Annotated[str | None, typer.Option(help="Only fp32, tf32, bf16 or fp16.", metavar="NAME")] = None,
    status: Annotated[
        str | None, typer.Option(help="Only runs that ended so, such as measured.", metavar="NAME")
    ] = None,
    device: Annotated[str | None, typer.Option(help="Only runs on this device.", metavar="NAME")] = None,
    every: Annotated[bool, typer.Option("--all", help="List every run, not only how many there are.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a record holds.

    Example: wattsmith record show h200 --family matmul --all
    """
    if kind is not None:
        one_of("--kind", kind, ("network", "operator"))
    if precision is not None:
        one_of("--precision", precision, PRECISIONS)
    ended = None if status is None else Status(one_of("--status", status, [one.value for one in Status]))
    only = RunFilters(family=family, kind=kind, precision=precision, device=device, status=ended)
    runs = runs_of(name, **only)
    if as_json:
        typer.echo(json.dumps([as_plain(one) for one in runs], indent=1))
    elif every:
        print_runs(runs)
    else:
        print_coverage(runs, coverage_of(runs))


@record.command("plot")
def draw(
    target: Annotated[
        Path, typer.Argument(help="The picture to write: .png, .svg or .pdf.", show_default=False, metavar="FILE")
    ],
    name: Name = None,
    family: Annotated[str | None, typer.Option(help="Only this family.", metavar="NAME")] = None,
) -> None:
    """Draw a record: rate, power and time over what the steps do.

    Example: wattsmith record plot h200.png h200
    """
    can_be_written("the picture", target, (".png", ".svg", ".pdf"))
    count = plot(name, target, family=family)
    typer.echo(f"{count} runs drawn in {target}")


@record.command("export")
def send(
    target: Annotated[
        Path, typer.Argument(help="The file to write: .jsonl or .jsonl.gz.", show_default=False, metavar="FILE")
    ],
    name: Name = None,
) -> None:
    """Write a record as JSON lines, to move it to another machine or team.

    Example: wattsmith record export mine.jsonl.gz
    """
    typer.echo(f"{export(name, target)} runs written to {target}")


@record.command("import")
def receive(
    source: Annotated[
        Path, typer.Argument(help="A file written by `record export`.", show_default=False, metavar="FILE")
    ],
    db: Db = None,
) -> None:
    """Read runs into a record: all of them or, when a line is wrong, none. Twice is the same as once.

    Example: wattsmith record import theirs.jsonl.gz --record postgresql://team@host/record
    """
    added, already_there = take_in(source, db)
    typer.echo(f"{added} runs added, {already_there} were there already")
