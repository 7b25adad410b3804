"""Serve a model and tune it meanwhile: one safe step at a time, and back at once when the limit is broken."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.flows.serving import Load, available_knobs, check_levels, measure_serving
from wattsmith.flows.serving_beside import FineTuning, Shared, jobs_of, learn_contention
from wattsmith.flows.serving_knobs import how_of
from wattsmith.flows.serving_model import ServedModel
from wattsmith.flows.tuning_hardware import is_hardware
from wattsmith.measure.session import Session
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Knob, Level, Space
from wattsmith.tune.contention import Job, Plan, plan
from wattsmith.tune.goals import Limit, parse_limits
from wattsmith.tune.live import LiveTuner, Seen
from wattsmith.tune.load import poisson_of
from wattsmith.tune.serving import Policy

__all__ = ["LiveWindow", "Stretch", "serve_live"]

WINDOW_S = 1.0
PAIR_S = 0.2  # for which a batch is run beside fine-tuning, to learn what that costs
FORESEEN = 500  # queries at least, by which a plan is judged
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

    BESIDE is fine-tuned meanwhile. What that costs is measured first, so that at each new rate it is planned with which
    batch and wait the limit should hold beside it, and whether it has to wait. It is held, too, when the limit is
    broken at the safe setting.
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
        usable = available_knobs(served, knobs, say)
        planner = None if beside is None else _Planner.learn(served, usable, beside, bound.value)
        if beside is not None:
            open_ones.enter_context(beside)
        live = _Live(served, usable, bound, session, beside, planner, say)
        for stretch in stretches:
            for _ in range(max(1, round(stretch.duration_s / window_s))):
                yield live.window(stretch.rate_hz, window_s)
        if live.energy_unknown:
            say("energy is not known here, so that nothing was moved; `wattsmith machine` says what can be measured")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planner:
    """Knows what fine-tuning costs a batch; says at which batch and wait the limit should hold at a rate."""

    shared: Shared
    inference: Mapping[int, Job]  # by batch
    policies: Mapping[Policy, Mapping[str, int]]  # those that knobs have levels for, with these levels
    limit_s: float

    @classmethod
    def learn(cls, model: ServedModel, knobs: Sequence[Knob], beside: FineTuning, limit_s: float) -> "_Planner | None":
        """Measured on the spot; None where the batch is not turned, so that there is nothing to choose."""
        batches = next((knob.levels for knob in knobs if knob.name == "batch"), ())
        if len(batches) < 2:
            return None
        safe = {knob.name: knob.levels.index(knob.present) for knob in knobs}
        turned = [knob for knob in knobs if knob.name in ("batch", "wait")]
        policies: dict[Policy, Mapping[str, int]] = {}
        for cell in Space(knobs=tuple(turned)).cells():
            levels = safe | {knob.name: at for knob, at in zip(turned, cell, strict=True)}
            policies[how_of(_setting(knobs, levels)).policy] = levels
        sizes = [policy.batch for policy in policies]
        shared = learn_contention(model, how_of(_setting(knobs, safe)), [beside], sorted(set(sizes)), PAIR_S)
        inference = jobs_of(model.loaded, range(1, max(sizes) + 1), trains=False)
        return cls(shared=shared, inference=inference, policies=policies, limit_s=limit_s)

    def plan(self, rate_hz: float) -> Plan | None:
        other = next(pair.fine_tuning for pair in self.shared.pairs if pair.fine_tuning is not None)

        def latency_s(batch: int, beside: bool) -> float:
            return self.shared.contention.latency_s(self.inference[batch], other if beside else None)

        count = max(FORESEEN, round(rate_hz))
        return plan(poisson_of(count, count / rate_hz), self.limit_s, latency_s, policies=list(self.policies))


def _setting(knobs: Iterable[Knob], levels: Mapping[str, int]) -> dict[str, Level]:
    return {knob.name: knob.levels[levels[knob.name]] for knob in knobs}


class _Live:
    """The service, its tuner, and what runs beside."""

    def __init__(
        self,
        model: ServedModel,
        knobs: Sequence[Knob],
        limit: Limit,
        session: Session,
        beside: FineTuning | None,
        planner: _Planner | None,
        say: Callable[[str], None],
    ) -> None:
        self._planner = planner
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
        setting = _setting(self._knobs.values(), levels)
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
        """Another load: nothing that was learned is sure, and fine-tuning may fit again, or no longer."""
        self._rate_hz = rate_hz
        planned = None if self._planner is None else self._planner.plan(rate_hz)
        if self._planner is None or planned is None:
            self._tuner.start_again()
        else:
            self._tuner.start_again(self._planner.policies[planned.policy])
        if self._beside is None:
            return
        fits = self._planner is None or (planned is not None and planned.fine_tunes)
        if fits and self._held:
            self._beside.go_on()
            self._say(f"at {rate_hz:g}/s fine-tuning goes on")
        elif not fits and not self._held:
            self._beside.hold()
            self._say(f"at {rate_hz:g}/s the limit leaves no room for fine-tuning: it is held")
        self._held = not fits

    def _make_room(self) -> None:
        """The safe setting itself broke the limit: what runs beside has to wait."""
        if self._beside is None or self._held:
            return
        self._held = True
        self._beside.hold()
        self._tuner.start_again()
        self._say("the limit is broken at the safe setting: fine-tuning is held")
