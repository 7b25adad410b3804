"""Serve a small model in this process and find the setting that needs the least energy within a latency limit.

    python serve_with_tuner.py
    python serve_with_tuner.py --meters modelled:10W-65W    # a CPU without a meter, by a stated model

Where no meter tells the energy of the device, the least time is looked for instead, and that is said.
"""

import argparse

import torch
from torch import nn

import wattsmith

FEATURES = 512


def network():
    return nn.Sequential(nn.Linear(FEATURES, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


def main():
    options = argparse.ArgumentParser(description="Tune a small model that is served here.")
    options.add_argument("--clients", type=int, default=8, help="who ask again as soon as they are answered")
    options.add_argument("--limit", default="latency_p99<=50ms")
    options.add_argument("--window", type=float, default=0.5, help="seconds that each trial serves")
    options.add_argument("--meters", default="auto")
    asked = options.parse_args()

    meters = wattsmith.machine(asked.meters).meters
    objective = "energy" if meters else "time"
    print(f"least {objective} is looked for; meters: {', '.join(meter.domain for meter in meters) or 'none'}")

    tuned = wattsmith.tune_serving(
        network,
        {"batch": [1, 2, 4, 8], "threads": [1, 2]},  # the first of each is how it is served now
        wattsmith.Load(kind="clients", clients=asked.clients, duration_s=asked.window),
        wattsmith.Goal(objective=objective, limits=(asked.limit,)),
        inputs=[f"{FEATURES}"],
        device="cuda:0" if torch.cuda.is_available() else "cpu",
        meters=asked.meters,
        watch=lambda number, setting, trial: print(f"trial {number}: {setting} {shown(trial)}"),
        say=print,
    )
    best = tuned.recommendation
    print(f"recommended: {best.setting}, {best.why}")
    print(f"{objective} saved: {best.saving.value:.0%} ({best.saving.low:.0%} … {best.saving.high:.0%})")


def shown(trial):
    if trial.failed:
        return f"failed: {trial.failed}"
    energy_j = trial.metrics.get("energy_j")
    energy = "energy unknown" if energy_j is None else f"{energy_j:.2g} J a query"
    return f"p99 {trial.metrics['latency_p99_s'] * 1000:.1f} ms, {energy}"


if __name__ == "__main__":
    main()
