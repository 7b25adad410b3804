"""A large pool planned and run by the simulator, with jobs, speeds and powers from public traces."""

import csv
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from wattsmith.schedule.deciding import empty_pool
from wattsmith.schedule.simulated import Simulation, Truth, simulate
from wattsmith.terms.dispatch import BudgetChanged, Event, JobSubmitted
from wattsmith.terms.schedule import Doubt, Job, Need, PoolNode, Response

GIB = 2**30
MEMORY_GIB = {"v100": 32, "a40": 48, "rtx6000": 24, "p100": 16}
IDLE_W = 25.0


def arrivals_s(data: Path) -> list[float]:
    """Gaps between requests of a public service, in seconds; [] where that trace is not there."""
    paths = sorted((data / "azure-llm-2023").glob("*.csv"))
    for path in paths:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            name = next((each for each in rows.fieldnames or () if "TIME" in each.upper()), None)
            if name is None:
                continue
            times = [datetime.fromisoformat(row[name][:26]).timestamp() for row in itertools.islice(rows, 20_000)]
        return [b - a for a, b in itertools.pairwise(times) if b >= a]
    return []


def run_pool(
    responses: Mapping[str, Response],
    epochs: Sequence[int],
    gaps_s: Sequence[float],
    rng: Any,
    *,
    nodes: int,
    jobs: int,
) -> Simulation:
    """JOBS of measured speed, power and length on NODES of one GPU; a budget that drops, nodes that are lost."""
    kinds = sorted(MEMORY_GIB)
    pool = {
        f"node-{number}": PoolNode(
            name=f"node-{number}",
            kind=kinds[number % len(kinds)],
            memory_bytes=MEMORY_GIB[kinds[number % len(kinds)]] * GIB,
            idle_w=IDLE_W,
        )
        for number in range(nodes)
    }
    names = sorted(responses)
    scale = 2.0 / (sum(gaps_s) / len(gaps_s)) if gaps_s else 1.0  # a job every two seconds or so
    events: list[Event] = []
    now_s = 0.0
    for number in range(jobs):
        name = names[rng.integers(len(names))]
        response = replace(responses[name], idle_w=IDLE_W, doubt=Doubt(power_ratio=0.05, time_ratio=0.05))
        now_s += scale * gaps_s[number % len(gaps_s)] if gaps_s else float(rng.exponential(2.0))
        need = Need(
            kind=name.partition("/")[0],
            devices=1,
            response=response,
            memory_bytes=float(rng.uniform(2, 26)) * GIB,  # so that some fit nowhere, and are refused
        )
        steps = float(epochs[rng.integers(len(epochs))])
        events.append(
            JobSubmitted(time_s=now_s, job=Job(name=f"job-{number}", steps=steps, needs=(need,), pausable=True))
        )
    events.append(BudgetChanged(time_s=0.5 * now_s, budget_w=100.0 * nodes))
    events.append(BudgetChanged(time_s=0.7 * now_s, budget_w=140.0 * nodes))
    loses = tuple(
        (float(rng.uniform(0, now_s)), f"node-{number}", 1800.0)
        for number in rng.choice(nodes, size=max(1, nodes // 20), replace=False)
    )
    truth = Truth(power_error_ratio=0.05, time_error_ratio=0.05, telemetry_s=3600.0, loses=loses)
    return simulate(empty_pool(pool, 140.0 * nodes), events, truth)
