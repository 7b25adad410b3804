"""How much to measure, by name; and what a device can roughly do, so that points suit it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice

from wattsmith.record.candidates import Limits, Sketch, candidates
from wattsmith.record.design import Cover, interleaved
from wattsmith.record.families import FAMILIES
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """How many points, and how long they may take."""

    name: str
    networks: int
    operators: int
    budget_s: float  # for all of it
    network_steps: Limits  # predicted steps of networks; none in use computes as little as a small operator
    operator_steps: Limits
    compiled: int = 0  # networks that are measured once more, compiled
    choice: int = 3  # candidates per point


def _steps(shortest_s: float, longest_s: float) -> Limits:
    return Limits(shortest_s=shortest_s, longest_s=longest_s)


PRESETS: Mapping[str, Preset] = {
    name: Preset(
        name=name,
        networks=networks,
        operators=operators,
        compiled=compiled,
        budget_s=budget_s,
        network_steps=network_steps,
        operator_steps=operator_steps,
    )
    for name, networks, operators, compiled, budget_s, network_steps, operator_steps in (
        ("smoke", 8, 4, 0, 90, _steps(0.0, 0.03), _steps(0.0, 0.03)),
        ("basic", 20, 20, 0, 510, _steps(2e-3, 0.15), _steps(1e-4, 0.15)),
        ("standard", 56, 90, 2, 1320, _steps(2e-3, 0.3), _steps(1e-4, 0.2)),
        ("wide", 112, 240, 4, 3360, _steps(2e-3, 0.9), _steps(1e-4, 0.3)),
        ("reference", 224, 656, 6, 5400, _steps(2e-3, 0.9), _steps(1e-4, 0.3)),
    )
}

# Rough figures of data sheets, in 10¹² per second: dense operations in fp32, tf32, bf16 and fp16, and bytes.
_GPUS = (
    ("B200", 75, 1100, 2250, 2250, 8.0),
    ("H200", 67, 495, 990, 990, 4.8),
    ("H100", 67, 495, 990, 990, 3.35),
    ("A100", 19.5, 156, 312, 312, 2.0),
    ("L40", 91, 91, 181, 181, 0.86),
    ("A10", 31, 62, 125, 125, 0.6),
    ("L4", 30, 60, 121, 121, 0.3),
    ("V100", 15.7, 15.7, 15.7, 125, 0.9),
    ("T4", 8.1, 8.1, 8.1, 65, 0.32),
    ("", 20, 20, 40, 40, 0.5),  # any other
)


def gpu_sketch(name: str, memory_bytes: int) -> Sketch:
    """What the GPU of that name can roughly do; a modest GPU where it is not known."""
    _, *rates, bandwidth = next(row for row in _GPUS if row[0] in name)
    return Sketch(
        kind="cuda",
        memory_bytes=memory_bytes,
        flops_per_s={
            one: float(rate) * 1e12 for one, rate in zip(("fp32", "tf32", "bf16", "fp16"), rates, strict=True)
        },
        bandwidth_bytes_per_s=float(bandwidth) * 1e12,
        launch_s=6e-6,
    )


def cpu_sketch(cores: int, memory_bytes: int) -> Sketch:
    """What a CPU with so many cores can roughly do. fp16 is left out: many CPUs lack parts of it."""
    return Sketch(
        kind="cpu",
        memory_bytes=memory_bytes,
        flops_per_s={"fp32": 2e10 * cores, "bf16": 1e10 * cores},
        bandwidth_bytes_per_s=5e9 * min(cores, 32),
        launch_s=2e-5,
    )


H200 = gpu_sketch("NVIDIA H200", 141 * 10**9)


def preset_of(name: str) -> Preset:
    if name not in PRESETS:
        raise BadTerm(f"there is no preset {name!r}; there are: {', '.join(PRESETS)}")
    return PRESETS[name]


def cover(preset: Preset, sketch: Sketch, seed: int = 0) -> tuple[Cover, Cover]:
    """The candidates for a preset on a device, in order: the networks, and the operators."""

    def of_kind(kind: str, count: int, steps: Limits) -> Cover:
        shares = {name: family.share for name, family in FAMILIES.items() if family.kind == kind}
        return Cover(candidates(list(shares), preset.choice * count, sketch, steps, seed), shares)

    return (
        of_kind("network", preset.networks, preset.network_steps),
        of_kind("operator", preset.operators, preset.operator_steps),
    )


def points(preset: Preset | str, sketch: Sketch, seed: int = 0) -> list[Workload]:
    """What to measure for a preset on a device, in order. The same for the same seed."""
    preset = preset_of(preset) if isinstance(preset, str) else preset
    networks, operators = cover(preset, sketch, seed)
    chosen = list(islice(networks, preset.networks))
    launches = {one.workload.key: one.structure.launches for one in networks.candidates}
    twins = compiled_twins(chosen, launches, preset.compiled) if sketch.kind == "cuda" else []
    # Compiling takes minutes, so those come last.
    return [*interleaved(chosen, list(islice(operators, preset.operators))), *twins]


def compiled_twins(workloads: list[Workload], launches: Mapping[str, int], count: int) -> list[Workload]:
    """Up to COUNT of the workloads as compiled ones: one per family, that with fewest launches, to be compiled soon."""
    able: dict[str, Workload] = {}
    for workload in workloads:
        if FAMILIES[workload.family].compiles and workload.accumulation == 1:
            other = able.setdefault(workload.family, workload)
            if launches[workload.key] < launches[other.key]:
                able[workload.family] = workload
    return [dataclasses.replace(workload, compiled=True) for workload in list(able.values())[:count]]
