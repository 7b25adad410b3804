"""`wattsmith feed worker | token`."""

from pathlib import Path
from typing import Annotated

import typer

from wattsmith.flows.feeding_workers import PATIENCE_S, make_token, share_pool, work
from wattsmith.terms.quantity import parse_quantity

feed = typer.Typer(help="Data workers for a trainer on another machine.", no_args_is_help=True)


@feed.command("worker")
def worker(
    connect: Annotated[str, typer.Option("--connect", help="Where the trainer's Feeder listens.", metavar="HOST:PORT")],
    token_file: Annotated[
        Path, typer.Option("--token-file", help="File with the job's token; - for the input.", metavar="FILE")
    ],
    workers: Annotated[int, typer.Option("--workers", help="Processes to start.", metavar="N", min=1)] = 1,
    once: Annotated[bool, typer.Option("--once", help="Leave when the trainer needs no more, once.")] = False,
    patience: Annotated[
        str, typer.Option(help="How long to look for a trainer that is not there.", metavar="TIME")
    ] = f"{PATIENCE_S:g}s",
) -> None:
    """Make batches for a trainer that listens at HOST:PORT, until it is gone.

    Example: wattsmith feed worker --connect trainer.example:7070 --token-file job.token --workers 8
    """
    work(connect, token_file, workers=workers, once=once, patience_s=parse_quantity(patience, "time"), say=_say)


@feed.command("pool")
def pool(
    listen: Annotated[str, typer.Option("--listen", help="Where jobs find the pool.", metavar="HOST:PORT")],
    token_file: Annotated[Path, typer.Option("--token-file", help="File with the token of all jobs.", metavar="FILE")],
    workers: Annotated[
        int, typer.Option("--workers", help="Workers that all jobs may have together.", metavar="N", min=1)
    ],
) -> None:
    """Divide a number of data workers among several jobs: the next one goes where it saves most waiting.

    Example: wattsmith feed pool --listen 127.0.0.1:7071 --token-file pool.token --workers 32
    """
    share_pool(listen, token_file, workers, say=_say)


@feed.command("token")
def token(file: Annotated[Path, typer.Argument(help="Where to write it.", metavar="FILE")]) -> None:
    """Make a token for a job: trainer and workers prove to each other that they hold it.

    Example: wattsmith feed token job.token
    """
    make_token(file)
    typer.echo(f"{file}: copy it to the machines of the workers; nobody else must have it")


def _say(line: str) -> None:
    typer.echo(f"wattsmith: {line}", err=True)
