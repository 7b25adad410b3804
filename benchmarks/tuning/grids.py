"""Measured grids that searches are replayed on: Zeus's batch × power limit, and clock sweeps of an A100."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.tuning import Cell, Curve, Knob, Space, Trial

GPUS = ("v100", "a40", "rtx6000", "p100")
CHOSEN_ON = ("v100", "a40")  # variants of our own method were compared on these alone
DEFAULT_BATCH = {
    "cifar100": 1024,
    "imagenet": 256,
    "squad": 32,
    "librispeech": 256,
    "movielens-1m": 1024,
    "sentiment140": 128,
}
A100_APPLICATIONS = ("LSTM", "LAMMPS", "NAMD", "GROMACS")


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """All settings of one workload on one GPU, each measured once."""

    name: str
    gpu: str
    network: str
    space: Space
    energy_j: Mapping[Cell, float]
    time_s: Mapping[Cell, float]

    def limit_s(self, factor: float) -> float:
        return factor * self.time_s[self.space.present] * (1 + 1e-9)

    def best(self, factor: float) -> Cell:
        kept = [cell for cell in self.time_s if self.time_s[cell] <= self.limit_s(factor)]
        return min(kept, key=self.energy_j.__getitem__)

    def curve(self, same_device: bool) -> Curve:
        trials = [
            Trial(
                setting=self.space.setting(cell),
                metrics={"energy_j": self.energy_j[cell], "time_s": self.time_s[cell]},
            )
            for cell in self.space.cells()
        ]
        return Curve(workload=self.network, space=self.space, trials=trials, same_device=same_device)


def zeus_grids(data: Path) -> list[Grid]:
    """The complete grids of Zeus's traces, per epoch."""
    return [grid for gpu in GPUS for grid in _of_gpu(data / "zeus-traces/nsdi23" / f"summary_power_{gpu}.csv", gpu)]


def _of_gpu(path: Path, gpu: str) -> Iterator[Grid]:
    rows = defaultdict(dict)
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            energy_j = float(row["time_per_epoch"]) * float(row["average_power"])
            at = int(row["batch_size"]), int(row["power_limit"])
            rows[row["dataset"], row["network"], row["optimizer"]][at] = energy_j, float(row["time_per_epoch"])
    for (dataset, network, optimizer), cells in rows.items():
        batches, limits = (tuple(sorted({at[knob] for at in cells})) for knob in (0, 1))
        if len(cells) < len(batches) * len(limits):
            continue  # one grid has holes
        default = min(batches, key=lambda batch: abs(batch - DEFAULT_BATCH[dataset]))
        space = Space(
            knobs=(
                Knob(name="batch", levels=batches, present=default, saves="up"),
                Knob(name="power_limit_w", levels=limits, present=limits[-1], saves="down", caps="power"),
            )
        )
        both = {
            cell: cells[tuple(space.setting(cell).values())]  # type: ignore[index]
            for cell in space.cells()
        }
        yield Grid(
            name=f"{gpu} {dataset} {network} {optimizer}",
            gpu=gpu,
            network=network,
            space=space,
            energy_j={cell: one[0] for cell, one in both.items()},
            time_s={cell: one[1] for cell, one in both.items()},
        )


def a100_sweeps(data: Path) -> list[Grid]:
    """61 clocks of an A100 for four applications: power times time, both measured; no predictions of the authors."""
    return [_sweep(data / "a100-61freq" / f"GA100-ml-energy-rt-pwr-{name}.csv", name) for name in A100_APPLICATIONS]


def _sweep(path: Path, name: str) -> Grid:
    with path.open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: int(float(row["sm_app_clock"])))
    clocks = tuple(int(float(row["sm_app_clock"])) for row in rows)
    space = Space(knobs=(Knob(name="clock_mhz", levels=clocks, present=clocks[-1], saves="down"),))
    times_s = [float(row["run_time"]) for row in rows]
    powers_w = [float(row["power_usage"]) for row in rows]
    return Grid(
        name=f"a100 {name}",
        gpu="a100",
        network=name,
        space=space,
        energy_j={(at,): times_s[at] * powers_w[at] for at in range(len(rows))},
        time_s={(at,): times_s[at] for at in range(len(rows))},
    )
