"""`wattsmith plan`: who runs where, when and on how much power."""

import json
import sys
import time
from contextlib import redirect_stdout
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.answers import Planned
from wattsmith.cli.complaining import can_be_written, one_of
from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.flows.planning import (
    Objective,
    Plan,
    Wish,
    WorkSchedule,
    draw_plan,
    moment,
    plan_files,
    read_series,
    write_schedules,
)
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity, parse_quantity

SHORTEST_SLOT_S = 1.0
SHOWN = 60  # stretches in the table; --json has all


def plan_command(
    jobs: Annotated[Path, typer.Argument(help="The jobs, in YAML.", metavar="JOBS.yaml")],
    pool: Annotated[Path, typer.Option(help="The machines, in YAML.", metavar="POOL.yaml")],
    power_budget: Annotated[
        str | None, typer.Option(help="Of the whole pool, idle devices included; such as 10kW.", metavar="POWER")
    ] = None,
    objective: Annotated[
        str, typer.Option(help="What is to be least: energy, time, carbon or cost.", metavar="GOAL")
    ] = "energy",
    deadline: Annotated[
        str | None,
        typer.Option(help="Of jobs that have none: 6h, 18:00 (UTC) or 2026-11-16T18:00Z.", metavar="TIME"),
    ] = None,
    carbon: Annotated[Path | None, typer.Option(help="Carbon intensity over time, g/kWh.", metavar="FILE.csv")] = None,
    tariff: Annotated[Path | None, typer.Option(help="Price over time, per kWh.", metavar="FILE.csv")] = None,
    now: Annotated[
        str | None, typer.Option(help="Plan as if it were this time.", metavar="TIME", show_default="now")
    ] = None,
    slot: Annotated[
        str | None, typer.Option(help="Length of slots, such as 15min.", metavar="TIME", show_default="suits the jobs")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="By mixed-integer programming, at most a minute.")] = False,
    schedules: Annotated[
        Path | None, typer.Option(help="Write a work schedule for each machine into this folder.", metavar="DIR")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the plan into this file.", metavar="FILE")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan and the work schedules as JSON.")] = False,
) -> None:
    """Plan jobs on a pool of machines under a power budget and deadlines.

    Example: wattsmith plan jobs.yaml --pool pool.yaml --power-budget 10kW --objective energy --deadline 18:00
    """
    can_be_written("--plot", plot)
    now_s = time.time() if now is None else moment(now, time.time())
    wish = Wish(
        now_s=now_s,
        objective=_objective(objective),
        budget_w=None if power_budget is None else _budget_w(power_budget),
        deadline_s=None if deadline is None else moment(deadline, now_s),
        carbon=None if carbon is None else read_series(carbon),
        tariff=None if tariff is None else read_series(tariff),
        slot_s=None if slot is None else _slot_s(slot),
        exact=exact,
    )
    with redirect_stdout(sys.stderr), Console(stderr=True).status("…") as status:
        found, documents = plan_files(jobs, pool, wish, tell=status.update)
    typer.echo(_as_json(found, documents)) if as_json else print_plan(found)
    if schedules is not None:
        write_schedules(documents, schedules)
    if plot is not None:
        draw_plan(found, plot)
    if found.missed:
        raise typer.Exit(1)


def _objective(text: str) -> Objective:
    return Objective(one_of("--objective", text.lower(), [one.value for one in Objective]))


def _slot_s(text: str) -> float:
    slot_s = parse_quantity(text, "time")
    if slot_s < SHORTEST_SLOT_S:
        raise BadInput(f"--slot must be at least {SHORTEST_SLOT_S:g} s, got {text!r}")
    return slot_s


def _budget_w(text: str) -> float:
    budget_w = parse_quantity(text, "power")
    if budget_w <= 0:
        raise BadInput(f"--power-budget must be positive, got {text!r}")
    return budget_w


def _as_json(found: Plan, documents: list[WorkSchedule]) -> str:
    return json.dumps(as_plain(Planned(plan=found, schedules=tuple(documents))))


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%d %b %H:%M")


def print_plan(found: Plan) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_FILES)
    table = Table(box=None, pad_edge=False, header_style="bold")
    fed = any(one.data_workers is not None for one in found.stretches)
    data = ["data workers"] if fed else []
    for heading in ("job", "node", "devices", "from", "until", "setting", *data, "power", "energy"):
        table.add_column(heading, justify="left" if heading in ("job", "node", "devices", "setting") else "right")
    for one in found.stretches[:SHOWN]:
        setting = one.point.setting
        said = [
            *([] if setting.power_limit_w is None else [f"{setting.power_limit_w:g} W"]),
            *([] if setting.clock_hz is None else [format_quantity(setting.clock_hz, "frequency")]),
        ]
        table.add_row(
            escape(one.job),
            escape(one.node),
            ",".join(map(str, one.devices)),
            _clock(one.from_s),
            _clock(one.until_s),
            " ".join(said) or "as found",
            *(["" if one.data_workers is None else str(one.data_workers)] if fed else []),
            format_quantity(one.power_w, "power"),
            format_quantity(one.energy_j, "energy"),
        )
    console.print(table)
    if len(found.stretches) > SHOWN:
        console.print(f"… and {len(found.stretches) - SHOWN} more; --json has all")
    console.print(f"\n[bold]{_summary(found)}[/bold]")
    budget = "" if found.budget_w is None else f" of {format_quantity(found.budget_w, 'power')}"
    guard = f", {format_quantity(found.guard_w, 'power')} kept above it for the doubt" if found.guard_w else ""
    console.print(f"at most {format_quantity(found.peak_w, 'power')}{budget} is drawn{guard}")
    if found.gap_ratio is not None:
        console.print(f"no plan can be more than {max(0.0, found.gap_ratio):.1%} better ({found.method})")
    for note in found.notes:
        console.print(escape(note))
    for job, why in found.missed.items():
        console.print(f"[bold]not planned[/bold] {escape(job)}: {escape(why)}")


def _summary(found: Plan) -> str:
    parts = [
        f"{len({one.job for one in found.stretches})} jobs done by {_clock(found.end_s)} UTC",
        format_quantity(found.energy_j, "energy"),
        *([] if found.emitted_g is None else [f"{found.emitted_g:.4g} g CO2e"]),
        *([] if found.cost is None else [f"cost {found.cost:.4g}"]),
    ]
    return ", ".join(parts)
