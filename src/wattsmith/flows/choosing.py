"""Which hardware and settings a model should run with: limits select among configurations, the goal orders them."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattsmith.estimate.limits import Limit, parse_limits, parse_objective
from wattsmith.estimate.parallel import on_devices, sheet_link
from wattsmith.estimate.ranking import Configuration, Job, Option, Ranked, Ranking, between_batches, rank
from wattsmith.flows.devices import KnownDevice, Tell, known_device, known_names
from wattsmith.flows.estimating import ASSUMED_LINK, HowToEstimate, estimate_of, traced_step
from wattsmith.flows.models import LoadedModel, load_model, with_batch
from wattsmith.terms.errors import BadInput
from wattsmith.terms.work import Prediction

__all__ = ["Choice", "Ranked", "Ranking", "choose"]

EVERY = 2  # of the batches so many-th are traced; those between follow, since a step is affine in its batch there
BATCHES = tuple(2**power for power in range(11))
COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """What may be chosen among."""

    devices: tuple[str, ...] = ()  # empty: all that a record knows
    counts: tuple[int, ...] = COUNTS  # of devices
    batches: tuple[int, ...] = BATCHES  # per device
    precisions: tuple[str, ...] = ("fp32", "bf16")
    prices_per_hour: Mapping[str, float] | None = None  # by device


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
    how = HowToEstimate(inputs=inputs, **options)
    among = among or Choice()
    asked = parse_limits([str(one) for one in limits])
    objective = parse_objective(minimise)
    loaded = load_model(model, inputs=how.inputs, batch=among.batches[0])
    names = among.devices or tuple(known_names(how.record))
    if not names:
        raise BadInput(
            "no record knows a device to choose among; take one with `wattsmith record run`, or name devices"
        )
    devices = [known_device(name, how.record, tell) for name in names]
    choices: list[Option] = []
    for precision in among.precisions:
        tell(f"tracing in {precision}")
        alone = replace(how, precision=precision, devices=1, samples=None, methods=False)
        anchored = anchors(loaded, alone, devices, among.batches)
        for device in devices:
            choices += _options(anchored[device.name], device, precision, among)
    job = None if how.samples is None else Job(samples=how.samples, epochs=how.epochs)
    return rank(choices, asked, objective, job)


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
            found[device.name] = predictions, float(traced.structure.parameter_bytes)
        if place and largest_bytes and traced.structure.peak_bytes > largest_bytes:
            break  # nor do larger batches fit
    return found


def _options(
    anchored: tuple[dict[int, Prediction], float], device: KnownDevice, precision: str, among: Choice
) -> list[Option]:
    predictions, gradient_bytes = anchored
    capacity_bytes = device.capacity_bytes
    link = sheet_link(ASSUMED_LINK)
    choices = []
    alone = dict(zip(among.batches, between_batches(predictions, among.batches), strict=True))
    for batch, count in itertools.product(among.batches, among.counts):
        memory = alone[batch].memory_bytes
        if capacity_bytes is not None and memory is not None and memory.value > capacity_bytes:
            continue  # it cannot run at all
        prices = among.prices_per_hour or {}
        choices.append(
            Option(
                configuration=Configuration(
                    device=device.name,
                    batch=batch,
                    devices=count,
                    precision=precision,
                    price_per_hour=prices.get(device.name),
                ),
                prediction=on_devices(alone[batch], count, gradient_bytes, link),
            )
        )
    return choices
