"""How well steps that were never seen are predicted, beside simple methods and published ones.

    python benchmarks/estimate_accuracy.py --data ../shared/data [--only timm --only profet] [--json FILE]

Every figure is about groups that were held out whole: families of networks, networks, or GPUs. Nothing is fitted to
what is tested, and all data sets go through the same code with the same settings. Ends with 1 when a bar is missed.
Takes about two minutes.
"""

import argparse
import importlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from estimate_public.rows import Row

# Each part is a module beside this script, and the function in it that takes the data's folder and gives rows.
PARTS = {
    "timm": ("estimate_public.parts", "timm_rows"),
    "profet": ("estimate_public.parts", "profet_rows"),
    "neusight": ("estimate_public.parts", "neusight_rows"),
    "vtrain": ("estimate_public.vtrain", "rows"),
    "flag": ("estimate_public.parts", "flag_rows"),
    "h200": ("estimate_h200.parts", "rows"),
}
BASELINES = ("constant", "linear", "two-phase", "roofline")


def part(name: str) -> Callable[[Path], list[Row]] | None:
    """What gives the rows of a part. None: it is not here."""
    module, function = PARTS[name]
    try:
        found: Callable[[Path], list[Row]] = getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as missing:
        if missing.name not in (module, module.partition(".")[0]):
            raise
        return None
    return found


def in_per_cent(given: Any) -> Row:
    """A row of ours as it is; one with `bar` and `baselines`, in ratios, as a row of ours."""
    if isinstance(given, Row):
        return given
    return Row(
        test=given.test,
        measure="MAPE",
        ours=100 * given.ours,
        at_most=None if given.bar is None else 100 * given.bar,
        others={name: 100 * error for name, error in given.baselines.items()},
        note=given.note,
    )


def lines(rows: list[Row]) -> list[str]:
    """The table, a line for each row and one more for what there is to say about it."""
    wide = max(len(row.test) for row in rows)
    said = [f"{'per cent':<{wide + 11}}{'ours':>6} {'bar':>7}  {'':<7}" + "".join(f"{name:>10}" for name in BASELINES)]
    for row in rows:
        verdict = {True: "met", False: "MISSED", None: ""}[row.met]
        others = "".join(f"{row.others[name]:>10.1f}" if name in row.others else f"{'':>10}" for name in BASELINES)
        said.append(f"{row.test:<{wide}}  {row.measure:<9}{row.ours:>6.1f} {row.bar:>7}  {verdict:<7}{others}".rstrip())
        rest = {name: told for name, told in row.others.items() if name not in BASELINES}
        more = [
            f"{row.rows} predictions" if row.rows else "",
            row.note,
            f"two-phase errs {row.others['two-phase'] / row.ours:.1f} times as much"
            if "two-phase" in row.others
            else "",
            "others: " + ", ".join(f"{name} {told:.1f}" for name, told in rest.items()) if rest else "",
        ]
        said.append(f"    {'; '.join(one for one in more if one)}")
    return said


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"), help="where timm/, profet/, … are")
    parser.add_argument("--only", action="append", choices=PARTS, help="this part alone; may be given several times")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    options = parser.parse_args()
    rows: list[Row] = []
    for name in options.only or PARTS:
        give = part(name)
        if give is None:
            print(f"{name}: not in this checkout", file=sys.stderr)
            continue
        began_s = time.monotonic()
        try:
            rows += map(in_per_cent, give(options.data))
        except FileNotFoundError as missing:
            print(f"{name}: {missing.filename} is not there. Name the folder of the data with --data.", file=sys.stderr)
            return 2
        print(f"{name}: {time.monotonic() - began_s:.0f} s", file=sys.stderr)
    print("\n".join(lines(rows)))
    if options.json:
        figures = [{**asdict(row), "bar": row.bar, "met": row.met} for row in rows]
        options.json.write_text(json.dumps(figures, indent=1) + "\n")
    missed = [row.test for row in rows if row.met is False]
    if missed:
        print(f"missed: {'; '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
