"""What training a ResNet-50 should need: here, by the record just taken, and on an H200, by the one that is shipped."""

from wattsmith.flows.demo.charts import Bar, bars
from wattsmith.flows.demo.facts import Figure, Found, Tell, Told, count_text, interval_figure, need_torch
from wattsmith.flows.estimating import Estimate, estimate
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.work import Interval

TITLE = "ResNet-50 before it runs: here, and on an H200"
YOURSELF = "wattsmith estimate net.py:build --input 3x224x224 --batch 64 --precision bf16 --device h200"
H200_BATCH = 64
IMAGES = 1_281_167  # in ImageNet's training set


def run(found: Found, tell: Tell) -> Told:
    """Estimate a training step on both; nothing is run, and no H200 is needed."""
    need_torch("tracing a model")
    import torch

    from wattsmith.flows.demo.networks import resnet50

    scale, network = found.scale, resnet50()
    tell("for this machine: learning from the record just taken")
    here = estimate(
        network, torch.empty(scale.batch, 3, scale.image, scale.image), device="cpu", record=found.record,
        optimizer="sgd", samples=IMAGES, methods=False, tell=lambda text: tell(f"for this machine: {text}"),
    )  # fmt: skip
    found.here = here
    tell("for an H200: learning from the shipped record")
    there = estimate(
        network, torch.empty(H200_BATCH, 3, scale.image, scale.image), device="h200", precision="bf16", optimizer="sgd",
        samples=IMAGES, methods=False, tell=lambda text: tell(f"for an H200: {text}"),
    )  # fmt: skip
    times = float(f"{_rate(there).value / _rate(here).value:.2g}")
    image_j = None if there.step_energy_j is None else there.step_energy_j.value / there.batch
    return Told(
        means=f"Before anything ran: an H200 should train ResNet-50 about {times:,.0f} times as fast as {_core(found)} "
        f"here, at {format_quantity(image_j, 'energy', 2)} an image.",
        figures=(*_figures("here", here, scale.image), *_figures("H200", there, scale.image)),
        tile=(
            format_quantity(image_j, "energy", 3),
            "an image, training ResNet-50 on an H200: estimated, no H200 was needed",
        ),
        pictures=(_picture(here, there),),
        notes=tuple(dict.fromkeys((*here.notes, *there.notes))),
    )


def _core(found: Found) -> str:
    return "one core" if found.threads == 1 else f"{found.threads} cores"


def _figures(where: str, one: Estimate, image: int) -> list[Figure]:
    source = f"estimated from {one.from_runs} runs of " + (
        "the record just taken" if where == "here" else f"the shipped record {one.record}, measured on a real card"
    )
    trust = f"90 % interval; {_standing(one)}"
    energy_j = None if one.step_energy_j is None else _shared(one.step_energy_j, one.batch)
    unknown = energy_j is None
    figures = [
        interval_figure(
            f"{where}: a step, batch {one.batch}, {image}², {one.precision}",
            one.step_s,
            "time",
            source=source,
            trust=trust,
        ),
        interval_figure(
            f"{where}: memory",
            one.as_prediction().memory_bytes,
            "memory",
            source="the step's tensors, traced without running it",
            trust="90 % interval",
        ),
        interval_figure(
            f"{where}: energy of an image",
            energy_j,
            "energy",
            source="too few runs of the record have energy" if unknown else source,
            trust="unknown is not zero" if unknown else trust,
        ),
    ]
    if one.job is not None:
        figures.append(
            interval_figure(
                f"{where}: all of ImageNet once ({IMAGES:,} images)",
                one.job.epoch_s,
                "time",
                source=f"{one.job.steps:,} of those steps",
                trust=f"{trust}; data is taken to come in time",
            )
        )
    return figures


def _standing(one: Estimate) -> str:
    words = {"measured": "measured", "inside": "inside", "edge": "at the edge of", "outside": "outside"}[one.standing]
    said = "this very step was measured" if words == "measured" else f"{words} what was measured"
    return f"{said}: {one.reasons[0]}" if one.reasons else said


def _rate(one: Estimate) -> Interval:
    step_s = one.step_s
    return Interval(value=one.batch / step_s.value, low=one.batch / step_s.high, high=one.batch / step_s.low)


def _shared(whole: Interval, count: int) -> Interval:
    return Interval(value=whole.value / count, low=whole.low / count, high=whole.high / count)


def _picture(here: Estimate, there: Estimate) -> str:
    rows = [
        Bar(name=name, value=rate.value, low=rate.low, high=rate.high, says=f"{count_text(rate.value)} images/s")
        for name, rate in (("here", _rate(here)), ("H200", _rate(there)))
    ]
    return bars("Images trained in a second, estimated (logarithmic)", rows, logarithmic=True)
