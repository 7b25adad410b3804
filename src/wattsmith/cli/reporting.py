"""`wattsmith report check`; other commands of the group are in their own files."""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from wattsmith.flows.checking import Checked, Layer, Outcome, Report, Verdict, verdicts_of
from wattsmith.flows.checking import check as check_results
from wattsmith.terms.facts import as_plain

WIDTH_OF_FILES = 140
MOST_LISTED = 40  # results that are told one by one
SIGNS = {Outcome.PASSED: "ok", Outcome.REMARK: "remark", Outcome.FAILED: "FAILED", Outcome.NO_EVIDENCE: "no evidence"}

report = typer.Typer(
    help="Energy figures under the rules of MLPerf Power, that others can check.", no_args_is_help=True
)


@report.command("check")
def check(
    folder: Annotated[
        Path, typer.Argument(help="A result, or a whole repository of results.", metavar="DIR", show_default=False)
    ],
    round_name: Annotated[
        str | None,
        typer.Option(
            "--round", help="Whose rules hold: v1.0 … v5.1. By default told by folders or dates.", metavar="NAME"
        ),
    ] = None,
    official: Annotated[
        bool, typer.Option("--official/--strict", help="Judge by the round's own checks alone, or by all.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="Show every check, not only those that did not pass.")] = False,
    jobs: Annotated[
        int | None, typer.Option(help="Processes to use. By default one for each core.", metavar="N", min=1)
    ] = None,
    to_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check MLPerf Power results below DIR: verdict, reasons, figures. Exits with 1 when one is rejected.

    Example: wattsmith report check inference_results_v4.0/closed --round v4.0
    """
    layer = Layer.OFFICIAL if official else Layer.STRICT
    with _bar() as tell:
        checked = check_results(folder, round_name, layer, jobs, tell)
    if to_json:
        typer.echo(json.dumps(as_plain(verdicts_of(checked)), indent=1))
    else:
        _print(checked, every=every)
    if not checked.accepted:
        raise typer.Exit(1)


@contextmanager
def _bar() -> Iterator[Callable[[int, int, str], None]]:
    """A progress bar on standard error; a line now and then where that is no terminal."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _tell_in_lines
        return
    columns = (
        TextColumn("checking"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(done: int, total: int, place: str) -> None:
            bar.update(task, completed=done, total=total, description=escape(place.removesuffix("/performance")[-24:]))

        yield tell


def _tell_in_lines(done: int, total: int, _place: str) -> None:
    if total >= 100 and (done % 100 == 0 or done == total):
        sys.stderr.write(f"{done} of {total} results checked\n")


def _print(checked: Checked, *, every: bool) -> None:
    console = Console(highlight=False)
    console = console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)
    single = len(checked.reports) == 1
    listed = [one for one in checked.reports if single or every or checked.verdict(one) is Verdict.REJECTED]
    for one in listed[:MOST_LISTED]:
        _print_report(console, checked, one, every=every or single)
    if len(listed) > MOST_LISTED:
        console.print(f"… and {len(listed) - MOST_LISTED} more; `--json` tells all\n")
    for link in checked.leaving:
        console.print(f"not followed: {escape(link)} leads out of the folder")
    for recording in checked.shared:
        if recording.systems > 1:
            whose = "submitters" if recording.submitters > 1 else "systems"
            places = escape(", ".join(recording.places))
            console.print(f"[bold]one recording, several {whose}[/bold] {recording.session}: {places}")
    if not single:
        _print_summary(console, checked)


def _print_report(console: Console, checked: Checked, one: Report, *, every: bool) -> None:
    verdict = checked.verdict(one)
    mark = "; simulated, and so never compliant" if one.simulated else ""
    console.print(f"[bold]{escape(one.place)}[/bold]  {one.kind}")
    if one.round is not None or one.kind == "inference":
        console.print(f"  round     {one.round or 'not known'} ({escape(one.round_known_by)})")
    for name, value in _figures(one):
        console.print(f"  {name:<9} {escape(value)}")
    console.print(f"  verdict   [bold]{verdict.value}[/bold] by the {checked.layer.value} checks{mark}")
    if checked.layer is Layer.STRICT and one.kind == "inference":
        console.print(f"            the round's own checker: {one.verdict(Layer.OFFICIAL).value}")
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 2, 0, 0))
    for each in one.checks:
        if (every or each.outcome in (Outcome.FAILED, Outcome.REMARK)) and not (
            checked.layer is Layer.OFFICIAL and each.layer is Layer.STRICT
        ):
            table.add_row("", SIGNS[each.outcome], each.layer.value, escape(each.name), escape(each.evidence))
    console.print(table)
    console.print()


def _figures(one: Report) -> Iterator[tuple[str, str]]:
    """What is told of a result, in words."""
    known = {name: _number(value) for name, value in one.figures.items()}
    if one.kind == "training" and one.figures.get("energy_j") is not None:
        yield "energy", f"{known['energy_j']} J summarised, {known['energy_in_window_j']} J in the run"
        yield "of it", f"{known['switches_j']} J of switches; conversion × {known['conversion_ratio']}"
        yield "time", f"{known['time_to_train_s']} s to train, {known['runs_kept']} of {known['runs']} runs"
    elif one.kind == "tiny":
        yield "energy", f"{known['energy_per_inference_j']} J per inference, median of {known['windows']}"
    elif one.figures.get("metric") is not None:
        yield "metric", f"{known['metric']} {known['metric_unit']} ({known['scenario']}: {known['metric_formula']})"
        mean = f"{known['duration_s']} s, mean {known['power_w']} W of {known['samples']} samples"
        yield "window", f"{mean}, {known['energy_j']} J; exact integral {known['integrated_j']} J"


def _number(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, int | float) else "not known" if value is None else str(value)


def _print_summary(console: Console, checked: Checked) -> None:
    counts = checked.counts
    console.print(
        f"[bold]{len(checked.reports)} results[/bold]: {counts.get(Verdict.ACCEPTED, 0)} accepted, "
        f"{counts.get(Verdict.REJECTED, 0)} rejected, by the {checked.layer.value} checks"
    )
    usual = sum(one.systems == 1 for one in checked.shared)
    if usual:
        console.print(f"{usual} recordings serve several results of one system, as when a scenario is inferred")
    for name, count in checked.reasons.items():
        console.print(f"  {count:>5} failed: {escape(name)}")
