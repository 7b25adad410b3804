"""What this machine can be measured with, and what is missing."""

import os

from wattsmith.flows.demo.facts import Figure, Found, Tell, Told
from wattsmith.flows.machine import describe_machine
from wattsmith.terms.quantity import format_quantity

TITLE = "What this machine can measure"
YOURSELF = "wattsmith machine"


def run(found: Found, tell: Tell) -> Told:
    """Look at this machine; nothing is changed."""
    tell("looking for meters")
    machine = describe_machine()
    of_the_cpu = [card for card in machine.meters if not card.domain.startswith("gpu:")]
    found.has_cpu_meter, found.is_simulated = bool(of_the_cpu), any(card.simulated for card in of_the_cpu)
    found.busy_with, os_says = os.getloadavg()[0], "the operating system"
    figures = [
        Figure(
            name="CPU",
            text=f"{machine.cpu}, {machine.cpu_count} threads, {format_quantity(machine.memory_bytes, 'memory', 3)}",
            source=os_says,
            trust="as it is told",
        ),
        Figure(
            name="GPUs",
            text=", ".join(f"{gpu.name}{' (simulated)' if gpu.simulated else ''}" for gpu in machine.gpus) or "none",
            source="the GPU's driver",
            trust="as it is told",
        ),
    ]
    for card in machine.meters:
        accuracy = "not stated" if card.accuracy_ratio is None else f"± {card.accuracy_ratio:.1%}"
        figures.append(
            Figure(
                name=f"meter {card.domain}",
                text=card.name,
                source=f"{card.source}{', simulated' if card.simulated else ''}",
                trust=f"a new value every {format_quantity(card.resolution_s, 'time', 3)}; accuracy {accuracy}",
            )
        )
    if not machine.meters:
        figures.append(
            Figure(name="meters of energy", text="none", source=os_says, trust="energy is unknown here, never 0 J")
        )
        means = "No energy meter answers here, so energy measured on this machine is said to be unknown, never guessed."
    else:
        domains = ", ".join(card.domain + (" (simulated)" if card.simulated else "") for card in machine.meters)
        means = f"Energy is told here by {domains}."
    figures.insert(
        1,
        Figure(
            name="already at work",
            text=f"{found.busy_with:.1f} programs on {machine.cpu_count} threads",
            source="the operating system's load average of a minute, before the demo",
            trust="what else runs slows down all that follows" if found.busy_with > 0.5 else "this machine is quiet",
            value=found.busy_with,
        ),
    )
    reasons = tuple(f"{kind}: {why}" for kind, why in machine.missing.items())
    return Told(means=means, figures=tuple(figures), notes=reasons)
