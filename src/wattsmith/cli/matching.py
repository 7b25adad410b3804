"""`wattsmith match`: what a program is, by its telemetry, and how it will react to a limit or clock."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.complaining import can_be_written
from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.flows.layer_files import read_layers
from wattsmith.flows.matching import Match, draw_match, match, match_command, match_process, structure_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import parse_quantity
from wattsmith.terms.run import Structure
from wattsmith.terms.telemetry import Probe

SHOWN_SETTINGS = 6
TRACES = (".parquet", ".csv")


def match_program(
    source: Annotated[
        list[str] | None,
        typer.Argument(help="A trace (.parquet, .csv), or a command after --.", metavar="[FILE | -- COMMAND]"),
    ] = None,
    pid: Annotated[int | None, typer.Option(help="Watch this running process.", metavar="PID")] = None,
    seconds: Annotated[
        str, typer.Option("--for", "--seconds", help="How long to watch a running process.", metavar="TIME")
    ] = "20s",
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            "--db",
            help="What to compare with: h200, a file or a URL.",
            metavar="NAME",
            show_default="your own, else what is shipped",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Layer information from this model, as `wattsmith estimate` takes it.", metavar="MODEL"),
    ] = None,
    layers: Annotated[
        Path | None,
        typer.Option(help="Layer information that wattsmith.tell_layers() wrote in the program.", metavar="FILE"),
    ] = None,
    batch: Annotated[int, typer.Option(help="Samples in a step of the model.", metavar="N")] = 1,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Size of one sample of the model, such as 3x224x224; once per input.", metavar="SIZE"
        ),
    ] = None,
    steps_per_s: Annotated[
        float | None, typer.Option("--steps-per-s", help="Progress of the program, where it is known.", metavar="RATE")
    ] = None,
    progress: Annotated[
        Path | None,
        typer.Option(help="A file to which the watched program adds a line each step.", metavar="FILE"),
    ] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option(
            help="What a trial at another setting gave: SETTING,TIME,POWER over the usual ones, such as 0.65,1.2,0.7; "
            "leave out what is not known.",
            metavar="S,T,P",
        ),
    ] = None,
    probe_with: Annotated[
        str | None,
        typer.Option(
            help="With --pid: turn this knob down for a while, such as gpu:0/power_limit, under a lease that puts it "
            "back, and match with what that gave.",
            metavar="KNOB",
        ),
    ] = None,
    power_limit: Annotated[
        str | None, typer.Option(help="Of the device, if the trace does not say.", metavar="POWER")
    ] = None,
    domain: Annotated[str | None, typer.Option(help="Which device of a trace, such as gpu:1.", metavar="NAME")] = None,
    meters: Annotated[str, typer.Option(help="As for `wattsmith measure`.", metavar="NAMES")] = "auto",
    neighbours: Annotated[int, typer.Option(help="How many benchmarks are blended and shown.", metavar="N")] = 5,
    save: Annotated[
        Path | None, typer.Option(help="Keep the telemetry of a watched program here (.parquet).", metavar="FILE")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the evidence into FILE.png, .svg or .pdf.", metavar="FILE")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Recognise a program by its telemetry: the nearest benchmarks, its kind, and how it reacts to a clock or limit.

    Exits with 3 when nothing in the record is near.

    Example: wattsmith match trace.parquet --record h200
    """
    _require_one_of(source, pid, model or layers)
    can_be_written("--plot", plot, (".png", ".svg", ".pdf"))
    can_be_written("--save", save, (".parquet",))
    if probe_with is not None and pid is None:
        raise BadInput("--probe-with turns a knob while a process runs: give that process with --pid")
    options: dict[str, Any] = {
        "record": record,
        "neighbours": neighbours,
        "steps_per_s": steps_per_s,
        "probes": tuple(_probe(text) for text in probe or ()),
        "power_limit_w": None if power_limit is None else parse_quantity(power_limit, "power"),
        "domain": domain,
        "save": save,
        "structure": _structure(model, layers, batch, inputs),
    }
    live: dict[str, Any] = {"meters": meters, "progress": progress}
    code = 0
    if pid is not None:
        live |= {"probe_with": probe_with, "seconds_s": parse_quantity(seconds, "time")}
        found = match_process(pid, _tell, **options, **live)
    elif source and _is_trace(source):
        found = match(source[0], **options)
    elif source:
        found, code = match_command(source, _tell, **options, **live)
    else:
        found = match(options["structure"], **options)
    if plot is not None:
        draw_match(found, plot, source[0] if source and _is_trace(source) else save)
    if as_json:
        typer.echo(json.dumps(as_plain(found)))
    else:
        _print(found)
    raise typer.Exit(code or (0 if found.recognised else 3))


def _structure(model: str | None, layers: Path | None, batch: int, inputs: Sequence[str] | None) -> Structure | None:
    if model is not None and layers is not None:
        raise BadInput("layer information comes from --model or from --layers, not from both")
    if layers is not None:
        return read_layers(layers)
    return None if model is None else structure_of(model, batch, inputs)


def _tell(text: str) -> None:
    typer.echo(f"wattsmith: {text}", err=True)


def _is_trace(source: Sequence[str]) -> bool:
    """Whether it is a file to read; a file of another kind that cannot be run either is refused."""
    if len(source) == 1 and source[0].lower().endswith(TRACES):
        return True
    if len(source) == 1 and Path(source[0]).is_file() and shutil.which(source[0]) is None:
        raise BadInput(f"{source[0]} is no trace that can be read: it must be a table in .parquet or .csv")
    return False


def _require_one_of(source: Sequence[str] | None, pid: int | None, layers: str | Path | None) -> None:
    if bool(source) + (pid is not None) > 1 or not (source or pid is not None or layers):
        raise BadInput(
            "give one of: a trace, `--pid PID`, a command after `--`; or `--model` alone for a program that is about "
            "to run. Example: `wattsmith match trace.parquet`"
        )


def _probe(text: str) -> Probe:
    parts = [part.strip() for part in text.split(",")]
    try:
        setting, time, power = (float(part) if part else None for part in [*parts, "", ""][:3])
    except ValueError:
        raise BadInput(f"a probe is written SETTING,TIME,POWER, such as 0.65,1.2,0.7; not {text!r}") from None
    if setting is None or len(parts) > 3:
        raise BadInput(f"a probe is written SETTING,TIME,POWER, such as 0.65,1.2,0.7; not {text!r}")
    return Probe(setting=setting, time_ratio=time, power_ratio=power)


def _print(found: Match) -> None:
    console = Console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES, highlight=False)
    if found.refused:
        console.print(f"[bold]not recognised[/bold]: {escape(found.refused)}")
    elif found.family is not None:
        kind = found.family
        console.print(f"[bold]{escape(kind.family)}[/bold], {100 * kind.share:.0f} % of what is near")
        shape = ", ".join(f"{name} {value}" for name, value in kind.parameters.items())
        console.print(f"about: {escape(shape)}")
    table = Table("nearest benchmark", "kind", "distance", "weight")
    for one in found.neighbours:
        table.add_row(escape(one.name), escape(one.family), f"{one.distance:.2f}", f"{one.weight:.2f}")
    console.print(table)
    _print_curve(console, found)
    seen = found.fingerprint
    if seen.period_s is not None:
        console.print(f"a step each {seen.period_s:.3g} s, by its power")
    console.print(f"compared by: {', '.join(found.used)}; record: {found.record or 'yours'}")
    for note in found.notes:
        console.print(f"note: {escape(note)}")
    if found.simulated:
        console.print("[bold]simulated[/bold]: the meters are not those of a real device")


def _print_curve(console: Console, found: Match) -> None:
    guess = found.response
    if guess is None:
        return
    table = Table("setting", "time", "9 of 10", "power", "9 of 10")
    step = max(1, (len(guess.settings) - 1) // (SHOWN_SETTINGS - 1))
    for place in sorted({*range(len(guess.settings) - 1, -1, -step)}, reverse=True):
        time, power = guess.time_ratio[place], guess.power_ratio[place]
        table.add_row(
            f"{guess.settings[place]:.2f}",
            f"{time.value:.3f}",
            f"{time.low:.2f}–{time.high:.2f}",
            f"{power.value:.3f}",
            f"{power.low:.2f}–{power.high:.2f}",
        )
    console.print(table)
