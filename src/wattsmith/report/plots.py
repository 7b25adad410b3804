"""Pictures of many results: trends, scaling, what accuracy costs, and energy against power."""

import io
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattsmith.report.analysis import (
    AccuracyCost,
    Result,
    Scaling,
    Step,
    grouped,
    round_key,
)
from wattsmith.terms.errors import ExtraNeeded, NotWritten

Draw = Callable[[Any], None]
SIZE = (7.2, 4.2)
MOST_LINES = 12
MARKERS = "os^vDP*X<>dp"


def picture(name: str, draw: Draw) -> tuple[str, bytes]:
    """What DRAW puts on one set of axes, as SVG to stand in a page and as PNG. NAME keeps two SVGs on a page apart."""
    try:
        import matplotlib
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ExtraNeeded("drawing needs matplotlib: `pip install 'wattsmith[report]'`") from missing
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=SIZE, layout="constrained")
        draw(figure.subplots())
        text, png = io.StringIO(), io.BytesIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": "wattsmith"})
        figure.savefig(png, format="png", dpi=120, metadata={"Software": "wattsmith"})
    body = text.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", body[body.index("<svg") :], flags=re.DOTALL)
    # Identifiers are global in a page: each picture's own get its name in front.
    svg = re.sub(r'\bid="', f'id="{name}-', svg)
    svg = re.sub(r'(xlink:href="#|url\(#)', rf"\g<1>{name}-", svg)
    return svg, png.getvalue()


def write_png(path: Path, png: bytes) -> None:
    try:
        path.write_bytes(png)
    except OSError as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused.strerror}") from refused


def trends(by_model: dict[str, Sequence[Step]]) -> Draw:
    """Best efficiency of each round over that of the first round of its model: one kind of work per line."""

    def draw(axes: Any) -> None:
        rounds = sorted({step.round for steps in by_model.values() for step in steps}, key=round_key)
        for place, (model, steps) in enumerate(list(by_model.items())[:MOST_LINES]):
            gains = [step.efficiency.over(steps[0].efficiency) for step in steps]
            looks = {"marker": MARKERS[place % len(MARKERS)], "ms": 4, "color": f"C{place % 10}"}
            axes.plot([rounds.index(step.round) for step in steps], gains, label=model, **looks)
        axes.set_xticks(range(len(rounds)), rounds)
        axes.set(
            xlabel="round", ylabel="best efficiency, first round = 1", title="Most efficient closed result, Offline"
        )
        axes.axhline(1, lw=0.5, color="grey")
        if by_model:
            axes.legend(fontsize="x-small", ncols=2)

    return draw


def power_and_efficiency(results: Sequence[Result], model: str) -> Draw:
    """Every closed Offline result of MODEL: power against samples per joule."""

    def draw(axes: Any) -> None:
        meant = [one for one in results if one.closed and (one.model, one.scenario) == (model, "offline")]
        by_round = grouped([one for one in meant if one.efficiency], lambda one: one.round)
        for name in sorted(by_round, key=round_key):
            group = by_round[name]
            axes.scatter(
                [one.power_w for one in group],
                [one.efficiency.per_joule for one in group if one.efficiency],
                s=14,
                alpha=0.7,
                label=name,
            )
        axes.set(xlabel="mean power, W", ylabel="samples/J", title=f"{model}, closed, Offline")
        if by_round:
            axes.set(xscale="log")
            axes.legend(fontsize="x-small")

    return draw


def scaling_lines(found: Sequence[Scaling]) -> Draw:
    """Efficiency against the number of accelerators, each line beginning at 1."""

    def draw(axes: Any) -> None:
        for one in found:
            first = one.points[0]
            counts = [count for count, _, _ in one.points]
            axes.plot(counts, [each.over(first[2]) for _, _, each in one.points], lw=0.8, alpha=0.5, marker=".")
        axes.axhline(1, lw=0.5, color="grey")
        axes.set(xlabel="accelerators", ylabel="samples/J, fewest accelerators = 1", title="Scaling within one round")
        if found:
            axes.set_xscale("log", base=2)
            every = sorted({count for one in found for count, _, _ in one.points})
            axes.set_xticks(every, [str(count) for count in every])
            axes.minorticks_off()

    return draw


def accuracy_dots(costs: Sequence[AccuracyCost]) -> Draw:
    """What is kept of the efficiency at the higher accuracy, by round."""

    def draw(axes: Any) -> None:
        rounds = sorted({cost.round for cost in costs}, key=round_key)
        for model, group in sorted(grouped(costs, lambda cost: cost.model).items()):
            places = [rounds.index(cost.round) for cost in group]
            axes.scatter(places, [cost.kept_ratio for cost in group], s=12, alpha=0.6, label=model)
        axes.set_xticks(range(len(rounds)), rounds)
        axes.axhline(1, lw=0.5, color="grey")
        axes.set(xlabel="round", ylabel="samples/J at 99.9 % over 99 %", title="What accuracy costs")
        if costs:
            axes.legend(fontsize="x-small")

    return draw
