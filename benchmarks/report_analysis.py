"""What the tables of published power results give, beside what was said of them: counts, trends, the paper's figures.

    python benchmarks/report_analysis.py --data ../shared/data/mlperf [--json FILE] [--page OUT.html]

Prints every figure as it was said and as it comes out here. Exits with 1 when one that is known to repeat does not, or
one that is known not to repeat now does.
"""

import argparse
import json
import sys
import time
from pathlib import Path

from results.shape import bar, table
from wattsmith.flows.report_analysis import load, summarise, write_page
from wattsmith.report.analysis_claims import Outcome
from wattsmith.report.analysis_folder import read_folder
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.facts import as_plain

DATA = Path(__file__).parents[2] / "shared" / "data" / "mlperf"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file")
    parser.add_argument("--page", type=Path, metavar="OUT.html", help="write the page as well")
    asked = parser.parse_args()
    if not asked.data.is_dir():
        print(f"SKIPPED: there is no folder {asked.data}; give it with --data DIR", file=sys.stderr)
        return 2
    began_s = time.perf_counter()
    try:
        summary = summarise(asked.data)
        logs = from_logs(asked.data)
        if asked.page is not None:
            write_page(asked.data, asked.page)
    except WattsmithError as wrong:
        print(wrong, file=sys.stderr)
        return 2
    took_s = time.perf_counter() - began_s
    show(summary.claims)
    print(f"\n{len(logs)} results worked out again from their logs; largest difference from the table:", end=" ")
    print(f"{farthest(logs):.1e}")
    print(f"{summary.results} results, {took_s:.1f} s")
    if asked.json:
        asked.json.write_text(json.dumps(told_of(summary, logs, took_s), indent=1) + "\n")
    apart = [log for log in logs if abs(log["apart_ratio"]) > 1e-9]
    for claim in summary.mismatches:
        print(f"MISMATCH {claim.text}: said {claim.said}, here {claim.ours}", file=sys.stderr)
    for log in apart:
        print(f"MISMATCH {log['result']}: {log['apart_ratio']:.1e} from the table", file=sys.stderr)
    if not summary.claims:
        print("MISMATCH: the table is too small to be the one that was spoken of", file=sys.stderr)
    return 1 if summary.mismatches or apart or not summary.claims else 0


def farthest(logs) -> float:
    return max((abs(log["apart_ratio"]) for log in logs), default=0.0)


def told_of(summary, logs, took_s: float) -> dict[str, object]:
    """What is written: the figures, and the same as tables and bars."""
    heads = ["figure", "said by", "said", "here", "unit", "", "why"]
    rows = [
        [claim.text, claim.said_by, f"{claim.said:.6g}", "no table" if claim.ours is None else f"{claim.ours:.6g}",
         claim.unit, claim.outcome.value, claim.why if claim.outcome is not Outcome.AGREES else ""]
        for claim in summary.claims
    ]  # fmt: skip
    as_known = len(summary.claims) - len(summary.mismatches)
    return {
        "claims": [as_plain(claim) | {"outcome": claim.outcome} for claim in summary.claims],
        "results": summary.results,
        "logs": logs,
        "took_s": took_s,
        "tables": [table("What was said, and what comes out here", heads, rows)],
        "bars": [
            bar("every figure repeats, or does not, as is known", f"{as_known} of {len(rows)}", as_known == len(rows)),
            bar(f"{len(logs)} results from their logs as in the table", f"{farthest(logs):.1e}",
                bool(rows) and farthest(logs) <= 1e-9),
        ],
    }  # fmt: skip


def from_logs(folder: Path) -> list[dict[str, object]]:
    """The results whose logs lie in FOLDER, each metric beside the table's."""
    results, _ = read_folder(folder)
    corpus, _ = load(folder)
    table = {(one.round, *one.owner, one.model, one.scenario): one.metric for one in corpus.results}
    found = []
    for one in results:
        key = (one.round, *one.owner, one.model, one.scenario)
        if key in table:
            found.append({"result": " ".join(key), "metric": one.metric, "apart_ratio": one.metric / table[key] - 1})
    return found


def show(claims) -> None:
    topic = None
    for claim in claims:
        if claim.topic != topic:
            topic = claim.topic
            print(f"\n{topic}")
        ours = "no table" if claim.ours is None else f"{claim.ours:.6g}"
        why = f"  ({claim.why})" if claim.why and claim.outcome is not Outcome.AGREES else ""
        print(
            f"  {claim.text:<76.76} {claim.said_by:<10} {claim.said:>11.6g} {ours:>11} {claim.unit:<9} "
            f"{claim.outcome.value}{why}"
        )


if __name__ == "__main__":
    sys.exit(main())
