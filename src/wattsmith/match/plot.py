"""The evidence of a match as a picture: the trace and its parts, the neighbours, and the curve that follows."""

from pathlib import Path
from typing import Any

from wattsmith.terms.errors import ExtraNeeded, NotWritten
from wattsmith.terms.telemetry import Match, Series, Telemetry

COLOURS = {"steady": "tab:green", "load": "tab:orange", "idle": "tab:gray", "other": "tab:purple"}


def plot_match(found: Match, path: Path, telemetry: Telemetry | None = None) -> None:
    """Draw FOUND into PATH (.png, .svg or .pdf); with TELEMETRY, the power that it was recognised from."""
    try:
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ExtraNeeded("drawing needs matplotlib: `pip install 'wattsmith[report]'`") from missing
    power = None if telemetry is None else telemetry.series.get("power_w")
    panels = 1 + (power is not None or bool(found.fingerprint.stretches)) + (found.response is not None)
    picture = Figure(figsize=(5.2 * panels, 4.2), layout="constrained")
    axes = list(picture.subplots(1, panels, squeeze=False)[0])
    if panels > 1 + (found.response is not None):
        _draw_trace(axes.pop(0), found, power)
    _draw_neighbours(axes.pop(0), found)
    if found.response is not None:
        _draw_curve(axes.pop(0), found)
    title = f"refused: {found.refused[:90]}…" if found.refused else f"{found.family.family if found.family else ''}"
    picture.suptitle(("simulated meters: " if found.simulated else "") + title, fontsize=9)
    try:
        picture.savefig(path)
    except (OSError, ValueError) as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused}") from refused


def _draw_trace(axes: Any, found: Match, power: Series | None) -> None:
    start_s = found.fingerprint.stretches[0].begin_s if found.fingerprint.stretches else 0.0
    if power is not None:
        axes.plot([one - start_s for one in power.time_s], power.values, lw=0.6, color="black")
    for part in found.fingerprint.stretches:
        axes.axvspan(part.begin_s - start_s, part.end_s - start_s, color=COLOURS[part.kind], alpha=0.2, lw=0)
    period_s = found.fingerprint.period_s
    axes.set(xlabel="s", ylabel="W", title="no step period" if period_s is None else f"a step each {period_s:.3g} s")


def _draw_neighbours(axes: Any, found: Match) -> None:
    near = found.neighbours[::-1]
    axes.barh([one.name[:34] for one in near], [one.distance for one in near], color="tab:blue")
    axes.axvline(found.farthest_known, color="tab:red", lw=1, label="beyond, nothing is near")
    axes.set(xlabel="distance", title="nearest benchmarks")
    axes.tick_params(axis="y", labelsize=6)
    axes.legend(fontsize=7)


def _draw_curve(axes: Any, found: Match) -> None:
    guess = found.response
    assert guess is not None
    for name, colour, intervals in (("time", "tab:blue", guess.time_ratio), ("power", "tab:red", guess.power_ratio)):
        axes.plot(guess.settings, [one.value for one in intervals], color=colour, label=name)
        axes.fill_between(
            guess.settings, [one.low for one in intervals], [one.high for one in intervals], color=colour, alpha=0.15
        )
    for probe in guess.probes:
        for value, colour in ((probe.time_ratio, "tab:blue"), (probe.power_ratio, "tab:red")):
            if value is not None:
                axes.plot([probe.setting], [value], "o", color=colour)
    axes.set(xlabel="setting over the usual one", ylabel="over the usual", title=f"blend of {guess.from_points} curves")
    axes.legend(fontsize=7)
