"""How many trials a search of settings needs, replayed on measured grids, beside other ways to search.

    python benchmarks/tune_replay.py --data DIR [--seeds N] [--quick] [--json FILE]

Grids: the 24 complete ones of Zeus's traces (batch × power limit, energy and time per epoch), and 61 clocks of an A100
for four applications. The least energy is sought under a multiple of the default's time; the first trial is the default
for everybody; a search is near when its best setting that keeps the limit needs at most 5 % more than the optimum.

Variants of our own search were compared on the V100 and A40 grids alone; the table tells the others apart. Primed, it
knows the grids of all other networks, on all GPUs, and nothing of the network itself on any GPU. It may stop by itself;
the others go on for 20 trials. Optuna and BoTorch are run if they are installed. Exits with 1 when a bar is missed, 2
without data.
"""

import argparse
import importlib.util
import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np  # noqa: TID253 - a script, not part of the package

from results.shape import bar, table
from tuning.grids import CHOSEN_ON, Grid, a100_sweeps, zeus_grids
from tuning.replay import NO_NOISE, NOISE, TRIALS, Replayed, replayed
from tuning.with_botorch import METHOD as BOTORCH
from tuning.with_botorch import WithBotorch
from tuning.with_optuna import SAMPLERS, WithOptuna
from wattsmith.terms.tuning import Curve
from wattsmith.tune.peers import METHODS, Peer
from wattsmith.tune.search import Manner, Tuner

OURS, PRIMED, UNSTOPPED = "wattsmith", "wattsmith, primed", "wattsmith, never stopping"
BY_CHANCE = ("random", "polythrottle")  # differ from seed to seed without any noise
FEWER_SEEDS = {"optuna TPE": 5, "optuna GP": 2, BOTORCH: 2}  # slow, and their means hardly move
FACTORS = (1.0, 1.25, 1.5)
COLUMNS = (
    "trials to 5 %",
    "median",
    "p90",
    "by 10",
    "at 5",
    "at 10",
    "at 20",
    "chosen",
    "made",
    "infeasible",
    "energy",
    "ms",
)


def limit_of(grid: Grid, factor: float) -> str:
    return f"time<={grid.limit_s(factor)!r}s"


def curves_for(grid: Grid, grids: Sequence[Grid]) -> list[Curve]:
    """All that is known of other networks."""
    return [other.curve(other.gpu == grid.gpu) for other in grids if other.network != grid.network]


def one_run(method: str, grid: Grid, grids: Sequence[Grid], factor: float, noise: Any, seed: int) -> Replayed:
    rng = np.random.default_rng([seed, 17])
    limit = limit_of(grid, factor)
    if method in SAMPLERS:
        optuna = WithOptuna(method, grid.space, grid.limit_s(factor), seed)
        return replayed(grid, factor, optuna, WithOptuna.best, noise, rng)  # type: ignore[arg-type]
    if method == BOTORCH:
        botorch = WithBotorch(grid.space, grid.limit_s(factor), seed)
        return replayed(grid, factor, botorch, WithBotorch.best, noise, rng)  # type: ignore[arg-type]
    if method in METHODS:
        peer = Peer(method, grid.space, "energy", [limit], seed=seed)
        return replayed(grid, factor, peer, Peer.best, noise, rng)  # type: ignore[arg-type]
    manner = Manner(budget=TRIALS, least_gain=0.0) if method == UNSTOPPED else Manner(budget=TRIALS)
    curves = curves_for(grid, grids) if method == PRIMED else ()
    tuner = Tuner(grid.space, "energy", [limit], curves=curves, manner=manner)
    return replayed(grid, factor, tuner, lambda one: one.recommend().setting, noise, rng)  # type: ignore[attr-defined]


def runs_of(method: str, grids: Sequence[Grid], factor: float, noise: Any, seeds: int) -> list[Replayed]:
    if method in FEWER_SEEDS:
        seeds = min(seeds, FEWER_SEEDS[method])
    elif noise == NO_NOISE and method not in BY_CHANCE:
        seeds = 1  # all seeds would do the same
    return [one_run(method, grid, grids, factor, noise, seed) for grid in grids for seed in range(seeds)]


def figures(runs: Sequence[Replayed]) -> dict[str, float]:
    hits = [run.hit for run in runs]
    made = sum(run.trials for run in runs)
    return {
        "trials to 5 %": statistics.fmean(hits),
        "median": statistics.median(hits),
        "p90": float(np.quantile(hits, 0.9)),
        "by 10": statistics.fmean(hit <= 10 for hit in hits),
        "at 5": statistics.fmean(run.excess[4] for run in runs),
        "at 10": statistics.fmean(run.excess[9] for run in runs),
        "at 20": statistics.fmean(run.excess[19] for run in runs),
        "made": made / len(runs),
        "infeasible": sum(run.infeasible for run in runs) / made,
        "energy": statistics.fmean(run.spent for run in runs),
        "ms": 1e3 * statistics.fmean(run.ask_s for run in runs),
        "violations": statistics.fmean(run.violates for run in runs),
        "chosen": statistics.fmean(run.chosen_excess for run in runs),
    }


def written(name: str, value: float) -> str:
    if name in ("by 10", "at 5", "at 10", "at 20", "infeasible", "violations", "chosen"):
        return f"{value:.1%}"
    return (
        f"{value:.0f}" if name in ("median", "p90") else f"{value:.2f}" if name == "trials to 5 %" else f"{value:.1f}"
    )


def show(title: str, table: Mapping[str, Mapping[str, float]], columns: Sequence[str] = COLUMNS) -> None:
    print(f"\n{title}")
    print(f"{'':<28}" + "".join(f"{name:>14}" for name in columns))
    for method, row in table.items():
        print(f"{method:<28}" + "".join(f"{written(name, row[name]):>14}" for name in columns), flush=True)


def as_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """The table as it is kept: with how many times the trials of our own search each needs."""
    columns = [name for name in (*COLUMNS, "violations") if name != "ms"]
    cells = [
        [method, *(written(name, row[name]) for name in columns), row["trials to 5 %"] / rows[OURS]["trials to 5 %"]]
        for method, row in rows.items()
    ]
    return table(title, ["method", *columns, "trials ÷ ours"], cells)


def bars_of(free: Mapping[str, Any], noisy: Mapping[str, Any]) -> list[tuple[str, float, bool]]:
    """What must be reached: words, figure, whether it is."""
    ours, primed = free[OURS], free[PRIMED]
    return [
        ("unprimed: mean trials at most 6.0", ours["trials to 5 %"], ours["trials to 5 %"] <= 6.0),
        ("unprimed: near by trial 10 in at least 95 %", ours["by 10"], ours["by 10"] >= 0.95),
        ("unprimed: infeasible at most 30 %", ours["infeasible"], ours["infeasible"] <= 0.30),
        ("unprimed: violations at most 1 %, noise", noisy[OURS]["violations"], noisy[OURS]["violations"] <= 0.01),
        ("primed: mean trials at most 4.5", primed["trials to 5 %"], primed["trials to 5 %"] <= 4.5),
        ("primed: median at most 3", primed["median"], primed["median"] <= 3),
        ("primed: infeasible at most 25 %", primed["infeasible"], primed["infeasible"] <= 0.25),
        ("primed: violations at most 1 %, noise", noisy[PRIMED]["violations"], noisy[PRIMED]["violations"] <= 0.01),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with zeus-traces and a100-61freq")
    parser.add_argument("--seeds", type=int, default=20, help="for what depends on chance")
    parser.add_argument("--quick", action="store_true", help="few seeds, no noise on peers, no other limits")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if not (options.data / "zeus-traces").is_dir():
        print(f"NOT DONE: there are no grids in {options.data}")
        return 2
    seeds = 2 if options.quick else options.seeds
    grids, told = zeus_grids(options.data), {}
    methods = [*METHODS, *optuna_methods(), *botorch_methods(), UNSTOPPED, OURS, PRIMED]

    def runs(which: Sequence[str], grids: Sequence[Grid], factor: float, noise: Any) -> dict[str, Any]:
        return {method: runs_of(method, grids, factor, noise, seeds) for method in which}

    def told_of(title: str, made: Mapping[str, list[Replayed]], columns: Sequence[str] = COLUMNS) -> dict[str, Any]:
        told[title] = {method: figures(of) for method, of in made.items()}
        show(title, told[title], columns)
        return told[title]

    print(f"{len(grids)} grids of Zeus, {seeds} seeds; energy: of all trials, in trials at the default")
    free_runs = runs(methods, grids, 1.1, NO_NOISE)
    free = told_of("limit 1.1 ×, no noise, all grids", free_runs)
    held_out = {method: [run for run in of if run.gpu not in CHOSEN_ON] for method, of in free_runs.items()}
    told_of("the same, GPUs on which no variant was chosen (RTX 6000, P100)", held_out)
    noisy_methods = [OURS, PRIMED] if options.quick else ["random", "hill-climb", "polythrottle", OURS, PRIMED]
    columns = (*COLUMNS[:4], "made", "infeasible", "violations", "chosen")
    title = "limit 1.1 ×, 1 % noise on time and 3 % on energy; chosen: energy of the recommendation above the optimum"
    noisy = told_of(title, runs(noisy_methods, grids, 1.1, NOISE), columns)
    if not options.quick:
        others = ["hill-climb", "polythrottle", OURS, PRIMED]
        for factor in FACTORS:
            told_of(f"limit {factor:g} ×, no noise", runs(others, grids, factor, NO_NOISE))
        for factor in (1.1, 1.5):
            told_of(f"A100, 61 clocks, limit {factor:g} ×", runs(others, a100_sweeps(options.data), factor, NO_NOISE))
    bars = bars_of(free, noisy)
    print()
    for words, value, met in bars:
        print(f"{words:<50} {value:8.3f}  {'met' if met else 'NOT MET'}")
    if options.json:
        tables = [as_table(title, rows) for title, rows in told.items()]
        told |= {"tables": tables, "bars": [bar(*one) for one in bars]}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(met for _, _, met in bars) else 1


def optuna_methods() -> list[str]:
    """Those that can be run here; says loudly which cannot."""
    if importlib.util.find_spec("optuna") is None:
        print("NOT COMPARED with Optuna: it is not installed (pip install optuna)")
        return []
    if importlib.util.find_spec("torch") is None:
        print("NOT COMPARED with Optuna's GP sampler: it needs torch")
        return ["optuna TPE"]
    return list(SAMPLERS)


def botorch_methods() -> list[str]:
    """BoTorch if it can be run here; says loudly when it cannot."""
    if importlib.util.find_spec("botorch") is None or importlib.util.find_spec("torch") is None:
        print("NOT COMPARED with BoTorch: it is not installed (pip install botorch)")
        return []
    return [BOTORCH]


if __name__ == "__main__":
    sys.exit(main())
