"""Which hardware and settings a model should run with: limits select among configurations, the goal orders them."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.estimate.limits import Limit, parse_limits, parse_objective
from wattsmith.estimate.parallel import on_devices
from wattsmith.estimate.ranking import Configuration, Job, Option, Ranked, Ranking, between_batches, rank
from wattsmith.estimate.sheets import UnknownDevice, sheet_of
from wattsmith.flows.devices import KnownDevice, Tell, known_device, known_names
from wattsmith.flows.estimating import (
    HowToEstimate,
    estimate_of,
    gradient_bytes,
    how_to_estimate,
    traced_step,
)
from wattsmith.flows.models import LoadedModel, load_model, with_batch
from wattsmith.terms.errors import BadInput
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.work import Prediction

__all__ = ["Choice", "Ranked", "Ranking", "choose"]

EVERY = 2  # of the batches so many-th are traced; those between follow, since a step is affine in its batch there
BATCHES = tuple(2**power for power in range(11))
COUNTS = (1, 2, 4, 8)
# What is chosen, by the names that it has where one configuration is estimated.
CHOSEN = {"device": "devices", "devices": "counts", "batch": "batches", "precision": "precisions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What may be chosen among."""

    devices: tuple[str | KnownDevice, ...] = ()  # empty: all that a record knows
    counts: tuple[int, ...] = COUNTS  # of devices
    batches: tuple[int, ...] = BATCHES  # per device
    precisions: tuple[str, ...] = ("fp32", "bf16")
    prices_per_hour: Mapping[str, float] | None = None  # of one device, by any name that it goes by

    def __post_init__(self) -> None:
        for name in ("counts", "batches", "precisions"):
            if not getattr(self, name):
                raise BadInput(f"there is nothing to choose among: {name} is empty")
        for name in ("counts", "batches"):
            if min(getattr(self, name)) < 1:
                raise BadInput(f"each of {name} must be at least 1, got {min(getattr(self, name))}")


def choose(
    model: Any,
    inputs: Any = None,
    *,
    limits: Sequence[str | Limit] = (),
    minimise: str = "time",
    among: Choice | None = None,
    tell: Tell = lambda _: None,
    **options: Any,
) -> Ranking:
    """Configurations that keep LIMITS ("gpus<=2", "epoch<=20min"), the best first; OPTIONS as in `estimate`."""
    for name, instead in CHOSEN.items():
        if name in options:
            raise BadInput(f"{name} is chosen here; narrow it with among=Choice({instead}=({options[name]!r},))")
    among = among or Choice()
    how = how_to_estimate(inputs, options)
    texts = [one for one in limits if isinstance(one, str)]
    asked = (*parse_limits(texts), *(one for one in limits if isinstance(one, Limit)))
    objective = parse_objective(minimise)
    hows = [
        how_to_estimate(inputs, {**options, "precision": precision, "samples": None, "epochs": 1, "methods": False})
        for precision in among.precisions
    ]
    loaded = model if isinstance(model, LoadedModel) else load_model(model, inputs=how.inputs, batch=among.batches[0])
    devices = _devices(among, how, tell)
    prices = _prices(among, devices, objective, asked)
    choices: list[Option] = []
    for alone in hows:
        tell(f"tracing in {alone.precision}")
        anchored = anchors(loaded, alone, devices, among.batches)
        for device in devices:
            choices += _options(anchored[device.name], device, alone, among, prices.get(device.name))
    fitting = [one for one in choices if _fits(one, devices)]
    if not fitting:
        raise _nothing_fits(choices, devices)
    # A step takes in as many batches as it accumulates, so there are so many times fewer of them.
    passes = None if how.samples is None else math.ceil(how.samples / how.accumulation)
    return rank(fitting, asked, objective, None if passes is None else Job(samples=passes, epochs=how.epochs))


def _devices(among: Choice, how: HowToEstimate, tell: Tell) -> list[KnownDevice]:
    named = among.devices or tuple(known_names(how.record))
    if not named:
        raise BadInput(
            "no record knows a device to choose among; take one with `wattsmith record run`, or name devices"
        )
    found = [one if isinstance(one, KnownDevice) else known_device(one, how.record, tell) for one in named]
    return list({device.name: device for device in found}.values())  # one may be named twice


def _prices(among: Choice, devices: Sequence[KnownDevice], objective: str, asked: Sequence[Limit]) -> dict[str, float]:
    """Prices by the names of DEVICES."""
    names = [device.name for device in devices]
    prices: dict[str, float] = {}
    for given, price in (among.prices_per_hour or {}).items():
        name = _full_name(given)
        if name not in names:
            raise BadInput(f"there is a price of {given!r}, which is not among the devices: {', '.join(names)}")
        if not 0 <= price < math.inf:
            raise BadInput(f"the price of {given} must be finite and not negative, got {price}")
        prices[name] = price
    if not prices and (objective == "cost" or any(limit.name == "cost" for limit in asked)):
        raise BadInput("what a job costs follows from the price of a device per hour: give it, as in --price h200=3.5")
    return prices


def _full_name(given: str) -> str:
    try:
        return sheet_of(given).name
    except UnknownDevice:
        return given


def anchors(
    loaded: LoadedModel, how: HowToEstimate, devices: Sequence[KnownDevice], batches: Sequence[int]
) -> dict[str, tuple[dict[int, Prediction], float]]:
    """By device: predictions at a few batches, and the bytes of its gradients."""
    found: dict[str, tuple[dict[int, Prediction], float]] = {device.name: ({}, 0.0) for device in devices}
    largest_bytes = max((device.capacity_bytes or 0 for device in devices), default=0)
    for place, batch in enumerate(sorted({*batches[::EVERY], batches[-1], 2 * batches[0]})):
        traced, _ = traced_step(with_batch(loaded, batch), how)
        for device in devices:
            one = estimate_of(traced, device, how, batch=batch)
            predictions = found[device.name][0] | {batch: one.as_prediction()}
            found[device.name] = predictions, gradient_bytes(traced.structure, how.mode)
        if place and largest_bytes and traced.structure.peak_bytes > largest_bytes:
            break  # nor do larger batches fit
    return found


def _options(
    anchored: tuple[dict[int, Prediction], float],
    device: KnownDevice,
    how: HowToEstimate,
    among: Choice,
    price_per_hour: float | None,
) -> list[Option]:
    predictions, added_up_bytes = anchored
    link = how.link or device.link
    alone = dict(zip(among.batches, between_batches(predictions, among.batches), strict=True))
    return [
        Option(
            configuration=Configuration(
                device=device.name,
                batch=batch,
                devices=count,
                precision=how.precision,
                power_limit_w=how.power_limit_w,
                price_per_hour=price_per_hour,
            ),
            prediction=on_devices(alone[batch], count, added_up_bytes, link),
        )
        for batch, count in itertools.product(among.batches, among.counts)
        if count == 1 or device.name != "cpu"  # what a record tells of a CPU is of this one
    ]


def _fits(one: Option, devices: Sequence[KnownDevice]) -> bool:
    """Whether it can run at all."""
    capacity_bytes = next(device.capacity_bytes for device in devices if device.name == one.configuration.device)
    return capacity_bytes is None or _needed_bytes(one) <= capacity_bytes


def _needed_bytes(one: Option) -> float:
    return 0.0 if one.prediction.memory_bytes is None else one.prediction.memory_bytes.value


def _nothing_fits(choices: Sequence[Option], devices: Sequence[KnownDevice]) -> BadInput:
    if not choices:
        return BadInput("there is no configuration to choose among: a CPU is one device")
    least = min(choices, key=_needed_bytes)
    sizes = ", ".join(f"{one.name} {format_quantity(one.capacity_bytes, 'memory', 3)}" for one in devices)
    return BadInput(
        f"no configuration fits in memory: batch {least.configuration.batch} in {least.configuration.precision} needs "
        f"{format_quantity(_needed_bytes(least), 'memory', 3)} of each device, and there is: {sizes}"
    )
