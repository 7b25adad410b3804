"""`wattsmith tune serve`: a model served in this process, at the setting that needs the least within limits."""

import json
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from wattsmith.cli.tuning import (
    AsJson,
    Budget,
    LeastGain,
    Limits,
    Minimise,
    Noise,
    Plot,
    Prime,
    Shared,
    Socket,
    Trials,
    check_files,
    finish,
    goal_of,
    positive_s,
    setting_text,
    tell_trial,
    tune,
    warn,
)
from wattsmith.flows.serving import Load, load_of_trace, tune_serving
from wattsmith.flows.serving_beside import FineTuning
from wattsmith.flows.serving_live import LiveWindow, Stretch, serve_live
from wattsmith.flows.serving_model import usual_device
from wattsmith.flows.tuning import curve_in, parse_knobs
from wattsmith.flows.tuning_cache import cached_trials, set_aside_if_damaged, source_mark
from wattsmith.flows.tuning_hardware import Means
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.tuning import Knob


@tune.command()
def serve(
    model: Annotated[
        str,
        typer.Argument(help="FILE.py:NAME, package.module:NAME, config.json or FILE.pt2", metavar="MODEL"),
    ],
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="batch=1,2,4, concurrency=1,2, wait=0,5ms, pace=0,10ms, precision=fp32,bf16, layout, graph=off,on, "
            "share=100%,50%, threads, affinity=0-3,0-7, or one of the machine: gpu:0/power_limit=400W,700W.",
            metavar="NAME=LEVELS",
        ),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where a knob is now, such as batch=4; else its first level.", metavar="NAME=LEVEL"),
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--input", help="Size of one query, such as 3x224x224 or 128:int64; once per input.", metavar="SIZE"
        ),
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cuda:0 and so on, or cpu; else the first GPU, if any.", metavar="NAME")
    ] = None,
    rate: Annotated[
        str | None, typer.Option(help="Queries per second; with --live several in turn: 100,300.", metavar="N")
    ] = None,
    load: Annotated[str, typer.Option(help="poisson or steady.", metavar="KIND")] = "poisson",
    clients: Annotated[
        int | None, typer.Option(help="So many who ask again as soon as they are answered, instead.", metavar="N")
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Arrivals, a time in seconds a line, instead of a rate.", metavar="FILE")
    ] = None,
    faster: Annotated[float, typer.Option(help="Replay the trace so many times as fast.", metavar="X")] = 1.0,
    window: Annotated[str, typer.Option(help="How long one trial serves.", metavar="TIME")] = "4s",
    limit: Limits = None,
    minimise: Minimise = "energy",
    budget: Budget = 20,
    noise: Noise = None,
    least_gain: LeastGain = "1%",
    trials: Trials = None,
    cache: Annotated[
        bool, typer.Option("--cache/--no-cache", help="Go on from earlier trials of the same here.")
    ] = True,
    prime: Prime = None,
    meters: Annotated[str, typer.Option(help="What measures energy.", metavar="NAMES")] = "auto",
    live: Annotated[
        str | None, typer.Option(help="Serve for so long and tune meanwhile, one safe step at a time.", metavar="TIME")
    ] = None,
    beside: Annotated[
        int | None, typer.Option(help="With --live: fine-tune a copy meanwhile, in batches of N.", metavar="N", min=1)
    ] = None,
    socket: Socket = None,
    shared: Shared = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Serve a model here under a load, at one setting after another, and tell which needs the least within limits.

    Example: wattsmith tune serve net.py:build --input 3x64x64 --rate 200 --knob batch=1,2,4 --limit 'latency_p99<=20ms'
    """
    check_files(plot, trials)
    knobs = parse_knobs(knob or [], at or [], first=True)
    if not knobs:
        raise BadInput("there is no knob to turn: give one with its levels, such as --knob batch=1,2,4,8")
    device = device or usual_device()
    if live is not None:
        _check_live({"--clients": clients, "--trace": trace, "--trials": trials, "--plot": plot, "--prime": prime})
        _live(model, knobs, inputs, device, rate, limit, live, window, beside, meters, as_json=as_json)
        return
    if beside is not None:
        raise BadInput("fine-tuning beside is for --live; without it, tune what is served alone")
    comes = _load(rate, load, clients, trace, faster, positive_s("--window", window))
    goal = goal_of(minimise, limit, budget, noise, least_gain, prime=[curve_in(path, knobs) for path in prime or []])
    if trials is None and cache:
        workload = {"model": source_mark(model), "inputs": inputs, "load": as_plain(comes)}
        trials = cached_trials(workload, knobs, device=device, meters=meters)
        set_aside_if_damaged(trials, warn)
        if trials.is_file():
            warn(f"trials that were made earlier are in {trials}; --no-cache measures anew")
    with redirect_stdout(sys.stderr):  # what a model prints is no part of the answer
        found = tune_serving(
            model,
            knobs,
            comes,
            goal,
            inputs=inputs,
            device=device,
            meters=meters,
            trials=trials,
            watch=tell_trial,
            means=Means(socket=socket, shared=shared),
            say=warn,
        )
    finish(found, limits=limit, plot=plot, as_json=as_json)


def _load(rate: str | None, kind: str, clients: int | None, trace: Path | None, faster: float, window_s: float) -> Load:
    given = [name for name, one in (("--rate", rate), ("--clients", clients), ("--trace", trace)) if one is not None]
    if len(given) != 1:
        raise BadInput(
            f"how do queries come? Give one of --rate, --clients and --trace, got {', '.join(given) or 'none'}"
        )
    if trace is not None:
        return load_of_trace(trace, faster=faster, duration_s=window_s)
    if clients is not None:
        return Load(kind="clients", clients=clients, duration_s=window_s)
    (only,) = _rates(rate or "", 1)
    return Load(kind=kind, rate_hz=only, duration_s=window_s)


def _rates(text: str, most: int | None = None) -> list[float]:
    try:
        rates = [float(one) for one in text.split(",")]
    except ValueError as wrong:
        raise BadInput(f"--rate must be queries per second, such as 200, got {text!r}") from wrong
    if most is not None and len(rates) > most:
        raise BadInput(f"several rates in turn are for --live, got {text!r}")
    return rates


def _check_live(others: Mapping[str, object]) -> None:
    given = [option for option, value in others.items() if value]
    if given:
        raise BadInput(
            f"{given[0]} is not for --live, which serves at --rate and keeps no trials; leave one of them out"
        )


def _live(
    model: str,
    knobs: list[Knob],
    inputs: list[str] | None,
    device: str,
    rate: str | None,
    limit: list[str] | None,
    live: str,
    window: str,
    beside: int | None,
    meters: str,
    *,
    as_json: bool,
) -> None:
    rates = _rates(rate or "")
    if len(limit or []) != 1:
        raise BadInput("a live search keeps one limit: --limit 'latency_p99<=50ms'")
    each_s = positive_s("--live", live) / len(rates)
    stretches = [Stretch(rate_hz=one, duration_s=each_s) for one in rates]
    tuned = None if beside is None else FineTuning(model, batch=beside, inputs=inputs, device=device)
    windows = []
    with redirect_stdout(sys.stderr):
        for one in serve_live(
            model, knobs, stretches, (limit or [])[0], inputs=inputs, device=device, meters=meters, beside=tuned,
            window_s=positive_s("--window", window), say=warn,
        ):  # fmt: skip
            windows.append(one)
            warn(_window_text(one))
    if as_json:
        typer.echo(json.dumps(as_plain(windows)))
    else:
        print_live(windows)


def _window_text(one: LiveWindow) -> str:
    energy = "unknown energy" if one.energy_per_query_j is None else format_quantity(one.energy_per_query_j, "energy")
    trained = "" if one.trained is None else f", {one.trained} steps trained"
    return (
        f"window {one.number}: {one.rate_hz:g}/s, {setting_text(one.setting)} → "
        f"{format_quantity(one.latency_s, 'time')}, {energy} per query, {one.over:.1%} over{trained}"
    )


def print_live(windows: list[LiveWindow]) -> None:
    """By rate: at which setting it ended, and what the first and the last windows needed."""
    table = Table(box=None, pad_edge=False)
    for heading in ("rate", "windows", "ends at", "energy at first", "at last", "over the limit"):
        table.add_column(heading, justify="right")
    begin = 0
    for at in range(1, len(windows) + 1):
        if at < len(windows) and windows[at].rate_hz == windows[begin].rate_hz:
            continue
        part = windows[begin:at]
        over = sum(one.over for one in part) / len(part)
        first, last = (
            "unknown" if one.energy_per_query_j is None else format_quantity(one.energy_per_query_j, "energy")
            for one in (part[0], part[-1])
        )
        table.add_row(
            f"{part[0].rate_hz:g}/s", str(len(part)), setting_text(part[-1].setting), first, last, f"{over:.2%}"
        )
        begin = at
    Console().print(table)
