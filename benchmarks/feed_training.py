"""A training loop that is heavy on preprocessing, fed in several ways: how fast it goes, how it waits, what it costs.

    python benchmarks/feed_training.py [--device cpu|cuda] [--json FILE] [--quick]

On the CPU: a small CNN; the step unsplit in one process, DataLoader with two workers, and Feeder with as many as it
decides on. On a GPU: ResNet-50 in bfloat16; DataLoader at its best number of workers against Feeder with the step cut
by wattsmith.split; beside them DataLoader with the same cut made by hand, and Feeder without a cut. JPEGs are made on
the fly and decoded with Pillow (extra `bench`). Exits with 1 when a bar is not met.
"""

import argparse
import contextlib
import gc
import json
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import wattsmith
from results.shape import Cell, bar, table

ENDLESS = 10_000_000  # samples of an epoch that does not end within a window
COUNTS = (4, 8, 12, 16)  # of DataLoader's workers, of which the best is taken
FASTER = 1.3
AS_FAST = 0.97  # of the device's own rate counts as its rate: the preparation that was cut off runs there too
EPOCH = 50_000  # images, for the column of seconds for an epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How large everything is."""

    picture: int
    crop: int
    size: int
    batch: int
    seconds: float
    warm_s: float  # before the window, for those with a fixed number of workers
    settle_s: float  # for those who find their number
    search_s: float


CPU = Scale(picture=192, crop=160, size=128, batch=32, seconds=12.0, warm_s=2.0, settle_s=8.0, search_s=4.0)
GPU = Scale(picture=400, crop=320, size=224, batch=256, seconds=15.0, warm_s=5.0, settle_s=14.0, search_s=6.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One way of feeding, over one window."""

    name: str
    workers: int
    images_per_s: float
    waiting: float  # share of the time in which the trainer waited for data
    gpu_busy: float | None  # share of the time, as the driver tells; None: no GPU
    energy_j_per_image: float | None  # of all meters there are; None: there is none
    domains: tuple[str, ...]  # what those meters measure
    duration_s: float


class Loop:
    """Trains on whatever comes, one step behind the device, and looks at the clock."""

    def __init__(self, scale: Scale, device: str) -> None:
        self._scale, self._device = scale, device

    def run(
        self, name: str, batches: Iterator[Any], learn: Callable[[Any], Any], workers: Callable[[], int], **times: float
    ) -> Row:
        """Warm up, then measure."""
        self._train(batches, learn, times.get("warm_s", self._scale.warm_s))
        with gpu_watched(self._device) as busy, wattsmith.measure(name, sync=True) as window:
            images, waited_s, took_s = self._train(batches, learn, times.get("seconds", self._scale.seconds))
        cost = window.result()
        energy_j = cost.energy_j
        return Row(
            name=name,
            workers=workers(),
            images_per_s=images / took_s,
            waiting=waited_s / took_s,
            gpu_busy=sum(busy) / len(busy) if busy else None,
            energy_j_per_image=None if energy_j is None else energy_j / images,
            domains=tuple(one.domain for one in cost.counted),
            duration_s=took_s,
        )

    def _train(self, batches: Iterator[Any], learn: Callable[[Any], Any], seconds: float) -> tuple[int, float, float]:
        """Images, seconds of waiting, seconds in all."""
        images, waited_s, began_s, before = 0, 0.0, time.perf_counter(), None
        while time.perf_counter() - began_s < seconds:
            asked_s = time.perf_counter()
            batch = next(batches)
            waited_s += time.perf_counter() - asked_s
            done = learn(batch)
            images += self._scale.batch
            if before is not None:
                before.synchronize()
            before = done
        if before is not None:
            before.synchronize()
        return images, waited_s, time.perf_counter() - began_s


@contextlib.contextmanager
def gpu_watched(device: str) -> Iterator[list[float]]:
    """How busy the driver says the GPU is, many times a second; [] without one."""
    found: list[float] = []
    if device == "cpu":
        yield found
        return
    import pynvml

    pynvml.nvmlInit()
    handle, over = pynvml.nvmlDeviceGetHandleByIndex(0), threading.Event()

    def look() -> None:
        while not over.wait(0.1):
            found.append(pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100)

    watching = threading.Thread(target=look)
    watching.start()
    try:
        yield found
    finally:
        over.set()
        watching.join()


class Work:
    """The model, its step, and the ways of feeding it."""

    def __init__(self, scale: Scale, device: str) -> None:
        import torch

        from feeding.pictures import Collate, CollateCrops, Pictures, Step, default_collate, resnet50, small_cnn

        torch.manual_seed(0)
        torch.backends.cudnn.benchmark = True
        self.torch, self.scale, self.device = torch, scale, device
        model = (small_cnn() if device == "cpu" else resnet50()).to(device, memory_format=torch.channels_last)
        self.step = Step(model, scale.crop, scale.size, device)
        self.optimiser = torch.optim.SGD(self.step.parameters(), 0.01, momentum=0.9)
        self.dataset, self.collate = Pictures(ENDLESS, scale.picture), Collate(scale.crop, scale.size)
        self.crops = CollateCrops(scale.crop)
        self.raw = default_collate([self.dataset[place] for place in range(min(64, scale.batch))])
        self.loop = Loop(scale, device)
        self.pin = device != "cpu"

    def learner(self, loss_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """One step of training on what LOSS_OF makes of a batch; gives an event of the device, or None."""

        def learn(batch: Any) -> Any:
            self.optimiser.zero_grad(set_to_none=True)
            loss_of(batch).backward()
            self.optimiser.step()
            if self.device == "cpu":
                return None
            event = self.torch.cuda.Event()
            event.record()
            return event

        return learn

    def learn_finished(self, batch: Any) -> Any:
        images, labels = batch
        return self.step.learned(images.to(self.device, non_blocking=True), labels)

    def cut(self) -> Any:
        began_s = time.perf_counter()
        self.optimiser.zero_grad(set_to_none=True)
        made = wattsmith.split(self.step, self.raw, update=self.optimiser.step)
        crossing = ", ".join(f"{one.dtype}{list(one.shape)}" for one in made.cut.crossing)
        print(f"cut in {time.perf_counter() - began_s:.0f} s; across it: {crossing}", flush=True)
        return made

    def unsplit(self) -> Row:
        from torch.utils.data import DataLoader

        batches = iter(DataLoader(self.dataset, self.scale.batch))
        return self.loop.run("unsplit, one process", batches, self.learner(self.step), lambda: 0)

    def resident(self, name: str, batch: Any, loss_of: Callable[[Any], Any]) -> Row:
        """The device alone: one batch that is already there, again and again."""

        def again() -> Iterator[Any]:
            while True:
                yield batch

        return self.loop.run(name, again(), self.learner(loss_of), lambda: 0, warm_s=3.0, seconds=self.scale.search_s)

    def data_loader(self, name: str, workers: int, collate: Any, loss_of: Callable[[Any], Any], **times: float) -> Row:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            self.dataset,
            self.scale.batch,
            num_workers=workers,
            collate_fn=collate,
            pin_memory=self.pin,
            worker_init_fn=_one_thread,
        )
        return self.loop.run(name, iter(loader), self.learner(loss_of), lambda: workers, **times)

    def feeder(self, name: str, loss_of: Callable[[Any], Any], **chosen: Any) -> Row:
        fed = wattsmith.Feeder(
            self.dataset, self.scale.batch, num_workers="auto", pin_memory=self.pin, seed=1, **chosen
        )
        try:
            row = self.loop.run(
                name, iter(fed), self.learner(loss_of), lambda: fed.report().workers, warm_s=self.scale.settle_s
            )
        finally:
            fed.close()
        print(f"  {fed.report()}", flush=True)
        return row


def _one_thread(_worker: int) -> None:
    import torch

    torch.set_num_threads(1)


TOLD: list[Row] = []  # all rows so far: what is written even if a later one fails


def tell(row: Row) -> Row:
    TOLD.append(row)
    busy = "" if row.gpu_busy is None else f"{row.gpu_busy:.0%}"
    energy = "unknown" if row.energy_j_per_image is None else f"{row.energy_j_per_image:.3f}"
    print(
        f"{row.name:<34}{row.workers:>8}{row.images_per_s:>10.0f}{EPOCH / row.images_per_s:>9.1f}{row.waiting:>9.0%}"
        f"{busy:>6}{energy:>10}",
        flush=True,
    )
    gc.collect()  # a loader that is forgotten takes its workers along
    return row


def best_of(work: Work, name: str, collate: Any, loss_of: Callable[[Any], Any], counts: tuple[int, ...]) -> Row:
    """DataLoader at its best number of workers: each is tried, and the best is measured again."""
    short = {"warm_s": work.scale.search_s, "seconds": work.scale.search_s}
    tried = [tell(work.data_loader(f"  {name}, {count}", count, collate, loss_of, **short)) for count in counts]
    best = max(tried, key=lambda row: row.images_per_s).workers
    return tell(work.data_loader(name, best, collate, loss_of))


Bars = list[tuple[str, float, bool]]


def on_cpu(work: Work) -> Bars:
    alone = tell(work.unsplit())
    tell(work.data_loader("DataLoader, two workers", 2, work.collate, work.learn_finished))
    made = work.cut()
    ours = tell(work.feeder("Feeder, auto, cut by split", lambda batch: made.train(*batch), data=made.data))
    ratio = ours.images_per_s / alone.images_per_s
    return [("Feeder ÷ unsplit, images/s, at least 1", ratio, ratio >= 1)]


def on_gpu(work: Work, counts: tuple[int, ...]) -> Bars:
    raw = [work.dataset[place] for place in range(work.scale.batch)]
    finished = tuple(one.to(work.device) for one in work.collate(raw))
    bound = tell(work.resident("device alone, finished batch", finished, work.learn_finished))
    made = work.cut()

    def learn_cut(batch: Any) -> Any:
        return made.train(*batch)

    def ours_now() -> Row:
        return tell(work.feeder("Feeder, auto, cut by split", learn_cut, data=made.data))

    def by_hand_now() -> Row:
        return tell(work.data_loader("DataLoader, cut by hand", counts[-1], work.crops, work.step.learn_crops))

    # Twice each, in turns: the cores of a machine that others use too are not always alike.
    ours, by_hand = [ours_now()], [by_hand_now()]
    ours.append(ours_now())
    by_hand.append(by_hand_now())
    peer = best_of(work, "DataLoader, finished batches", work.collate, work.learn_finished, counts)
    tell(work.feeder("Feeder, auto, finished batches", work.learn_finished, collate_fn=work.collate))
    crossing = tuple(one.to(work.device) for one in work.crops(raw))
    tell(work.resident("device alone, from the cut on", crossing, work.step.learn_crops))
    target = min(FASTER * peer.images_per_s, AS_FAST * bound.images_per_s)
    reached = min(row.images_per_s for row in ours) / target
    beside = sum(row.images_per_s for row in ours) / sum(row.images_per_s for row in by_hand)
    print(f"told    Feeder, cut by split ÷ DataLoader, cut by hand, images/s: {beside:.2f}")
    bars = [(f"Feeder's images/s ÷ the lower of {FASTER} × DataLoader's and the device's", reached, reached >= 1)]
    energies_j = [row.energy_j_per_image for row in ours if row.energy_j_per_image is not None]
    if energies_j and peer.energy_j_per_image is not None:
        share = max(energies_j) / peer.energy_j_per_image
        bars.append(("Feeder ÷ DataLoader, J/image, below 1", share, share < 1))
    return bars


def told_of(facts: dict[str, Any], rows: list[dict[str, Any]], bars: list[dict[str, Any]]) -> dict[str, Any]:
    """What is written: the figures, and the same as a table, beside DataLoader at its best and beside one process."""
    peers = [row["images_per_s"] for row in rows if row["name"].strip().startswith("DataLoader, finished")]
    peers = peers or [row["images_per_s"] for row in rows if row["name"].startswith("unsplit")]
    cells: list[list[Cell]] = [
        [row["name"].strip(), row["workers"], row["images_per_s"],
         row["images_per_s"] / max(peers) if peers else None, f"{row['waiting']:.0%}",
         None if row["gpu_busy"] is None else f"{row['gpu_busy']:.0%}",
         "unknown" if row["energy_j_per_image"] is None else row["energy_j_per_image"]]
        for row in rows
    ]  # fmt: skip
    beside = "÷ DataLoader at its best" if facts["device"] != "cpu" else "÷ one process"
    heads = ["fed by", "workers", "images/s", beside, "waiting for data", "GPU busy", "J/image, GPU"]
    title = f"{facts['model']} on {'a CPU' if facts['device'] == 'cpu' else facts['device']}; {facts['work']}"
    return {"facts": facts, "rows": rows, "tables": [table(title, heads, cells)], "bars": bars}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or cuda")
    parser.add_argument("--quick", action="store_true", help="short windows, to see that it runs")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    import torch

    scale = CPU if options.device == "cpu" else GPU
    if options.quick:
        scale = Scale(**asdict(scale) | {"seconds": 2.0, "warm_s": 1.0, "settle_s": 2.0, "search_s": 1.0})
    if options.device == "cpu":
        torch.set_num_threads(1)
    cores = len(os.sched_getaffinity(0))
    facts = {
        "date": datetime.now(UTC).date().isoformat(),
        "device": "cpu" if options.device == "cpu" else torch.cuda.get_device_name(0),
        "cores": cores,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "model": "small CNN" if options.device == "cpu" else "ResNet-50, bfloat16, channels last",
        "work": f"JPEG {scale.picture}², crop {scale.crop}², to {scale.size}², batches of {scale.batch}",
    }
    print("\n".join(f"{name}: {value}" for name, value in facts.items()), flush=True)
    print(f"\n{'fed by':<34}{'workers':>8}{'images/s':>10}{'s/epoch':>9}{'waiting':>9}{'GPU':>6}{'J/image':>10}")
    work = Work(scale, options.device)
    counts = tuple(count for count in COUNTS if count <= cores) or (cores,)
    bars: list[tuple[str, float, bool]] = []
    try:
        bars += on_cpu(work) if options.device == "cpu" else on_gpu(work, counts[-1:] if options.quick else counts)
    finally:
        if options.json:
            plain = told_of(facts, [asdict(row) for row in TOLD], [bar(*one) for one in bars])
            options.json.write_text(json.dumps(plain, indent=1) + "\n")
    for what, value, met in bars:
        print(f"{'met   ' if met else 'MISSED'}  {what}: {value:.2f}")
    return 0 if all(met for _, _, met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
