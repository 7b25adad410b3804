"""Tune a model that is served in this process: queries come as a load says, and energy and latency are measured."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattsmith.flows.measuring import open_session
from wattsmith.flows.record_worker import domains_of
from wattsmith.flows.serving_knobs import How, NotAvailable, how_of
from wattsmith.flows.serving_model import ServedModel, Server
from wattsmith.flows.tuning import Goal, Knobs, Watch, as_knobs, tune
from wattsmith.flows.tuning_hardware import Means, is_hardware
from wattsmith.measure.session import Session
from wattsmith.terms.energy import Source, Window
from wattsmith.terms.errors import BadInput, WattsmithError
from wattsmith.terms.tuning import Failed, Knob, Level, Trial, Tuned
from wattsmith.tune.goals import parse_limits, parse_objective
from wattsmith.tune.judge import SPENT
from wattsmith.tune.load import Served, poisson_of, replayed, steady
from wattsmith.tune.result import SIMULATED
from wattsmith.tune.search import SWITCH
from wattsmith.tune.serving import Begins, serve, serve_clients

__all__ = ["Load", "TriedServing", "load_of_trace", "measure_serving", "served_at", "tune_serving"]

WINDOW_S = 4.0  # how long one trial serves
PATIENCE = 1.0  # how long stragglers are waited for, in lengths of the load
PERCENTILES = {"latency_p50_s": 0.5, "latency_p90_s": 0.9, "latency_p95_s": 0.95, "latency_p99_s": 0.99}
# Levels are written from what a person writes first towards what usually saves; threads and the share the other way.
SAVES = dict.fromkeys(("batch", "wait", "pace", "precision", "graph", "layout"), "up")
ENERGY_NOISE = 0.01  # of a window of some seconds; see docs/meters.md


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How queries come during one trial: at a rate, from clients that wait for their answer, or as in a trace."""

    kind: str = "poisson"  # "poisson", "steady", "clients" or "trace"
    rate_hz: float | None = None  # of poisson and steady
    clients: int | None = None
    times_s: tuple[float, ...] = ()  # of a trace
    duration_s: float = WINDOW_S
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind in ("poisson", "steady"):
            if self.rate_hz is None or not 0 < self.rate_hz < math.inf:
                raise BadInput(f"how many queries come in a second? The rate must be positive, got {self.rate_hz}")
            if self.count < 1:
                raise BadInput(
                    f"{self.rate_hz:g} queries a second make none in {self.duration_s:g} s: serve for longer"
                )
        elif self.kind == "clients":
            if self.clients is None or self.clients < 1:
                raise BadInput(f"a closed loop needs at least one client, got {self.clients}")
        elif self.kind != "trace":
            raise BadInput(f"there is no load {self.kind!r}; there are poisson, steady, clients and trace")
        elif not self.times_s:
            raise BadInput("a trace without arrivals cannot be replayed")
        if not 0 < self.duration_s < math.inf:
            raise BadInput(f"a trial must last a positive, finite time, got {self.duration_s} s")

    @property
    def count(self) -> int:
        """Queries of a trial, where that is known before."""
        return round((self.rate_hz or 0.0) * self.duration_s)

    def arrivals_s(self, again: int) -> list[float]:
        """When they come in the trial numbered AGAIN: other moments, as many queries."""
        if self.kind == "poisson":
            return poisson_of(self.count, self.duration_s, self.seed + again)
        if self.kind == "steady":
            assert self.rate_hz is not None
            return steady(self.rate_hz, self.duration_s)
        arrivals = replayed(self.times_s)
        return [at for at in arrivals if at <= self.duration_s]


def load_of_trace(path: Path, *, faster: float = 1.0, duration_s: float | None = None) -> Load:
    """The arrivals in PATH: a time in seconds at the front of each line, before a comma; a first line may be words."""
    try:
        lines = [line.split(",")[0].strip() for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as refused:
        raise BadInput(f"{path} cannot be read: {refused}") from refused
    times: list[float] = []
    for number, text in enumerate(lines, 1):
        try:
            times.append(float(text))
        except ValueError as wrong:
            if number > 1:
                raise BadInput(f"{path}, line {number}: {text!r} is no time in seconds") from wrong
    arrivals = tuple(replayed(times, faster))
    return Load(kind="trace", times_s=arrivals, duration_s=duration_s or max(arrivals[-1], 1e-3))


def served_at(
    servers: Sequence[Server], how: How, load: Load, again: int = 0, ready: Callable[[], object] = lambda: None
) -> Served:
    """LOAD served by SERVERS; READY is called when they are warm, before the first query comes."""
    begins = Begins(prepare=lambda one: one.warm(), ready=ready)  # type: ignore[attr-defined]
    if load.kind == "clients":
        assert load.clients is not None
        return serve_clients(load.clients, load.duration_s, servers, how.policy, begins=begins)
    patience_s = PATIENCE * load.duration_s
    return serve(load.arrivals_s(again), servers, how.policy, patience_s=patience_s, begins=begins)


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedServing:
    """One stretch of serving, with all that was measured."""

    served: Served
    metrics: Mapping[str, float]
    noise: Mapping[str, float]
    switch_s: float  # to make the setting: copies, warm-up, recording of graphs


def measure_serving(model: ServedModel, how: How, load: Load, session: Session, again: int = 0) -> TriedServing:
    """Serve LOAD once as HOW says. Raises what the model raises."""
    whole, loads, began_s = session.begin("trial"), [], time.perf_counter()
    try:
        # Only now the clock of the load begins: servers have been made and warmed.
        served = served_at(model.servers(how), how, load, again, lambda: loads.append(session.begin("load")))
    finally:
        for window in (*loads, whole):
            window.end()
    switch_s = time.perf_counter() - began_s - loads[0].duration_s
    of_load, of_trial = loads[0].result(), whole.result()
    energy_j = energy_of(of_load, model.device)
    metrics: dict[str, float] = {
        "time_s": sum(served.latencies_s) / max(served.answered, 1),
        **{name: served.percentile_s(share) for name, share in PERCENTILES.items()},
        "throughput": served.answered / served.duration_s,
        "answered_share": served.answered / served.arrived,
        "batch_mean": served.answered / max(served.batches, 1),
        "switch_s": switch_s,
        SWITCH: switch_s / load.duration_s,
    }
    noise = {"latency": max(served.percentile_error(0.99), 0.01)}
    if energy_j is not None and served.answered:
        metrics |= {"energy_j": energy_j / served.answered, "power_w": energy_j / of_load.duration_s}
        spent_j = energy_of(of_trial, model.device)
        metrics |= {} if spent_j is None else {SPENT: spent_j}
        noise["energy"] = max(ENERGY_NOISE, _meter_noise(of_load))
    memory_bytes = model.memory_bytes()
    if memory_bytes is not None:
        metrics["memory_bytes"] = float(memory_bytes)
    if of_load.simulated:
        metrics[SIMULATED] = 1.0
    noise |= {name.removesuffix("_s"): max(served.percentile_error(share), 0.01) for name, share in PERCENTILES.items()}
    return TriedServing(served=served, metrics=metrics, noise=noise, switch_s=switch_s)


def energy_of(window: Window, device: str) -> float | None:
    """Joules of DEVICE and of what serves it: other GPUs of the machine are left out. None: not known."""
    domains = [one.domain for one in window.counted]
    own = domains_of(device, domains)
    told = [one.energy_j for one in window.counted if one.domain in own or not one.domain.startswith("gpu:")]
    if not told or (device != "cpu" and not own):
        return None
    known = [one for one in told if one is not None]
    return sum(known) if len(known) == len(told) else None


def _meter_noise(window: Window) -> float:
    error_j, energy_j = window.error_j, window.energy_j
    # The bound is for the worst; errors of one and the same meter are alike from trial to trial.
    return 0.0 if error_j is None or not energy_j else 0.25 * error_j / energy_j


def tune_serving(
    model: Any,
    knobs: Knobs,
    load: Load,
    goal: Goal | None = None,
    *,
    inputs: Any = None,
    device: str = "cpu",
    meters: str = "auto",
    trials: Path | None = None,
    watch: Watch | None = None,
    means: Means | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Search the settings of KNOBS for MODEL served under LOAD in this process.

    MODEL and INPUTS as in `estimate`, KNOBS as in `tune`, with names of `serving_knobs.KNOBS`. A level that does not
    work here, or runs out of memory, is a setting that cannot be used. SAY is told which are not available at all.
    """
    knobs = as_knobs(knobs)
    check_levels(knobs)
    with ServedModel(model, inputs=inputs, device=device) as served, open_session(meters) as session:
        _check_meters(session, device, goal or Goal(), say)
        knobs, made = available_knobs(served, knobs, say), [0]

        def measure(setting: Mapping[str, Level]) -> Trial | Failed:
            made[0] += 1
            return tried(served, setting, load, session, made[0])

        goal = replace(goal or Goal(), canary=True)
        return tune(measure, knobs, goal, trials=trials, watch=watch, means=means, say=say)


def _check_meters(session: Session, device: str, goal: Goal, say: Callable[[str], None]) -> None:
    """Raise BadInput where energy is wanted and nothing tells it; say so where it is modelled."""
    wanted = {*parse_objective(goal.objective), *(one.metric for one in parse_limits(goal.limits))}
    domains = [card.domain for card in session.cards]
    told = domains_of(device, domains) or [one for one in domains if device == "cpu" and not one.startswith("gpu:")]
    if wanted & {"energy", "power"} and not told:
        raise BadInput(
            f"no meter tells the energy of {device} here; `wattsmith machine` says why. Minimise time instead, or have "
            "the CPU's energy modelled: --meters modelled:10W-65W"
        )
    if any(card.source is Source.MODELLED for card in session.cards):
        say("energy is modelled from how busy the CPU is, not measured")


def check_levels(knobs: Sequence[Knob]) -> None:
    """Raise BadInput where a level is written wrongly, before anything is served."""
    for knob in knobs:
        for level in () if is_hardware(knob.name) else knob.levels:
            how_of({knob.name: level})


def available_knobs(model: ServedModel, knobs: Sequence[Knob], say: Callable[[str], None]) -> list[Knob]:
    """KNOBS without the levels that this machine does not have at all, and with where they usually save."""
    left = []
    for knob in knobs:
        if is_hardware(knob.name):
            left.append(knob)
            continue
        levels = []
        for level in knob.levels:
            try:
                model.check_available(how_of({knob.name: level}))
            except NotAvailable as missing:
                if level == knob.present:
                    raise BadInput(f"{knob.name} cannot start at {level}: {missing}") from missing
                say(f"{knob.name}={level} is left out: {missing}")
            else:
                levels.append(level)
        left.append(replace(knob, levels=tuple(levels), saves=SAVES.get(knob.name, knob.saves)))
    return left


def tried(
    model: ServedModel, setting: Mapping[str, Level], load: Load, session: Session, again: int = 0
) -> Trial | Failed:
    """What came of serving at SETTING."""
    try:
        measured = measure_serving(model, how_of(setting), load, session, again)
    except WattsmithError as refused:
        return Failed(why=str(refused))
    except Exception as failed:  # noqa: BLE001 - a user's model raises anything; it is this setting that cannot be used
        why = f"{type(failed).__name__}: {(str(failed).strip() or 'no message').splitlines()[0]}"
        _recover(model, why)
        return Failed(why=why)
    return Trial(setting=dict(setting), metrics=measured.metrics, noise=measured.noise)


def _recover(model: ServedModel, why: str) -> None:
    """Make room again. A GPU that does not answer any more ends the search: all that follows would fail."""
    model.forget()
    if model.cuda:
        import torch

        try:
            torch.cuda.synchronize(model.device)
        except RuntimeError as dead:
            raise BadInput(f"the GPU does not answer any more after a trial that failed ({why}); start again") from dead
