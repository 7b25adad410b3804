"""`wattsmith report run`: a measured session around a command or a function."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wattsmith.cli.reporting import report
from wattsmith.flows.report_session import Driven, HowToRun, SessionPlan, function_called
from wattsmith.flows.report_session import run as run_session
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import parse_quantity


@report.command(options_metavar="[OPTIONS] --", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="The command, after --.", metavar="COMMAND", show_default=False)
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder that takes the results.", metavar="DIR")] = Path("report"),
    scenario: Annotated[
        str, typer.Option(help="SingleStream, MultiStream, Server, Offline or Interactive.", metavar="NAME")
    ] = "SingleStream",
    meters: Annotated[
        str,
        typer.Option(
            help="ptd:HOST:PORT for a power daemon, ptd:simulated for one that measures nothing, or meters as in "
            "`wattsmith measure`.",
            metavar="NAMES",
        ),
    ] = "auto",
    function: Annotated[
        str | None,
        typer.Option(
            help="Instead of a command: a function that takes a list of sample numbers.", metavar="FILE.py:NAME"
        ),
    ] = None,
    duration: Annotated[
        str, typer.Option(help="How long each load lasts at least; below 60s the tier says so.", metavar="TIME")
    ] = "60s",
    settle: Annotated[
        str, typer.Option(help="How long the meter settles before and after the load.", metavar="TIME")
    ] = "10s",
    period: Annotated[str, typer.Option(help="How far samples of power lie apart.", metavar="TIME")] = "1s",
    rate: Annotated[
        float | None,
        typer.Option(help="Queries a second (Server, Interactive), or samples to expect (Offline).", metavar="N"),
    ] = None,
    batch: Annotated[
        int, typer.Option(help="Samples handed to the function at once in Offline.", min=1, metavar="N")
    ] = 1,
    loadgen: Annotated[
        bool | None,
        typer.Option(
            "--loadgen/--no-loadgen",
            help="Insist on LoadGen, or do without; by default where it is installed.",
            show_default=False,
        ),
    ] = None,
    logs: Annotated[
        Path | None,
        typer.Option(help="The command runs LoadGen itself, once, and leaves its logs in this folder.", metavar="DIR"),
    ] = None,
    ntp: Annotated[
        str | None,
        typer.Option(help="Check this clock against a time server before each phase.", metavar="HOST[:PORT]"),
    ] = None,
    ptd_log: Annotated[
        Path | None, typer.Option(help="The power daemon's own log, to be kept with the result.", metavar="FILE")
    ] = None,
    system: Annotated[str, typer.Option(help="How the system is called.", metavar="NAME")] = "this-machine",
    benchmark: Annotated[str, typer.Option(help="How the work is called.", metavar="NAME")] = "work",
    label: Annotated[str, typer.Option(help="Goes into the session's name.", metavar="TEXT")] = "",
    to_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure work in a session, ranging and then testing, in MLPerf Power's layout. Says what it may be called.

    Example: wattsmith report run --meters gpu --scenario Offline --function model.py:infer
    """
    if bool(command) == (function is not None):
        raise BadInput("give either a command after `--` or --function FILE.py:NAME")
    plan = SessionPlan(
        least_duration_s=parse_quantity(duration, "time"),
        settle_s=parse_quantity(settle, "time"),
        period_s=parse_quantity(period, "time"),
        label=label,
    )
    how = HowToRun(
        scenario=scenario,
        meters=meters,
        plan=plan,
        batch=batch,
        rate_hz=rate,
        loadgen=loadgen,
        logs=logs,
        ntp=ntp,
        ptd_log=ptd_log,
        system=system,
        benchmark=benchmark,
    )
    work = function_called(function) if function is not None else command or []
    driven = run_session(work, out, how, tell=lambda text: print(text, file=sys.stderr, flush=True))
    typer.echo(json.dumps(as_plain(driven), indent=1)) if to_json else _print(driven)


def _print(driven: Driven) -> None:
    console = Console(highlight=False, soft_wrap=True, markup=False)
    console.print(driven.disclosure.text())
    console.print(f"Result   {driven.folder}")
    console.print(f"Check it with `wattsmith report check {driven.folder}`")
