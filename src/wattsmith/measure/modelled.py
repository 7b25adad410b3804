"""CPU power computed from a stated model, for machines without a meter. Built only when asked for by name."""

import re
from collections.abc import Callable
from dataclasses import dataclass

from wattsmith.measure.host import cpu_busy_s, cpu_count
from wattsmith.terms.energy import CounterReading, MeterCard, Readings, Source
from wattsmith.terms.errors import BadTerm, MeterLost
from wattsmith.terms.ports import Clock, Meter
from wattsmith.terms.quantity import parse_quantity

_TICK_S = 0.01  # the kernel counts CPU time in such steps
_POLL_S = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerModel:
    """Power of the whole CPU, linear in the share of it that is busy."""

    idle_w: float
    busy_w: float

    def __post_init__(self) -> None:
        if not 0 <= self.idle_w <= self.busy_w or self.busy_w == 0:
            raise BadTerm(
                f"a model goes from idle to busy power, the second not below the first: got {self.idle_w:g} W "
                f"to {self.busy_w:g} W"
            )

    def energy_j(self, duration_s: float, busy_s: float) -> float:
        """Over DURATION_S, of which BUSY_S were busy: the mean over CPUs, at most DURATION_S."""
        return self.idle_w * duration_s + (self.busy_w - self.idle_w) * min(busy_s, duration_s)


def parse_model(text: str) -> PowerModel:
    """A model written as idle and busy power: "10W-65W"."""
    matched = re.fullmatch(r"(.*[A-Za-z])\s*-(.*)", text.strip(), re.DOTALL)
    if matched is None:
        raise BadTerm(f"{text!r} is no power model: write idle and busy power of the CPU, such as 10W-65W")
    idle, busy = matched.groups()
    return PowerModel(idle_w=parse_quantity(idle, "power"), busy_w=parse_quantity(busy, "power"))


def find_modelled(
    clock: Clock,
    model: str,
    *,
    busy_s: Callable[[], float] = cpu_busy_s,
    cpus: int | None = None,
) -> list[Meter]:
    """One meter of the whole CPU by MODEL ("10W-65W"). BUSY_S tells CPU seconds of work, over all CPUS together."""
    return [ModelledMeter(clock, parse_model(model), busy_s, cpus or cpu_count())]


class ModelledMeter:
    """Joules by the model since it was built. Nothing is measured but how busy the CPUs are."""

    def __init__(self, clock: Clock, model: PowerModel, busy_s: Callable[[], float], cpus: int) -> None:
        self._clock, self._model, self._busy_s, self._cpus = clock, model, busy_s, cpus
        self._began_s, self._busy_before_s = clock.now_s(), busy_s()
        self._last_s, self._last_j = self._began_s, 0.0
        self._open = True
        self.card = MeterCard(
            domain="cpu-package:modelled",
            name=f"modelled: {model.idle_w:g} W idle … {model.busy_w:g} W busy",
            source=Source.MODELLED,
            counter_period_s=_TICK_S,
            poll_period_s=_POLL_S,
            note=f"nothing was measured: CPU power = {model.idle_w:g} W + "
            f"{model.busy_w - model.idle_w:g} W × share of {cpus} CPUs that is busy, by all programs together",
        )

    def read(self, *, counter: bool) -> Readings:  # noqa: ARG002  it costs nothing: always given
        if not self._open:
            raise MeterLost(f"{self.card.domain} was closed")
        busy_s = (self._busy_s() - self._busy_before_s) / self._cpus
        now_s = self._clock.now_s()
        told_j = self._model.energy_j(now_s - self._began_s, max(0.0, busy_s))
        # The kernel's busy time comes in ticks, and steps back a little when a CPU is switched off: between two
        # readings the counter moves by what the model can draw, and takes the rest with the next.
        step_s = now_s - self._last_s
        least_j, most_j = self._last_j + self._model.idle_w * step_s, self._last_j + self._model.busy_w * step_s
        self._last_s, self._last_j = now_s, min(max(told_j, least_j), most_j)
        return Readings(counter=CounterReading(now_s, self._last_j))

    def close(self) -> None:
        self._open = False
