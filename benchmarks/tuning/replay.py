"""One search, replayed on a measured grid, with noise or without."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tuning.grids import Grid
from wattsmith.terms.tuning import Level

TRIALS = 20
NEAR = 1.05  # of the optimum's energy
NO_NOISE = (0.0, 0.0)
NOISE = (0.01, 0.03)  # of time and energy
LEAST_NOISE = 1e-3  # what a method is told when there is none


class Search(Protocol):
    """What is asked for a setting and told what came of it."""

    def ask(self) -> dict[str, Level] | None: ...

    def tell(self, setting: Mapping[str, Level], outcome: Any, noise: Mapping[str, float] | None = None) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What one search did. Judged by the grid itself, whatever noise the search saw."""

    grid: str
    gpu: str
    trials: int
    hit: int  # the trial that first came near the optimum; one more than allowed: none did
    infeasible: int
    spent: float  # energy of all trials, in trials at the default
    excess: tuple[float, ...]  # by trial: the best so far above the optimum
    ask_s: float  # per suggestion
    violates: bool  # the setting that it chose in the end breaks the limit
    chosen_excess: float  # energy of that setting above the optimum


def replayed(
    grid: Grid,
    factor: float,
    search: Search,
    chosen: Callable[[Search], Mapping[str, Level]],
    noise: tuple[float, float],
    rng: Any,
) -> Replayed:
    """SEARCH under FACTOR times the default's time; CHOSEN says what it settles on."""
    limit_s = grid.limit_s(factor)
    optimum_j, default_j = grid.energy_j[grid.best(factor)], grid.energy_j[grid.space.present]
    hit, infeasible, spent, asked_s = TRIALS + 1, 0, 0.0, 0.0
    best_j, excess = default_j, []
    while len(excess) < TRIALS:
        began_s = time.process_time()
        setting = search.ask()
        asked_s += time.process_time() - began_s
        if setting is None:
            break
        cell = grid.space.cell(setting)
        energy_j, time_s = grid.energy_j[cell], grid.time_s[cell]
        spent += energy_j / default_j
        if time_s > limit_s:
            infeasible += 1
        else:
            best_j = min(best_j, energy_j)
        excess.append(best_j / optimum_j - 1)
        if best_j <= NEAR * optimum_j:
            hit = min(hit, len(excess))
        seen = {"energy_j": energy_j, "time_s": time_s}
        for name, size in zip(("time_s", "energy_j"), noise, strict=True):
            seen[name] *= 1 + size * float(rng.standard_normal()) if size else 1
        told = {"time": max(noise[0], LEAST_NOISE), "energy": max(noise[1], LEAST_NOISE)}
        began_s = time.process_time()
        search.tell(setting, seen, told)
        asked_s += time.process_time() - began_s
    final = grid.space.cell(chosen(search))
    return Replayed(
        grid=grid.name,
        gpu=grid.gpu,
        trials=len(excess),
        hit=hit,
        infeasible=infeasible,
        spent=spent,
        excess=(*excess, *[excess[-1]] * (TRIALS - len(excess))),
        ask_s=asked_s / len(excess),
        violates=grid.time_s[final] > limit_s * (1 + 1e-6),
        chosen_excess=grid.energy_j[final] / optimum_j - 1,
    )
