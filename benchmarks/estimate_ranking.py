"""How fast 1,000 configurations are ranked under limits.

    python benchmarks/estimate_ranking.py [--configurations N] [--repeats N] [--json FILE]

Device types, precisions and power limits have a prediction at three batches, as an estimator would give them (the
numbers are made up, for no device matters here). From these come the predictions of all batches and numbers of devices,
and then the ranking, once for each objective. Bar: predictions and ranking together in 2 s or less, for the slowest
objective. What an estimator needs for the three batches is not counted; `estimate_accuracy.py` times that.
"""

import argparse
import itertools
import json
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from results.shape import bar, table
from wattsmith.estimate.limits import OBJECTIVES, parse_limits
from wattsmith.estimate.parallel import on_devices, sheet_link
from wattsmith.estimate.ranking import Configuration, Job, Option, Ranking, between_batches, rank
from wattsmith.terms.work import Interval, Prediction

BAR_S = 2.0
PREDICTED_BATCHES = (8, 64, 256)
BATCHES = tuple(range(8, 257, 8))
COUNTS = (1, 2, 4, 8)
PRECISIONS = ("fp32", "bf16")
POWER_LIMITS_W = (None, 300.0)
LIMITS = ("gpus<=4", "memory<=40GiB", "epoch<=20min", "power<=1.5kW")
JOB = Job(samples=1_281_167, epochs=90)
GRADIENT_BYTES = 4 * 25_600_000


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configurations", type=int, default=1000, help="how many to rank")
    parser.add_argument("--repeats", type=int, default=5, help="the median of so many runs counts")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    asked = parser.parse_args()
    rows = [row_of(objective, asked.configurations, asked.repeats) for objective in OBJECTIVES]
    met = all(row["whole_s"] <= BAR_S for row in rows)
    show(rows, asked.configurations, met)
    if asked.json:
        asked.json.write_text(json.dumps(told_of(rows, asked.configurations), indent=1) + "\n")
    return 0 if met else 1


def told_of(rows: list[dict], count: int) -> dict:
    heads = ["minimise", "predicting s", "ranking s", "together s", "fitting", "Pareto"]
    names = ("objective", "predicting_s", "ranking_s", "whole_s", "fitting", "pareto")
    slowest_s = max(row["whole_s"] for row in rows)
    title = f"{count} configurations under {', '.join(LIMITS)}"
    return {
        "rows": rows,
        "tables": [table(title, heads, [[row[name] for name in names] for row in rows])],
        "bars": [bar(f"the slowest objective within {BAR_S:g} s", f"{slowest_s:.3f} s", slowest_s <= BAR_S)],
    }


def row_of(objective: str, count: int, repeats: int) -> dict:
    predicting_s, ranking_s, fitting = [], [], 0
    for _ in range(repeats):
        begin_s = time.perf_counter()
        options = offered(count)
        predicted_s = time.perf_counter()
        ranking = rank(options, parse_limits(LIMITS), objective, JOB)
        done_s = time.perf_counter()
        check(ranking, count)
        predicting_s.append(predicted_s - begin_s)
        ranking_s.append(done_s - predicted_s)
        fitting = len(ranking.fitting)
    whole_s = statistics.median(a + b for a, b in zip(predicting_s, ranking_s, strict=True))
    return {
        "objective": objective,
        "predicting_s": statistics.median(predicting_s),
        "ranking_s": statistics.median(ranking_s),
        "whole_s": whole_s,
        "fitting": fitting,
        "pareto": sum(one.pareto for one in ranking.fitting),
    }


def check(ranking: Ranking, count: int) -> None:
    """A quick answer that is wrong would be worth nothing."""
    if len(ranking.fitting) + len(ranking.rejected) != count:
        raise SystemExit("a configuration was lost on the way")
    if not ranking.fitting or not ranking.rejected:
        raise SystemExit("the limits of this benchmark must be satisfied by some configurations and not by others")


def offered(count: int) -> list[Option]:
    """COUNT configurations with their predictions: as many device types as it takes."""
    types = (every_setting(number) for number in itertools.count(1))
    return list(itertools.islice(itertools.chain.from_iterable(types), count))


def every_setting(number: int) -> Iterator[Option]:
    """All configurations of one device type."""
    link = sheet_link("nvlink3")
    for precision, limit_w in itertools.product(PRECISIONS, POWER_LIMITS_W):
        speed = number * (2.0 if precision == "bf16" else 1.0) * (1.0 if limit_w is None else 0.85)
        draw_w = 400.0 if limit_w is None else limit_w
        known = {batch: made_up(batch, speed, draw_w) for batch in PREDICTED_BATCHES}
        for batch, alone in zip(BATCHES, between_batches(known, BATCHES), strict=True):
            for devices in COUNTS:
                where = Configuration(
                    device=f"type {number}",
                    devices=devices,
                    batch=batch,
                    precision=precision,
                    power_limit_w=limit_w,
                    price_per_hour=1.0 + number,
                )
                yield Option(configuration=where, prediction=on_devices(alone, devices, GRADIENT_BYTES, link))


def made_up(batch: int, speed: float, draw_w: float) -> Prediction:
    step_s = 0.01 + 0.002 * batch / speed
    power_w = draw_w * (0.5 + 0.5 * batch / (batch + 32))
    return Prediction(
        step_s=about(step_s, 0.2),
        memory_bytes=about(2e9 + 2e8 * batch, 0.05),
        power_w=about(power_w, 0.1),
        step_energy_j=about(power_w * step_s, 0.25),
        from_runs=100,
        inside_record=True,
    )


def about(value: float, doubt: float) -> Interval:
    return Interval(value=value, low=value * (1 - doubt), high=value * (1 + doubt))


def show(rows: list[dict], count: int, met: bool) -> None:
    print(f"{count} configurations under {', '.join(LIMITS)}\n")
    print(f"{'minimise':10}{'predicting':>12}{'ranking':>10}{'together':>10}{'fitting':>9}{'Pareto':>8}")
    for row in rows:
        seconds = f"{row['predicting_s']:>10.3f} s{row['ranking_s']:>8.3f} s{row['whole_s']:>8.3f} s"
        print(f"{row['objective']:10}{seconds}{row['fitting']:>9}{row['pareto']:>8}")
    print(f"\nbar: {BAR_S:g} s together: {'met' if met else 'NOT met'}")


if __name__ == "__main__":
    raise SystemExit(main())
