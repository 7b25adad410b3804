"""How well windows measure a real NVIDIA GPU, and what they cost.

    python benchmarks/measure_gpu.py [--json FILE] [--timeline FILE]

On one card, in one run: counter against integrated power on a steady load; the cost of begin and end beside two raw
reads of the energy counter, which is what a window costs that asks the driver at both ends; windows of 100 ms and 1 s
inside a known load against its long-run rate; isolated bursts; a training step with phases. Needs PyTorch with CUDA.
Exits with 1 when a bar is not met, with 2 when there is no real GPU.
"""

import argparse
import json
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from results.shape import bar, table
from wattsmith.flows.measuring import open_session, wait_for_torch
from wattsmith.measure.session import OpenWindow, Session
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.errors import WattsmithError

STEADY_S = 20.0
SIZE = 8192  # a dense bf16 matrix product of this size takes 1.7 ms on an H200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of the table. A bar of None is shown for information only."""

    what: str
    value: float
    unit: str
    bar: float | None = None

    @property
    def met(self) -> bool:
        return self.bar is None or self.value <= self.bar


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--timeline", type=Path, help="keep every reading in this .csv or .parquet file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    timeline = Timeline(options.timeline) if options.timeline else None
    try:
        session = open_session("nvidia", timeline=timeline)
    except WattsmithError as absent:
        print(f"skipped: needs a real NVIDIA GPU. {absent}")
        return 2
    if any(card.simulated for card in session.cards):
        print("skipped: needs a real NVIDIA GPU, and this driver is simulated")
        return 2
    with session:
        facts = describe(session)
        print("\n".join(f"{name}: {value}" for name, value in facts.items()))
        rows = [*steady(session), *cost(session), *bursts(session), *training(session)]
    if timeline is not None:
        timeline.close()
    show(rows)
    if options.json:
        figures = [{"what": r.what, "value": r.value, "unit": r.unit, "bar": r.bar, "met": r.met} for r in rows]
        options.json.write_text(json.dumps(told_of(facts, figures), indent=1) + "\n")
    return 0 if all(row.met for row in rows) else 1


def told_of(facts: dict[str, str], rows: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written: the figures, and the same as a table and bars."""
    return {
        "facts": facts,
        "rows": rows,
        "tables": [
            table(facts["card"], ["what", "figure", "unit"], [[r["what"], r["value"], r["unit"]] for r in rows])
        ],
        "bars": [
            bar(f"{r['what']}: at most {r['bar']:g} {r['unit']}", f"{r['value']:.3g} {r['unit']}", r["met"])
            for r in rows
            if r["bar"] is not None
        ],
    }


def describe(session: Session) -> dict[str, str]:
    import pynvml
    import torch

    card = session.cards[0]
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "card": card.name,
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "meter": f"{card.source}; power samples every {card.power_period_s} s; counter every {card.counter_period_s} s",
    }


class Load:
    """Dense matrix products on random data."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._a = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
        self._b = torch.randn_like(self._a)
        self.run(0.5)

    def run(self, duration_s: float) -> int:
        """Keep the card busy for about DURATION_S; how many products it did."""
        begin_s, products = time.monotonic(), 0
        while time.monotonic() - begin_s < duration_s:
            for _ in range(4):
                self._torch.mm(self._a, self._b)
            self._torch.cuda.synchronize()
            products += 4
        return products


def steady(session: Session) -> list[Row]:
    """One long window, and many short ones inside it at random moments."""
    load, chance = Load(), random.Random(1)
    load.run(3.0)  # the first seconds run hotter, until the power limit settles
    short: dict[float, list[OpenWindow]] = {0.1: [], 1.0: []}
    with session.measure("steady", sync=wait_for_torch) as whole:
        begin_s, products = time.monotonic(), 0
        while time.monotonic() - begin_s < STEADY_S:
            duration_s = chance.choice([0.1, 0.1, 0.1, 1.0])
            products += load.run(chance.uniform(0.0, 0.05))
            with session.measure("short") as window:
                products += load.run(duration_s)
            short[duration_s].append(window)
    result = whole.result().domains[0]
    check = result.cross_check
    rate_w = result.energy_j / whole.duration_s
    rows = [
        Row(what="steady load, mean power", value=rate_w, unit="W"),
        Row(what="steady load, energy of one product", value=result.energy_j / products, unit="J"),
        Row(what="steady load, stated error of 20 s", value=100 * result.error_j / result.energy_j, unit="%"),
        Row(
            what=f"counter against integrated power over {check.duration_s:.0f} s",
            value=100 * abs(check.counter_j / check.integrated_j - 1),
            unit="%",
            bar=3.0,
        ),
    ]
    for duration_s, most in ((0.1, 10.0), (1.0, 3.0)):
        figures = [(w, w.result().domains[0]) for w in short[duration_s]]
        off = [100 * abs(d.energy_j / w.duration_s / rate_w - 1) for w, d in figures]
        stated = [100 * d.error_j / d.energy_j for _, d in figures]
        label = f"{len(off)} windows of {duration_s:g} s inside it, off the long-run rate"
        rows += [
            Row(what=f"{label}: median", value=statistics.median(off), unit="%"),
            Row(what=f"{label}: largest", value=max(off), unit="%", bar=most),
            Row(what=f"{label}: stated error, median", value=statistics.median(stated), unit="%"),
        ]
    return rows


def cost(session: Session) -> list[Row]:
    """What begin and end cost with the reader thread at work, beside raw reads of the counter."""
    import pynvml
    import torch

    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    small = torch.randn(256, 256, device="cuda")
    load = Load()

    def launch() -> None:
        for _ in range(100):  # about a millisecond of a training loop that launches small kernels
            small.add_(1.0)

    def read_raw() -> None:
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)

    def window() -> None:
        session.end(session.begin("cost"))

    in_loop_us, alone_us = timed_us(window, before=launch), timed_us(window)
    awake_us, asleep_us = (
        timed_us(window, before=lambda: load.run(0.002)),
        timed_us(window, before=lambda: time.sleep(0.005)),
    )
    nothing_us = timed_us(lambda: None, before=lambda: time.sleep(0.005))
    raw_us = timed_us(read_raw, before=launch)
    return [
        Row(what="begin + end, one after another: median", value=statistics.median(alone_us), unit="µs", bar=10.0),
        Row(
            what="begin + end, in a loop that launches kernels: median",
            value=statistics.median(in_loop_us),
            unit="µs",
            bar=10.0,
        ),
        Row(what="begin + end, in a loop that launches kernels: 95th of 100", value=in_loop_us[189], unit="µs"),
        Row(what="begin + end, right after waiting for the GPU: median", value=statistics.median(awake_us), unit="µs"),
        Row(what="begin + end, right after 5 ms of sleep: median", value=statistics.median(asleep_us), unit="µs"),
        Row(
            what="an empty function, right after 5 ms of sleep: median", value=statistics.median(nothing_us), unit="µs"
        ),
        Row(what="two raw reads of the counter: median", value=statistics.median(raw_us), unit="µs"),
        Row(what="two raw reads of the counter: 95th of 100", value=raw_us[189], unit="µs"),
        Row(
            what="two raw reads over begin + end",
            value=statistics.median(raw_us) / statistics.median(in_loop_us),
            unit="×",
        ),
        *reader_share(session),
    ]


def timed_us(work: Callable[[], None], before: Callable[[], object] = lambda: None) -> list[float]:
    """How long each of 200 calls of WORK took, sorted, each right after BEFORE."""
    took_us = []
    for _ in range(200):
        before()
        begin_s = time.perf_counter()
        work()
        took_us.append(1e6 * (time.perf_counter() - begin_s))
    return sorted(took_us)


def reader_share(session: Session) -> list[Row]:
    """The share of a core that the background reader takes."""
    begin_cpu_s, begin_s = time.process_time(), time.monotonic()
    time.sleep(10.0)
    share = (time.process_time() - begin_cpu_s) / (time.monotonic() - begin_s)
    return [
        Row(
            what="background reader, share of one core per GPU",
            value=100 * share / len(session.cards),
            unit="%",
            bar=1.0,
        )
    ]


def bursts(session: Session) -> list[Row]:
    """Bursts out of idleness, each with its own window: the edges are where a slow sensor goes wrong."""
    load = Load()
    rows = []
    for duration_s in (0.1, 1.0):
        windows = []
        for _ in range(10):
            time.sleep(0.7)
            with session.measure("burst", sync=wait_for_torch) as window:
                products = load.run(duration_s)
            windows.append((window, products))
        each_j = [window.result().domains[0].energy_j / products for window, products in windows]
        label = f"bursts of {duration_s:g} s out of idleness"
        rows.append(Row(what=f"{label}, energy of one product: median", value=statistics.median(each_j), unit="J"))
        spread = 100 * (max(each_j) - min(each_j)) / statistics.median(each_j)
        rows.append(Row(what=f"{label}, largest minus smallest", value=spread, unit="%"))
    return rows


def training(session: Session) -> list[Row]:
    """A small convolutional network trained for some seconds; joules by what the machine was doing."""
    import torch
    from torch import nn

    net = nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 256, 3, 2, 1), nn.BatchNorm2d(256), nn.ReLU(),
        nn.Conv2d(256, 512, 3, 2, 1), nn.BatchNorm2d(512), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000),
    ).cuda()  # fmt: skip
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
    loss_of = nn.CrossEntropyLoss()
    steps = 0
    with session.measure("training", sync=wait_for_torch) as window:
        begin_s = time.monotonic()
        while time.monotonic() - begin_s < 5.0:
            with window.phase("data"):
                images = torch.randn(64, 3, 224, 224).cuda()
                labels = torch.randint(0, 1000, (64,)).cuda()
            with window.phase("compute"), torch.autocast("cuda", torch.bfloat16):
                loss = loss_of(net(images), labels)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            steps += 1
    result = window.result()
    domain = result.domains[0].domain
    rows = [Row(what="training, energy of one step", value=result.energy_j / steps, unit="J")]
    for phase in result.phases:
        rows.append(
            Row(what=f"training, {phase.name}: time", value=100 * phase.duration_s / result.duration_s, unit="%")
        )
        rows.append(Row(what=f"training, {phase.name}: energy", value=phase.energy_j[domain], unit="J"))
    return rows


def show(rows: list[Row]) -> None:
    width = max(len(row.what) for row in rows)
    for row in rows:
        bar = "" if row.bar is None else f"   at most {row.bar:g} {row.unit}: {'met' if row.met else 'NOT MET'}"
        print(f"{row.what:<{width}}  {row.value:12.4g} {row.unit}{bar}")


if __name__ == "__main__":
    sys.exit(main())
