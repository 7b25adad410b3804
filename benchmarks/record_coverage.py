"""How much of what people run lies within a record: common real networks, held against the measured ones.

    python benchmarks/record_coverage.py [--record h200] [--data ../shared/data] [--json FILE] [--plot FILE] [--quick]

1. Real networks from configurations of Hugging Face transformers, traced without weights at usual batches, training and
   inferring in fp32 and bf16. A step is inside when its operations, its operations per byte and its peak memory each
   lie between the least and the most of the record's networks of the same precision and mode; and within range when,
   also, the nearest of those is no farther than half a standard deviation of the real networks, in the logarithm.
2. The calls of which they consist, held against the record's single operators: the share of operations and of bytes in
   classes of operators whose mean call is of a size that was measured.
3. The vision networks of timm's public tables (DATA/timm), by a rough formula.

No bar is set. Exits with 2 when nothing could be computed.
"""

import argparse
import importlib.util
import json
import sys
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from reach.networks import NETWORKS, QUICK
from reach.published import BATCHES, published_places, read_tables, rules_from
from reach.range import (
    NEAR,
    Kind,
    Known,
    Place,
    Verdict,
    deviations,
    measured,
    operator_shares,
    place,
    recorded_places,
    recorded_sizes,
    shares,
    verdicts,
)
from reach.tracing import NotTraced, Use, uses_of
from results.shape import table
from wattsmith.flows.recording import read_points
from wattsmith.flows.records import runs_of
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.run import Run, Status

# Of 1,441 vision networks, 95 % lie so near to the closest of 64 of them, by how the 64 were chosen.
STUDY_FARTHEST, STUDY_RANDOM = 0.51, 0.75


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", default="h200", help="the name of a shipped record, a file or a database")
    parser.add_argument("--points", type=Path, help="as if these points, of `wattsmith record points`, were measured")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where timm's tables are, in timm/")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--plot", type=Path, help="draw the record and the real networks into this file")
    parser.add_argument("--quick", action="store_true", help="three networks at their smallest batches")
    options = parser.parse_args()
    try:
        runs = runs_of(options.record)
        known = planned(options.points) if options.points else measured(runs)
    except WattsmithError as refused:
        print(f"nothing to compute: {refused}")
        return 2
    recorded = recorded_places(known)
    figures: dict[str, Any] = {"record": str(options.points or options.record)} | counts_of(known, runs)
    figures["holds"] = told(figures)  # the number of operators gives way to what is found of them
    print(f"record: {figures['record']}, {figures['holds']}")
    if not recorded:
        print("nothing to compute: there is no measured network")
        return 2
    uses, figures["not traced"] = traced_networks(options.quick)
    memory_bytes = max((run.device.memory_bytes or 0 for run in runs), default=0) or None
    uses, figures["too large"] = fitting(uses, memory_bytes)
    if uses:
        figures["real"], found = real_figures(uses, recorded)
        figures["operators"] = operator_figures(uses, known)
        if options.plot:
            draw(options.plot, uses, found, recorded)
    figures["published"] = published_figures(uses, options.data / "timm", recorded, memory_bytes)
    if options.json:
        figures |= {"tables": tables_of(figures), "bars": []}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    return 0 if uses else 2


def tables_of(figures: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was found, as tables: as much of it as could be computed."""
    tables = []
    heads = ["", "steps", "inside", "within", "distance, median", "95 %", "outside"]
    for title, part in (("Real networks", "real"), ("Vision networks of timm's tables, roughly", "published")):
        if figures.get(part):
            rows = [
                [name, row["steps"], f"{row['inside']:.0%}", f"{row['within']:.0%}", row["distance_median"],
                 row["distance_95"], ", ".join(f"{side} {count}" for side, count in row["sides"].items())]
                for name, row in figures[part]["rows"].items()
            ]  # fmt: skip
            tables.append(table(f"{title}, held against the record ({figures['holds']})", heads, rows))
    if "operators" in figures:
        names = ("flops_of_all", "flops_inside", "bytes_of_all", "bytes_inside")
        rows = [[name, *(f"{row[one]:.1%}" for one in names)] for name, row in figures["operators"].items()]
        heads = ["operator", "of operations", "of those, inside", "of bytes", "of those, inside"]
        tables.append(table("Their calls, in classes whose mean call is of a measured size", heads, rows))
    return tables


def planned(points: Path) -> list[Known]:
    """The points of a file, as if they were measured. One that was never traced counts for nothing."""
    return [(one.workload, one.structure) for one in read_points(points) if one.structure is not None]


def counts_of(known: Sequence[Known], runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "networks": sum(workload.kind == "network" for workload, _ in known),
        "operators": sum(workload.kind == "operator" for workload, _ in known),
        "failed": sum(run.status is not Status.MEASURED for run in runs),
        "devices": sorted({run.device.name for run in runs}),
    }


def told(figures: Mapping[str, Any]) -> str:
    devices = " and ".join(figures["devices"])
    return (
        f"{figures['networks']} networks and {figures['operators']} operators on {devices}, {figures['failed']} failed"
    )


def traced_networks(quick: bool) -> tuple[list[Use], dict[str, str]]:
    """The real networks as they are run, and those that could not be traced, with the reason."""
    if importlib.util.find_spec("transformers") is None:
        print("NOT DONE: real networks need transformers, `pip install transformers`")
        return [], {"all": "transformers is not installed"}
    begin_s = time.monotonic()
    networks = [one for one in NETWORKS if not quick or one.name in QUICK]
    answers = [answer for network in networks for answer in uses_of(network, 1 if quick else None)]
    uses = [one for one in answers if isinstance(one, Use)]
    failed = {one.name: one.reason for one in answers if isinstance(one, NotTraced)}
    traced = len({one.network for one in uses})
    print(
        f"real networks: {traced} of {len(networks)}, {len(uses)} steps, traced in {time.monotonic() - begin_s:.0f} s"
    )
    for name, reason in failed.items():
        print(f"  not traced: {name}: {reason}")
    return uses, failed


def fitting(uses: Sequence[Use], memory_bytes: int | None) -> tuple[list[Use], list[str]]:
    """Those that a device of that memory could run, and the names of the others. None: all of them."""
    large = [one.name for one in uses if memory_bytes is not None and one.structure.peak_bytes > memory_bytes]
    for name in large:
        print(f"  too large for the device, not counted: {name}")
    return [one for one in uses if one.name not in large], large


def real_figures(uses: Sequence[Use], recorded: Mapping[Kind, Sequence[Place]]) -> tuple[dict[str, Any], list[Verdict]]:
    """What part of the real networks lies within range, by group and by precision and mode; printed."""
    places = [place(one.structure) for one in uses]
    scale = deviations(places)
    found = [
        verdict
        for one, at in zip(uses, places, strict=True)
        for verdict in verdicts([at], recorded.get((one.precision, one.mode), []), scale)
    ]
    everything = [at for some in recorded.values() for at in some]
    near_any = shares(verdicts(places, everything, scale))
    groups: dict[str, list[Verdict]] = defaultdict(list)
    kinds: dict[str, list[Verdict]] = defaultdict(list)
    for one, verdict in zip(uses, found, strict=True):
        groups[one.group].append(verdict)
        kinds[f"{one.precision} {one.mode}"].append(verdict)
    rows = {name: shares(some) for name, some in (*groups.items(), *sorted(kinds.items()), ("all", found))}
    print("\n1. Real networks")
    show_shares(rows)
    show_ranges(uses, recorded)
    show_study(rows["all"], near_any)
    outside = {one.name: list(v.outside) for one, v in zip(uses, found, strict=True) if v.outside}
    show_outside(uses, found)
    figures = {"deviations": scale, "rows": rows, "of any precision and mode": near_any, "outside": outside}
    return figures, found


def show_shares(rows: Mapping[str, Mapping[str, Any]]) -> None:
    print(f"{'':<36}{'steps':>6}{'inside':>8}{'within':>8}{'median':>8}{'95 %':>7}  outside")
    for name, row in rows.items():
        sides = ", ".join(f"{side} {count}" for side, count in row["sides"].items()) or "–"
        near = "".join(
            f"{'–' if value is None else format(value, '.2f'):>{width}}"
            for value, width in ((row["distance_median"], 8), (row["distance_95"], 7))
        )
        print(f"{name:<36}{row['steps']:>6}{row['inside']:>8.0%}{row['within']:>8.0%}{near}  {sides}")


def show_ranges(uses: Sequence[Use], recorded: Mapping[Kind, Sequence[Place]]) -> None:
    """The least and the most, by precision and mode: of the record, and of the real networks."""
    print(f"\n{'':<24}{'networks':>9}{'operations':>20}{'per byte':>20}{'peak bytes':>20}")
    for kind in sorted({(one.precision, one.mode) for one in uses}):
        real = [place(one.structure) for one in uses if (one.precision, one.mode) == kind]
        for whose, some in (("record", recorded.get(kind, [])), ("real", real)):
            spans = "".join(
                f"{f'{10 ** min(axis):.2g} … {10 ** max(axis):.2g}':>20}" for axis in zip(*some, strict=True)
            )
            print(f"{' '.join(kind) + ', ' + whose:<24}{len(some):>9}{spans}")


def show_study(row: Mapping[str, Any], near_any: Mapping[str, Any]) -> None:
    print(
        f"\ninside: between the least and the most recorded on each axis; within: also {NEAR:g} standard deviations"
        "\nor less from the nearest recorded network of the same precision and mode; median, 95 %: of that distance."
    )
    for what, value in (
        ("95 % lie so near, same precision and mode", row["distance_95"]),
        ("95 % lie so near, any precision and mode", near_any["distance_95"]),
        ("study: 64 of 1,441 real networks, farthest", STUDY_FARTHEST),
        ("study: 64 of 1,441 real networks, at random", STUDY_RANDOM),
    ):
        print(f"{what:<46}{'–' if value is None else format(value, '.2f'):>6}")


def show_outside(uses: Sequence[Use], found: Sequence[Verdict]) -> None:
    """The steps outside, those of one network and side on one line."""
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for one, verdict in zip(uses, found, strict=True):
        if verdict.outside:
            lines[f"{one.network}, {one.does}", ", ".join(verdict.outside)].append(f"{one.precision} × {one.batch}")
    if lines:
        print("\noutside, as precision × batch:")
    for (name, sides), where in lines.items():
        print(f"  {name:<30} {sides:<40} {', '.join(where)}")


def operator_figures(uses: Sequence[Use], known: Sequence[Known]) -> dict[str, Any]:
    """What part of the real networks' work is in calls of sizes that were measured; printed."""
    sizes = recorded_sizes(known)
    rows = operator_shares(((one.precision, one.structure) for one in uses), sizes)
    print("\n2. Their calls, in classes whose mean call is of a measured size (every step has the same weight)")
    print(f"{'':<16}{'points':>7}{'of operations':>15}{'inside':>8}{'of bytes':>10}{'inside':>8}")
    for name, row in sorted(rows.items(), key=lambda pair: -pair[1]["bytes_of_all"]):
        points = sum(held.points for key, held in sizes.items() if name in ("all", key.partition(" ")[0]))
        print(
            f"{name:<16}{points:>7}{row['flops_of_all']:>15.1%}{row['flops_inside']:>8.0%}"
            f"{row['bytes_of_all']:>10.1%}{row['bytes_inside']:>8.0%}"
        )
    return rows


def published_figures(
    uses: Sequence[Use], folder: Path, recorded: Mapping[Kind, Sequence[Place]], memory_bytes: int | None
) -> dict[str, Any] | None:
    """What part of timm's networks lies within range, roughly; printed. None: not computed."""
    print("\n3. Vision networks of timm's tables, roughly")
    rows, short = read_tables(folder)
    if not rows:
        print(f"NOT DONE: there are no tables benchmark-infer-*.csv in {folder}; say where they are with --data")
        return None
    rules, off = rules_from(uses, rows)
    if not rules:
        print("NOT DONE: the formula comes from traced networks that are in the tables too, and there are none")
        return None
    published, large = published_places(rows, rules, memory_bytes)
    scale = deviations([at for some in published.values() for at in some])
    found = {kind: verdicts(some, recorded.get(kind, []), scale) for kind, some in published.items()}
    tables = {" ".join(kind): shares(some) for kind, some in found.items()}
    tables["all"] = shares([one for some in found.values() for one in some])
    batches = " and ".join(map(str, BATCHES))
    print(f"{len(rows)} networks and image sizes, batches {batches}; {short} rows say too little,")
    print(f"{large} steps are too large for the device")
    show_shares(tables)
    for kind, rule in sorted(rules.items()):
        print(f"{' '.join(kind)}: moves {rule.moves:.1f} times its activations, keeps {rule.keeps:.2f} of them")
    within_two = sum(one <= 2 for one in off) / len(off)
    print(f"rough: of {len(off)} traced steps, {within_two:.0%} are told within a factor of 2 on their worst axis,")
    print(f"all within a factor of {max(off):.1f}")
    return {"networks": len(rows), "short": short, "too large": large, "rows": tables, "factors off": sorted(off)}


def draw(path: Path, uses: Sequence[Use], found: Sequence[Verdict], recorded: Mapping[Kind, Sequence[Place]]) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    panels = figure.subplots(1, 2)
    every = [at for some in recorded.values() for at in some]
    groups = sorted({one.group for one in uses})
    for panel, axis, label in ((panels[0], 1, "operations per byte"), (panels[1], 2, "peak memory, bytes")):
        panel.set(xscale="log", yscale="log", xlabel="operations per step", ylabel=label)
        panel.scatter(
            [10 ** at[0] for at in every], [10 ** at[axis] for at in every], s=14, c="0.75", label="the record"
        )
        for number, group in enumerate(groups):
            for inside in (True, False):
                some = [
                    place(one.structure)
                    for one, verdict in zip(uses, found, strict=True)
                    if one.group == group and verdict.inside is inside
                ]
                panel.scatter(
                    [10 ** at[0] for at in some],
                    [10 ** at[axis] for at in some],
                    s=18,
                    marker="o" if inside else "x",
                    color=f"C{number}",
                    label=group if inside else None,
                )
    figure.suptitle(
        "Real networks and the record; crosses lie outside of what was measured at their precision and mode"
    )
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize="small")
    figure.savefig(path)


if __name__ == "__main__":
    sys.exit(main())
