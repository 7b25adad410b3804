"""`wattsmith serve` and `wattsmith serve token add | list | revoke`."""

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.answers import Serving, TokenList, TokenMade, TokenRevoked
from wattsmith.cli.complaining import one_of
from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import parse_quantity
from wattsmith.terms.service import Role, Token

if TYPE_CHECKING:
    from wattsmith.flows.service_tokens import Tokens

PORT = 8711
# An estimate solves small systems, for which more threads gain nothing; those that wait take the processor from others.
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
OFFLINE = "wattsmith serve token"  # who did it, in the audit log
serve = typer.Typer(invoke_without_command=True)
token = typer.Typer(help="Who may do what; straight in the database of the service.", no_args_is_help=True)
serve.add_typer(token, name="token")

Db = Annotated[
    str | None,
    typer.Option(
        "--db", help="SQLite file or postgresql://user@host/name. By default service.sqlite in --home.", metavar="URL"
    ),
]
Home = Annotated[
    Path | None,
    typer.Option("--home", help="Folder of the service. By default $XDG_DATA_HOME/wattsmith/service.", metavar="DIR"),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@dataclass(frozen=True, slots=True)
class _Place:
    """What was given before `token`."""

    db: str | None
    home: Path | None


@serve.callback(invoke_without_command=True)
def serve_command(
    context: typer.Context,
    db: Db = None,
    home: Home = None,
    pool: Annotated[
        Path | None, typer.Option(help="The machines, in YAML. By default this one as it is.", metavar="POOL.yaml")
    ] = None,
    engine: Annotated[
        str, typer.Option(help="Where jobs run: local, on this machine, or ray.", metavar="NAME")
    ] = "local",
    ray_address: Annotated[
        str | None,
        typer.Option(help="Of the Ray cluster. By default that of which this machine is a node.", metavar="HOST:PORT"),
    ] = None,
    host: Annotated[str, typer.Option(help="Listen at this address.", metavar="ADDRESS")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="Listen at this port; 0: any that is free.", min=0, max=65535, metavar="PORT")
    ] = PORT,
    budget: Annotated[
        str | None,
        typer.Option(
            "--power-budget",
            "--budget",
            help="Of the whole pool, idle devices included; such as 10kW.",
            metavar="POWER",
        ),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Folder whose folders jobs may name as their data.", metavar="DIR")
    ] = None,
    allow_command: Annotated[
        list[str] | None,
        typer.Option(
            help="A program that role submit may run; several times. By default python and python3.", metavar="PROGRAM"
        ),
    ] = None,
    retention: Annotated[str, typer.Option(help="How long telemetry is kept.", metavar="TIME")] = "30d",
    most_reports: Annotated[
        int, typer.Option(help="How many reports of telemetry are kept, the newest.", min=1000, metavar="COUNT")
    ] = 50_000_000,
    keep_decided: Annotated[
        str,
        typer.Option(help="How long matches, plans and work schedules that others replaced are kept.", metavar="TIME"),
    ] = "90d",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which the service is called, besides this machine's.", metavar="NAME"),
    ] = None,
    proxy: Annotated[
        list[str] | None,
        typer.Option(help="Address of a reverse proxy whose X-Forwarded headers are believed.", metavar="ADDRESS"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Keep a service running: estimates, schedules and jobs for a pool of machines, with a page and an HTTP API.

    Example: wattsmith serve --pool pool.yaml --power-budget 10kW
    """
    if context.invoked_subcommand is not None:
        context.obj = _Place(db, home)
        return
    for name in ONE_THREAD:  # before numpy is there
        os.environ.setdefault(name, "1")
    _check(data, engine, ray_address, {"--retention": retention, "--keep-decided": keep_decided})
    try:
        from wattsmith.flows.service import ServiceOptions, open_service
        from wattsmith.serve import running
        from wattsmith.serve.app import ServeOptions
        from wattsmith.serve.guards import is_loopback
    except ModuleNotFoundError as missing:
        raise ExtraNeeded(f"the service needs {missing.name}: pip install 'wattsmith[serve]'") from missing

    home = _home(home)
    options = ServiceOptions(
        db=_db(db, home),
        home=home,
        pool=pool,
        engine=engine,
        budget_w=None if budget is None else parse_quantity(budget, "power"),
        data=data,
        allowed_commands=tuple(allow_command or ("python", "python3")),
        retention_s=parse_quantity(retention, "time"),
        most_reports=most_reports,
        keep_decided_s=parse_quantity(keep_decided, "time"),
        ray_address=ray_address,
    )
    with running.only_one(home), running.listen(host, port) as listening:
        if not is_loopback(host):
            _warn(_REACHABLE.format(host=host))
        with open_service(options) as service:
            _warn_of_budget(service.pool())
            where = running.first_token(service, home)
            said = Serving(url=running.url_of(listening), home=home, admin_token=where, pid=os.getpid())
            server = running.server(
                service,
                ServeOptions(hosts=running.known_hosts(host, allow_host or [])),
                proxies=proxy or [],
                ready=lambda: _say_ready(said, as_json=as_json),
            )
            running.run(server, listening)


def _check(data: Path | None, engine: str, ray_address: str | None, times: Mapping[str, str]) -> None:
    """What would be noticed only when somebody needs it."""
    one_of("--engine", engine, ("local", "ray"))
    if ray_address is not None and engine != "ray":
        raise BadInput(f"--ray-address {ray_address} is for --engine ray; the engine is {engine}")
    if data is not None and not data.expanduser().is_dir():
        raise BadInput(f"--data must be a folder of this machine, and there is none at {data}")
    for option, time in times.items():
        if parse_quantity(time, "time") <= 0:
            raise BadInput(f"{option} must be positive, got {time!r}")


_REACHABLE = (
    "{host} is reached from other machines. Tokens and telemetry cross the network in the clear, and whoever has a "
    "token of role submit runs programs here: put a reverse proxy with TLS before it, see docs/service.md"
)


def _warn_of_budget(pool: Mapping[str, Any]) -> None:
    if pool["budget_w"] is not None and pool["idle_unknown_because"] is not None:
        _warn(f"of the budget: {pool['idle_unknown_because']}")


def _say_ready(said: Serving, *, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(as_plain(said)))
        return
    typer.echo(f"wattsmith serves at {said.url} (process {said.pid}), all it has is in {said.home}")
    if said.admin_token.exists():
        typer.echo(f"the first admin's token is in {said.admin_token}; Ctrl-C stops the service, jobs go on")
    else:  # another home was used when the database was made
        typer.echo("this database has its tokens; `wattsmith serve token add NAME --role admin` makes another")


def _warn(message: str) -> None:
    typer.echo(f"wattsmith: {message}", err=True)


def _home(given: Path | None) -> Path:
    if given is not None:
        return given.expanduser().absolute()
    base = os.environ.get("XDG_DATA_HOME")
    return (Path(base) if base else Path.home() / ".local" / "share") / "wattsmith" / "service"


def _db(given: str | None, home: Path) -> str:
    return given or str(home / "service.sqlite")


@token.command("add")
def add(
    context: typer.Context,
    name: Annotated[
        str, typer.Argument(help="Of the person or program; an agent's is that of its client.", metavar="NAME")
    ],
    role: Annotated[str, typer.Option(help="read, submit, agent or admin.", metavar="ROLE")],
    db: Db = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it, this once. Whoever may write the database may do this, without a token.

    Example: wattsmith serve token add kim --role submit
    """
    with _tokens(context, db, home) as tokens:
        made, text = tokens.add_token(name, _role(role), OFFLINE)
    typer.echo(json.dumps(as_plain(TokenMade(token=made, text=text))) if as_json else text)


@token.command("list")
def list_tokens(context: typer.Context, db: Db = None, home: Home = None, as_json: AsJson = False) -> None:
    """Show all tokens, without their secrets.

    Example: wattsmith serve token list
    """
    with _tokens(context, db, home) as tokens:
        found = tokens.tokens()
    typer.echo(json.dumps(as_plain(TokenList(tokens=tuple(found))))) if as_json else _print_tokens(found)


@token.command("revoke")
def revoke(
    context: typer.Context,
    token_id: Annotated[str, typer.Argument(help="As `wattsmith serve token list` shows it.", metavar="ID")],
    db: Db = None,
    home: Home = None,
    as_json: AsJson = False,
) -> None:
    """Let a token hold no longer, from now on.

    Example: wattsmith serve token revoke 3f9c1a20
    """
    with _tokens(context, db, home) as tokens:
        tokens.revoke_token(token_id, OFFLINE)
    typer.echo(json.dumps(as_plain(TokenRevoked(revoked=token_id))) if as_json else f"revoked {token_id}")


def _tokens(context: typer.Context, db: str | None, home: Path | None) -> AbstractContextManager["Tokens"]:
    from wattsmith.flows.service_tokens import open_tokens

    given = context.obj if isinstance(context.obj, _Place) else _Place(None, None)
    return open_tokens(_db(db or given.db, _home(home or given.home)))


def _role(text: str) -> Role:
    return Role(one_of("--role", text, [one.value for one in Role]))


def _print_tokens(found: list[Token]) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_FILES)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("id", "name", "role", "made", "revoked"):
        table.add_column(heading)
    for one in found:
        revoked = "" if one.revoked_s is None else _moment(one.revoked_s)
        table.add_row(escape(one.id), escape(one.name), one.role.value, _moment(one.created_s), revoked)
    console.print(table)


def _moment(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
