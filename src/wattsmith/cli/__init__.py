"""The command line: each command parses, calls one flow, prints."""

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from wattsmith import __version__
from wattsmith.cli.agent import agent_command
from wattsmith.cli.complaining import complain
from wattsmith.cli.controlling import control, restore
from wattsmith.cli.demo import demo_command
from wattsmith.cli.estimating import estimate_command
from wattsmith.cli.feeding import feed
from wattsmith.cli.following import follow_command as _follow  # noqa: F401 - joins the group
from wattsmith.cli.jobs import jobs, submit_command
from wattsmith.cli.matching import match_program
from wattsmith.cli.measuring import MeasureCommand, machine, measure
from wattsmith.cli.outputs import schema_command
from wattsmith.cli.planning import plan_command
from wattsmith.cli.recording import record
from wattsmith.cli.report_analysis import page as _page  # noqa: F401 - joins the group
from wattsmith.cli.report_session import run as _run  # noqa: F401 - joins the group
from wattsmith.cli.reporting import report
from wattsmith.cli.serving import serve
from wattsmith.cli.splitting import split_command
from wattsmith.cli.tuning import tune
from wattsmith.cli.tuning_serve import serve as _serve  # noqa: F401 - joins the group

app = typer.Typer(
    name="wattsmith",
    help="Time, memory, power and energy of machine-learning jobs.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["--help", "-h"]},
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


app.command("demo")(demo_command)
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
app.add_typer(serve, name="serve")
app.command("submit")(submit_command)
app.add_typer(jobs, name="jobs")
app.command("agent")(agent_command)
app.command("schema")(schema_command)


def main() -> None:
    """The command `wattsmith`. What went wrong is said in one message, and exits with 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # one that knows no `±` gets a question mark, and the rest
            stream.reconfigure(errors="replace")
    try:
        left = app(prog_name="wattsmith", standalone_mode=False)
    except Exception as problem:  # noqa: BLE001 - one of the two doors
        left = complain(problem)
    sys.exit(left if isinstance(left, int) else 0)
