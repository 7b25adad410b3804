"""`wattsmith tune`: the setting of a command, or of a measured table, that needs the least within limits."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.table import Table

from wattsmith.cli.complaining import can_be_written
from wattsmith.flows.tuning import Goal, Manner, check_noise, curve_in, draw, parse_knobs
from wattsmith.flows.tuning_command import tune_command
from wattsmith.flows.tuning_hardware import Means
from wattsmith.flows.tuning_served import Serves
from wattsmith.flows.tuning_table import replay_table
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.quantity import format_quantity, parse_quantity
from wattsmith.terms.tuning import Curve, Level, Trial, Tried, Tuned

PICTURES = (".png", ".svg", ".pdf")
UNITS = {"_s": "time", "_j": "energy", "_w": "power", "_bytes": "memory", "_hz": "frequency"}


class TuneGroup(typer.core.TyperGroup):
    """Lets `wattsmith tune … -- COMMAND` stand for `wattsmith tune run … -- COMMAND`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] != "--help":
            args = ["run", *args]
        return super().parse_args(ctx, args)


tune = typer.Typer(
    cls=TuneGroup,
    help="Find the setting that needs the least energy within limits.\n\n"
    "Example: wattsmith tune --knob batch=1,2,4,8 --limit 'latency_p99<=50ms' -- python serve.py",
    no_args_is_help=True,
)

Limits = Annotated[
    list[str] | None,
    typer.Option(
        "--limit",
        help="Such as latency_p99<=50ms, power<=300W, time<=1.1x or slowdown<=10%; once per limit.",
        metavar="LIMIT",
    ),
]
Minimise = Annotated[
    str,
    typer.Option(help="energy, time, cost, energy-delay, any metric, or a product such as time*power.", metavar="GOAL"),
]
Budget = Annotated[int, typer.Option(help="Trials at most.", metavar="N", min=1)]
Noise = Annotated[
    list[str] | None,
    typer.Option(
        help="Relative standard error of a metric, such as energy=3%; 1% for what is not named.", metavar="METRIC=SHARE"
    ),
]
LeastGain = Annotated[str, typer.Option(help="Stop when less than this share is to be gained.", metavar="SHARE")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the whole answer as JSON.")]
Trials = Annotated[
    Path | None, typer.Option(help="Keep trials in this file, and go on from those in it.", metavar="FILE")
]
Prime = Annotated[
    list[Path] | None,
    typer.Option(help="Trials of another workload with the same knobs, to start from; once per file.", metavar="FILE"),
]
Plot = Annotated[Path | None, typer.Option(help="Draw the trials into this file (.png, .svg, .pdf).", metavar="FILE")]
Socket = Annotated[
    Path | None, typer.Option(help="Of the daemon that turns knobs of the machine for you.", metavar="PATH")
]
Shared = Annotated[bool, typer.Option("--shared", help="Turn knobs of a GPU that others use too.")]


@tune.command(options_metavar="[OPTIONS] --", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[
        list[str] | None, typer.Argument(help="The command, after --.", metavar="COMMAND", show_default=False)
    ] = None,
    knob: Annotated[
        list[str] | None,
        typer.Option(help="A knob with its levels in order: batch=8,16,32; once per knob.", metavar="NAME=LEVELS"),
    ] = None,
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where a knob is now, such as batch=16; else its last level.", metavar="NAME=LEVEL"),
    ] = None,
    limit: Limits = None,
    minimise: Minimise = "energy",
    budget: Budget = 20,
    noise: Noise = None,
    least_gain: LeastGain = "1%",
    trials: Trials = None,
    prime: Prime = None,
    metrics: Annotated[
        str | None,
        typer.Option(
            help="Where the command serves its metrics until it is ended; else it prints them.", metavar="URL"
        ),
    ] = None,
    window: Annotated[
        str, typer.Option(help="With --metrics: how long one trial serves, once it is ready.", metavar="TIME")
    ] = "10s",
    meters: Annotated[
        str, typer.Option(help="What measures energy when the command does not print it.", metavar="NAMES")
    ] = "auto",
    timeout: Annotated[
        str | None,
        typer.Option(
            help="A trial that takes longer (with --metrics: to get ready) has failed; such as 10min.", metavar="TIME"
        ),
    ] = None,
    socket: Socket = None,
    shared: Shared = False,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Run a command at one setting after another, and tell which needs the least within the limits.

    Example: wattsmith tune --knob batch=1,2,4,8 --limit 'latency_p99<=50ms' -- python serve.py --batch {batch}
    """
    check_files(plot, trials)
    knobs = parse_knobs(knob or [], at or [])
    if not knobs:
        raise BadInput("there is no knob to turn: give one with its levels, such as --knob batch=8,16,32")
    found = tune_command(
        command or [],
        knobs,
        goal_of(minimise, limit, budget, noise, least_gain, prime=[curve_in(path, knobs) for path in prime or []]),
        serves=None if metrics is None else Serves(url=metrics, window_s=positive_s("--window", window)),
        meters=meters,
        timeout_s=None if timeout is None else positive_s("--timeout", timeout),
        trials=trials,
        watch=tell_trial,
        means=Means(socket=socket, shared=shared),
        say=warn,
    )
    finish(found, limits=limit, plot=plot, as_json=as_json)


@tune.command()
def replay(
    table: Annotated[Path, typer.Argument(help="A CSV file with a row per setting.", metavar="GRID.csv")],
    knob: Annotated[
        list[str] | None,
        typer.Option(
            help="A column that is a knob, with its present level: batch=64; else the last. Once per knob.",
            metavar="NAME=LEVELS",
        ),
    ] = None,
    limit: Limits = None,
    minimise: Minimise = "energy",
    budget: Budget = 20,
    noise: Noise = None,
    least_gain: LeastGain = "1%",
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Search a table of settings that were all measured, as if each had to be tried.

    Example: wattsmith tune replay grid.csv --knob batch=64 --knob power_limit_w --limit 'time<=1.1x'
    """
    check_files(plot)
    named = [(name, at or None) for name, _, at in (one.partition("=") for one in knob or [])]
    names = dict(named)
    if len(names) < len(named):
        raise BadInput(f"a knob is given twice: {', '.join(name for name, _ in named)}")
    goal = goal_of(minimise, limit, budget, noise, least_gain)
    finish(replay_table(table, names, goal, watch=tell_trial), limits=limit, plot=plot, as_json=as_json)


def check_files(plot: Path | None, trials: Path | None = None) -> None:
    """What cannot be written is refused before the first trial."""
    can_be_written("--plot", plot, PICTURES)
    can_be_written("--trials", trials)


def positive_s(option: str, text: str) -> float:
    time_s = parse_quantity(text, "time")
    if time_s <= 0:
        raise BadInput(f"{option} must be positive, got {text!r}")
    return time_s


def goal_of(
    minimise: str,
    limits: Sequence[str] | None,
    budget: int,
    noise: Sequence[str] | None,
    least_gain: str,
    prime: Sequence[Curve] = (),
) -> Goal:
    errors = {}
    for text in noise or []:
        name, _, share = text.partition("=")
        errors[name] = _share(share, f"--noise {text}")
    manner = Manner(budget=budget, least_gain=_share(least_gain, "--least-gain"))
    goal = Goal(
        objective=minimise, limits=tuple(limits or ()), manner=manner, noise=errors or None, curves=tuple(prime)
    )
    check_noise(goal)
    return goal


def _share(text: str, option: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError as wrong:
        raise BadInput(f"{option} must be a share such as 3% or 0.03, got {text!r}") from wrong
    if not 0 <= share < 1:
        raise BadInput(f"{option} must be a share from 0 to 1, got {text!r}")
    return share


def tell_trial(number: int, setting: Mapping[str, Level], trial: Trial) -> None:
    said = trial.failed or ", ".join(_written(name, value) for name, value in trial.metrics.items())
    typer.echo(f"trial {number}: {setting_text(setting)} → {said}", err=True)


def _written(name: str, value: Any) -> str:
    suffix = next((one for one in UNITS if name.endswith(one)), None)
    if not isinstance(value, int | float):
        return f"{name} {value}"
    if suffix is None:
        return f"{name} {value:.4g}"
    return f"{name.removesuffix(suffix)} {format_quantity(value, UNITS[suffix])}"


def warn(words: str) -> None:
    typer.echo(words, err=True)


def setting_text(setting: Mapping[str, Level]) -> str:
    return ", ".join(f"{name}={level}" for name, level in setting.items())


def finish(found: Tuned, *, limits: Sequence[str] | None, plot: Path | None, as_json: bool) -> None:
    """Print what was found, and draw it if asked; exit with 1 where nothing surely keeps the limits."""
    typer.echo(json.dumps(as_plain(found))) if as_json else print_tuned(found)
    if plot is not None:
        draw(found, limits or (), plot)
    if not found.recommendation.kept:
        raise typer.Exit(1)


def print_tuned(found: Tuned) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    names = list(found.trials[0].trial.setting)
    for heading in ("trial", *names, found.objective, "limits", ""):
        table.add_column(heading, justify="right")
    chosen = dict(found.recommendation.setting)
    for one in found.trials:
        marks = ["pareto"] if one.number in found.pareto else []
        marks += ["recommended"] if dict(one.trial.setting) == chosen else []
        value = "failed" if one.objective is None else f"{one.objective:.5g}"
        levels = [str(one.trial.setting[name]) for name in names]
        table.add_row(str(one.number), *levels, value, _limits(one), " ".join(marks))
    console.print(table)
    told = found.recommendation
    console.print(f"\n[bold]{setting_text(told.setting)}[/bold]: {told.why}", highlight=False)
    span = f"{told.objective.value:.5g} ({told.objective.low:.5g} … {told.objective.high:.5g})"
    saved = "none: it is the present one"
    if told.saving.low < told.saving.high:
        saved = f"{told.saving.value:.1%} ({told.saving.low:.1%} … {told.saving.high:.1%})"
    holds = f"{told.holds:.1%}" + ("" if told.confirmed else ", measured once")
    console.print(f"{found.objective} {span}\nsaving {saved}\nlimits hold with {holds}", highlight=False)
    console.print(_search_cost(found), highlight=False)
    if found.simulated:
        console.print("[bold]energy was measured on simulated meters[/bold]")
    if not found.finished:
        console.print("the budget ran out before the search was done; more may be found with a larger --budget")


def _limits(one: Tried) -> str:
    if one.excess_ratio is None:
        return "failed"
    return "held" if one.excess_ratio <= 0 else f"{one.excess_ratio:+.1%}"


def _search_cost(found: Tuned) -> str:
    trials = f"{len(found.trials)} trials"
    if found.spent_j is None:
        return f"{trials}; their energy is not known"
    spent = f"{trials} took {format_quantity(found.spent_j, 'energy')}"
    if found.pays_back_after is None:
        return f"{spent}, which nothing wins back: no energy is saved"
    return f"{spent}, won back after {found.pays_back_after:.3g} queries (runs, steps: what energy is counted per)"
