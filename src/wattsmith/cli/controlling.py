"""`wattsmith restore` and `wattsmith control show | run | serve`."""

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.answers import Forgotten
from wattsmith.flows import controlling
from wattsmith.terms.control import KnobCard, PutBack, Verified, format_value
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import parse_quantity

WIDTH_OF_FILES = 120  # where the output is no terminal
NOT_BACK = 1  # exit code: something could not be put back

control = typer.Typer(help="Knobs of this machine, under leases that put them back.", no_args_is_help=True)

State = Annotated[
    Path | None,
    typer.Option(
        "--state", help="Folder of the journals. By default $XDG_STATE_HOME/wattsmith/control.", metavar="DIR"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Socket = Annotated[Path | None, typer.Option("--socket", help="Go through the daemon at this socket.", metavar="PATH")]


def restore(
    state: State = None,
    forget: Annotated[
        str | None,
        typer.Option(help="Remove the journal of this device, or a damaged one, without putting back.", metavar="NAME"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Put leased hardware settings back after a crash that took the watchdog along, such as a power cut.

    Example: wattsmith restore
    """
    if forget is not None:
        removed = controlling.forget(forget, state)
        told = json.dumps(as_plain(Forgotten(removed=removed)), indent=2)
        typer.echo(told if as_json else f"removed {removed}; nothing was put back")
        return
    if state is not None and not state.is_dir():
        if state.exists():
            raise BadInput(f"--state must be the folder of the journals, but {state} is a file")
        typer.echo(f"wattsmith: there is no folder {state}: nobody has kept a journal there", err=True)
    outcomes = controlling.restore(state)
    if as_json:
        typer.echo(json.dumps(as_plain(outcomes), indent=2))
    else:
        _print_outcomes(outcomes)
    if any(outcome.problems for outcome in outcomes):
        raise typer.Exit(NOT_BACK)


def _print_outcomes(outcomes: list[PutBack]) -> None:
    if not outcomes:
        typer.echo("nothing to put back")
    for outcome in outcomes:
        device = outcome.device + " (simulated)" * outcome.simulated
        if outcome.problems:
            typer.echo(f"{device}: NOT put back: {'; '.join(outcome.problems)}", err=True)
        else:
            typer.echo(f"{device}: put back {', '.join(outcome.knobs) or '(nothing had been changed)'}")


@control.command("show")
def show(as_json: AsJson = False) -> None:
    """Show what can be turned on this machine, and how it is set. Nothing is changed.

    Example: wattsmith control show
    """
    states = controlling.knobs_here()
    if as_json:
        typer.echo(json.dumps(as_plain(states), indent=2))
        return
    if not states:
        typer.echo("no knobs: no GPU driver answers here, and no CPU clock or power limit is shown under /sys")
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, column in enumerate(("knob", "now", "may be set to", "device")):
        table.add_column(column, overflow="fold", no_wrap=place == 0)
    for state in states:
        now = format_value(state.card, state.value) if state.problem is None else f"unknown ({state.problem})"
        name = state.card.name + " (simulated)" * state.card.simulated
        title = state.card.title.removesuffix(" (simulated)")
        table.add_row(*map(escape, (name, now, _choices(state.card), title)))
    _console().print(table)


def _choices(card: KnobCard) -> str:
    if card.ends is None:
        return ", ".join(map(str, card.levels)) or "less than now"
    return format_value(card, card.ends) + (f", {len(card.levels)} levels" if card.levels else "")


@control.command("run", options_metavar="[OPTIONS] --", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="The command, after --.", metavar="COMMAND", show_default=False)
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Such as gpu:0/power_limit=300W; once per knob.", metavar="KNOB=VALUE"),
    ] = None,
    socket: Socket = None,
    shared: Annotated[bool, typer.Option("--shared", help="Also where others use the GPU, or MIG splits it.")] = False,
    lease: Annotated[
        str, typer.Option(help="How long settings may outlast us if we hang; renewed meanwhile.", metavar="TIME")
    ] = "1h",
    state: State = None,
) -> None:
    """Run a command at other settings, which come back when it ends, or we do. Its output and exit code stay its own.

    Example: wattsmith control run --set gpu:0/power_limit=300W -- python train.py
    """
    if not settings:
        raise BadInput(
            "say what to set, such as --set gpu:0/power_limit=300W; `wattsmith control show` lists what there is"
        )
    if not command:
        raise BadInput(
            "there is no command to run; write it after `--`: `wattsmith control run --set … -- python train.py`"
        )
    exit_code = controlling.run_with(
        settings,
        command,
        socket=socket,
        shared=shared,
        state=state,
        duration_s=parse_quantity(lease, "time"),
        tell=_tell_set,
        warn=_warn,
    )
    raise typer.Exit(exit_code)


def _warn(message: str) -> None:
    typer.echo(f"wattsmith: {message}", err=True)


def _tell_set(card: KnobCard, seen: Verified) -> None:
    name = card.name + " (simulated)" * card.simulated
    if seen.in_force is False:
        _warn(f"{name} is NOT at {format_value(card, seen.asked)}: {seen.note}")
    else:
        note = f"; {seen.note}" if seen.note else ""
        _warn(f"{name} set to {format_value(card, seen.told)}{note}")


@control.command("serve")
def serve(
    socket: Annotated[Path, typer.Option("--socket", help="Listen at this Unix socket.", metavar="PATH")],
    allow: Annotated[
        Path, typer.Option("--allow", help="TOML file that says who may set which knob how far.", metavar="FILE")
    ],
    state: State = None,
) -> None:
    """Turn knobs for users who may not, as far as an allow-list lets them; put back when they end.

    Example: wattsmith control serve --socket /run/wattsmith.sock --allow /etc/wattsmith/allow.toml
    """
    controlling.serve(socket, allow, state=state, say=_say)


def _say(line: str) -> None:
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    typer.echo(f"{stamp} {line}", err=True)


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)
