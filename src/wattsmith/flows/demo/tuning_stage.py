"""A small model, served in this process under a load, and the setting that costs least within a limit on latency."""

import math
import os
import time
from collections.abc import Mapping
from dataclasses import replace

from wattsmith.flows.demo.charts import Dot, scatter
from wattsmith.flows.demo.facts import Figure, Found, Tell, Told, need_torch
from wattsmith.flows.measuring import open_session
from wattsmith.flows.serving import Load, energy_of, served_at
from wattsmith.flows.serving_knobs import how_of
from wattsmith.flows.serving_model import ServedModel
from wattsmith.flows.tuning import Goal, Manner, parse_knobs, tune
from wattsmith.measure.session import Session
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.tuning import Level, Recommendation, Trial, Tried, Tuned

TITLE = "Batch and threads under a limit on latency"
YOURSELF = (
    "wattsmith tune serve net.py:build --input 3x32x32 --rate 100 --knob batch=1,4,16 --knob threads=1,2 "
    "--limit 'latency_p99<=100ms'"
)
SHARE = 0.4  # of what one client after the other gets, that is what comes
TIMES = 4.0  # of the latency that nine in ten have at the present setting: the limit
NOISE = {"cpu": 0.05, "energy": 0.05, "latency_p99": 0.2}  # relative, of stretches as short as these
LEAST_QUERIES = 20  # of a trial, at the mean: where few come in a second, it lasts longer
LEAST_LIMIT_S = 0.05  # below this, a busy desktop breaks any limit now and then


def run(found: Found, tell: Tell) -> Told:
    """Serve, search, and tell what was found."""
    need_torch("serving a model")
    from wattsmith.flows.demo.networks import small_network

    with ServedModel(small_network(), inputs="3x32x32") as model, open_session() as session:
        tell("how many queries a second one client gets at batch 1")
        alone = Load(kind="clients", clients=1, duration_s=found.scale.trial_s)
        rate_hz = max(5.0, SHARE * _served(model, {"batch": 1}, alone, session)["throughput"])
        load = Load(rate_hz=rate_hz, duration_s=max(found.scale.trial_s, LEAST_QUERIES / rate_hz))
        present = {"batch": 1, "wait": 0, "threads": 1}
        limit_s = max(LEAST_LIMIT_S, TIMES * _served(model, present, load, session)["latency_p90_s"])
        limit_s = math.ceil(100 * limit_s) / 100
        measured = 0

        def measure(setting: Mapping[str, Level]) -> Trial:
            nonlocal measured
            measured += 1
            metrics = _served(model, setting, load, session, measured)
            return Trial(setting=dict(setting), metrics=metrics, noise=NOISE)

        def watch(number: int, setting: Mapping[str, Level], trial: Trial) -> None:
            tell(f"trial {number}: {_setting(setting)} → {_came(trial)}")

        objective = "energy" if found.has_cpu_meter else "cpu"
        limits = (f"latency_p99<={1000 * limit_s:.0f}ms",)
        result = tune(
            measure,
            parse_knobs(_knobs(), [], first=True),
            Goal(objective=objective, limits=limits, manner=Manner(budget=found.scale.trials, least_gain=0.02)),
            watch=watch,
        )
    told = _told(result, rate_hz, limit_s, "J" if found.has_cpu_meter else "CPU time")
    return replace(told, notes=(*told.notes, "the energy is that of a simulated meter")) if found.is_simulated else told


def _knobs() -> list[str]:
    cores = len(os.sched_getaffinity(0))
    return ["batch=1,2,4,8,16", "wait=0,10ms,20ms", "threads=1,2" if cores > 1 else "threads=1"]


def _served(
    model: ServedModel, setting: Mapping[str, Level], load: Load, session: Session, again: int = 0
) -> dict[str, float]:
    """What came of one stretch of serving: latencies, and what a query cost."""
    how, windows, begun_s = how_of(setting), [], []

    def ready() -> None:  # servers are warm, and the first query is about to come
        windows.append(session.begin("load"))
        begun_s.append(time.process_time())

    served = served_at(model.servers(how), how, load, again, ready)
    used_s = time.process_time() - begun_s[0]
    windows[0].end()
    energy_j = energy_of(windows[0].result(), "cpu")
    answered = max(served.answered, 1)
    metrics = {
        "cpu_s": used_s / answered,
        "latency_p90_s": served.percentile_s(0.90),
        "latency_p99_s": served.percentile_s(0.99),
        "throughput": served.answered / served.duration_s,
    }
    return metrics if energy_j is None else metrics | {"energy_j": energy_j / answered}


def _setting(setting: Mapping[str, Level]) -> str:
    return ", ".join(f"{name} {level}" for name, level in setting.items())


def _came(trial: Trial) -> str:
    if trial.failed:
        return trial.failed
    cpu, p99 = (format_quantity(trial.metrics[name], "time", 2) for name in ("cpu_s", "latency_p99_s"))
    return f"{cpu} of CPU a query, p99 {p99}"


def _told(result: Tuned, rate_hz: float, limit_s: float, what: str) -> Told:
    chosen, kind = result.recommendation, "energy" if what == "J" else "time"
    before, after = result.trials[0], _of(result, chosen.setting)
    names = "energy of a query" if what == "J" else "CPU time of a query"
    limit = format_quantity(limit_s, "time", 3)
    source = f"measured here: {rate_hz:.0f} queries a second as a Poisson process, served in this process"
    saving = chosen.saving
    saved = f"{saving.value:.0%} ({saving.low:.0%} … {saving.high:.0%})"
    figures = [
        Figure(
            name=f"{names}, {told}",
            text=f"{format_quantity(_mean(some, result), kind, 3)}; p99 {format_quantity(_p99(some), 'time', 2)}",
            source=source,
            trust=f"{len(some)} trial{'s' if len(some) > 1 else ''}: {_setting(some[0].trial.setting)}",
            value=_mean(some, result),
        )
        for told, some in (("as one would begin", [before]), ("as it was tuned", after))
    ]
    figures += [
        Figure(
            name="saved",
            text=saved,
            source=f"the tuner's belief after {len(result.trials)} of {_count()} settings",
            trust=f"90 % interval; p99 at most {limit} with a probability of {chosen.holds:.0%}",
            value=saving.value,
            low=saving.low,
            high=saving.high,
        )
    ]
    notes = (
        ("CPU time stands in for energy, which nothing here measures; with a meter, joules are minimised instead",)
        if what != "J"
        else ()
    )
    return Told(
        means=meant(chosen, before.trial.setting, limit, "energy" if what == "J" else "CPU time"),
        figures=tuple(figures),
        tile=(
            f"{-saving.value:+.0%}".replace("-", "−"),
            f"{names} when served, {f'99 of 100 within {limit}' if chosen.kept else f'p99 ≤ {limit} not surely kept'}",
        ),
        pictures=(_picture(result, limit_s, what, chosen.setting),),
        notes=notes,
    )


def meant(chosen: Recommendation, first: Mapping[str, Level], limit: str, what: str) -> str:
    """What CHOSEN means beside the FIRST setting, in one sentence."""
    served, saved = _setting(chosen.setting), chosen.saving.value
    if not chosen.kept:
        return f"No setting that was tried surely keeps p99 ≤ {limit} on this machine as it is now; nearest: {served}."
    if dict(chosen.setting) == dict(first):
        return f"Nothing that was tried is surely better than one query at a time within p99 ≤ {limit}, so it stays."
    if saved < 0:
        return f"Served as {served}, 99 of 100 queries are answered within {limit}, each for {-saved:.0%} more {what}."
    return (
        f"Served as {served}, a query needs {saved:.0%} less {what}, and 99 of 100 queries are still answered "
        f"within {limit}."
    )


def _count() -> int:
    return math.prod(len(knob.levels) for knob in parse_knobs(_knobs(), [], first=True))


def _of(result: Tuned, setting: Mapping[str, Level]) -> list[Tried]:
    return [one for one in result.trials if dict(one.trial.setting) == dict(setting) and one.objective is not None]


def _mean(some: list[Tried], result: Tuned) -> float:
    name = "energy_j" if result.objective == "energy" else "cpu_s"
    return sum(one.trial.metrics[name] for one in some) / len(some)


def _p99(some: list[Tried]) -> float:
    return max(one.trial.metrics["latency_p99_s"] for one in some)


def _picture(result: Tuned, limit_s: float, what: str, chosen: Mapping[str, Level]) -> str:
    dots = [
        Dot(
            x=one.trial.metrics["latency_p99_s"],
            y=one.objective,
            look="ring" if dict(one.trial.setting) == dict(chosen) else "first" if _held(one) else "bad",
            says=f"trial {one.number}: {_setting(one.trial.setting)}",
            label=str(one.number),
        )
        for one in result.trials
        if one.objective is not None
    ]
    return scatter(
        "Each trial of the search",
        dots,
        across=("latency that 99 of 100 queries keep", "time"),
        up=("energy of a query" if what == "J" else "CPU time of a query", "energy" if what == "J" else "time"),
        legend=(("ring", "recommended"), ("first", "keeps the limit"), ("bad", "breaks it")),
        at_most=limit_s,
    )


def _held(one: Tried) -> bool:
    return one.excess_ratio is not None and one.excess_ratio <= 0
