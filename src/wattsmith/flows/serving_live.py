"""Serve a model and tune it meanwhile: one safe step at a time, and back at once when the limit is broken."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.flows.serving import Load, available_knobs, check_levels, measure_serving
from wattsmith.flows.serving_beside import FineTuning
from wattsmith.flows.serving_knobs import how_of
from wattsmith.flows.serving_model import ServedModel
from wattsmith.flows.tuning_hardware import is_hardware
from wattsmith.measure.session import Session
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Knob, Level
from wattsmith.tune.goals import Limit, parse_limits
from wattsmith.tune.live import LiveTuner, Seen

__all__ = ["LiveWindow", "Stretch", "serve_live"]

WINDOW_S = 1.0
SHARES = {"latency_p50": 0.5, "latency_p90": 0.9, "latency_p95": 0.95, "latency_p99": 0.99}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """A time during which queries come at one rate."""

    rate_hz: float
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveWindow:
    """What came of one window, at which setting."""

    number: int  # from 1
    setting: Mapping[str, Level]
    rate_hz: float
    latency_s: float  # the percentile that the limit is about
    energy_per_query_j: float | None
    over: float  # share of queries over the limit
    trained: int | None  # steps of fine-tuning meanwhile; None: there was none, or it was held


def serve_live(
    model: Any,
    knobs: Sequence[Knob],
    stretches: Sequence[Stretch],
    limit: str | Limit,
    *,
    inputs: Any = None,
    device: str = "cpu",
    meters: str = "auto",
    beside: FineTuning | None = None,
    window_s: float = WINDOW_S,
    say: Callable[[str], None] = lambda _: None,
) -> Iterator[LiveWindow]:
    """Serve MODEL through STRETCHES, window by window, and tell of each; the present levels of KNOBS must be safe.

    BESIDE is fine-tuned meanwhile: it is held when the limit is broken at the safe setting, and tried again when the
    rate changes.
    """
    (bound,) = parse_limits([limit])
    if bound.metric not in SHARES or bound.relative or bound.bound != "at most":
        known = ", ".join(SHARES)
        raise BadInput(f"a live search keeps a limit such as latency_p99<=50ms, of {known}; got {bound}")
    if any(is_hardware(knob.name) for knob in knobs):
        raise BadInput("a live search turns what needs no privilege; knobs of the machine are for `tune serve` itself")
    if not stretches:
        raise BadInput("for how long, and at which rates, is to be served? Give at least one")
    check_levels(knobs)
    with ExitStack() as open_ones:
        served = open_ones.enter_context(ServedModel(model, inputs=inputs, device=device))
        session = open_ones.enter_context(open_session(meters))
        if beside is not None:
            open_ones.enter_context(beside)
        live = _Live(served, available_knobs(served, knobs, say), bound, session, beside, say)
        for stretch in stretches:
            for _ in range(max(1, round(stretch.duration_s / window_s))):
                yield live.window(stretch.rate_hz, window_s)
        if live.energy_unknown:
            say("energy is not known here, so that nothing was moved; `wattsmith machine` says what can be measured")


class _Live:
    """The service, its tuner, and what runs beside."""

    def __init__(
        self,
        model: ServedModel,
        knobs: Sequence[Knob],
        limit: Limit,
        session: Session,
        beside: FineTuning | None,
        say: Callable[[str], None],
    ) -> None:
        self._model, self._knobs, self._limit, self._session = model, {one.name: one for one in knobs}, limit, session
        self._beside, self._say = beside, say
        self._safe = {one.name: one.levels.index(one.present) for one in knobs}
        self._tuner = LiveTuner({one.name: len(one.levels) for one in knobs}, self._safe, limit.value)
        self._rate_hz = math.nan
        self._held = False
        self._number = 0
        self.energy_unknown = False

    def window(self, rate_hz: float, window_s: float) -> LiveWindow:
        if rate_hz != self._rate_hz:
            self._changed(rate_hz)
        levels = self._tuner.setting
        setting = {name: self._knobs[name].levels[at] for name, at in levels.items()}
        self._number += 1
        before = self._beside.steps if self._beside else 0
        load = Load(rate_hz=rate_hz, duration_s=window_s)
        got = measure_serving(self._model, how_of(setting), load, self._session, self._number)
        latency_s = got.served.percentile_s(SHARES[self._limit.metric])
        energy_j = got.metrics.get("energy_j")
        self.energy_unknown |= energy_j is None
        trained = None if self._beside is None or self._held else self._beside.steps - before
        self._tuner.observe(Seen(latency_s=latency_s, energy_per_query_j=energy_j, rate_hz=rate_hz))
        if latency_s > self._limit.value and levels == self._safe:
            self._make_room()
        return LiveWindow(
            number=self._number,
            setting=setting,
            rate_hz=rate_hz,
            latency_s=latency_s,
            energy_per_query_j=energy_j,
            over=got.served.over(self._limit.value),
            trained=trained,
        )

    def _changed(self, rate_hz: float) -> None:
        """Another load: nothing that was learned is sure, and fine-tuning may fit again."""
        self._rate_hz = rate_hz
        self._tuner.start_again()
        if self._beside is not None and self._held:
            self._held = False
            self._beside.go_on()
            self._say("the load has changed: fine-tuning goes on")

    def _make_room(self) -> None:
        """The safe setting itself broke the limit: what runs beside has to wait."""
        if self._beside is None or self._held:
            return
        self._held = True
        self._beside.hold()
        self._tuner.start_again()
        self._say("the limit is broken at the safe setting: fine-tuning is held")
