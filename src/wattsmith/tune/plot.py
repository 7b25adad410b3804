"""A search as a picture: what each trial needed, what it took, and which no other beats."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten
from wattsmith.terms.tuning import Tried, Tuned
from wattsmith.tune.goals import Limit, figure, parse_limits


def plot_tuned(found: Tuned, limits: Sequence[str | Limit], path: Path) -> None:
    """Draw the trials of FOUND into PATH (.png, .svg or .pdf): the objective over what is limited first.

    Without a limit, over the number of the trial.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ExtraNeeded("drawing needs matplotlib: `pip install 'wattsmith[report]'`") from missing
    worked = [one for one in found.trials if one.objective is not None]
    if not worked:
        raise BadInput("there is nothing to draw: no trial has figures")
    limit = next(iter(parse_limits(limits)), None)
    picture = Figure(figsize=(7, 4.6), layout="constrained")
    axes: Any = picture.subplots()
    for name, look, chosen in (
        ("breaks a limit", {"marker": "x", "color": "tab:red"}, [one for one in worked if not _held(one)]),
        ("holds", {"marker": "o", "color": "tab:blue"}, [one for one in worked if _held(one)]),
    ):
        if chosen:
            axes.scatter([_x(one, limit) for one in chosen], [one.objective for one in chosen], label=name, **look)
    front = sorted((one for one in worked if one.number in found.pareto), key=lambda one: _x(one, limit))
    if limit is not None and len(front) > 1:
        axes.plot([_x(one, limit) for one in front], [one.objective for one in front], "--", lw=1, label="Pareto")
    best = [one for one in worked if dict(one.trial.setting) == dict(found.recommendation.setting)]
    axes.scatter(
        [_x(one, limit) for one in best],
        [one.objective for one in best],
        s=140, facecolors="none", edgecolors="tab:green", linewidths=2, label="recommended",
    )  # fmt: skip
    for one in worked:
        axes.annotate(str(one.number), (_x(one, limit), one.objective), fontsize=7, xytext=(4, 3),
                      textcoords="offset points")  # fmt: skip
    if limit is not None and not limit.relative:
        axes.axvline(limit.value, color="tab:red", lw=1, label=str(limit))
    axes.set(xlabel="trial" if limit is None else limit.metric, ylabel=found.objective)
    if limit is not None:
        axes.set_xscale("log")
    axes.set_title(", ".join(f"{name}={level}" for name, level in found.recommendation.setting.items()), fontsize=9)
    if found.simulated:
        picture.suptitle("energy from simulated meters")
    axes.legend(fontsize=8)
    try:
        picture.savefig(path)
    except (OSError, ValueError) as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused}") from refused


def _held(one: Tried) -> bool:
    return one.excess_ratio is not None and one.excess_ratio <= 0


def _x(one: Tried, limit: Limit | None) -> float:
    return float(one.number) if limit is None else figure(one.trial.metrics, limit.metric, limit.kind)
