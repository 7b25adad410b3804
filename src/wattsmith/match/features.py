"""The fingerprint of a program: its steady part in figures without units, each of which may be unknown."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wattsmith.match.clean import cleaned
from wattsmith.match.period import step_period_s
from wattsmith.match.stretches import never_worked, stretches_of, within
from wattsmith.terms.errors import BadInput
from wattsmith.terms.run import Structure
from wattsmith.terms.telemetry import ACTIVITIES, Fingerprint, Stretch, Telemetry

SETTLE_S = 1.0  # after a change, which a sensor that averages over a second still sees
NEAR_LIMIT = 0.97
NEAR_IDLE = 0.2  # of the limit
POWER = (
    *("power_mean", "power_p5", "power_p50", "power_p95", "power_swing"),
    *("share_near_idle", "share_near_limit", "above_limit"),
)
STATE = ("busy", "memory_busy", "memory_used", "clock", "memory_clock", "period", "progress", "per_cycle")
SHARES = ("conv", "grouped-conv", "matmul", "attention", "norm", "softmax", "embedding", "pool")
MIXERS = ("conv", "attention", "embedding", "recurrent", "matmul")  # layers that mix what goes in
MIXING = tuple(f"{kind}_mixing" for kind in (*MIXERS, "elementwise", "update"))
LAYERS = (
    *("intensity", "step_flops", "launches"),
    *(f"{kind}_{of}" for kind in SHARES for of in ("flops", "calls")),
    *MIXING,
)
LOSS_CALLS = 2  # of softmax, in a step that trains; more are attention that was taken apart
FEATURES = (*POWER, *STATE, *(name.removesuffix("_ratio") for name in ACTIVITIES), *LAYERS)
PERIOD_FROM = ("power_w", "busy_ratio", "memory_busy_ratio", "sm_ratio", "dram_ratio")


class NeverWorked(BadInput):
    """Telemetry of a device that had nothing to do."""


def fingerprint_of(telemetry: Telemetry) -> Fingerprint:
    """What is typical of the steady part of TELEMETRY. Raises BadInput when it cannot be told from this trace."""
    clean = cleaned(telemetry)
    if (idle := never_worked(clean)) is not None:
        raise NeverWorked(
            f"{clean.domain} did nothing while it was watched: {idle} stays at 0. Watch it while the program works on "
            "it, or say which device is meant with --domain"
        )
    stretches = stretches_of(clean)
    steady = _settled([one for one in stretches if one.kind == "steady"])
    period_s = _period_s(clean, steady)
    features = features_in(clean, steady)
    if period_s is not None:
        features["period"] = math.log10(period_s)
    power = clean.series.get("power_w")
    return Fingerprint(
        features=features,
        period_s=period_s,
        power_w=None if power is None else _mean(within(power.time_s, power.values, steady)[1]),
        steps_per_s=clean.steps_per_s or _rate(clean, "steps", steady),
        stretches=stretches,
        duration_s=sum(one.duration_s for one in steady),
        notes=clean.notes,
    )


def features_in(clean: Telemetry, parts: Sequence[Stretch]) -> dict[str, float | None]:
    """The features of some PARTS of a trace that was cleaned, all but the period."""
    means = {name: _mean(within(one.time_s, one.values, parts)[1]) for name, one in clean.series.items()}
    steps_per_s = clean.steps_per_s or _rate(clean, "steps", parts)
    features: dict[str, float | None] = dict.fromkeys(FEATURES, None) | _power(clean, parts)
    features |= {
        "busy": means.get("busy_ratio"),
        "memory_busy": means.get("memory_busy_ratio"),
        "memory_used": _over(means.get("memory_used_bytes"), clean.memory_bytes),
        "clock": _over(means.get("clock_hz"), clean.max_clock_hz),
        "progress": None if not steps_per_s else math.log10(steps_per_s),
        "per_cycle": _over(_rate(clean, "instructions", parts), _rate(clean, "cycles", parts)),
    }
    features |= {name.removesuffix("_ratio"): means.get(name) for name in ACTIVITIES}
    if clean.structure is not None:
        features |= layer_features(clean.structure)
    return features


def layer_features(structure: Structure) -> dict[str, float | None]:
    """What the layers of a step do, by each kind's share of its operations and of its calls."""
    flops = sum(one.flops for one in structure.operators.values()) or 1.0
    calls = sum(one.calls for one in structure.operators.values()) or 1
    shares: dict[str, float | None] = {}
    for kind in SHARES:
        count = structure.operators.get(kind)
        shares[f"{kind}_flops"] = 0.0 if count is None else count.flops / flops
        shares[f"{kind}_calls"] = 0.0 if count is None else count.calls / calls
    shares |= _mixing(structure)
    return shares | {
        "intensity": math.log10(structure.intensity) if structure.intensity else None,
        "step_flops": math.log10(structure.flops) if structure.flops > 0 else None,
        "launches": math.log10(structure.launches) if structure.launches > 0 else None,
    }


def _mixing(structure: Structure) -> dict[str, float | None]:
    """The root of each kind's share of the calls of layers that mix; a step without any is told by what it has."""
    calls = {kind: count.calls for kind, count in structure.operators.items()}
    mixing = {
        "conv": calls.get("conv", 0) + calls.get("grouped-conv", 0),
        "attention": calls.get("attention", 0) + max(0, calls.get("softmax", 0) - LOSS_CALLS),
        "embedding": calls.get("embedding", 0),
        "recurrent": structure.recurrent_layers,
        "matmul": calls.get("matmul", 0),
    }
    if not any(mixing.values()):
        mixing["elementwise" if "elementwise" in calls else "update"] = 1
    whole = sum(mixing.values())
    return {name: math.sqrt(mixing.get(name.removesuffix("_mixing"), 0) / whole) for name in MIXING}


def _settled(steady: Sequence[Stretch]) -> list[Stretch]:
    """STEADY without the first second of each, where that leaves enough of it."""
    shorter = [replace(one, begin_s=one.begin_s + SETTLE_S) for one in steady if one.duration_s > 2 * SETTLE_S]
    return shorter or list(steady)


def _period_s(clean: Telemetry, steady: Sequence[Stretch]) -> float | None:
    longest = max(steady, key=lambda one: one.duration_s)
    for name in PERIOD_FROM:
        if name in clean.series:
            series = clean.series[name]
            sensor_s = clean.sensor_s if name == "power_w" else None
            found_s = step_period_s(*within(series.time_s, series.values, [longest]), sensor_s)
            if found_s is not None:
                return found_s
    return None


def _power(clean: Telemetry, steady: Sequence[Stretch]) -> dict[str, float | None]:
    import numpy as np

    if "power_w" not in clean.series:
        return {}
    series = clean.series["power_w"]
    _, power_w = within(series.time_s, series.values, steady)
    if not len(power_w) or float(np.mean(power_w)) <= 0:
        return {}
    swing = float(np.std(power_w) / np.mean(power_w))
    limit_w = clean.power_limit_w
    if limit_w is None:
        return {"power_swing": swing}
    low, middle, high = (float(one) / limit_w for one in np.percentile(power_w, (5, 50, 95)))
    return {
        "power_mean": float(np.mean(power_w)) / limit_w,
        "power_p5": low,
        "power_p50": middle,
        "power_p95": high,
        "power_swing": swing,
        "share_near_idle": float(np.mean(power_w < NEAR_IDLE * limit_w)),
        "share_near_limit": float(np.mean(power_w > NEAR_LIMIT * limit_w)),
        "above_limit": float(np.mean(np.maximum(power_w / limit_w - 1, 0))),
    }


def _mean(values: Any) -> float | None:
    return float(values.mean()) if len(values) else None


def _over(value: float | None, whole: float | None) -> float | None:
    return None if value is None or not whole else value / whole


def _rate(clean: Telemetry, name: str, steady: Sequence[Stretch]) -> float | None:
    """How fast a counter grows in the steady part; None: it is not there, or does not grow."""
    if name not in clean.series:
        return None
    grown, lasted_s = 0.0, 0.0
    for one in steady:
        times, values = within(clean.series[name].time_s, clean.series[name].values, [one])
        if len(times) > 1:
            grown += float(values[-1] - values[0])
            lasted_s += float(times[-1] - times[0])
    return grown / lasted_s if lasted_s > 0 and grown > 0 else None
