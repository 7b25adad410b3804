"""How fast a record is taken: points per minute, and the share of the time that is spent measuring.

    python benchmarks/record_speed.py [--device cuda:0|cpu] [--preset NAME] [--minutes N] [--json FILE]

Runs the recorder as a user would, into a record that is thrown away. Bars: on a GPU, presets basic and larger spend at
least 60 % of the time inside measurement windows; the smoke preset on a CPU is done within 90 s. Beside it stands what
a recorder without warm workers would need, which starts a process and imports PyTorch for every point: that start is
measured in the same run. No other tool takes such a record.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from results.shape import bar, table
from wattsmith.flows.recording import HowToRecord, Recorded, default_device, record

INSIDE_BAR = 0.60
SMOKE_BAR_S = 90.0
STARTS = 3


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", help="cuda:N or cpu; by default the first GPU, else the CPU")
    parser.add_argument("--preset", help="by default smoke on a CPU, basic on a GPU")
    parser.add_argument("--minutes", type=float, help="stop after so long")
    parser.add_argument("--points", type=Path, help="points that `wattsmith record points` has chosen")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    device = options.device or default_device()
    preset = options.preset or ("smoke" if device == "cpu" else "basic")
    start_s = statistics.median(cold_start_s() for _ in range(STARTS))
    with tempfile.TemporaryDirectory() as folder:
        how = HowToRecord(
            preset=preset,
            device=device,
            record=str(Path(folder) / "speed.jsonl"),
            budget_s=None if options.minutes is None else 60 * options.minutes,
            points=options.points,
        )
        begin_s = time.monotonic()
        recorded = record(how)
        whole_s = time.monotonic() - begin_s
    figures = figures_of(recorded, whole_s, start_s)
    bars = bars_of(preset, recorded, figures)
    show(recorded, preset, figures, bars)
    if options.json:
        options.json.write_text(json.dumps(told_of(recorded.device.kind, preset, figures, bars), indent=1) + "\n")
    return 0 if all(bars.values()) else 1


def told_of(kind: str, preset: str, figures: dict[str, float], bars: dict[str, bool]) -> dict[str, Any]:
    rows = [[what, f"{value:.1%}" if what.startswith("inside") else value] for what, value in figures.items()]
    title = f"Preset {preset} on {'a GPU' if kind == 'cuda' else 'a CPU'}"
    return {
        "figures": figures,
        "tables": [table(title, ["what", "figure"], rows)],
        "bars": [bar(what, None, met) for what, met in bars.items()],
    }


def cold_start_s() -> float:
    """How long a process takes to start and import PyTorch."""
    begin_s = time.monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    return time.monotonic() - begin_s


def figures_of(recorded: Recorded, whole_s: float, start_s: float) -> dict[str, float]:
    progress = recorded.progress
    points = progress.measured + progress.failed
    cold_s = progress.elapsed_s + points * start_s
    return {
        "points": points,
        "failed": progress.failed,
        "all in all, s": whole_s,
        "of which choosing points and starting, s": whole_s - progress.elapsed_s,
        "points per minute": 60 * points / progress.elapsed_s,
        "points per minute, a process each": 60 * points / cold_s,
        "warm over cold": cold_s / progress.elapsed_s,
        "inside measurement windows": progress.inside_s / progress.elapsed_s,
        "inside measurement windows, a process each": progress.inside_s / cold_s,
    }


def bars_of(preset: str, recorded: Recorded, figures: dict[str, float]) -> dict[str, bool]:
    bars = {
        "every point gave a result": recorded.progress.done == recorded.progress.measured + recorded.progress.failed
    }
    if recorded.device.kind == "cuda" and preset != "smoke":
        inside = figures["inside measurement windows"]
        bars[f"at least {INSIDE_BAR:.0%} inside measurement windows"] = inside >= INSIDE_BAR
    if recorded.device.kind == "cpu" and preset == "smoke":
        bars[f"smoke on a CPU within {SMOKE_BAR_S:g} s"] = figures["all in all, s"] <= SMOKE_BAR_S
    return bars


def show(recorded: Recorded, preset: str, figures: dict[str, float], bars: dict[str, bool]) -> None:
    print(f"device: {recorded.device.name}\npreset: {preset}")
    for what, value in figures.items():
        shown = f"{value:.1%}" if what.startswith("inside") else f"{value:.4g}"
        print(f"{what:<46} {shown:>10}")
    for words, met in bars.items():
        print(f"{words:<46} {'met' if met else 'NOT MET':>10}")


if __name__ == "__main__":
    sys.exit(main())
