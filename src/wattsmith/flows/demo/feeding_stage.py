"""A step that prepares its own data, fed whole by a DataLoader, then cut and fed by workers that come as needed."""

import gc
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.demo.charts import Bar, bars
from wattsmith.flows.demo.facts import Figure, Found, Scale, Tell, Told, need_torch
from wattsmith.flows.splitting import TRAINERS, Split, split
from wattsmith.terms.quantity import format_quantity

TITLE = "A step cut in two, and fed by elastic workers"
YOURSELF = (
    "made = wattsmith.split(step, example)\n"
    'for batch in wattsmith.Feeder(dataset, batch_size=32, num_workers="auto", data=made.data):\n'
    "    made.train(*batch).backward()"
)
BATCH = 32
ALIKE = 0.05  # nearer to each other than this, two ways are called alike
BUSY = 0.25  # a larger share of the cores in other hands is told
LOOK_S = 0.5  # how long one looks at what others do
ENDLESS = 10_000_000  # samples of an epoch that does not end while it is watched


def run(found: Found, tell: Tell) -> Told:
    """Train the same step both ways, and count images."""
    need_torch("cutting and feeding a step")
    import torch
    from torch.utils.data import DataLoader

    from wattsmith.flows.demo.pictures import Pictures, Step, example, one_thread
    from wattsmith.flows.feeding import Feeder

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dataset, step = Pictures(ENDLESS), Step()
    optimizer = torch.optim.SGD(step.parameters(), lr=0.01, momentum=0.9)
    workers = max(1, len(os.sched_getaffinity(0)) - 1)

    def learn(loss: Any) -> None:
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def whole() -> Way:
        loader = DataLoader(dataset, BATCH, num_workers=workers, worker_init_fn=one_thread)
        watched = _watched(iter(loader), lambda batch: learn(step(batch)), found.scale, tell)
        del loader
        gc.collect()  # its workers go with it
        return watched

    others = _others_ratio()
    tell(f"before: a DataLoader with {workers} worker{'s' if workers > 1 else ''}, the step whole")
    before = whole()
    tell("finding what of the step workers can do")
    optimizer.zero_grad(set_to_none=True)
    made = split(step, example(BATCH), update=optimizer.step, prices=TRAINERS["cpu"])
    tell("after: a Feeder that finds its number of workers, the step cut")
    feeder: Any = Feeder(dataset, BATCH, num_workers="auto", data=made.data, seed=1)
    try:
        after = _watched(iter(feeder), lambda batch: learn(made.train(*batch)), found.scale, tell)
        used = feeder.report().workers
    finally:
        feeder.close()
    # Once more, so that what else runs on this machine, and changes meanwhile, does not decide.
    tell("before, once more")
    before = before.and_again(whole())
    return _told(before, after, made, workers, used, (others + _others_ratio()) / 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way of feeding, as it was watched."""

    images: int
    took_s: float
    waited_s: float  # of that, for data

    @property
    def images_per_s(self) -> float:
        return self.images / self.took_s

    def and_again(self, other: "Way") -> "Way":
        return Way(
            images=self.images + other.images,
            took_s=self.took_s + other.took_s,
            waited_s=self.waited_s + other.waited_s,
        )


def _others_ratio() -> float:
    """The share of all cores that is in use while nothing of ours runs."""
    import psutil

    return float(psutil.cpu_percent(interval=LOOK_S)) / 100


def _watched(batches: Iterator[Any], learn: Callable[[Any], None], scale: Scale, tell: Tell) -> Way:
    """Train on BATCHES for a while, once workers have started."""
    ended_s = time.perf_counter() + scale.settle_s
    while time.perf_counter() < ended_s:
        learn(next(batches))
    began_s, waited_s, count = time.perf_counter(), 0.0, 0
    while (now_s := time.perf_counter()) - began_s < scale.fed_s or count < 2:
        batch = next(batches)
        waited_s += time.perf_counter() - now_s
        learn(batch)
        count += 1
        tell(f"{count * BATCH} images in {time.perf_counter() - began_s:.0f} s")
    return Way(images=count * BATCH, took_s=time.perf_counter() - began_s, waited_s=waited_s)


def compared(times: float, others: float, cores: int) -> str:
    """What it means that the second way trains TIMES as many images, while OTHERS had that share of CORES."""
    means = "The same step, cut in two and fed by a Feeder, trains"
    if times >= 1 + ALIKE:
        return f"{means} {times:.1f} times as many images a second."
    few = f"{means} {'about as many' if times > 1 - ALIKE else f'fewer: {times:.2f} times the'} images a second"
    if cores == 1:
        return f"{few}; with one core there is none for workers."
    if others > BUSY:
        return f"{few}; workers need idle cores, and other programs kept {others:.0%} of these {cores} busy."
    return f"{few}; on these {cores} cores this step gains nothing by it."


def _told(before: Way, after: Way, made: Split, workers: int, used: int, others: float) -> Told:
    cut = made.report()
    cores = len(os.sched_getaffinity(0))
    times = after.images_per_s / before.images_per_s
    rows = (
        (
            f"DataLoader, {workers} worker{'s' if workers > 1 else ''}; the step whole",
            before,
            "before and after the other",
        ),
        (f"Feeder, {used} worker{'s' if used != 1 else ''} at the end; the step cut", after, "one stretch"),
    )
    figures = [
        Figure(
            name=name,
            text=f"{way.images_per_s:.0f} images/s; waits for data {way.waited_s / way.took_s:.0%} of the time",
            source=f"measured here: wall clock over {way.took_s:.0f} s, batches of {BATCH}",
            trust=f"{stretches} on {cores} core{'s' if cores > 1 else ''}, {others:.0%} of which other programs used",
            value=way.images_per_s,
        )
        for name, way, stretches in rows
    ]
    figures.append(
        Figure(
            name="the cut",
            text=f"{cut.data_nodes} operators go to workers, {cut.training_nodes} stay; "
            f"{format_quantity(cut.bytes_per_step, 'memory', 3)} cross per step",
            source=f"the step's own graph, by {cut.tracer}",
            trust="outputs and gradients of both halves were compared with the whole step, bit for bit",
            value=float(cut.bytes_per_step),
        )
    )
    busy = f"; other programs had {others:.0%} of the cores" if others > BUSY else ""
    return Told(
        means=compared(times, others, cores),
        figures=tuple(figures),
        pictures=(
            bars(
                "Images trained in a second",
                [
                    Bar(name=name, value=way.images_per_s, says=f"{way.images_per_s:.0f} images/s")
                    for name, way in (("before", before), ("after", after))
                ],
            ),
        ),
        tile=(f"× {times:.2g}", f"images a second, once the step was cut and fed by workers{busy}"),
        notes=cut.notes,
    )
