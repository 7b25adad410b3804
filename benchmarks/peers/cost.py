"""1. What a window costs."""

import statistics
from collections.abc import Iterator, Mapping

from peers.bench import (
    CODECARBON,
    CONSTANT_LOAD,
    COUNTER_READ_S,
    OURS,
    ZEUS,
    Bar,
    Bench,
    Table,
    ratio_heads,
    ratios,
    shown,
)
from peers.talk import Tool


def cost(bench: Bench) -> Iterator[Table]:
    """Begin and end, the tools taking turns so that noise hits all alike."""
    table = Table(
        title="1. Cost of begin + end, median µs",
        heads=["GPUs", "a counter read takes", *bench.tools, *ratio_heads(bench)],
    )
    figures = Table(
        title="1b. The same for other ways to ask Wattsmith, median µs",
        heads=[
            "GPUs",
            "a counter read takes",
            "with measure():",
            "figure, asked for later",
            "figure, asked for at once",
        ],
        notes=[
            "Asked for at once, a figure waits until the driver has sampled the end of the window; the work may go on "
            "meanwhile. Zeus and CodeCarbon read the driver inside begin and end instead."
        ],
    )
    for gpus in (1, 8):
        machine = bench.machine(gpus=gpus)
        for gpu in range(gpus):
            machine.play(gpu, CONSTANT_LOAD)
        with bench.running(machine) as tools:
            for name, tool in tools.items():
                tool.send("open", how="tasks" if name == CODECARBON else "counter")
            for tool in tools.values():
                tool.answer()
            for read_s in (COUNTER_READ_S, 0.0):
                for gpu in range(gpus):
                    machine.change(gpu, counter_read_s=read_s)
                median_us = turns_us(bench, tools, read_s)
                label = f"{read_s * 1e3:g} ms"
                table.rows.append([gpus, label, *median_us.values(), *ratios(bench, median_us)])
                table.bars += cost_bars(gpus, read_s, median_us)
                later = tools[OURS].ask("figures", count=200)
                with_us = 1e6 * statistics.median(tools[OURS].ask("cost of with", count=500))
                waits_us = (1e6 * statistics.median(later[when]) for when in ("later", "at once"))
                figures.rows.append([gpus, label, with_us, *waits_us])
    yield table
    yield figures


def turns_us(bench: Bench, tools: Mapping[str, Tool], read_s: float) -> dict[str, float]:
    took_s: dict[str, list[float]] = {name: [] for name in tools}
    for _ in range(bench.scale.cost_rounds):
        for name, tool in tools.items():
            slow = name != OURS and read_s > 0
            took_s[name] += tool.ask("cost", count=5 if slow else 50)
    return {name: 1e6 * statistics.median(each_s) for name, each_s in took_s.items()}


def cost_bars(gpus: int, read_s: float, median_us: Mapping[str, float]) -> list[Bar]:
    ours_us, zeus_us = median_us[OURS], median_us.get(ZEUS)
    figure = f"{shown(ours_us)} µs, Zeus's {shown(zeus_us)} µs"
    if read_s == 0.0:
        met = None if zeus_us is None else ours_us <= zeus_us
        return [Bar(what=f"begin + end, {gpus} GPU, counter instant: no dearer than Zeus's", figure=figure, met=met)]
    if gpus == 8:
        met = None if zeus_us is None else ours_us <= zeus_us / 10
        return [Bar(what="begin + end, 8 GPUs, counter 3 ms: at most a tenth of Zeus's", figure=figure, met=met)]
    return []
