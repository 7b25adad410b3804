"""2. How far a window's joules are from the truth."""

import random
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from peers.bench import (
    CODECARBON,
    CONSTANT_LOAD,
    COUNTER_READ_S,
    OURS,
    POLL_S,
    Bar,
    Bench,
    Cell,
    Scale,
    Table,
    ratio_heads,
    ratios,
)
from peers.talk import Plan
from wattsmith.sim.nvml import Curve, GpuProfile, Segment, SimulatedNvml, burst, constant, sawtooth
from wattsmith.sim.nvml_profile import PROFILES


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One window of one tool on one GPU."""

    gpu: int
    duration_s: float  # as planned
    true_j: float
    energy_j: float | None
    error_j: float | None  # as the tool states it

    @property
    def off_percent(self) -> float:
        return 100.0 if self.energy_j is None else 100 * abs(self.energy_j / self.true_j - 1)

    @property
    def inside(self) -> bool:
        return None not in (self.energy_j, self.error_j) and abs(self.energy_j - self.true_j) <= self.error_j


def curves(chance: random.Random, duration_s: float) -> dict[str, Curve]:
    """The loads. Steps come so often that each window of 2 s holds one; bursts last longer than the sensor's mean."""
    steps, start_s, load = [], 0.0, 0.5
    while start_s < duration_s:
        load = chance.choice([each for each in (0.1, 0.3, 0.5, 0.7, 0.9) if each != load])
        steps.append(Segment(start_s=start_s, load_begin=load, load_end=load))
        start_s += chance.uniform(1.3, 1.9)
    return {
        "constant": constant(CONSTANT_LOAD),
        "constant, sensor ± 1 W": constant(CONSTANT_LOAD),
        "steps": tuple(steps),
        "saw-tooth of 0.73 s": sawtooth(0.1, 1.0, period_s=0.73),
        "bursts of 0.17 in 0.43 s": burst(high=0.95, period_s=0.43, duty_ratio=0.4, low=0.05),
    }


def accuracy(bench: Bench) -> Iterator[Table]:
    chance = random.Random(2)
    noisy = {"sensor_noise_w": 1.0}
    names = list(curves(chance, 1.0))
    counted = cards("h200", [{}, noisy, {}, {}, {}], counter_read_s=COUNTER_READ_S)
    polled = cards("h200", [{}, noisy, {}, {}, {}], has_counter=False)
    loads = list(curves(chance, 10 * bench.scale.stretch_s).values())
    by_counter = stretch(bench, counted, loads, chance, how="counter")
    yield error_table("2. Energy error by counter, each tool as it comes, % of the truth", names, by_counter, bench)
    by_polling = stretch(bench, polled, loads, chance, how="polling")
    table = error_table(
        "2b. Energy error by polling at 10 Hz on a card without a counter, % of the truth", names, by_polling, bench
    )
    table.notes.append(
        "Wattsmith fetches the driver's own 20 ms samples; Zeus's PowerMonitor asks for the instant "
        "power every 0.1 s; CodeCarbon asks for the power, a mean over 1 s on this card, once a second."
    )
    for gpu, name in enumerate(names):
        worst = max(each.off_percent for each in by_polling[OURS] if each.gpu == gpu)
        what = f"polling at 10 Hz, {name}, windows of 2 s and more: within 1 %"
        table.bars.append(Bar(what=what, figure=f"worst {worst:.3g} %", met=worst <= 1.0))
    yield table
    yield constant_table(by_polling, bench)


def cards(profile: str, each: Sequence[Mapping[str, Any]], **common: Any) -> list[GpuProfile]:
    return [replace(PROFILES[profile], **common, **own) for own in each]


def stretch(
    bench: Bench, gpus: Sequence[GpuProfile], loads: Sequence[Curve], chance: random.Random, *, how: str
) -> dict[str, list[Figure]]:
    """The figures of all tools over one stretch of load, each GPU with its own curve."""
    machine = bench.machine(gpus=gpus)
    for gpu, load in enumerate(loads):
        machine.play(gpu, load)
    with bench.running(machine) as tools:
        for name, tool in tools.items():
            tool.send("open", how="tasks" if name == CODECARBON else how, **period(name, how))
        for tool in tools.values():
            tool.answer()
        first_s = time.monotonic() + 2.5  # Zeus must have polled twice, and our tape must have begun
        plans = {name: plan_for(name, bench.scale, chance, first_s) for name in tools}
        for name, tool in tools.items():
            tool.send("windows", plan=plans[name])
        return {name: figures_of(machine, plans[name], tool.answer()) for name, tool in tools.items()}


def period(tool: str, how: str) -> dict[str, float]:
    return {"period_s": POLL_S} if how == "polling" and tool != CODECARBON else {}


def plan_for(tool: str, scale: Scale, chance: random.Random, first_s: float) -> Plan:
    if tool == CODECARBON:
        return one_by_one(scale, chance, first_s)
    windows = []
    for duration_s, count in scale.windows.items():
        begins_s = (first_s + chance.uniform(0.0, scale.stretch_s - duration_s) for _ in range(count))
        windows += [(begin_s, begin_s + duration_s) for begin_s in begins_s]
    return windows


def one_by_one(scale: Scale, chance: random.Random, first_s: float) -> Plan:
    windows = []
    pause_s = (scale.stretch_s - sum(scale.tasks_s)) / len(scale.tasks_s)
    for duration_s in scale.tasks_s:
        begin_s = first_s + chance.uniform(0.2 * pause_s, 0.8 * pause_s)
        windows.append((begin_s, begin_s + duration_s))
        first_s += pause_s + duration_s
    return windows


def figures_of(machine: SimulatedNvml, plan: Plan, answers: Sequence[Mapping[str, Any]]) -> list[Figure]:
    figures = []
    for (begin_s, end_s), answer in zip(plan, answers, strict=True):
        for gpu, energy_j in enumerate(answer["energy_j"]):
            figures.append(
                Figure(
                    gpu=gpu,
                    duration_s=round(end_s - begin_s, 3),
                    true_j=machine.true_energy_j(gpu, answer["began_s"], answer["ended_s"]),
                    energy_j=energy_j,
                    error_j=answer["error_j"][gpu] if "error_j" in answer else None,
                )
            )
    return figures


def error_table(title: str, loads: Sequence[str], figures: Mapping[str, Sequence[Figure]], bench: Bench) -> Table:
    """One row for each load and length of window."""
    table = Table(title=title, heads=["load", "window s", *error_heads(bench)])
    for gpu, name in enumerate(loads):
        for duration_s in sorted({each.duration_s for each in figures[OURS]}):
            chosen = {
                tool: [each for each in figures[tool] if each.gpu == gpu and each.duration_s == duration_s]
                for tool in bench.tools
            }
            table.rows.append([name, duration_s, *error_cells(chosen, bench)])
    return table


def error_heads(bench: Bench) -> list[str]:
    peers = [head for peer in bench.tools if peer != OURS for head in (f"{peer} median", "worst")]
    stated_by_peers = ["their bound"] if peers else []
    return [f"{OURS} median", "worst", "stated bound", "inside it %", *peers, *stated_by_peers, *ratio_heads(bench)]


def error_cells(figures: Mapping[str, Sequence[Figure]], bench: Bench) -> list[Cell]:
    ours = figures[OURS]
    peers = [cell for peer in bench.tools if peer != OURS for cell in off(figures[peer])]
    stated_by_peers = ["none stated"] if peers else []
    medians = ratios(bench, {tool: median_off(each) for tool, each in figures.items()})
    return [*off(ours), stated(ours), inside(ours), *peers, *stated_by_peers, *medians]


def median_off(figures: Sequence[Figure]) -> float | None:
    return statistics.median(each.off_percent for each in figures) if figures else None


def off(figures: Sequence[Figure]) -> list[Cell]:
    return [median_off(figures), max((each.off_percent for each in figures), default=None)]


def stated(figures: Sequence[Figure]) -> float | None:
    """The stated bound, as a median in % of the truth."""
    known = [100 * each.error_j / each.true_j for each in figures if each.error_j is not None]
    return statistics.median(known) if known else None


def inside(figures: Sequence[Figure]) -> float:
    return 100 * sum(each.inside for each in figures) / len(figures)


def constant_table(figures: Mapping[str, Sequence[Figure]], bench: Bench) -> Table:
    """Readings that repeat are readings."""
    duration_s = max(each.duration_s for each in figures[OURS])
    table = Table(
        title=f"2c. Constant 300 W for {duration_s:g} s by polling at 10 Hz, median J", heads=["sensor", "truth"]
    )
    table.heads = [*table.heads, *bench.tools]
    for gpu, sensor in enumerate(("steady: every reading repeats", "± 1 W: no reading repeats")):
        chosen = {
            tool: [each for each in figures[tool] if each.gpu == gpu and each.duration_s == duration_s]
            for tool in bench.tools
        }
        truth_j = statistics.median(each.true_j for each in chosen[OURS])
        medians = [statistics.median(each.energy_j or 0.0 for each in chosen[tool]) for tool in bench.tools]
        table.rows.append([sensor, truth_j, *medians])
    return table


IN_STEP_NOTES = {
    "polling": "No bar: such a sensor shows the same part of every burst, and its readings do not tell.",
    "counter": (
        "No bar, but a weakness: the simulated counter sees everything, and Wattsmith follows it only where the "
        "samples leave the band of one counter step. Between, a short window takes on the slow beat of the samples."
    ),
}


def blind_spots(bench: Bench) -> Iterator[Table]:
    """Bursts shorter than the sensor's mean, and a sensor that looks away: the bound must say so."""
    chance = random.Random(3)
    h200 = "an H200, whose sensor gives means over 25 ms every 20 ms"
    a100 = "an A100, whose sensor sees 25 ms of every 100 ms"
    looks_away = {"has_samples": False, "has_counter": False, "sensor_period_s": 0.1, "sensor_window_s": 0.025}
    polled, counted = cards("h200", [{}], has_counter=False), cards("h200", [{}], counter_read_s=COUNTER_READ_S)
    blinking = cards("a100", [{}], **looks_away)
    short_s, long_s = evenly(0.003, 0.025, 12), evenly(0.025, 0.4, 12)
    near_20 = [0.010, 0.0199, 0.020, 0.0201]
    for where, how, card, periods_s, in_step_s in (
        (f"by polling at 10 Hz on {h200}", "polling", polled, short_s, near_20),
        (f"by counter on {h200}", "counter", counted, short_s[::2], near_20),
        (f"by polling at 10 Hz on {a100}: short bursts", "polling", blinking, short_s, near_20),
        (f"by polling at 10 Hz on {a100}: longer bursts", "polling", blinking, long_s, [0.05, 0.099, 0.1, 0.101]),
    ):
        yield from blind_tables(bench, chance, where, how, card, periods_s, in_step_s)


def evenly(first: float, last: float, count: int) -> list[float]:
    """COUNT numbers between FIRST and LAST in equal ratios."""
    return [first * (last / first) ** ((i + 0.5) / count) for i in range(count)]


def blind_tables(
    bench: Bench,
    chance: random.Random,
    where: str,
    how: str,
    card: Sequence[GpuProfile],
    periods_s: Sequence[float],
    in_step_s: Sequence[float],
) -> Iterator[Table]:
    """One table for bursts of any period, and one for those that keep the sensor's own time."""
    every_s = [*periods_s, *in_step_s]
    loads = [burst(high=0.95, period_s=each, duty_ratio=0.4, low=0.05) for each in every_s]
    figures = stretch(bench, [*card] * len(loads), loads, chance, how=how)
    free = Table(
        title=f"2d. Energy error {where}, windows of all lengths, % of the truth",
        heads=["bursts every", *error_heads(bench)],
    )
    in_step = Table(
        title=f"2e. The same in step with the sensor, or nearly so, {where}",
        heads=free.heads,
        notes=[IN_STEP_NOTES[how]],
    )
    for gpu, period_s in enumerate(every_s):
        chosen = {tool: [each for each in figures[tool] if each.gpu == gpu] for tool in bench.tools}
        table = free if gpu < len(periods_s) else in_step
        table.rows.append([f"{1e3 * period_s:.3g} ms", *error_cells(chosen, bench)])
    counted = [each for each in figures[OURS] if each.gpu < len(periods_s)]
    figure = f"{inside(counted):.3g} % of {len(counted)}"
    what = f"bursts {where}: the truth within the stated bound in 95 % of windows"
    free.bars.append(Bar(what=what, figure=figure, met=inside(counted) >= 95.0))
    yield free
    yield in_step
