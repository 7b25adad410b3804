"""How well a program is recognised by its telemetry, and how well its reaction to a clock or limit is told.

    python benchmarks/match_accuracy.py --data DIR [--quick] [--json FILE] [--sweep FILE.csv …] [--telemetry DIR]
    python benchmarks/match_accuracy.py --record-telemetry DIR        # on a GPU, with torchvision and transformers

A100 (a100-dcgm-dvfs): 19 programs by 20 ms counters, record: run 0 at 1410 MHz; windows of 1, 3 and 6 s of other runs.
23 programs at 61 clocks, each left out in turn: its curve from its state at the highest clock and one probe, errors
over all other clocks; then a 5 % limit on slowdown, against an oracle that knows every measured point. "Ours" at the
limit is what the job ends up with: the setting that the curve recommends is run, looked at and, where it breaks the
limit or another promises more, left for another, five times at most; "after one probe" is without looking. "Own curve
without noise" is the program's own measured curve, smoothed: no guess made beforehand can be expected to do better.
"Halving, no record" may look as often as we may, and knows nothing.

Zeus (zeus-traces): training at power limits, a network left out with all its batches; the same method, nothing set
anew, and no bars. --sweep takes others: program, setting, time_s, power_w, group and knob (clock or
power_limit) where they differ, and features by our names.

H200: real networks beside the shipped record of synthetic ones; see matching/families.py for what that is.

Exits with 1 when a bar is missed, 2 without data.
"""

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

from matching.families import family_rows, left_out_rows, timm_rows, trace_rows
from matching.recognition import recognition_rows
from matching.recording import record_all
from matching.responses import doubt_rows, response_rows
from matching.rows import Row, text_of
from matching.sweeps import A100, ZEUS, a100_sweep, own_sweep, zeus_sweeps

OURS = Path(__file__).parent / "matching" / "h200_telemetry"


def rows_of(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    if (options.data / A100).exists():
        sweep = a100_sweep(options.data)
        rows += response_rows(sweep, bars=True) + doubt_rows(sweep)
        bare = a100_sweep(options.data, counters=False)
        rows += response_rows(replace(bare, name="A100, no counters"), bars=False)
        rows += recognition_rows(options.data)
    if (options.data / ZEUS).exists() and not options.quick:
        for one in zeus_sweeps(options.data):
            rows += response_rows(one, bars=False)
    for path in options.sweep:
        rows += response_rows(own_sweep(path), bars=False)
    return rows + family_rows() + left_out_rows() + timm_rows() + trace_rows(options.telemetry)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="public measurements")
    parser.add_argument("--quick", action="store_true", help="without the sweeps of Zeus")
    parser.add_argument("--json", type=Path, help="write the rows to FILE")
    parser.add_argument("--sweep", type=Path, action="append", default=[], help="another sweep, as CSV")
    parser.add_argument(
        "--telemetry", type=Path, default=OURS, help="traces of real networks, taken with --record-telemetry"
    )
    parser.add_argument("--record-telemetry", type=Path, help="take such traces on this machine's GPU, and stop")
    parser.add_argument("--seconds", type=float, default=3.4, help="for each network")
    parser.add_argument("--within", type=float, default=225.0, help="seconds for all of them")
    options = parser.parse_args()
    if options.record_telemetry is not None:
        taken = record_all(options.record_telemetry, options.seconds, options.within)
        print(f"{taken} traces in {options.record_telemetry}")
        return 0
    if not (options.data / A100).exists():
        print(f"SKIPPED: {options.data / A100} is not there; say where with --data DIR", file=sys.stderr)
        return 2
    rows = rows_of(options)
    print(text_of(rows))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(row) | {"bar": row.bar, "met": row.met} for row in rows], indent=1))
    missed = [row for row in rows if row.met is False]
    print(f"{len(missed)} bars missed" if missed else "all bars met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
