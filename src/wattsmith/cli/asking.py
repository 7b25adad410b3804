"""Options of commands that ask a service, and the service that they mean."""

from pathlib import Path
from typing import Annotated

import typer

from wattsmith.serve.client import Server, find_token, server_url
from wattsmith.terms.quantity import parse_quantity

ServerUrl = Annotated[
    str | None,
    typer.Option(
        "--server",
        help="Address of the service; else $WATTSMITH_SERVER.",
        metavar="URL",
        show_default="http://127.0.0.1:8711",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        "--token-file",
        help="File that holds your token; else $WATTSMITH_TOKEN.",
        metavar="FILE",
        show_default="~/.config/wattsmith/token",
    ),
]
Patience = Annotated[
    str,
    typer.Option(help="How long a service that is away, or busy, is asked again.", metavar="TIME"),
]
PATIENCE = "30s"
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def server_of(url: str | None, token_file: Path | None, patience: str) -> Server:
    """The service at URL, with the user's token."""
    return Server(server_url(url), find_token(token_file), patience_s=parse_quantity(patience, "time"))
