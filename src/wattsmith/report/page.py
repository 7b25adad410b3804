"""Many results on one self-contained page: nothing is fetched, all pictures stand in it."""

import csv
import html
import io
from collections.abc import Sequence
from dataclasses import dataclass

from wattsmith import __version__
from wattsmith.report.analysis import (
    Result,
    Step,
    accuracy_costs,
    count_rounds,
    grouped,
    largest_gain,
    scaling,
    summarise_systems,
    trend,
)
from wattsmith.report.analysis_claims import Claim, Outcome
from wattsmith.report.plots import accuracy_dots, picture, power_and_efficiency, scaling_lines, trends

DERIVED = (
    "Power and performance are those of the results as they were submitted. Efficiency is derived from them by this "
    "program and is not an official MLPerf metric; power runs are not comparable with performance-only runs. "
    "Each kind of work (samples, queries, tokens, inferences) stands for itself: they are never divided by one another."
)
Cell = str | float | int | None
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0;font-size:13px}th,td{border-bottom:1px solid #ddd;padding:.2rem .6rem;
text-align:left;vertical-align:top}td.n{text-align:right;font-variant-numeric:tabular-nums}svg{max-width:100%;
height:auto}.differs,.MISMATCH{background:#fff3d6}.note{background:#f4f4f4;padding:.6rem 1rem}h2{margin-top:2.5rem}
details{margin:1rem 0}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Rows under a heading; they become a part of the page and a CSV file beside it."""

    name: str  # of the CSV file
    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marks: tuple[str, ...] = ()  # a class for each row, where one needs to be seen

    def csv(self) -> str:
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(self.head)
        writer.writerows([["" if cell is None else cell for cell in row] for row in self.rows])
        return out.getvalue()

    def html(self) -> str:
        marks = self.marks or ("",) * len(self.rows)
        head = "".join(f"<th>{html.escape(name)}</th>" for name in self.head)
        rows = "\n".join(
            f'<tr class="{html.escape(mark)}">{"".join(map(_cell, row))}</tr>'
            for row, mark in zip(self.rows, marks, strict=True)
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>\n{rows}\n</tbody></table>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """The page, and what goes beside it."""

    html: str
    tables: tuple[Table, ...]
    pictures: dict[str, bytes]  # PNG by name


def make_page(results: Sequence[Result], claims: Sequence[Claim] = (), *, title: str, source: str) -> Page:
    """All about RESULTS, and the CLAIMS that were checked against them. SOURCE says where they come from."""
    steps = trends_of(results)
    found_scaling = [one for one in scaling(results) if one.scenario == "offline"]
    costs = accuracy_costs(results)
    drawn = {
        "trends": picture("trends", trends(dict(list(steps.items())))),
        "scaling": picture("scaling", scaling_lines(found_scaling)),
        "accuracy": picture("accuracy", accuracy_dots(costs)),
    }
    common = most_common_model(results)
    if common is not None:
        drawn["efficiency"] = picture("efficiency", power_and_efficiency(results, common))
    tables = tables_of(results, claims)
    by_name = {table.name: table for table in tables}
    sections = [
        _section("Rounds", by_name["rounds"].html()),
        _section("Trends", drawn["trends"][0] + by_name["trends"].html()),
        *([_section("Power and efficiency", drawn["efficiency"][0])] if "efficiency" in drawn else []),
        _section("Scaling with accelerators", drawn["scaling"][0] + _folded(by_name["scaling"])),
        _section("Accuracy against energy", drawn["accuracy"][0] + _folded(by_name["accuracy"])),
        *_claims_sections(claims, by_name),
        _section("Systems", _folded(by_name["systems"])),
    ]
    about = f"{len(results):,} results from {source}. Made by wattsmith {__version__}."
    page = (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{html.escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n<h1>{html.escape(title)}</h1>\n<p>{html.escape(about)}</p>\n"
        f'<p class="note">{html.escape(DERIVED)}</p>\n{"".join(sections)}\n</body></html>\n'
    )
    return Page(html=page, tables=tables, pictures={name: png for name, (_, png) in drawn.items()})


def trends_of(results: Sequence[Result], least_rounds: int = 2) -> dict[str, list[Step]]:
    """The trend of every model that has closed Offline results in several rounds; most results first."""
    offline = [one for one in results if one.closed and one.scenario == "offline" and one.efficiency is not None]
    by_model = grouped(offline, lambda one: one.model)
    models = sorted(by_model, key=lambda model: (-len(by_model[model]), model))
    found = {model: trend(offline, model) for model in models}
    return {model: steps for model, steps in found.items() if len(steps) >= least_rounds}


def most_common_model(results: Sequence[Result]) -> str | None:
    offline = [one for one in results if one.closed and one.scenario == "offline" and one.efficiency is not None]
    by_model = grouped(offline, lambda one: one.model)
    return max(by_model, key=lambda model: (len(by_model[model]), model), default=None)


def tables_of(results: Sequence[Result], claims: Sequence[Claim] = ()) -> tuple[Table, ...]:
    """Everything as tables."""
    steps = trends_of(results, least_rounds=1)
    return (
        Table(
            name="rounds",
            title="Rounds",
            head=("round", "results", "distinct recordings", "closed", "systems"),
            rows=tuple((o.round, o.results, o.recordings, o.closed, o.systems) for o in count_rounds(results)),
        ),
        Table(
            name="trends",
            title="Most efficient closed Offline result of each round",
            head=("model", "round", "samples/J", "over the first", "largest gain", "system", "chosen from"),
            rows=tuple(
                (
                    model,
                    step.round,
                    step.efficiency.per_joule,
                    step.efficiency.over(found[0].efficiency),
                    largest_gain(found),
                    step.best.system_name,
                    step.results,
                )
                for model, found in steps.items()
                for step in found
            ),
        ),
        Table(
            name="scaling",
            title="Systems with different numbers of the same accelerator",
            head=("round", "submitter", "accelerator", "model", "scenario", "accelerators", "W", "samples/J", "kept"),
            rows=tuple(
                (o.round, o.submitter, o.accelerator, o.model, o.scenario, count, power_w, each.per_joule, o.kept_ratio)
                for o in scaling(results)
                for count, power_w, each in o.points
            ),
        ),
        Table(
            name="accuracy",
            title="Efficiency at 99.9 % of the reference accuracy over that at 99 %",
            head=("round", "submitter", "system", "model", "scenario", "kept"),
            rows=tuple(
                (c.round, c.submitter, c.system_name, c.model, c.scenario, c.kept_ratio)
                for c in accuracy_costs(results)
            ),
        ),
        Table(
            name="systems",
            title="Closed systems, each round by itself",
            head=(
                "round",
                "submitter",
                "system",
                "accelerator",
                "accelerators",
                "results",
                "least W",
                "most W",
                "best",
            ),
            rows=tuple(
                (
                    *(one.round, one.submitter, one.system_name, one.accelerator, one.accelerators, one.results),
                    *(one.least_w, one.most_w),
                    "; ".join(f"{name}: {each.per_joule:.4g} {each.unit}" for name, each in one.best.items()),
                )
                for one in summarise_systems(results)
            ),
        ),
        claims_table(claims),
        _wrong_units_table(results),
    )


def claims_table(claims: Sequence[Claim]) -> Table:
    return Table(
        name="claims",
        title="What was said before, and what these tables give",
        head=("topic", "figure", "said by", "said", "ours", "unit", "outcome", "why"),
        rows=tuple((c.topic, c.text, c.said_by, c.said, c.ours, c.unit, c.outcome.value, c.why) for c in claims),
        marks=tuple(claim.outcome.value for claim in claims),
    )


def _wrong_units_table(results: Sequence[Result]) -> Table:
    return Table(
        name="wrong_units",
        title="Published performance whose unit contradicts the run's own log",
        head=("round", "system", "model", "scenario", "published", "labelled", "samples/s in the log"),
        rows=tuple(
            (
                *(one.round, one.system_name, one.model, one.scenario),
                *(one.published_performance, one.published_performance_units, one.samples_per_s),
            )
            for one in results
            if one.labelled_wrong
        ),
    )


def _claims_sections(claims: Sequence[Claim], by_name: dict[str, Table]) -> list[str]:
    sections = []
    if claims:
        apart = [claim for claim in claims if claim.outcome is not Outcome.AGREES]
        text = f"<p>{len(claims) - len(apart)} of {len(claims)} figures agree. The others, with both numbers:</p>"
        sections.append(_section("Said before", text + claims_table(apart).html() + _folded(by_name["claims"])))
    if by_name["wrong_units"].rows:
        sections.append(_section("Units that are wrong where they were published", by_name["wrong_units"].html()))
    return sections


def _section(title: str, body: str) -> str:
    return f"<section><h2>{html.escape(title)}</h2>\n{body}</section>\n"


def _folded(table: Table) -> str:
    return f"<details><summary>{html.escape(table.title)}: {len(table.rows)} rows</summary>{table.html()}</details>"


def _cell(value: Cell) -> str:
    if value is None:
        return "<td>unknown</td>"
    if isinstance(value, str):
        return f"<td>{html.escape(value)}</td>"
    return f'<td class="n">{value if isinstance(value, int) else f"{value:.5g}"}</td>'
