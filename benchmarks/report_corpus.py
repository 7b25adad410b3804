"""Published results of MLPerf Power, recomputed and judged: figures, verdicts, tampered variants, speed, memory.

    python benchmarks/report_corpus.py [--data DIR] [--official DIR] [--quick] [--json FILE]

Cases: 9 inference results of v1.0 … v5.1, 2 of training, 3 of tiny, with published figures and expected verdicts.
Each inference result that its round's checker accepts is copied and tampered with in 17 ways: 11 that this checker
rejects, 6 that it accepts. The strict layer must reject all of them wherever the files hold evidence; the script says
where they cannot. Two more ways: errors of the meter, which the official checker does not read once it has seen a
warning; and every copy of every figure changed alike, to show what no checker can see.

--official is a copy of mlcommons/power-dev, a git repository; the checker of each round is then run beside ours on
every case and variant, check by check. Exits with 1 when a bar is missed, 2 without data.
"""

import argparse
import csv
import json
import os
import resource
import shutil
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from report_cases.peer import OfficialChecker
from report_cases.tampering import BEYOND, STOPPED, VARIANTS, Variant, tampered
from results.shape import bar, table
from wattsmith.flows.checking import Layer, Outcome, Report, Verdict, check
from wattsmith.report.formats.mllog import LogEvent, loadgen_line, log_events
from wattsmith.report.formats.spl import SplSample, spl_lines
from wattsmith.report.window import inference_metric, scenario_called

DATA = Path(__file__).parents[2] / "shared" / "data" / "mlperf"
LIMIT = 1e-6
ALL = (*VARIANTS, STOPPED, BEYOND)
NEEDED_PER_MINUTE, CORES = 1_000, 2
MOST_GROWTH_BYTES = 2 << 20
Told = dict[str, Any]
Bar = tuple[str, str, bool]


def cases_of(data: Path, kind: str) -> list[Told]:
    path = data / f"CASES_{kind}.json"
    return json.loads(path.read_text()) if path.is_file() else []


def report_of(folder: Path, round_name: str | None = None) -> Report:
    (report,) = check(folder, round_name, jobs=1).reports
    return report


def relative(ours: float | None, published: float) -> float:
    return float("inf") if ours is None else abs(ours / published - 1)


# ---- figures and verdicts


def inference(data: Path) -> Iterator[Told]:
    for case in cases_of(data, "inference"):
        report = report_of(data / case["case"] / case["location"] / "performance", case["round"])
        ours = report.figures.get("metric")
        millijoules = str(case["published_power_units"]).startswith("milli")
        ours = ours * 1_000 if millijoules and isinstance(ours, float) else ours
        expected = case["expected_official_check"]
        official = "rejected" if expected.startswith("fail") else "accepted"
        strict = "rejected" if official == "rejected" or "strict checker must flag" in expected else "accepted"
        failed = [one.name for one in report.reasons(Layer.STRICT)]
        guessed = report_of(data / case["case"] / case["location"] / "performance").round
        yield {
            "case": case["case"],
            "round": case["round"],
            "round_found": guessed,
            "ours": ours,
            "published": case["published_power"],
            "difference": relative(ours if isinstance(ours, float) else None, case["published_power"]),
            "official": report.verdict(Layer.OFFICIAL).value,
            "strict": report.verdict(Layer.STRICT).value,
            "expected": f"{official}/{strict}",
            "failed": failed,
            "as_expected": (report.verdict(Layer.OFFICIAL).value, report.verdict(Layer.STRICT).value)
            == (official, strict),
        }


def training(data: Path) -> Iterator[Told]:
    for case in cases_of(data, "training"):
        report = report_of(data / case["case"] / case["location"])
        ours = report.figures.get("energy_j")
        inside = report.figures.get("energy_in_window_j")
        yield {
            "case": case["case"],
            "ours": ours / 1_000 if isinstance(ours, float) else None,
            "published": case["published_kj"],
            "difference": relative(ours / 1_000 if isinstance(ours, float) else None, case["published_kj"]),
            "in_window_difference": relative(
                inside / 1_000 if isinstance(inside, float) else None, case["inwindow_kj"]
            ),
            "official": report.verdict(Layer.OFFICIAL).value,
            "strict": report.verdict(Layer.STRICT).value,
            "failed": [one.name for one in report.reasons(Layer.STRICT)],
            "as_expected": report.verdict(Layer.OFFICIAL) is Verdict.ACCEPTED,
        }


def tiny(data: Path) -> Iterator[Told]:
    for case in cases_of(data, "tiny"):
        report = report_of(data / case["case"] / case["location"])
        ours = report.figures.get("energy_per_inference_j")
        ours = ours * 1e6 if isinstance(ours, float) else None
        published = case["published_median_uj_per_inf"]
        digits = len(str(published).partition(".")[2])  # published figures are rounded to so many
        yield {
            "case": case["case"],
            "ours": ours,
            "published": published,
            "difference": 0.0 if ours is not None and round(ours, digits) == published else relative(ours, published),
            "official": report.verdict(Layer.OFFICIAL).value,
            "strict": report.verdict(Layer.STRICT).value,
            "failed": [one.name for one in report.reasons(Layer.STRICT)],
            "as_expected": report.verdict(Layer.STRICT) is Verdict.ACCEPTED,
        }


def show_cases(title: str, rows: list[Told]) -> None:
    print(f"\n{title}")
    print(f"{'':<54}{'ours':>16}{'published':>16}{'apart':>10}  official  strict")
    for row in rows:
        ours = "none" if row["ours"] is None else f"{row['ours']:.9g}"
        failed = f"  ({', '.join(row['failed'])})" if row["failed"] else ""
        print(
            f"{row['case']:<54}{ours:>16}{row['published']:>16.9g}{row['difference']:>10.1e}  {row['official']}  "
            f"{row['strict']}{failed}{'' if row['as_expected'] else '  NOT AS EXPECTED'}"
        )


def published_table(data: Path) -> Told:
    """All rows of the table of runs with a published figure: the metric from watts, window and queries."""
    path = data / "tables" / "inference_power_runs.csv"
    rows = met = 0
    others = []
    if path.is_file():
        for row in csv.DictReader(path.open()):
            if not row["published_power"]:
                continue
            metric = inference_metric(
                scenario_called(row["scenario"]),
                scenario_called(row["scenario_run"]),
                float(row["avg_w"]),
                float(row["window_s"]),
                float(row["queries"]) if row["queries"] else None,
            )
            value = metric.value * (1_000 if row["published_power_units"].startswith("milli") else 1)
            rows += 1
            good = relative(value, float(row["published_power"])) < LIMIT
            met += good
            if not good:
                others.append(f"{row['version']} {row['system']} {row['model']} {row['scenario']}")
    return {"rows": rows, "within": met, "others": others}


# ---- tampering


def variants(data: Path, scratch: Path, rows: list[Told], peer: OfficialChecker | None, quick: bool) -> list[Told]:
    told = []
    bases = [row for row in rows if row["official"] == row["strict"] == "accepted"]
    cases = {case["case"]: case for case in cases_of(data, "inference")}
    for row in bases[-1:] if quick else bases:
        case = cases[row["case"]]
        source = data / case["case"] / case["location"] / "performance"
        told += [one_variant(source, scratch / "variant", variant, row, peer) for variant in ALL]
    return told


def one_variant(source: Path, target: Path, variant: Variant, row: Told, peer: OfficialChecker | None) -> Told:
    # The scenario is read from the folder's name.
    folder = target / source.parent.name / "performance"
    shutil.rmtree(target, ignore_errors=True)
    folder.parent.mkdir(parents=True)
    nothing = tampered(source, folder, variant)
    told: Told = {"case": row["case"], "round": row["round"], "variant": variant.name, "nothing_to_change": nothing}
    if nothing is not None:
        return told
    report = report_of(folder, row["round"])
    metric = report.figures.get("metric")
    told |= {
        "official": report.verdict(Layer.OFFICIAL).value,
        "expected_official": variant.officially,
        "strict": report.verdict(Layer.STRICT).value,
        "expected_strict": "rejected" if variant.detectable else "accepted",
        "failed": [one.name for one in report.reasons(Layer.STRICT)],
        "metric": metric,
    }
    if peer is not None:
        theirs = peer.check(folder, row["round"])
        told |= {"peer": "accepted" if theirs.accepted else "rejected", "peer_agrees": agrees(report, theirs.checks)}
    return told


def agrees(report: Report, theirs: dict[str, bool]) -> bool:
    """Whether each official check came out as with the official checker."""
    ours = {one.name: one.outcome is not Outcome.FAILED for one in report.checks if one.name.startswith("Check ")}
    return all(ours.get(name) == passed for name, passed in theirs.items()) and bool(theirs)


def show_variants(told: list[Told], with_peer: bool) -> None:
    cases = list(dict.fromkeys(one["case"] for one in told))
    print(f"\nTampered variants of {len(cases)} accepted results: official → strict verdict; – nothing to change there")
    rounds = {one["case"]: one["round"] for one in told}
    print(f"{'':<38}" + "".join(f"{rounds[case]:>12}" for case in cases))
    for variant in ALL:
        cells = []
        for case in cases:
            one = next(each for each in told if each["case"] == case and each["variant"] == variant.name)
            short = "–" if one["nothing_to_change"] else f"{one['official'][:3]} → {one['strict'][:3]}"
            cells.append(f"{short:>12}")
        print(f"{variant.name:<38}" + "".join(cells))
    why = {(one["variant"], one["nothing_to_change"]) for one in told if one["nothing_to_change"]}
    for variant, reason in sorted(why):
        where = [one["round"] for one in told if (one["variant"], one["nothing_to_change"]) == (variant, reason)]
        print(f"  no evidence can exist in {', '.join(where)} for “{variant}”: {reason}")
    print(f"  no evidence can exist in any round for “{BEYOND.name}”: the files are not signed, and all of them agree")
    if with_peer:
        compared = [one for one in told if "peer" in one]
        same = sum(one["peer"] == one["official"] and one["peer_agrees"] for one in compared)
        print(f"  the official checker of each round, beside: {same} of {len(compared)} the same, check by check")


# ---- speed and memory


def speed(data: Path, scratch: Path, count: int) -> Told:
    """How many results are checked in a minute, by two processes, and by the CPU time that it took."""
    cases = cases_of(data, "inference")
    root = scratch / "many"
    for number in range(count):
        case = cases[number % len(cases)]
        target = (
            root / f"inf-{case['round']}-{number}" / f"system{number}" / Path(case["location"]).name / "performance"
        )
        shutil.copytree(data / case["case"] / case["location"] / "performance", target, copy_function=shutil.copyfile)
    before_s, began_s = cpu_s(), time.perf_counter()
    checked = check(root, jobs=CORES)
    took_s = time.perf_counter() - began_s
    used_s = cpu_s() - before_s
    load = os.getloadavg()[0]
    return {
        "results": len(checked.reports),
        "wall_s": took_s,
        "cpu_s": used_s,
        "per_minute": 60 * count / took_s,
        "per_minute_by_cpu": 60 * CORES * count / used_s,
        "load_of_the_machine": load,
    }


def cpu_s() -> float:
    return sum(
        resource.getrusage(who).ru_utime + resource.getrusage(who).ru_stime
        for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def memory(scratch: Path) -> Told:
    """Peak of what Python holds while logs of 10 MB and 40 MB are streamed."""
    event = loadgen_line("generic_message", "x" * 60, 1.0, is_error=False) + "\n"
    sample = "Time,02-19-2024 23:12:54.593,Watts,117.140000,Volts,246.250000,Amps,0.581300,PF,0.818300,Mark,a_testing\n"
    peaks: Told = {}
    for name, line, read in (("detail", event, _read_events), ("spl", sample, _read_samples)):
        for size in (10, 40):
            path = scratch / f"{name}.txt"
            path.write_text(line * (size * 1_000_000 // len(line)))
            tracemalloc.start()
            read(path)
            peaks[f"{name} {size} MB"] = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    return peaks


def _read_events(path: Path) -> int:
    return sum(isinstance(one, LogEvent) for one in log_events(path, keys={"power_begin"}))


def _read_samples(path: Path) -> int:
    return sum(isinstance(one, SplSample) for one in spl_lines(path))


# ---- all of it


def peer_on_cases(data: Path, rows: list[Told], peer: OfficialChecker) -> Told:
    same, took_s = 0, 0.0
    cases = {case["case"]: case for case in cases_of(data, "inference")}
    for row in rows:
        folder = data / row["case"] / cases[row["case"]]["location"] / "performance"
        theirs = peer.check(folder, row["round"])
        took_s += theirs.took_s
        report = report_of(folder, row["round"])
        same += theirs.accepted == (row["official"] == "accepted") and agrees(report, theirs.checks)
    print(
        f"\nThe official checkers on the same cases: {same} of {len(rows)} the same, check by check; "
        f"{took_s / len(rows):.2f} s each, a process each"
    )
    return {"same": same, "cases": len(rows), "seconds_each": took_s / len(rows)}


def rejected(told: list[Told], names: set[str]) -> list[str]:
    """How many of these tampered results are rejected: by the round's own checker, by our official layer, strictly."""
    done = [one for one in told if one["variant"] in names and one["nothing_to_change"] is None]
    beside = [one for one in done if "peer" in one]
    return [
        f"{sum(one[layer] == 'rejected' for one in some)} of {len(some)}" if some else "–"
        for layer, some in (("peer", beside), ("official", done), ("strict", done))
    ]


def tables_of(told: Told) -> list[Told]:
    heads = ["case", "ours", "published", "apart", "official verdict", "strict verdict"]
    rows = [
        [row["case"], "none" if row["ours"] is None else f"{row['ours']:.9g}", f"{row['published']:.9g}",
         f"{row['difference']:.1e}", row["official"], row["strict"]]
        for row in (*told["inference"], *told["training"], *told["tiny"])
    ]  # fmt: skip
    groups = {
        f"{len(some)} ways that the official checker {verb}": some
        for verb, some in (
            ("rejects", [one for one in VARIANTS if one.officially == "rejected"]),
            ("accepts", [one for one in VARIANTS if one.officially == "accepted"]),
        )
    } | {one.name: [one] for one in ALL}
    ways = [[name, *rejected(told["variants"], {one.name for one in some})] for name, some in groups.items()]
    speed, peer = told["speed"], told.get("peer")
    per_result = [["ours", f"{1000 * speed['cpu_s'] / speed['results']:.0f} ms of CPU", 1.0]]
    if peer:
        ratio = peer["seconds_each"] / (speed["cpu_s"] / speed["results"])
        per_result.append(
            ["the round's official checker, a process each", f"{1000 * peer['seconds_each']:.0f} ms", ratio]
        )
    return [
        table("Published figures: W, J or mJ per query; kJ; µJ per inference", heads, rows),
        table("Tampered results that are rejected", ["way to tamper", "the round's official checker",
              "our official layer", "our strict layer"], ways),
        table("Time for one result", ["checker", "time", "÷ ours"], per_result),
    ]  # fmt: skip


def bars_of(told: Told) -> list[Bar]:
    rows = [*told["inference"], *told["training"], *told["tiny"]]
    worst = max(row["difference"] for row in rows)
    done = [one for one in told["variants"] if one["nothing_to_change"] is None]
    seen = [one for one in done if one["expected_strict"] == "rejected"]
    caught = sum(one["strict"] == "rejected" for one in seen)
    settled = [one for one in done if one["expected_official"] is not None]
    officially = sum(one["official"] == one["expected_official"] for one in settled)
    growth = max(told["memory"][f"{name} 40 MB"] for name in ("detail", "spl"))
    rate = max(told["speed"]["per_minute"], told["speed"]["per_minute_by_cpu"])
    table = told["table"]
    bars = [
        (f"every figure within {LIMIT:g} of the published one", f"{worst:.1e}", worst < LIMIT),
        (
            "every verdict as expected",
            f"{sum(r['as_expected'] for r in rows)} of {len(rows)}",
            all(r["as_expected"] for r in rows),
        ),
        (
            "the round of each case is found without being told",
            f"{sum(r['round'] == r['round_found'] for r in told['inference'])}",
            all(r["round"] == r["round_found"] for r in told["inference"]),
        ),
        (
            "tampered: official verdict as the round's checker has it",
            f"{officially} of {len(settled)}",
            officially == len(settled),
        ),
        ("tampered: the strict layer rejects all that can be seen", f"{caught} of {len(seen)}", caught == len(seen)),
        (f"{NEEDED_PER_MINUTE} results a minute on {CORES} cores", f"{rate:.0f}", rate >= NEEDED_PER_MINUTE),
        (
            f"logs are streamed in at most {MOST_GROWTH_BYTES >> 20} MiB",
            f"{growth >> 10} KiB",
            growth <= MOST_GROWTH_BYTES,
        ),
        (
            "table of runs: published figures from watts, window, queries",
            f"{table['within']} of {table['rows']}",
            table["rows"] - table["within"] <= 4,
        ),
    ]
    if "peer" in told:
        compared = [one for one in told["variants"] if "peer" in one]
        same = told["peer"]["same"] + sum(one["peer"] == one["official"] and one["peer_agrees"] for one in compared)
        total = told["peer"]["cases"] + len(compared)
        bars.append(("the official checkers come to the same, check by check", f"{same} of {total}", same == total))
    return bars


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder with CASES_*.json and the cases")
    parser.add_argument("--official", type=Path, help="a git repository of mlcommons/power-dev, to compare with")
    parser.add_argument("--quick", action="store_true", help="tamper with one result alone, and fewer copies for speed")
    parser.add_argument("--json", type=Path, help="write all figures to this file")
    options = parser.parse_args()
    if not (options.data / "CASES_inference.json").is_file():
        print(f"NOT DONE: there are no cases in {options.data}; give their folder with --data")
        return 2
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        peer = OfficialChecker(options.official, scratch / "official") if options.official else None
        told: Told = {"inference": list(inference(options.data))}
        show_cases("Inference: W, J or mJ per query, as published", told["inference"])
        told["training"] = list(training(options.data))
        show_cases("Training: kJ", told["training"])
        told["tiny"] = list(tiny(options.data))
        show_cases("Tiny: µJ per inference, compared as rounded as they were published", told["tiny"])
        told["table"] = published_table(options.data)
        print(f"\nTable of runs: {told['table']['within']} of {told['table']['rows']} published figures; others:")
        print(
            "".join(f"  {one}: five samples of −2 W, which its round averaged in\n" for one in told["table"]["others"])
        )
        if peer is not None:
            told["peer"] = peer_on_cases(options.data, told["inference"], peer)
        else:
            print("NOT COMPARED with the official checkers: give a copy of mlcommons/power-dev with --official")
        told["variants"] = variants(options.data, scratch, told["inference"], peer, options.quick)
        show_variants(told["variants"], peer is not None)
        told["speed"] = speed(options.data, scratch, 45 if options.quick else 270)
        print(
            "\nSpeed: {results} results in {wall_s:.1f} s, {cpu_s:.1f} s of CPU: {per_minute:.0f} a minute; "
            "{per_minute_by_cpu:.0f} with two cores to itself (load {load_of_the_machine:.1f})".format(**told["speed"])
        )
        told["memory"] = memory(scratch)
        print("Memory: " + ", ".join(f"{name}: {peak >> 10} KiB" for name, peak in told["memory"].items()))
    bars = bars_of(told)
    print()
    for words, value, met in bars:
        print(f"{words:<64} {value:>12}  {'met' if met else 'NOT MET'}")
    if options.json:
        told |= {"tables": tables_of(told), "bars": [bar(*one) for one in bars]}
        options.json.write_text(json.dumps(told, indent=1, default=str) + "\n")
    return 0 if all(met for _, _, met in bars) else 1


if __name__ == "__main__":
    sys.exit(main())
