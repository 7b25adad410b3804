"""What a model that has not run will need: time, memory, power and energy, each with how far to trust it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from typing import Any

from wattsmith.estimate.answer import Answer, Conditions, answer
from wattsmith.estimate.baselines import BASELINES, predictor
from wattsmith.estimate.costs import Regime, Step, timed_steps
from wattsmith.estimate.device import Switches
from wattsmith.estimate.memory import replay
from wattsmith.estimate.parallel import Link, on_devices
from wattsmith.flows.devices import KnownDevice, Tell, known_device, record_named
from wattsmith.flows.models import LoadedModel, load_model, step_of, with_batch
from wattsmith.record.structure import trace
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.estimate import Basis, Estimate, JobNeed
from wattsmith.terms.run import Structure
from wattsmith.terms.trace import Trace
from wattsmith.terms.work import Interval

__all__ = ["Estimate", "HowToEstimate", "estimate", "estimate_of", "traced_step"]

NO_POWER = "power is unknown: too few runs of the record have it. `wattsmith machine` says what this one can measure"
GRADIENT_BYTES = 4  # of one parameter, at most; those of a model in bf16 have two
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToEstimate:
    """How the model is run, and on what."""

    batch: int | None = None  # samples per step and device; None: as the inputs have, else 1
    inputs: Any = None  # sizes as texts ("3x224x224"), or tensors; None: as the model usually takes
    precision: str = "fp32"  # "fp32" as PyTorch's switches have it, "tf32", or autocast to "bf16" or "fp16"
    mode: str = "train"
    optimizer: str | None = "adamw"
    layout: str = "contiguous"
    accumulation: int = 1
    compiled: bool = False
    with_values: bool = False  # run the step once on this CPU, for models that look at values
    own_step: Any = None  # the user's own step function, called as own(model, optimizer, inputs)
    device: str | KnownDevice = "h200"
    record: str | None = None  # by name, path or URL; None: this user's own, else what is shipped
    devices: int = 1  # data-parallel replicas
    link: Link | None = None  # between them; None: by data sheet
    samples: int | None = None  # in the data set
    epochs: int = 1
    power_limit_w: float | None = None
    methods: bool = True  # other, named methods beside


def estimate(model: Any, inputs: Any = None, tell: Tell = lambda _: None, **options: Any) -> Estimate:
    """What a step of MODEL should cost; MODEL and INPUTS as in `load_model`, OPTIONS are the fields of HowToEstimate.

    `estimate(net, torch.empty(64, 3, 224, 224), precision="bf16", device="h200")`
    """
    how = how_to_estimate(inputs, options)
    tell("loading the model")
    on = "cpu" if how.with_values else "meta"
    loaded = (
        model if isinstance(model, LoadedModel) else load_model(model, inputs=how.inputs, batch=how.batch, device=on)
    )
    if isinstance(model, LoadedModel) and how.batch is not None and how.batch != model.batch:
        loaded = with_batch(model, how.batch)
    if loaded.batch < 1:
        raise BadInput("the inputs hold no sample: their first dimension is 0")
    tell("tracing a step")
    # Before any record is read, which may take a while: what is wrong with the model should be told at once.
    traced, notes = traced_step(loaded, how)
    if isinstance(how.device, KnownDevice):
        device = how.device
    else:
        device = known_device(how.device, how.record, tell)
        notes = (*notes, *_on_record(device, how))
    return estimate_of(traced, device, how, batch=loaded.batch, notes=notes, without_rule=loaded.without_rule)


def how_to_estimate(inputs: Any, options: Mapping[str, Any]) -> HowToEstimate:
    """OPTIONS by the names that HowToEstimate has for them, checked."""
    try:
        how = HowToEstimate(inputs=inputs, **options)
    except TypeError as unknown:
        strange = ", ".join(repr(name) for name in options if name not in HowToEstimate.__dataclass_fields__)
        known = ", ".join(HowToEstimate.__dataclass_fields__)
        raise BadInput(f"there is no option {strange}; there are {known}") from unknown
    for name in ("batch", "accumulation", "devices", "samples", "epochs"):
        _check_count(name, getattr(how, name))
    if how.precision not in PRECISIONS:
        raise BadInput(f"precision must be {', '.join(PRECISIONS)}, got {how.precision!r}")
    if how.mode not in ("train", "infer"):
        raise BadInput(f"mode must be train or infer, got {how.mode!r}")
    if how.epochs > 1 and how.samples is None:
        raise BadInput(f"{how.epochs} epochs of how many samples? Say how large the data set is (--samples)")
    if not isinstance(how.device, str | KnownDevice):
        raise BadInput(f"device must be a name, such as h200 or cpu, got {how.device!r}")
    if how.own_step is not None and not callable(how.own_step):
        raise BadInput(f"own_step must be a function of model, optimizer and inputs, got {how.own_step!r}")
    _check_power(how.power_limit_w)
    return how


def _check_count(name: str, value: object) -> None:
    if value is None and name in ("batch", "samples"):
        return
    if not isinstance(value, Integral):
        raise BadInput(f"{name} must be a whole number, got {value!r}")
    if int(value) < 1:
        raise BadInput(f"{name} must be at least 1, got {value}")


def _check_power(power_limit_w: object) -> None:
    if power_limit_w is None:
        return
    if not isinstance(power_limit_w, int | float) or not 0 < power_limit_w < math.inf:
        raise BadInput(f"the power limit must be in watts, positive and finite, got {power_limit_w!r}")


def _on_record(device: KnownDevice, how: HowToEstimate) -> list[str]:
    """What to do about a record that does not tell of DEVICE."""
    notes = []
    if how.record is not None and device.record != record_named(how.record):
        notes.append(f"{record_named(how.record)} tells too little of {device.name}, so that it was passed over")
    if device.basis is Basis.SHEET:
        notes.append("to have this device measured, run there: wattsmith record run --device cuda:0")
    return notes


def traced_step(loaded: LoadedModel, how: HowToEstimate) -> tuple[Trace, tuple[str, ...]]:
    """A step of LOADED as it would run, and what was assumed."""
    ready = step_of(
        loaded,
        mode=how.mode,
        optimizer=how.optimizer,
        precision="fp32" if how.precision == "tf32" else how.precision,
        layout=how.layout,
        accumulation=how.accumulation,
        own=how.own_step,
    )
    traced = trace(
        ready.step,
        parameters=ready.parameters,
        inputs=ready.inputs,
        resident=ready.resident,
        precision=ready.precision,
        steps=ready.steps,
        device=loaded.device,
    )
    notes = list(dict.fromkeys((*loaded.notes, *ready.notes)))
    if loaded.device == "cpu":
        notes.append("the step was run once on the CPU: attention and autocast are as they are there, not as on a GPU")
    if traced.assumed:
        notes.append(f"the step asks tensors for values {traced.assumed} times, and the host waits for them each time")
    return traced, tuple(notes)


def switches_for(precision: str, device: str = "cuda") -> Switches:
    """Whether TF32 is allowed: for "fp32" as PyTorch's own switches are just now. A CPU has none."""
    if device == "cpu":
        return Switches(conv_tf32=False, matmul_tf32=False)
    if precision == "tf32":
        return Switches(conv_tf32=True, matmul_tf32=True)
    import torch

    return Switches(
        conv_tf32=bool(torch.backends.cudnn.allow_tf32), matmul_tf32=torch.get_float32_matmul_precision() != "highest"
    )


def estimate_of(
    traced: Trace,
    device: KnownDevice,
    how: HowToEstimate,
    *,
    batch: int,
    notes: Sequence[str] = (),
    without_rule: Mapping[str, int] | None = None,
) -> Estimate:
    """What a traced step should cost on DEVICE."""
    conditions = Conditions(
        switches=switches_for(how.precision, device.name),
        trains=how.mode == "train",
        compiled=how.compiled,
        basis=device.basis,
        capacity_bytes=device.capacity_bytes,
        power_limit_w=how.power_limit_w,
        power_ratio=device.power_ratio,
        measured=device.has_step(traced.calls, how.precision),
    )
    found = answer(device.model, traced, replay(traced.memory, traced.last_step_at), conditions)
    alone = _estimate(found, traced, device, how, batch, tuple(notes), without_rule or {})
    if device.whole is not None:
        alone = _by_whole_steps(alone, traced, device, how)
    together = _together(alone, device, how) if how.devices > 1 else alone
    return replace(together, job=_job(together, how)) if how.samples is not None else together


def _estimate(
    found: Answer,
    traced: Trace,
    device: KnownDevice,
    how: HowToEstimate,
    batch: int,
    notes: tuple[str, ...],
    without_rule: Mapping[str, int],
) -> Estimate:
    return Estimate(
        device=device.name,
        devices=1,
        batch=batch,
        precision=how.precision,
        mode=how.mode,
        layout=how.layout,
        basis=device.basis,
        record=device.record,
        from_runs=device.model.runs,
        step_s=found.step_s,
        busy_s=found.busy_s,
        host_s=found.host_s,
        host_bound=found.host_bound,
        memory=found.memory,
        power_w=found.power_w,
        step_energy_j=found.step_energy_j,
        standing=found.standing,
        reasons=found.reasons,
        covered_flops_ratio=found.timed.covered_flops_ratio,
        covered_bytes_ratio=found.timed.covered_bytes_ratio,
        by_kind_s=found.timed.by_kind(),
        others_s=_others(traced, device, how) if how.methods else {},
        structure=traced.structure,
        without_rule=without_rule,
        notes=(*notes, *_on_power(found, device)),
    )


def _on_power(found: Answer, device: KnownDevice) -> list[str]:
    """What the figures of power are worth."""
    if found.power_w is None:
        return [NO_POWER]
    used = [run.consumption for run in device.runs if run.consumption and run.consumption.step_energy_j]
    notes = []
    if any(one.energy_source is Source.MODELLED for one in used):
        notes.append("power and energy rest on a model, not on a meter: the record was taken with `--meters modelled`")
    if any(one.simulated for one in used):
        notes.append("power and energy are those of a simulated meter")
    return notes


def _by_whole_steps(one: Estimate, traced: Trace, device: KnownDevice, how: HowToEstimate) -> Estimate:
    """The estimate with its time from whole steps, where the record tells nothing of operators."""
    assert device.whole is not None
    found = device.whole.estimate(_step(traced, device, how))
    power_w = one.power_w
    energy_j = (
        None
        if power_w is None
        else Interval(
            value=power_w.value * found.step_s.value,
            low=power_w.low * found.step_s.low,
            high=power_w.high * found.step_s.high,
        )
    )
    return replace(
        one,
        from_runs=found.from_runs,
        step_s=found.step_s,
        step_energy_j=energy_j,
        standing=str(found.standing.level),
        reasons=found.standing.reasons,
        notes=(*one.notes, "busy and host time, power and memory are those of another device's record, scaled"),
    )


def _step(traced: Trace, device: KnownDevice, how: HowToEstimate) -> Step:
    assert device.sheet is not None
    regime = Regime(precision=how.precision, mode=how.mode, layout=how.layout, compiled=how.compiled)
    return Step(structure=traced.structure, device=device.sheet, regime=regime)


def _others(traced: Trace, device: KnownDevice, how: HowToEstimate) -> dict[str, float]:
    """The step by the named methods, for comparison."""
    if device.sheet is None:
        return {}
    step = _step(traced, device, how)
    rows = timed_steps(device.runs)
    others: dict[str, float] = {}
    for name in BASELINES:
        try:
            others[name] = predictor(name, rows)([step])[0]
        except (BadTerm, ValueError):
            continue  # too little was measured for this method
    return others


def _together(alone: Estimate, device: KnownDevice, how: HowToEstimate) -> Estimate:
    if alone.device == "cpu":
        raise BadInput(f"what a record tells of a CPU is of one; {how.devices} of them cannot be estimated")
    link = how.link or device.link
    several = on_devices(alone.as_prediction(), how.devices, gradient_bytes(alone.structure, how.mode), link)
    assert several.step_s is not None
    standing, reasons = alone.standing, alone.reasons
    if link.source != "measured":
        inside = standing in ("measured", "inside")
        untimed = "the link between the devices was not timed"
        standing, reasons = ("edge", (untimed,)) if inside else (standing, (*reasons, untimed))
    note = f"{how.devices} devices over a link of {link.bandwidth_bytes_per_s / 1e9:.0f} GB/s ({link.source})"
    return replace(
        alone,
        devices=how.devices,
        step_s=several.step_s,
        power_w=several.power_w,
        step_energy_j=several.step_energy_j,
        standing=standing,
        reasons=reasons,
        notes=(*alone.notes, note),
    )


def gradient_bytes(structure: Structure, mode: str) -> float:
    """What replicas add up in a step: nothing where they infer, and nothing for parameters that do not learn."""
    return float(min(structure.parameter_bytes, GRADIENT_BYTES * structure.parameters)) if mode == "train" else 0.0


def _job(one: Estimate, how: HowToEstimate) -> JobNeed:
    assert how.samples is not None
    per_step = one.batch * one.devices * how.accumulation
    steps = math.ceil(how.samples / per_step)
    times = partial(_times, count=steps)
    energy_j = one.step_energy_j
    return JobNeed(
        samples=int(how.samples),
        epochs=int(how.epochs),
        steps=int(steps * how.epochs),
        epoch_s=times(one.step_s),
        job_s=_times(one.step_s, steps * how.epochs),
        energy_j=None if energy_j is None else _times(energy_j, steps * how.epochs),
    )


def _times(interval: Interval, count: int) -> Interval:
    return Interval(value=count * interval.value, low=count * interval.low, high=count * interval.high)
