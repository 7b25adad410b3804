"""A served network beside fine-tuning of a copy of it, by a plan that knows what that costs and one that does not."""

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from wattsmith.flows.serving import measure_serving
from wattsmith.flows.serving_beside import FineTuning, jobs_of, learn_contention
from wattsmith.flows.serving_knobs import How, how_of
from wattsmith.terms.facts import as_plain
from wattsmith.tune.contention import SHAPES, left_out_error, plan
from wattsmith.tune.serving import Policy

BATCHES = (1, 4, 16)
REPEATS = 2
IN_HAND = 0.98  # of the limit is planned with: waking a thread takes a while too
PARTS = (
    0.0,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.75,
    0.8,
    0.85,
    0.9,
    0.95,
)  # of the limit, that the oldest query may wait


def beside_fine_tuning(bench: Any, setting: Mapping[str, Any]) -> dict[str, Any]:
    model, how = bench.model, how_of(setting)
    how = replace(how, policy=replace(how.policy, concurrency=1))
    large, small = (
        FineTuning(model.loaded, batch=batch, device=bench.options.device) for batch in bench.network.fine_tuned
    )
    shared = learn_contention(model, how, [large, small], BATCHES, seconds_each_s=bench.window_s / 8)
    errors = {shape: left_out_error(shared.pairs, shape) for shape in SHAPES}
    for pair in shared.pairs:
        other = None if pair.fine_tuning is None else pair.fine_tuning.batch
        foretold_s = shared.contention.latency_s(pair.inference, pair.fine_tuning)
        bench.say(
            f"batch {pair.inference.batch:>2} beside {other or 'nothing'!s:>7}: {1e3 * pair.latency_s:.2f} ms, "
            f"model {1e3 * foretold_s:.2f} ms"
        )
    bench.say(f"left-out errors {errors}, taken: {shared.contention.shape}")

    jobs = jobs_of(model.loaded, range(1, max(BATCHES) + 1), trains=False)
    beside_jobs = {pair.fine_tuning.batch: pair.fine_tuning for pair in shared.pairs if pair.fine_tuning}

    def knowing(batch: int, beside: Any) -> float:
        return shared.contention.latency_s(jobs[batch], beside_jobs.get(beside))

    def unknowing(batch: int, _beside: Any) -> float:
        return shared.contention.latency_s(jobs[batch])

    policies = [Policy(batch=b, wait_s=part * bench.limit_s) for b in (1, 2, 4, 8, 16) for part in PARTS]
    arrivals = replace(bench.load, duration_s=20.0, seed=4242).arrivals_s(0)
    besides = (large.batch, small.batch, None)
    plans = {
        "alone": plan(arrivals, IN_HAND * bench.limit_s, unknowing, policies=policies, besides=(None,)),
        "without the model": plan(arrivals, IN_HAND * bench.limit_s, unknowing, policies=policies, besides=besides),
        "with the model": plan(arrivals, IN_HAND * bench.limit_s, knowing, policies=policies, besides=besides),
    }
    runs: dict[str, Any] = {}
    if not bench.options.beside_only:
        runs |= {"default setting, unasked": (How(), large.batch), "tuned setting, unasked": (how, large.batch)}
    runs |= {name: (replace(how, policy=one.policy), one.beside) for name, one in plans.items() if one is not None}
    by_batch = {one.batch: one for one in (large, small)}
    told = {}
    for name, (served_as, beside) in runs.items():
        told[name] = served_beside(bench, served_as, by_batch.get(beside))
    for name, one in told.items():
        bench.say(
            f"{name:<25} batch {one['policy']['batch']:>2} wait {1e3 * one['policy']['wait_s']:6.2f} ms, "
            f"fine-tuning batch {one['beside']!s:>4}: over the limit {one['over']:.2%}, p99 "
            f"{1e3 * one['p99_s']:.2f} ms, {one['energy_j']:.4f} J per query, {one['samples_hz']:.0f} samples/s trained"
        )
    for name, one in plans.items():
        if one is None:
            bench.say(f"{name}: no plan keeps the limit")
    return {"pairs": as_plain(shared.pairs), "errors": errors, "shape": shared.contention.shape, "served": told}


def served_beside(bench: Any, how: Any, beside: FineTuning | None) -> dict[str, Any]:
    rows, steps, seconds = [], 0, 0.0
    bench.model.servers(how)  # graphs are recorded before anything shares the device
    if beside is not None:
        beside.start()
    try:
        for _ in range(REPEATS):
            bench.again += 1
            before, began_s = beside.steps if beside else 0, time.perf_counter()
            got = measure_serving(
                bench.model, how, replace(bench.load, duration_s=0.75 * bench.window_s), bench.session, bench.again
            )
            seconds += time.perf_counter() - began_s
            steps += beside.steps - before if beside else 0
            rows.append({**got.metrics, "over": got.served.over(bench.limit_s)})
    finally:
        if beside is not None:
            beside.close()
    return {
        "policy": as_plain(how.policy),
        "beside": beside.batch if beside else None,
        "over": statistics.fmean(row["over"] for row in rows),
        "p99_s": statistics.fmean(row["latency_p99_s"] for row in rows),
        "energy_j": statistics.fmean(row["energy_j"] for row in rows),
        "power_w": statistics.fmean(row["power_w"] for row in rows),
        "samples_hz": steps * beside.batch / seconds if beside else 0.0,
        "windows": rows,
    }
