"""A small grid of settings, each measured once, and searches replayed on it."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattsmith.flows.serving import tried
from wattsmith.flows.tuning import knob_of
from wattsmith.terms.tuning import Failed, Level, Space
from wattsmith.tune.peers import METHODS, Peer
from wattsmith.tune.search import Manner, Tuner

SEEDS = 20
OURS = "wattsmith"


def table_space(limit_s: float, *, gpu: bool) -> Space:
    waits: list[Level] = [0, f"{1e3 * limit_s / 4:.3f}ms", f"{1e3 * limit_s / 2:.3f}ms"]
    knobs = [
        knob_of("batch", [1, 4, 16], "1"),
        knob_of("wait", waits, "0"),
        knob_of("precision", ["fp32", "bf16"], "fp32"),
    ]
    knobs += [knob_of("graph", ["off", "on"], "off")] if gpu else []
    return Space(knobs=tuple(replace(one, saves="up") for one in knobs))


def measured_table(bench: Any, window_s: float) -> list[dict[str, Any]]:
    """Every setting once. With batch 1 nobody is waited for, so that those of other waits are that of none."""
    space, rows = table_space(bench.limit_s, gpu=bench.model.cuda), []
    alike: dict[tuple[Any, ...], dict[str, Any]] = {}
    for number, cell in enumerate(space.cells()):
        setting = space.setting(cell)
        key = tuple(({**setting, "wait": 0} if setting["batch"] == 1 else setting).values())
        if key not in alike:
            got = tried(bench.model, setting, replace(bench.load, duration_s=window_s), bench.session, 500 + number)
            failed = isinstance(got, Failed)
            alike[key] = {"failed": got.why} if failed else {"metrics": dict(got.metrics), "noise": dict(got.noise)}
        rows.append({"setting": setting, **alike[key]})
    bench.say(f"a table of {len(rows)} settings is measured")
    return rows


def replayed_on(
    rows: Sequence[Mapping[str, Any]], limit_s: float, budget: int, say: Callable[[str], None] = print
) -> dict[str, dict[str, float]]:
    """By method: how near the best of the table it comes, after how many trials. The table is taken as the truth."""
    table = {tuple(row["setting"].values()): row.get("metrics") for row in rows}
    names = list(rows[0]["setting"])
    levels = {name: list(dict.fromkeys(row["setting"][name] for row in rows)) for name in names}
    knobs = [knob_of(name, its, str(its[0])) for name, its in levels.items()]
    space = Space(knobs=tuple(replace(one, saves="up") for one in knobs))
    kept = [one["energy_j"] for one in table.values() if one and one["latency_p99_s"] <= limit_s]
    if not kept:
        return {}
    best_j, told = min(kept), {}
    for method in (*METHODS, OURS):
        runs = [
            _search(method, space, table, limit_s, budget, seed, best_j)
            for seed in range(SEEDS if method in ("random", "polythrottle") else 1)
        ]
        told[method] = {
            "to_5": statistics.fmean(run["to_5"] for run in runs),
            "excess": statistics.fmean(run["excess"] for run in runs),
            "trials": statistics.fmean(run["trials"] for run in runs),
            "infeasible": statistics.fmean(run["infeasible"] for run in runs),
            "spent": statistics.fmean(run["spent"] for run in runs),
        }
        one = told[method]
        say(
            f"replayed {method:<26} to 5 % of the best after {one['to_5']:.1f} trials, ends {one['excess']:.1%} above, "
            f"{one['trials']:.1f} trials, {one['infeasible']:.1f} infeasible, energy of {one['spent']:.1f} default ones"
        )
    return told


def _search(
    method: str, space: Space, table: Mapping[Any, Any], limit_s: float, budget: int, seed: int, best_j: float
) -> dict[str, float]:
    limits = [f"latency_p99<={limit_s!r}s"]
    search: Any = (
        Tuner(space, "energy", limits, manner=Manner(budget=budget))
        if method == OURS
        else Peer(method, space, "energy", limits, seed=seed)
    )
    found_j, to_5, made, infeasible, spent = float("inf"), budget + 1, 0, 0, 0.0
    first = next(iter(table.values()))
    while made < budget and (setting := search.ask()) is not None:
        metrics = table[tuple(setting.values())]
        made += 1
        search.tell(setting, metrics or Failed(why="it failed"), {"energy": 0.02, "latency_p99": 0.05})
        if not metrics or metrics["latency_p99_s"] > limit_s:
            infeasible += 1
        else:
            found_j = min(found_j, metrics["energy_j"])
        spent += metrics["energy_j"] / first["energy_j"] if metrics else 0.0
        if found_j <= 1.05 * best_j:
            to_5 = min(to_5, made)
    return {
        "to_5": to_5, "excess": found_j / best_j - 1, "trials": made, "infeasible": infeasible, "spent": spent,
    }  # fmt: skip
