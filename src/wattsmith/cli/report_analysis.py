"""`wattsmith report from`, `summarise` and `page`: single runs disclosed, and many results compared."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table as Printed

from wattsmith.cli.reporting import report
from wattsmith.flows.report_analysis import Summary, Table, summarise, write_page
from wattsmith.flows.report_disclosure import disclose_file, write_disclosure
from wattsmith.terms.facts import as_plain

MOST_SHOWN = 5  # disclosures that are printed whole
SHOWN_TABLES = ("rounds", "trends")
Results = Annotated[
    Path,
    typer.Argument(help="A table of results (.csv), or a folder of results with their logs.", metavar="PATH"),
]


@report.command("from")
def from_file(
    file: Annotated[
        Path,
        typer.Argument(
            help="What `measure --json`, `measure --timeline`, `record` or `tune --json` left behind.", metavar="FILE"
        ),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Write disclosure.json and disclosure.txt into this folder.", metavar="DIR")
    ] = None,
    to_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Turn any run into a report: its tier, what it may be called and may not, instruments, boundary, exclusions.

    Example: wattsmith measure --json run.json -- python train.py; wattsmith report from run.json --out disclosure
    """
    told = disclose_file(file)
    written = [] if out is None else write_disclosure(told, out)
    if to_json:
        typer.echo(json.dumps([as_plain(one) for one in told], indent=1))
        return
    for one in told[:MOST_SHOWN]:
        typer.echo(one.text())
    if len(told) > MOST_SHOWN:
        typer.echo(f"… and {len(told) - MOST_SHOWN} more runs; --json or --out gives all of them")
    for path in written:
        typer.echo(f"written  {path}")


@report.command("summarise")
def summarise_command(
    path: Results,
    to_json: Annotated[bool, typer.Option("--json", help="Print every table as JSON.")] = False,
) -> None:
    """Compare many results: rounds, trends, scaling, accuracy against energy, what was said of them before.

    Example: wattsmith report summarise inference_results_v4.0
    """
    summary = summarise(path)
    if to_json:
        typer.echo(json.dumps(as_plain(summary), indent=1))
        return
    _print_summary(summary)


@report.command("page")
def page(
    path: Results,
    out: Annotated[Path, typer.Argument(help="The page to write.", metavar="OUT.html")],
    title: Annotated[
        str, typer.Option(help="What stands above it.", metavar="TEXT")
    ] = "Energy of machine learning, measured",
) -> None:
    """Write results as one self-contained HTML page, with its pictures (PNG) and tables (CSV) beside it.

    Example: wattsmith report page results/ page.html
    """
    written = write_page(path, out, title=title)
    typer.echo(f"{written.page}: {written.results} results; {len(written.beside)} files beside it")
    _say_unread(written.unread)


def _print_summary(summary: Summary) -> None:
    console = Console(highlight=False)
    console.print(f"{summary.results} results from {escape(summary.source)}")
    by_name = {table.name: table for table in summary.tables}
    for name in SHOWN_TABLES:
        console.print(_printed(by_name[name]))
    others = [f"{table.name} {len(table.rows)}" for table in summary.tables if table.name not in SHOWN_TABLES]
    console.print(f"More with --json or as a page; rows: {', '.join(others)}")
    if summary.claims:
        apart = [claim for claim in summary.claims if claim.outcome != "agrees"]
        console.print(f"{len(summary.claims) - len(apart)} of {len(summary.claims)} figures said before agree. Others:")
        for claim in apart:
            ours = "no table" if claim.ours is None else f"{claim.ours:.4g}"
            console.print(
                f"  {escape(claim.text)}: {claim.said_by} {claim.said:.4g}, here {ours} {claim.unit} "
                f"({claim.outcome.value}) {escape(claim.why)}"
            )
    _say_unread(summary.unread)


def _printed(table: Table) -> Printed:
    printed = Printed(*table.head, title=table.title, title_justify="left", box=None)
    for row in table.rows:
        printed.add_row(
            *("" if cell is None else f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        )
    return printed


def _say_unread(unread: tuple[str, ...]) -> None:
    for reason in unread:
        typer.echo(f"not read: {reason}", err=True)
