"""`wattsmith control follow`: carry out a work schedule on this machine."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from wattsmith.cli.controlling import Socket, State, control
from wattsmith.flows.following import Means, Tick, follow
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity, parse_quantity


@control.command("follow")
def follow_command(
    schedule: Annotated[
        Path, typer.Argument(help="A work schedule, as `wattsmith plan --schedules` writes it.", metavar="FILE.json")
    ],
    progress: Annotated[
        list[str] | None,
        typer.Option(help="A file to which a job adds a line each step; once per job.", metavar="JOB=FILE"),
    ] = None,
    meters: Annotated[str, typer.Option(help="As for `wattsmith measure`.", metavar="NAMES")] = "auto",
    longest: Annotated[
        str | None, typer.Option("--for", help="Stop after so long.", metavar="TIME", show_default="until it is over")
    ] = None,
    socket: Socket = None,
    state: State = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON at first, and whenever something was done or said.")
    ] = False,
) -> None:
    """Carry out a work schedule: its settings in their time, under leases, until it is over; then all is put back.

    Ctrl-C puts back too. Exits with 1 when something could not be set, or a job is to be matched again.

    Example: wattsmith control follow schedules/left.json --progress resnet=steps.log
    """
    files = dict(_progress(text) for text in progress or ())
    with Console(stderr=True).status("…") as status:
        last = follow(
            schedule,
            _telling(as_json, status.update),
            means=Means(socket=socket, state=state, shared=True),
            meters=meters,
            progress=files,
            longest_s=None if longest is None else parse_quantity(longest, "time"),
        )
    raise typer.Exit(1 if last.refused or last.match_again else 0)


def _progress(text: str) -> tuple[str, Path]:
    job, equals, path = text.partition("=")
    if not job or not equals or not path:
        raise BadInput(f"{text!r} says no progress: write JOB=FILE, such as resnet=steps.log")
    return job, Path(path)


def _telling(as_json: bool, show: Callable[[str], None]) -> Callable[[Tick], None]:
    """Tells what is new in a tick, and shows how things stand meanwhile."""
    told: set[str] = set()

    def tell(tick: Tick) -> None:
        refused = [f"{knob} is not set: {why}" for knob, why in tick.refused.items()]
        drifted = [f"{job}: {why}" for job, why in tick.match_again.items()]
        fresh = [line for line in (*refused, *drifted, *tick.notes) if line not in told]
        first = not told
        told.update((*fresh, "begun"))
        if as_json and (tick.done or fresh or first):
            typer.echo(json.dumps(as_plain(tick)))
        for line in () if as_json else (*tick.done, *fresh):
            typer.echo(f"wattsmith: {line}", err=True)
        show(_standing(tick))

    return tell


def _standing(tick: Tick) -> str:
    works = ", ".join(f"{job} {state}" for job, state in tick.works.items())
    powers = ", ".join(
        f"{device} {format_quantity(seen.power_w, 'power')}"
        for device, seen in tick.seen.items()
        if seen.power_w is not None and device in {knob.partition("/")[0] for knob in tick.wanted}
    )
    return f"schedule {tick.serial}: {works or 'nothing to do'}" + (f"; {powers}" if powers else "")
