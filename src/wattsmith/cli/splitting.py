"""`wattsmith split`: what of a training step workers can do, what crosses to the trainer, and why the rest stays."""

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.complaining import can_be_written
from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.flows.splitting import Cut, split_file
from wattsmith.terms.cut import DATA, TRAINING, Place
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity

SHOWN = 40  # nodes of a half in the table; --json has all


def split_command(
    source: Annotated[
        str, typer.Argument(help="FILE.py:NAME or package.module:NAME of the step, or FILE.onnx", metavar="STEP")
    ],
    example: Annotated[
        str | None,
        typer.Option(help="What gives a batch, in the same file.", metavar="NAME", show_default="example, if there"),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            help="Size of one sample, such as 3x224x224:uint8 or label=:int64; once per input.",
            metavar="SIZE",
        ),
    ] = None,
    batch: Annotated[int | None, typer.Option(help="Samples, with --input.", metavar="N", show_default="8")] = None,
    trainer: Annotated[
        str | None,
        typer.Option(
            help="cpu or gpu: what the trainer computes on.", show_default="as on this machine", metavar="NAME"
        ),
    ] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="Keep what differs between kinds of CPUs with the trainer.")
    ] = False,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Let weights that are not trained move to the data side.")
    ] = False,
    sizes: Annotated[str, typer.Option(help="Sizes that may change: batch, all or none.", metavar="SIZES")] = "batch",
    plot: Annotated[
        Path | None, typer.Option(help="Draw the graph and the cut: .svg, .png or .html.", metavar="FILE")
    ] = None,
    save: Annotated[Path | None, typer.Option(help="Write the data half, for workers.", metavar="FILE")] = None,
    save_training: Annotated[
        Path | None, typer.Option(help="Write the other half of an ONNX model.", metavar="FILE")
    ] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(help="An input or constant of an ONNX model that is trained besides weights.", metavar="NAME"),
    ] = None,
    constant: Annotated[
        list[str] | None,
        typer.Option(help="What looks like a weight of an ONNX model and is not trained.", metavar="NAME"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")] = False,
) -> None:
    """Tell what of a training step can run on data workers, and how many bytes per step cross to the trainer.

    Example: wattsmith split train.py:step --plot cut.svg --save data.half
    """
    can_be_written("--plot", plot, (".svg", ".png", ".html"))
    can_be_written("--save", save)
    can_be_written("--save-training", save_training)
    # What a step prints while it is watched is no part of the answer.
    with redirect_stdout(sys.stderr), Console(stderr=True).status("cutting …"):
        cut = split_file(
            source,
            inputs=inputs or (),
            batch=batch,
            example=example,
            trainer=trainer,
            plot=plot,
            save=save,
            save_training=save_training,
            state=state or (),
            constants=constant or (),
            strict=strict,
            frozen=frozen,
            sizes=sizes,
        )
    typer.echo(json.dumps(as_plain(cut))) if as_json else print_cut(cut)


def print_cut(cut: Cut) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=WIDTH_OF_FILES)
    console.print(
        f"[bold]{cut.data_nodes} nodes on the data side, {cut.training_nodes} with training[/bold], traced by "
        f"{escape(cut.tracer)}, {cut.batch} samples"
    )
    console.print(_table(cut))
    console.print()
    console.print(
        f"{format_quantity(cut.bytes_per_step, 'memory', 3)} cross per step; the batch itself has "
        f"{format_quantity(cut.raw_bytes, 'memory', 3)}"
    )
    for one in cut.crossing:
        shape = "×".join(map(str, one.shape)) or "one number"
        size = format_quantity(one.size_bytes, "memory", 3)
        console.print(f"  {escape(one.name)}  {shape} {one.dtype}, {size}")
    if cut.unlike:
        console.print(
            f"differ in their last bits between kinds of CPUs: {escape(', '.join(cut.unlike))} (--strict keeps what it "
            "can with the trainer)"
        )
    if cut.needs:
        console.print(f"workers need: {escape(', '.join(cut.needs))}")
    for note in cut.notes:
        console.print(f"note: {escape(note)}")


def _table(cut: Cut) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("node", "operator", "runs on", "gives", "why"):
        table.add_column(heading, justify="right" if heading == "gives" else "left", overflow="fold")
    on_data = [one for one in cut.places if one.side == DATA]
    with_training = _frontier(cut)
    for one in [*on_data[:SHOWN], *with_training[:SHOWN]]:
        gives = "" if one.output_bytes is None else format_quantity(one.output_bytes, "memory", 3)
        at = f" ({one.line})" if one.line and one.side == TRAINING else ""
        table.add_row(escape(one.name), escape(one.operator), one.side, gives, escape(one.why + at))
    hidden = cut.data_nodes + cut.training_nodes - len(on_data[:SHOWN]) - len(with_training[:SHOWN])
    if hidden:
        table.add_row("…", f"{hidden} more", "", "", "--json has all")
    return table


def _frontier(cut: Cut) -> list[Place]:
    """Nodes of the training half that take something from the data side, and those that could have moved."""
    data = {one.name for one in cut.places if one.side == DATA}
    return [one for one in cut.places if one.side == TRAINING and (one.could_move or data & set(one.takes))]
