"""How well a record repeats: the same points, measured in two separate runs.

    python benchmarks/record_repeat.py FIRST SECOND [--json FILE]

FIRST and SECOND are records (a shipped name, a file or a URL) that share points. Bars, for points that keep the device
busy: every one agrees within 2 % in time and 3 % in energy. Points at the host's pace are listed beside, without a bar.
"""

import argparse
import json
import statistics
import sys
from dataclasses import dataclass
from pathlib import Path

from results.shape import bar, table
from wattsmith.flows.records import runs_of
from wattsmith.terms.run import Run, Status

TIME_BAR, ENERGY_BAR = 0.02, 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """One point, measured twice."""

    what: str
    busy: bool
    time_change: float
    kernel_change: float | None
    energy_change: float | None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first")
    parser.add_argument("second")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    first, second = runs_of(options.first, status=Status.MEASURED), runs_of(options.second, status=Status.MEASURED)
    pairs = paired(first, second)
    if not pairs:
        print("the two records share no point of two different runs")
        return 2
    devices = sorted(
        {f"{run.device.name} {run.provenance.device_id or '(which one is not known)'}" for run in [*first, *second]}
    )
    print("devices:", ", ".join(devices))
    show(pairs)
    busy = [pair for pair in pairs if pair.busy]
    worst_time = max((abs(pair.time_change) for pair in busy), default=0.0)
    worst_energy = max((abs(pair.energy_change) for pair in busy if pair.energy_change is not None), default=0.0)
    bars = {
        f"{len(busy)} points that keep the device busy: time within {TIME_BAR:.0%}": (
            worst_time,
            worst_time <= TIME_BAR,
        ),
        f"{len(busy)} points that keep the device busy: energy within {ENERGY_BAR:.0%}": (
            worst_energy,
            worst_energy <= ENERGY_BAR,
        ),
    }
    for what, (worst, met) in bars.items():
        print(f"{what:<70} worst {worst:.1%}: {'met' if met else 'NOT MET'}")
    if options.json:
        heads = ["point", "device", "time", "kernels", "energy"]
        rows = [[pair.what, "busy" if pair.busy else "waits", *changes(pair)] for pair in pairs]
        judged = [bar(what, f"worst {worst:.1%}", met) for what, (worst, met) in bars.items()]
        told = {"tables": [table("The second measurement beside the first", heads, rows)], "bars": judged}
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if busy and all(met for _, met in bars.values()) else 1


def paired(first: list[Run], second: list[Run]) -> list[Pair]:
    """The points that both records hold, each from a run of its own."""
    known = {(run.workload.key, run.setting): run for run in first}
    both = [(known.get((run.workload.key, run.setting)), run) for run in second]
    return [pair_of(one, other) for one, other in both if one and one.provenance.session != other.provenance.session]


def pair_of(one: Run, other: Run) -> Pair:
    assert one.times
    assert other.times
    energies_j = [run.consumption.step_energy_j if run.consumption else None for run in (one, other)]
    return Pair(
        what=f"{one.workload.family} {one.workload.precision} {one.workload.mode}",
        busy=one.times.host_bound is False and other.times.host_bound is False,
        time_change=other.times.mean_s / one.times.mean_s - 1,
        kernel_change=change(one.times.busy_s, other.times.busy_s),
        energy_change=change(*energies_j),
    )


def change(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None else after / before - 1


def changes(pair: Pair) -> list[str]:
    values = (pair.time_change, pair.kernel_change, pair.energy_change)
    return [f"{value:+.1%}" if value is not None else "–" for value in values]


def show(pairs: list[Pair]) -> None:
    print(f"{'point':<40} {'device':>8} {'time':>8} {'kernels':>8} {'energy':>8}")
    for pair in sorted(pairs, key=lambda pair: (not pair.busy, pair.what)):
        print(
            f"{pair.what:<40} {'busy' if pair.busy else 'waits':>8} " + " ".join(f"{cell:>8}" for cell in changes(pair))
        )
    for busy, label in ((True, "device busy"), (False, "host's pace")):
        group = [abs(pair.time_change) for pair in pairs if pair.busy == busy]
        if group:
            print(f"{label}: {len(group)} points, time differs by {statistics.median(group):.1%} at the median")


if __name__ == "__main__":
    sys.exit(main())
