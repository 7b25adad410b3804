"""Runs of a record as benchmarks to be compared with: what a client's telemetry would have shown of each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from wattsmith.match.features import FEATURES, layer_features
from wattsmith.terms.run import Run, Status
from wattsmith.terms.telemetry import ACTIVITIES, Benchmark, RelativeResponse
from wattsmith.terms.work import Parameter, Setting

# What kind of network a family is of: finer than that, a family is about shapes, which telemetry alone tells less well.
KINDS: Mapping[str, str] = {
    **dict.fromkeys(("cnn", "residual", "bottleneck", "grouped", "depthwise"), "convolutional"),
    **dict.fromkeys(("transformer-encoder", "transformer-decoder", "transformer-decode"), "transformer"),
    # A host that is slower than its device is a state, not a kind: what such a step has is dense layers.
    **dict.fromkeys(("mlp", "host-loop"), "dense"),
    "optimizer-step": "update",
    "embedding-mlp": "embedding",
    "lstm": "recurrent",
    "light-chain": "elementwise",
}


def benchmarks_of(runs: Iterable[Run], *, kind: str = "network") -> list[Benchmark]:
    """The measured networks of a record. Those that were run at several settings have their response with them."""
    measured = [run for run in runs if run.status is Status.MEASURED and run.workload.kind == kind]
    fastest_hz = max(
        (run.condition.clock_hz for run in measured if run.condition and run.condition.clock_hz), default=None
    )
    by_work: dict[tuple[str, str], list[Run]] = {}
    for run in measured:
        by_work.setdefault((run.workload.key, run.device.name), []).append(run)
    return [_benchmark(same, fastest_hz) for same in by_work.values()]


def run_features(run: Run, fastest_hz: float | None = None) -> dict[str, float | None]:
    """The features that one run gives: means over its window, as its meters told them, and its layers."""
    assert run.times is not None
    assert run.consumption is not None
    features: dict[str, float | None] = dict.fromkeys(FEATURES, None)
    seen, used = run.condition, run.consumption
    limit_w = None if seen is None else seen.power_limit_w
    if used.power_w is not None and limit_w:
        features["power_mean"] = used.power_w / run.workload.devices / limit_w
    if seen is not None:
        features["busy"] = seen.busy_ratio
        features["clock"] = seen.clock_hz / fastest_hz if seen.clock_hz and fastest_hz else None
        features |= {name.removesuffix("_ratio"): getattr(seen, name) for name in ACTIVITIES}
    held = used.peak_held_bytes or used.peak_tensor_bytes
    if held and run.device.memory_bytes:
        features["memory_used"] = held / run.device.memory_bytes
    features["progress"] = -math.log10(run.times.mean_s)
    if run.structure is not None and run.structure.operators:
        features |= layer_features(run.structure)
    return features


def with_activity(points: Sequence[Benchmark], seen: Mapping[str, Mapping[str, float]]) -> list[Benchmark]:
    """POINTS with what was SEEN of them on another occasion, by key of workload: counters, memory, progress."""
    return [
        replace(point, features={**point.features, **_seen_features(seen.get(point.group, {}))}) for point in points
    ]


def _seen_features(seen: Mapping[str, float]) -> dict[str, float]:
    features = {name.removesuffix("_ratio"): seen[name] for name in ACTIVITIES if name in seen}
    if "memory_used_ratio" in seen:
        features["memory_used"] = seen["memory_used_ratio"]
    if seen.get("steps_per_s"):
        features["progress"] = math.log10(seen["steps_per_s"])
    return features


def response_of(runs: Sequence[Run]) -> RelativeResponse | None:
    """How one workload reacted to its limit or clock, of runs that differ in it; None: they do not."""
    for knob in ("clock_hz", "power_limit_w"):
        by_level: dict[float, Run] = {}
        for run in runs:
            level = getattr(run.setting, knob)
            if level is not None and run.consumption is not None and run.consumption.power_w:
                by_level[float(level)] = run
        if len(by_level) < 2:
            continue
        levels = sorted(by_level)
        usual = by_level[levels[-1]]
        return RelativeResponse(
            settings=tuple(level / levels[-1] for level in levels),
            time_ratio=tuple(_step_s(by_level[level]) / _step_s(usual) for level in levels),
            power_ratio=tuple(_power_w(by_level[level]) / _power_w(usual) for level in levels),
            knob="clock" if knob == "clock_hz" else "power_limit",
        )
    return None


def _benchmark(same: Sequence[Run], fastest_hz: float | None) -> Benchmark:
    usual = next((run for run in same if run.setting == Setting()), None)
    if usual is None:
        usual = max(same, key=lambda run: (run.setting.power_limit_w or 0.0, run.setting.clock_hz or 0.0))
    work = usual.workload
    shape: dict[str, Parameter] = {
        **work.parameters,
        "batch": work.batch,
        "precision": work.precision,
        "mode": work.mode,
    }
    name = f"{work.family} batch {work.batch} {work.precision} {work.mode} {work.key[:6]}"
    return Benchmark(
        name=name,
        group=work.key,
        family=KINDS.get(work.family, work.family),
        features=run_features(usual, fastest_hz),
        response=response_of(same),
        parameters={"family": work.family, **shape},
    )


def _step_s(run: Run) -> float:
    assert run.times is not None
    return run.times.mean_s


def _power_w(run: Run) -> float:
    assert run.consumption is not None
    assert run.consumption.power_w is not None
    return run.consumption.power_w
