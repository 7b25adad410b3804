"""`wattsmith estimate`: what a model that has not run will need, and which configurations keep given limits."""

import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.flows.choosing import Choice, Ranked, Ranking, choose
from wattsmith.flows.estimating import Estimate, estimate
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity, parse_quantity
from wattsmith.terms.work import Interval

STANDINGS = {
    "measured": "measured",
    "inside": "inside what was measured",
    "edge": "at the edge of what was measured",
    "outside": "[bold]outside[/bold] what was measured",
}
SHOWN = 12  # configurations in a table; --json has all


def estimate_command(
    source: Annotated[
        str,
        typer.Argument(help="FILE.py:NAME, package.module:NAME, config.json, FILE.onnx or FILE.pt2", metavar="MODEL"),
    ],
    batch: Annotated[
        int | None,
        typer.Option(
            help="Samples in a step, on each device.", metavar="N", show_default="1; to rank: 1, 2, 4 and so on to 1024"
        ),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Size of one sample, such as 3x224x224 or 128:int64; once per input.", metavar="SIZE"
        ),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="fp32, tf32, bf16 or fp16.", show_default="fp32; to rank: fp32 and bf16", metavar="NAME"),
    ] = None,
    device: Annotated[
        str | None,
        typer.Option(
            help="Such as h200 or a100, several with commas to rank them; cpu: this machine.",
            metavar="NAME",
            show_default="h200; to rank: all with a record",
        ),
    ] = None,
    gpus: Annotated[
        int | None,
        typer.Option(
            help="Devices that train together, data-parallel.", metavar="N", show_default="1; to rank: 1, 2, 4 and 8"
        ),
    ] = None,
    infer: Annotated[bool, typer.Option("--infer", help="Forward alone, instead of a training step.")] = False,
    optimizer: Annotated[str, typer.Option(help="sgd, adam, adamw or none.", metavar="NAME")] = "adamw",
    layout: Annotated[str, typer.Option(help="contiguous or channels-last.", metavar="NAME")] = "contiguous",
    accumulation: Annotated[int, typer.Option(help="Forward and backward passes per update.", metavar="N")] = 1,
    compiled: Annotated[bool, typer.Option("--compiled", help="The step is compiled.")] = False,
    with_values: Annotated[
        bool, typer.Option("--with-values", help="Run the step once on this CPU, for models that look at values.")
    ] = False,
    samples: Annotated[int | None, typer.Option(help="Samples in the data set.", metavar="N")] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the data set.", metavar="N")] = 1,
    power_limit: Annotated[str | None, typer.Option(help="Of each device, such as 400W.", metavar="POWER")] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            help="Rank configurations that keep it, such as gpus<=2 or epoch<=20min; once per limit.", metavar="LIMIT"
        ),
    ] = None,
    minimise: Annotated[
        str | None, typer.Option(help="Rank configurations by gpus, energy, time, cost or memory.", metavar="GOAL")
    ] = None,
    price: Annotated[
        list[str] | None,
        typer.Option(help="Of a device per hour, such as h200=3.5; once per device.", metavar="DEVICE=PRICE"),
    ] = None,
    record: Annotated[
        str | None,
        typer.Option(
            "--record",
            "--db",
            help="What it rests on: h200, a file or a URL.",
            metavar="NAME",
            show_default="your own, else what is shipped",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """Tell how long a step takes and how much memory, power and energy it needs, before it runs.

    Example: wattsmith estimate net.py:build --batch 64 --input 3x224x224 --precision bf16 --device h200
    """
    options = {
        "mode": "infer" if infer else "train",
        "optimizer": None if optimizer == "none" else optimizer,
        "layout": layout,
        "accumulation": accumulation,
        "compiled": compiled,
        "with_values": with_values,
        "record": record,
        "samples": samples,
        "epochs": epochs,
        "power_limit_w": None if power_limit is None else parse_quantity(power_limit, "power"),
    }
    names = tuple(name.strip() for name in (device or "").split(",") if name.strip())
    ranks = bool(limit or minimise or len(names) > 1)
    # What a model prints while it is loaded is no part of the answer.
    with redirect_stdout(sys.stderr), Console(stderr=True).status("…") as status:

        def tell(what: str) -> None:
            status.update(what)

        if ranks:
            among = _choice(devices=names, counts=gpus, batches=batch, precisions=precision, prices=price or [])
            ranking = choose(
                source, inputs, limits=limit or [], minimise=minimise or "time", among=among, tell=tell, **options
            )
        else:
            found = estimate(
                source,
                inputs,
                tell=tell,
                batch=batch,
                precision=precision or "fp32",
                device=device or "h200",
                devices=1 if gpus is None else gpus,
                **options,
            )
    if ranks:
        typer.echo(json.dumps(as_plain(ranking))) if as_json else print_ranking(ranking)
        if not ranking.fitting:
            raise typer.Exit(1)
    else:
        typer.echo(json.dumps(as_plain(found))) if as_json else print_estimate(found)


def _choice(*, devices: tuple[str, ...], prices: Sequence[str], **only: int | str | None) -> Choice:
    """What is given is all that there is to choose among; what is not given is left open."""
    narrowed: dict[str, Any] = {name: (value,) for name, value in only.items() if value is not None}
    return Choice(devices=devices, prices_per_hour=_prices(prices), **narrowed)


def _prices(texts: Sequence[str]) -> dict[str, float]:
    prices = {}
    for text in texts:
        name, _, amount = text.partition("=")
        try:
            prices[name] = float(amount)
        except ValueError as wrong:
            raise BadInput(f"--price must be like h200=3.5, got {text!r}") from wrong
    return prices


def _span(interval: Interval | None, kind: str) -> tuple[str, str]:
    if interval is None:
        return "unknown", ""
    low, high = format_quantity(interval.low, kind, 3), format_quantity(interval.high, kind, 3)
    return format_quantity(interval.value, kind, 3), f"{low} … {high}"


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def print_estimate(one: Estimate) -> None:
    console = _console()
    several = f"{one.devices} × " if one.devices > 1 else ""
    console.print(
        f"[bold]{several}{escape(one.device)}[/bold], batch {one.batch}, {one.precision}, "
        f"{'training' if one.mode == 'train' else 'inference'}, {one.layout}"
    )
    console.print(_figures(one))
    whole = sum(one.by_kind_s.values())
    parts = [f"{kind} {took_s / whole:.0%}" for kind, took_s in one.by_kind_s.items() if took_s > 0.005 * whole]
    console.print("device time by kind: " + ", ".join(parts))
    if one.others_s:
        told = [f"{name} {format_quantity(took_s, 'time', 3)}" for name, took_s in one.others_s.items()]
        console.print("the step by simpler methods: " + ", ".join(told))
    console.print(f"{STANDINGS[one.standing]}: {escape('; '.join(one.reasons))}")
    runs = f"{one.from_runs} runs of {one.record}" if one.record else "no record"
    console.print(
        f"rests on {one.basis} ({escape(runs)}); measured operators do "
        f"{one.covered_flops_ratio:.0%} of the FLOPs and move {one.covered_bytes_ratio:.0%} of the bytes"
    )
    if one.without_rule:
        told = [f"{name} × {count}" for name, count in one.without_rule.items()]
        console.print("without a rule, counted by their tensors: " + escape(", ".join(told)))
    for note in one.notes:
        console.print(f"note: {escape(note)}")


def _figures(one: Estimate) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "estimate", "90 % interval"):
        table.add_column(heading, justify="right" if heading else "left", no_wrap=True)
    table.add_column("")
    pace = "the host sets the pace" if one.host_bound else "the device sets the pace"
    rows: list[tuple[str, Interval | None, str, str]]
    rows = [("step", one.step_s, "time", pace), ("  device busy", one.busy_s, "time", "")]
    rows += [("  host queues", one.host_s, "time", "")]
    rows += [("memory, tensors", one.memory.peak_tensor_bytes, "memory", "")]
    rows += [("memory, held", one.memory.peak_held_bytes, "memory", _fits(one))]
    rows += [("power", one.power_w, "power", ""), ("energy of a step", one.step_energy_j, "energy", "")]
    if one.job is not None:
        rows += [("epoch", one.job.epoch_s, "time", ""), (f"job, {one.job.steps} steps", one.job.job_s, "time", "")]
        rows += [("energy of the job", one.job.energy_j, "energy", "")]
    for name, interval, kind, note in rows:
        table.add_row(name, *_span(interval, kind), note)
    return table


def _fits(one: Estimate) -> str:
    if one.memory.memory_bytes is None or one.memory.runs_out is None:
        return ""
    capacity = format_quantity(one.memory.memory_bytes, "memory", 3)
    return f"of {capacity}; runs out with {one.memory.runs_out:.0%}"


def print_ranking(ranking: Ranking) -> None:
    console = _console()
    limits = ", ".join(str(one) for one in ranking.limits) or "none"
    console.print(f"least {ranking.objective} under limits: {limits}")
    if ranking.fitting:
        console.print(_places(ranking.fitting[:SHOWN]))
    else:
        console.print("no configuration keeps all limits; nearest to it:")
    if len(ranking.fitting) > SHOWN:
        console.print(f"and {len(ranking.fitting) - SHOWN} more (--json has all)")
    if any(one.pareto for one in ranking.fitting):
        console.print("* no other is better in gpus, energy, time or cost without being worse in another")
    if ranking.fitting and ranking.rejected:
        console.print(f"{len(ranking.rejected)} break a limit; nearest to keeping it:")
    for one in ranking.rejected[: 3 if ranking.fitting else SHOWN]:
        broken = "; ".join(str(breach) for breach in one.breaches)
        made = one.option.configuration
        console.print(f"  {made.devices} × {escape(made.device)}, {made.precision}, batch {made.batch}: {broken}")


def _places(fitting: Sequence[Ranked]) -> Table:
    of_a_job = any(one.figures.get("epoch") is not None for one in fitting)
    shown = [(f"{one.place}{'*' if one.pareto else ''}", *_cells(one, of_a_job)) for one in fitting]
    # Without a job, time and energy are those of one sample.
    times = ("epoch", "job", "energy", "cost") if of_a_job else ("time/sample", "", "energy/sample", "")
    headings = ("", "gpus", "device", "type", "batch", "step", "memory", *times)
    used = [at for at in range(len(headings)) if any(row[at] for row in shown)]
    table = Table(box=None, pad_edge=False)
    for at in used:
        table.add_column(headings[at], justify="right", no_wrap=True)
    for row in shown:
        table.add_row(*(row[at] for at in used))
    return table


def _cells(one: Ranked, of_a_job: bool) -> list[str]:
    made = one.option.configuration
    kinds = {"step": "time", "memory": "memory", "epoch" if of_a_job else "time": "time", "job": "time"}
    cells = [str(made.devices), escape(made.device.removeprefix("NVIDIA ")), made.precision, str(made.batch)]
    for name, kind in {**kinds, "energy": "energy"}.items():
        figure = one.figures.get(name)
        twice = name == "job" and figure == one.figures.get("epoch")
        cells.append("" if figure is None or twice else format_quantity(figure.value, kind, 3))
    cost = one.figures.get("cost")
    return [*cells, "" if cost is None else f"{cost.value:.3g}"]
