"""What a step costs at the best that its device can hold, term by term, and the traits by which two steps are alike.

A cost term is a number of seconds: so many operations at the device's sustained rate, so many bytes at its sustained
bandwidth, so many launches at 10 µs. A fitted weight on a term is then the inverse of an efficiency, and means the same
on every device. Calls of products are a term of their own: an operator that reaches half its speed at a certain size
takes, over many calls, time for its operations plus a fixed time for each call.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from wattsmith.estimate.sheets import DataSheet, sheet_of
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import OperatorCount, Run, Status, Structure

if TYPE_CHECKING:
    from numpy import float64
    from numpy.typing import NDArray

PRODUCTS = ("conv", "grouped-conv", "matmul", "attention")  # what computing may bound
LIGHT = ("elementwise", "norm", "softmax", "copy", "pool", "reduce", "embedding", "update")  # what memory bounds
CLASSES = (*PRODUCTS, *LIGHT)
TERMS = (
    *(f"{name}: {what}" for name in PRODUCTS for what in ("operations", "bytes", "calls")),
    *(f"{name}: bytes" for name in LIGHT),
    "parameters",
    "input",
    "launches",
    "step",
)
CALL_S = 1e-5  # unit of a call or launch
STEP_S = 1e-3  # unit of what a step takes whatever it does
HOST_BANDWIDTH = 1e10  # bytes per second over which a batch reaches the device: PCIe 3.0 in practice

# What a term usually costs, in times itself: products at half of what the device holds, other work at two thirds of its
# bandwidth, 5 µs a launch. Terms that a record says little about stay near it.
USUAL = (
    *(usual for _ in PRODUCTS for usual in (2.0, 1.0, 0.5)),
    *(1.5 for _ in LIGHT),
    *(1.0, 1.0, 0.5, 1.0),
)

_NOTHING = OperatorCount(calls=0, flops=0.0, moved_bytes=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Regime:
    """How a step is run. Times of one regime say little about another."""

    precision: str = "fp32"
    mode: str = "train"
    layout: str = "contiguous"
    compiled: bool = False

    def __str__(self) -> str:
        words = [self.precision, self.mode, *(["channels-last"] if self.layout != "contiguous" else [])]
        return ", ".join([*words, *(["compiled"] if self.compiled else [])])


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step whose time is asked for."""

    structure: Structure
    device: DataSheet
    regime: Regime

    def __post_init__(self) -> None:
        if self.structure.moved_bytes <= 0 or self.structure.launches <= 0:
            raise BadTerm(
                "a step that moves no bytes and launches nothing has no time to predict. "
                "Trace the step itself: forward, and backward and update when it trains."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A step and how long it took."""

    step: Step
    step_s: float
    group: str  # what is held out together: its family
    name: str = ""

    def __post_init__(self) -> None:
        if not 0 < self.step_s < math.inf:
            raise BadTerm(f"step_s must be positive and finite, got {self.step_s} of {self.name or self.group}")


def timed_steps(runs: Sequence[Run]) -> list[Timed]:
    """The runs of a record that a whole-step model can learn from: measured networks on one known device."""
    found = []
    for run in runs:
        work = run.workload
        if run.status is not Status.MEASURED or run.structure is None or run.times is None:
            continue
        if work.kind != "network" or work.devices > 1 or run.device.kind == "cpu" or run.structure.launches == 0:
            continue
        regime = Regime(precision=work.precision, mode=work.mode, layout=work.layout, compiled=work.compiled)
        step = Step(structure=run.structure, device=sheet_of(run.device.name), regime=regime)
        found.append(Timed(step=step, step_s=run.times.mean_s, group=work.family, name=work.key))
    return found


def counts(structure: Structure) -> dict[str, OperatorCount]:
    """What each class does. Classes that have no term of their own are counted as element-wise."""
    known = {name: structure.operators.get(name, _NOTHING) for name in CLASSES}
    strange = [one for name, one in structure.operators.items() if name not in known]
    if strange:
        plain = [known["elementwise"], *strange]
        known["elementwise"] = OperatorCount(
            calls=sum(one.calls for one in plain),
            flops=sum(one.flops for one in plain),
            moved_bytes=sum(one.moved_bytes for one in plain),
        )
    return known


def cost_terms(step: Step) -> list[float]:
    """Seconds of each of TERMS."""
    rate = step.device.sustained_flops(step.regime.precision)
    bandwidth = step.device.sustained_bandwidth
    counted = counts(step.structure)
    terms = []
    for name in PRODUCTS:
        one = counted[name]
        terms += [one.flops / rate, one.moved_bytes / bandwidth, one.calls * CALL_S]
    terms += [counted[name].moved_bytes / bandwidth for name in LIGHT]
    return [
        *terms,
        step.structure.parameter_bytes / bandwidth,
        step.structure.input_bytes / HOST_BANDWIDTH,
        step.structure.launches * CALL_S,
        STEP_S,
    ]


def shares(step: Step) -> dict[str, float]:
    """Of each class as the step has it, known or not, its share of the time that a plain roofline gives."""
    rate = step.device.sustained_flops(step.regime.precision)
    bandwidth = step.device.sustained_bandwidth
    cost_s = {
        name: max(one.flops / rate if name in PRODUCTS else 0.0, one.moved_bytes / bandwidth)
        for name, one in step.structure.operators.items()
    }
    total_s = sum(cost_s.values()) or 1.0
    return {name: one / total_s for name, one in cost_s.items()}


def traits(step: Step) -> list[float]:
    """What makes a step like another: how much it does, of what, in how large pieces, how. Logarithms and shares."""
    structure = step.structure
    counted = counts(structure)
    share = shares(step)
    found = [
        math.log(structure.flops + 1),
        math.log(structure.moved_bytes),
        math.log((structure.flops + 1) / structure.moved_bytes),
        math.log(structure.launches),
        math.log(structure.parameter_bytes + 1),
        math.log(structure.input_bytes + 1),
        math.log((structure.flops + 1) / structure.launches),
        math.log(structure.moved_bytes / structure.launches),
    ]
    for name in CLASSES:
        found.append(share.get(name, 0.0))
        found.append(counted[name].moved_bytes / structure.moved_bytes)
    for name in PRODUCTS:
        one = counted[name]
        intensity, size = one.flops / max(one.moved_bytes, 1.0), one.flops / max(one.calls, 1)
        found.append(math.log(intensity) if one.flops else 0.0)
        found.append(math.log(size) if one.flops else math.log(structure.flops / structure.launches + 1))
    regime = step.regime
    told = (regime.precision, regime.mode, regime.layout)
    return [
        *found,
        *(float(word in told) for word in ("fp32", "tf32", "infer", "channels-last")),
        float(regime.compiled),
    ]


def table(steps: Sequence[Step]) -> tuple[NDArray[float64], NDArray[float64]]:
    """Cost terms and traits of many steps, a row each."""
    import numpy as np

    return np.array([cost_terms(step) for step in steps]), np.array([traits(step) for step in steps])
