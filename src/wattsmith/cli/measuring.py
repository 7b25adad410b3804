"""`wattsmith machine` and `wattsmith measure`."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
import typer.core

from wattsmith.cli.answers import Replayed
from wattsmith.cli.live import live_line
from wattsmith.cli.tables import print_machine, print_measured, print_replayed, warn
from wattsmith.flows.commands import HowToMeasure, measure_command, measure_process
from wattsmith.flows.machine import describe_machine
from wattsmith.flows.measuring import replay
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.facts import as_plain

STDOUT = "-"


def machine(
    meters: Annotated[
        str, typer.Option(help="auto, or names with commas between: gpu,cpu,ipmi,redfish:URL.", metavar="NAMES")
    ] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what this machine can be measured with, and what is missing and why.

    Example: wattsmith machine --meters auto,ipmi
    """
    described = describe_machine(meters)
    if as_json:
        typer.echo(json.dumps(as_plain(described), indent=2))
    else:
        print_machine(described)


class MeasureCommand(typer.core.TyperCommand):
    """Lets `--json` stand alone, which means standard output."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        has_end = "--" in args
        ours = args[: args.index("--")] if has_end else args
        if "--json" in ours:
            after = ours.index("--json") + 1
            if not _is_json_file(ours[after:], has_end=has_end):
                args = [*args[:after], STDOUT, *args[after:]]
        return super().parse_args(ctx, args)


def _is_json_file(following: list[str], *, has_end: bool) -> bool:
    """Whether what follows `--json` is its file. Without a `--` behind it, it might be the command."""
    if not following:
        return False
    first = following[0]
    return first == STDOUT or first.endswith(".json") or (has_end and not first.startswith("-"))


def measure(
    command: Annotated[
        list[str] | None, typer.Argument(help="The command, after --.", metavar="COMMAND", show_default=False)
    ] = None,
    meters: Annotated[
        str,
        typer.Option(
            help="auto, or names with commas between: gpu, nvidia, amd, cpu, soc, ipmi, redfish:URL, "
            "ptd:HOST:PORT, tiny:PORT, modelled:10W-65W, replay:FILE.",
            metavar="NAMES",
        ),
    ] = "auto",
    hz: Annotated[
        float | None,
        typer.Option(
            help="Sample so many times a second; a driver that samples faster by itself is left alone.", metavar="HZ"
        ),
    ] = None,
    no_counter: Annotated[
        bool, typer.Option("--no-counter", help="Integrate GPU power instead of using the energy counter.")
    ] = False,
    timeline: Annotated[
        Path | None, typer.Option(help="Write every reading to FILE.csv or FILE.parquet.", metavar="FILE")
    ] = None,
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json", help="Write the result as JSON to FILE; alone, or with -, to standard output.", metavar="[FILE|-]"
        ),
    ] = None,
    prometheus: Annotated[
        int | None, typer.Option(help="Serve http://127.0.0.1:PORT/metrics while it runs.", metavar="PORT")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(help="Measure this running process until it ends, or Ctrl-C.", metavar="PID")
    ] = None,
    replay_from: Annotated[
        Path | None,
        typer.Option("--replay", help="Work out the windows of a recorded timeline again.", metavar="FILE"),
    ] = None,
    no_live: Annotated[bool, typer.Option("--no-live", help="No live line on the terminal.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No live line and no result, only warnings.")] = False,
) -> None:
    """Run a command and tell its time, energy and power by domain. Its output and exit code stay its own.

    Example: wattsmith measure --timeline run.parquet -- python train.py
    """
    _require_one_of(command, pid, replay_from)
    with _json_file(json_to) as json_file:
        if replay_from is not None:
            windows = replay(replay_from)
            _finish(as_plain(Replayed(replayed=replay_from, windows=tuple(windows))), json_file)
            print_replayed(windows, quiet=quiet)
            return
        how = HowToMeasure(
            meters=meters, poll_hz=hz, use_counter=not no_counter, timeline=timeline, prometheus_port=prometheus
        )
        with live_line(sys.stderr, wanted=not (quiet or no_live)) as watch:
            measured = measure_command(command or [], how, watch) if pid is None else measure_process(pid, how, watch)
        print_measured(measured, quiet=quiet)
        _finish(as_plain(measured), json_file)
    raise typer.Exit(measured.exit_code or 0)


def _require_one_of(command: list[str] | None, pid: int | None, replay_from: Path | None) -> None:
    given = [bool(command), pid is not None, replay_from is not None]
    if sum(given) != 1:
        raise BadInput(
            "give one of: a command after `--`, `--pid PID`, `--replay FILE`; "
            f"{'several' if any(given) else 'none'} of them came. Example: `wattsmith measure -- python train.py`"
        )


@contextmanager
def _json_file(target: str | None) -> Iterator[TextIO | None]:
    """TARGET, open for writing: refused before the command runs if it cannot be. None without a target."""
    if target is None or target == STDOUT:
        yield None if target is None else sys.stdout
        return
    try:
        file = Path(target).open("w", encoding="utf-8")  # noqa: SIM115 - it is closed below
    except OSError as refused:
        raise NotWritten(f"cannot write JSON to {target}: {refused.strerror}. Choose another place.") from refused
    try:
        yield file
    finally:
        with suppress(OSError):  # a full disk was complained about already
            file.close()


def _finish(plain: Any, file: TextIO | None) -> None:
    """Write the result: on one line behind the command's own output, indented into a file of its own."""
    if file is None:
        return
    try:
        file.write(json.dumps(plain, indent=None if file is sys.stdout else 2) + "\n")
        file.flush()
    except OSError as refused:
        warn(f"the JSON could not be written: {refused.strerror}")
