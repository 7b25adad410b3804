"""The command line: each command parses, calls one flow, prints."""

import sys
from typing import Annotated

import typer

from wattsmith import __version__
from wattsmith.cli.controlling import control, restore
from wattsmith.cli.estimating import estimate_command
from wattsmith.cli.feeding import feed
from wattsmith.cli.matching import match_program
from wattsmith.cli.measuring import MeasureCommand, machine, measure
from wattsmith.cli.planning import plan_command
from wattsmith.cli.recording import record
from wattsmith.cli.report_analysis import page as _page  # noqa: F401 - joins the group
from wattsmith.cli.report_session import run as _run  # noqa: F401 - joins the group
from wattsmith.cli.reporting import report
from wattsmith.cli.splitting import split_command
from wattsmith.cli.tuning import tune
from wattsmith.cli.tuning_serve import serve as _serve  # noqa: F401 - joins the group
from wattsmith.terms.errors import CommandNotStarted, WattsmithError

app = typer.Typer(
    name="wattsmith",
    help="Time, memory, power and energy of machine-learning jobs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


@app.callback(invoke_without_command=True)
def wattsmith(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and stop.")] = False,
) -> None:
    """Time, memory, power and energy of machine-learning jobs.

    Example: wattsmith measure -- python train.py
    """
    if version:
        typer.echo(f"wattsmith {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


app.command()(machine)
app.command(cls=MeasureCommand, options_metavar="[OPTIONS] --", context_settings={"allow_interspersed_args": False})(
    measure
)
app.add_typer(record, name="record")
app.command("estimate")(estimate_command)
app.command("plan")(plan_command)
app.command("match")(match_program)
app.add_typer(tune, name="tune")
app.command("split")(split_command)
app.add_typer(feed, name="feed")
app.add_typer(report, name="report")
app.command()(restore)
app.add_typer(control, name="control")


def main() -> None:
    """The command `wattsmith`. What went wrong is said in one message, and exits with 2."""
    try:
        app()
    except CommandNotStarted as not_started:
        _complain(not_started)
        sys.exit(not_started.exit_code)
    except WattsmithError as error:
        _complain(error)
        sys.exit(2)
    except OSError as refused:  # such as standard output on a full disk
        _complain(refused)
        sys.exit(2)


def _complain(error: Exception) -> None:
    typer.echo(f"wattsmith: {error}", err=True)
