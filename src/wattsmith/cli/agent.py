"""`wattsmith agent`: a client device reports to its service and carries out its work schedule."""

import os
import signal
import socket as sockets
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from wattsmith.cli.asking import ServerUrl, TokenFile
from wattsmith.serve.agent import Agent, AgentOptions, usual_name
from wattsmith.serve.client import find_token, server_url
from wattsmith.terms.quantity import parse_quantity

DAEMON = Path("/run/wattsmith.sock")


def agent_command(
    server: ServerUrl = None,
    name: Annotated[
        str | None, typer.Option(help="Of this client, as its token has it.", metavar="NAME", show_default="the host's")
    ] = None,
    token_file: TokenFile = None,
    every: Annotated[str, typer.Option(help="How often it looks and reports.", metavar="TIME")] = "1s",
    meters: Annotated[str, typer.Option(help="As for `wattsmith measure`.", metavar="NAMES")] = "auto",
    progress: Annotated[
        Path | None, typer.Option(help="A file to which the program here adds a line each step.", metavar="FILE")
    ] = None,
    state: Annotated[
        Path | None,
        typer.Option(
            help="Folder for reports that wait and for the schedule.",
            metavar="DIR",
            show_default="$XDG_STATE_HOME/wattsmith/agent/NAME",
        ),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(help="Socket of the control daemon.", metavar="PATH", show_default=f"{DAEMON}, if it is there"),
    ] = None,
    most: Annotated[
        str, typer.Option("--spool", help="Most that reports which wait take on disk.", metavar="SIZE")
    ] = "64MB",
) -> None:
    """Report what this machine does every second, and set it as its work schedule says, until interrupted.

    Example: wattsmith agent --server http://pool:8711 --name desk-3
    """
    called = name or usual_name(sockets.gethostname())
    options = AgentOptions(
        name=called,
        url=server_url(server),
        token=lambda: find_token(token_file),
        state=state or _state_folder() / called,
        every_s=parse_quantity(every, "time"),
        meters=meters,
        progress=progress,
        socket=socket or (DAEMON if DAEMON.is_socket() and os.geteuid() != 0 else None),
        spool_bytes=int(parse_quantity(most, "memory")),
    )
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    agent = Agent(options, tell=_say)
    _say(f"{called} reports to {options.url} every {options.every_s:g} s; Ctrl-C ends it and puts settings back")
    agent.run(stop)


def _state_folder() -> Path:
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "wattsmith" / "agent"


def _say(what: str) -> None:
    typer.echo(f"{datetime.now(UTC):%H:%M:%S} {what}", err=True)
