"""Real networks on an H200 that are in no record: what was estimated, and what was measured.

`measured.jsonl.gz` was taken by `measure.py` on the card, `traces.jsonl.gz` by `trace.py` without one. What is learned
from is the record `h200` alone, which holds synthetic networks and operators.
"""

import gzip
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from estimate_public.rows import Row
from wattsmith.estimate.answer import Answer, Conditions, answer
from wattsmith.estimate.baselines import predictor
from wattsmith.estimate.costs import Regime, Step, timed_steps
from wattsmith.estimate.device import Switches, compiled
from wattsmith.estimate.fused import Fused
from wattsmith.estimate.host import host_time_s
from wattsmith.estimate.memory import Peaks
from wattsmith.flows.devices import KnownDevice, eager_calls, known_device
from wattsmith.store.lines import LinesStore
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Run
from wattsmith.terms.trace import Trace

HERE = Path(__file__).parent
TORCH = {
    "operator-level-cost-model": "where PyTorch's cost model can",
    "operator-level-benchmark": "where PyTorch ran each operator",
}
SIMPLE = ("constant", "linear", "two-phase", "roofline")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One real step: what was measured, what was said, and what others say."""

    name: str
    run: Run
    said: Answer
    took_s: float  # to estimate it
    traced_bytes: float  # that the traced step moves
    tensors_bytes: int  # live tensors alone, as PyTorch's MemTracker counts
    accelerate_bytes: int
    simple_s: dict[str, float]
    torch_s: dict[str, float]  # what PyTorch's RuntimeEstimator said on the card; without what it could not do

    @property
    def device_bound(self) -> bool:
        return not self.run.times.host_bound


def cases() -> list[Case]:
    device = known_device("h200", "h200", tell=lambda what: print(f"h200: {what}", file=sys.stderr))
    measured = {
        (run.workload.family, run.workload.batch, run.workload.precision): run
        for run in LinesStore(HERE / "measured.jsonl.gz").runs()
    }
    with gzip.open(HERE / "traces.jsonl.gz", "rt") as file:
        lines = [json.loads(line) for line in file]
    others = torch_said()
    methods = {name: predictor(name, timed_steps(device.runs)) for name in SIMPLE}
    found = []
    for line in lines:
        key = (line["name"], line["batch"], line["precision"])
        run = measured.get(key)
        if run is not None:
            found.append(case(line, run, device, methods, others.get(key, {})))
    return found


def torch_said() -> dict[tuple[str, int, str], dict[str, float]]:
    found: dict[tuple[str, int, str], dict[str, float]] = defaultdict(dict)
    with gzip.open(HERE / "others.jsonl.gz", "rt") as file:
        for line in map(json.loads, file):
            if "busy_s" in line:
                found[line["name"], line["batch"], line["precision"]][line["way"]] = line["busy_s"]
    return found


def case(line: dict, run: Run, device: KnownDevice, methods: dict, torch_s: dict[str, float]) -> Case:
    traced = parse_fact(Trace, line["trace"])
    peaks = parse_fact(Peaks, line["peaks"])
    how = Conditions(switches=Switches(), trains=True, capacity_bytes=device.capacity_bytes)
    began_s = time.perf_counter()
    said = answer(device.model, traced, peaks, how)
    took_s = time.perf_counter() - began_s
    step = Step(structure=traced.structure, device=device.sheet, regime=Regime(precision=line["precision"]))
    return Case(
        name=f"{line['name']} {line['batch']} {line['precision']}",
        run=run,
        said=said,
        took_s=took_s,
        traced_bytes=traced.structure.moved_bytes,
        tensors_bytes=traced.structure.peak_bytes,
        accelerate_bytes=line["accelerate_bytes"],
        simple_s={name: method([step])[0] for name, method in methods.items()},
        torch_s=torch_s,
    )


def errors(some: Sequence[Case], said, was) -> list[float]:
    return [100 * abs(said(one) / was(one) - 1) for one in some]


def rows(_data: Path) -> list[Row]:
    every = cases()
    bound = [one for one in every if one.device_bound]
    networks = len({one.run.workload.family for one in every})
    about = f"{networks} networks, batches as measured, fp32 and bf16, training"
    busy = errors(every, lambda one: one.said.busy_s.value, lambda one: one.run.times.busy_s)
    step = errors(bound, lambda one: one.said.step_s.value, lambda one: one.run.times.mean_s)
    energy = errors(bound, lambda one: one.said.step_energy_j.value, lambda one: one.run.consumption.step_energy_j)
    memory = errors(
        every, lambda one: one.said.memory.peak_tensor_bytes.value, lambda one: one.run.consumption.peak_tensor_bytes
    )
    right = [one.said.host_bound == one.run.times.host_bound for one in every]
    figures = {
        "device time": [(one.said.busy_s, one.run.times.busy_s) for one in every],
        "step": [(one.said.step_s, one.run.times.mean_s) for one in every],
        "energy": [(one.said.step_energy_j, one.run.consumption.step_energy_j) for one in every],
        "peak memory": [(one.said.memory.peak_tensor_bytes, one.run.consumption.peak_tensor_bytes) for one in every],
    }
    host = [one.said.host_s.value / host_time_s(one.run.times) for one in every]
    holding = errors(
        every, lambda one: one.said.memory.peak_held_bytes.value, lambda one: one.run.consumption.peak_held_bytes
    )
    watched = [one for one in every if one.run.calls]
    untraced = errors(
        watched, lambda one: one.traced_bytes, lambda one: sum(call.moved_bytes for call in one.run.calls)
    )
    held = [one.said.memory.peak_held_bytes.high >= one.run.consumption.peak_held_bytes for one in every]
    simple = {
        name: errors(every, lambda one, name=name: one.simple_s[name], lambda one: one.run.times.busy_s)
        for name in SIMPLE
    }
    simple_step = {
        name: errors(bound, lambda one, name=name: one.simple_s[name], lambda one: one.run.times.mean_s)
        for name in SIMPLE
    }
    middles = {name: statistics.median(some) for name, some in simple.items()}
    means = {name: statistics.fmean(some) for name, some in simple.items()}
    memory_others = {
        "live tensors alone": statistics.fmean(
            errors(every, lambda one: one.tensors_bytes, lambda one: one.run.consumption.peak_tensor_bytes)
        ),
        "accelerate estimate-memory": statistics.fmean(
            errors(every, lambda one: one.accelerate_bytes, lambda one: one.run.consumption.peak_tensor_bytes)
        ),
    }
    worst = max(zip(busy, every, strict=True), key=lambda pair: pair[0])
    return [
        Row(test="H200, device time", measure="median", ours=statistics.median(busy), at_most=8, others=middles,
            rows=len(every), note=about),
        Row(test="H200, device time", measure="MAPE", ours=statistics.fmean(busy), at_most=12, others=means,
            rows=len(every), note=f"worst {worst[0]:.0f} %: {worst[1].name}"),
        *(torch_row(way, [one for one in every if way in one.torch_s], len(every)) for way in TORCH),
        compiled_row(),
        Row(test="H200, step where device-bound", measure="median", ours=statistics.median(step), at_most=8,
            others={name: statistics.median(some) for name, some in simple_step.items()}, rows=len(bound)),
        Row(test="H200, step where device-bound", measure="MAPE", ours=statistics.fmean(step), at_most=12,
            others={name: statistics.fmean(some) for name, some in simple_step.items()}, rows=len(bound)),
        Row(test="H200, launch- or device-bound", measure="right", ours=100 * statistics.fmean(right), at_least=90,
            rows=len(every), note=_wrong(every, right)),
        Row(test="H200, peak allocated memory", measure="MAPE", ours=statistics.fmean(memory), at_most=3,
            others=memory_others, rows=len(every), note=f"worst {max(memory):.1f} %"),
        Row(test="H200, energy where device-bound", measure="MAPE", ours=statistics.fmean(energy), at_most=10,
            rows=len(bound), note=f"median {statistics.median(energy):.1f} %"),
        *(
            Row(test=f"H200, interval of {name}", measure="coverage", rows=len(every),
                ours=100 * statistics.fmean(said.low <= was <= said.high for said, was in some))
            for name, some in figures.items()
        ),
        Row(test="H200, host's time, estimated of measured", measure="median", ours=100 * statistics.median(host),
            rows=len(every), note=f"eight of ten from {_at(host, 0.1):.2f} to {_at(host, 0.9):.2f}"),
        Row(test="H200, held memory", measure="median", ours=statistics.median(holding), rows=len(every),
            note=f"nine of ten within {_at(holding, 0.9):.0f} %, worst {max(holding):.0f} %"),
        Row(test="H200, bytes moved, traced against live", measure="MAPE", ours=statistics.fmean(untraced),
            rows=len(watched), note=f"worst {max(untraced):.1f} %, {sum(one > 0.1 for one in untraced)} above 0.1 %"),
        Row(test="H200, upper bound of held memory", measure="kept", ours=100 * statistics.fmean(held),
            rows=len(every)),
        Row(test="H200, time to estimate a traced step, ms", measure="median",
            ours=1e3 * statistics.median(one.took_s for one in every), at_most=50, rows=len(every)),
    ]  # fmt: skip


def torch_row(way: str, some: Sequence[Case], of: int) -> Row:
    """Device time of the steps that PyTorch's own estimator can do, both of us on the same ones."""
    ours = errors(some, lambda one: one.said.busy_s.value, lambda one: one.run.times.busy_s)
    theirs = errors(some, lambda one: one.torch_s[way], lambda one: one.run.times.busy_s)
    name = f"RuntimeEstimator, {way.removeprefix('operator-level-')}"
    return Row(test=f"H200, device time, {TORCH[way]}", measure="MAPE", ours=statistics.fmean(ours),
               others={name: statistics.fmean(theirs)}, rows=len(some),
               note=f"{len(some)} of {of} tried or possible; medians {statistics.median(ours):.1f} and "
                    f"{statistics.median(theirs):.1f} %")  # fmt: skip


def compiled_row() -> Row:
    """Recorded compiled steps, each estimated from what compiling did to the others."""
    device = known_device("h200", "h200")
    steps = [device.model.beside(run, eager_calls(run)) for run in device.runs if compiled(run)]
    ours, eager = [], []
    for at, one in enumerate(steps):
        fused = Fused.learn(steps[:at] + steps[at + 1 :])
        ours.append(fused.applied(one.eager).whole_s / one.busy_s)
        eager.append(one.eager.whole_s / one.busy_s)
    return Row(test="H200, device time of compiled steps that infer, each left out", measure="MAPE",
               ours=_off(ours), others={"eager": _off(eager)}, rows=len(steps),
               note=f"estimated of measured {min(ours):.2f} to {max(ours):.2f}, the eager step {min(eager):.2f} to "
                    f"{max(eager):.2f}")  # fmt: skip


def _off(ratios: Sequence[float]) -> float:
    return 100 * statistics.fmean(abs(one - 1) for one in ratios)


def _wrong(every: Sequence[Case], right: Sequence[bool]) -> str:
    names = [one.name for one, ok in zip(every, right, strict=True) if not ok]
    return f"wrong: {', '.join(names)}" if names else ""


def _at(values: Sequence[float], share: float) -> float:
    return sorted(values)[round(share * (len(values) - 1))]
