"""The same training steps in earnest, measured, beside what was estimated."""

import time
from contextlib import ExitStack
from typing import Any

from wattsmith.flows.demo.charts import Bar, bars
from wattsmith.flows.demo.facts import Figure, Found, Tell, Told, interval_figure, need_torch
from wattsmith.flows.measuring import measure
from wattsmith.flows.serving import energy_of
from wattsmith.terms.energy import Window
from wattsmith.terms.quantity import format_quantity

TITLE = "The same steps, measured"
YOURSELF = 'with wattsmith.measure("epoch") as epoch:\n    train_one_epoch()\nprint(epoch.duration_s, epoch.energy_j)'
MODEL = "modelled:10W-65W"
FEWEST_STEPS = 2


def run(found: Found, tell: Tell) -> Told:
    """Train ResNet-50 for some steps on random images."""
    need_torch("training")
    import torch

    torch.set_num_threads(found.threads)
    step = training_step(found.scale.batch, found.scale.image)
    tell("one step to warm up")
    step()
    steps_s: list[float] = []
    with ExitStack() as both:
        window = both.enter_context(measure("training"))
        # By a model only where there is no meter, and by its name.
        modelled = None if found.has_cpu_meter else both.enter_context(measure("by a model", meters=MODEL))
        began_s = time.perf_counter()
        while len(steps_s) < found.scale.steps:
            before_s = time.perf_counter()
            if len(steps_s) >= FEWEST_STEPS and before_s - began_s > found.scale.steps_s:
                break
            step()
            steps_s.append(time.perf_counter() - before_s)
            tell(f"step {len(steps_s)} of {found.scale.steps}: {format_quantity(steps_s[-1], 'time', 3)}")
    return _told(found, steps_s, window.result(), modelled.result() if modelled else None)


def training_step(batch: int, image: int) -> Any:
    """A function that trains ResNet-50 for one step: forward, backward, update."""
    import torch

    from wattsmith.flows.demo.networks import resnet50

    chance = torch.Generator().manual_seed(0)
    network = resnet50().train()
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    images = torch.randn(batch, 3, image, image, generator=chance)
    labels = torch.randint(0, 1000, (batch,), generator=chance)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        torch.nn.functional.cross_entropy(network(images), labels).backward()
        optimizer.step()

    return step


def _told(found: Found, steps_s: list[float], window: Window, modelled: Window | None) -> Told:
    took_s = sum(steps_s) / len(steps_s)
    spread = max(steps_s) / min(steps_s) - 1
    clock = f"measured here: wall clock, mean of {len(steps_s)} steps after one to warm up"
    figures = [
        Figure(
            name=f"a step, batch {found.scale.batch}, {found.scale.image}²",
            text=format_quantity(took_s, "time", 3),
            source=clock,
            trust=f"the slowest took {spread:.0%} longer than the quickest",
            value=took_s,
        )
    ]
    means = f"A step took {format_quantity(took_s, 'time', 3)}"
    here = found.here
    if here is not None:
        off = here.step_s.value / took_s - 1
        inside = here.step_s.low <= took_s <= here.step_s.high
        figures.append(
            interval_figure(
                "the estimate for it",
                here.step_s,
                "time",
                source="the stage before, made before this run",
                trust=f"{off:+.0%} off; the measured step lies {'inside' if inside else 'outside'} the interval",
            )
        )
        said = format_quantity(here.step_s.value, "time", 3)
        means += (
            f"; {said} had been estimated, {_apart(here.step_s.value / took_s)}, "
            f"and its interval {'holds' if inside else 'misses'} what was measured"
        )
    figures += _energy(window, modelled, len(steps_s) * found.scale.batch)
    return Told(
        means=means + ".",
        figures=tuple(figures),
        tile=_tile(found, took_s),
        pictures=(_picture(found, steps_s, took_s),),
        notes=tuple(f"{kind}: {why}" for kind, why in window.missing.items() if kind == "cpu"),
    )


def _tile(found: Found, took_s: float) -> tuple[str, str]:
    took = format_quantity(took_s, "time", 3)
    if found.here is None:
        return took, "a step of ResNet-50 here, measured"
    said = format_quantity(found.here.step_s.value, "time", 3)
    return f"{said} → {took}", "a step of ResNet-50 here: estimated before, then measured"


def _apart(ratio: float) -> str:
    """RATIO of said to measured, in words."""
    if ratio > 2:
        return f"{ratio:.1f} times as much"
    return f"{abs(ratio - 1):.0%} {'more' if ratio > 1 else 'less'}"


def _energy(window: Window, modelled: Window | None, images: int) -> list[Figure]:
    energy_j = energy_of(window, "cpu")
    if energy_j is not None:
        used = [one for one in window.counted if not one.domain.startswith("gpu:")]
        told, error = (
            format_quantity(joules / images, "energy", digits)
            for joules, digits in ((energy_j, 3), (sum(one.error_j or 0.0 for one in used), 2))
        )
        return [
            Figure(
                name="energy of an image",
                text=f"{told} ± {error}",
                source=("SIMULATED, not measured: " if any(one.simulated for one in used) else "measured here: ")
                + ", ".join(f"{one.domain} by {one.source}" for one in used),
                trust="the whole domain, with what else ran there",
                value=energy_j / images,
            )
        ]
    unknown = Figure(
        name="energy of an image",
        text="unknown",
        source="no meter of this machine may be read",
        trust="unknown is not zero; the reason is below",
    )
    if modelled is None or modelled.energy_j is None:
        return [unknown]
    return [
        unknown,
        Figure(
            name="energy of an image, by a model",
            text=format_quantity(modelled.energy_j / images, "energy", 3),
            source="MODELLED, not measured: 10 W idle to 65 W busy, asked for by name",
            trust="shows the mechanism only: the watts are assumed, and all programs of this machine count",
            value=modelled.energy_j / images,
        ),
    ]


def _picture(found: Found, steps_s: list[float], took_s: float) -> str:
    rows = [Bar(name="measured", value=took_s, low=min(steps_s), high=max(steps_s), says="slowest and quickest step")]
    if found.here is not None:
        said = found.here.step_s
        rows.insert(0, Bar(name="estimated", value=said.value, low=said.low, high=said.high, says="90 % interval"))
    return bars("Time of a step of ResNet-50", rows, kind="time", logarithmic=True)
