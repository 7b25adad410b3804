"""Wattsmith, Zeus and CodeCarbon on the same simulated GPU driver, in one run.

    python benchmarks/measure_peers.py [--peers-python PATH] [--json FILE] [--quick] [--ours-only] [--only QUESTION]

What a window costs; how far its joules are from the true ones, which the simulated driver knows; what a machine
without a driver reads as; what sampling and importing take. Each tool runs in a process of its own, see peers/. Zeus
and CodeCarbon come with the extra `bench`; they may live in another environment, named with --peers-python.
Exits with 1 when a bar is not met, with 2 when Zeus or CodeCarbon is not there.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from peers.bench import CODECARBON, FULL, MODULES, OURS, QUICK, ZEUS, Bar, Bench, Table, bars_table, show
from peers.cost import cost
from peers.error import accuracy, blind_spots
from peers.upkeep import imports, nothing, sampling

QUESTIONS: dict[str, Callable[[Bench], Iterator[Table]]] = {
    "cost": cost,
    "accuracy": accuracy,
    "bursts": blind_spots,
    "nothing": nothing,
    "sampling": sampling,
    "imports": imports,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers-python", default=sys.executable, help="the Python that has Zeus and CodeCarbon")
    parser.add_argument("--ours-only", action="store_true", help="leave the other two out")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter windows")
    parser.add_argument("--only", action="append", choices=sorted(QUESTIONS), help="answer this; may be repeated")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    facts = describe()
    if not options.ours_only:
        versions = peer_versions(options.peers_python)
        if isinstance(versions, str):
            print(f"not run: {versions}")
            return 2
        facts |= versions
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    tools = (OURS,) if options.ours_only else tuple(MODULES)
    tables = []
    with tempfile.TemporaryDirectory(prefix="wattsmith-bench-") as folder:
        bench = Bench(tools, options.peers_python, QUICK if options.quick else FULL, Path(folder))
        for answer in [QUESTIONS[name] for name in options.only or QUESTIONS]:
            for table in answer(bench):
                show(table)
                tables.append(table)
    bars = [bar for table in tables for bar in table.bars]
    show(bars_table(bars))
    if options.json:
        options.json.write_text(json.dumps(as_json(facts, tables, bars), indent=1, ensure_ascii=False) + "\n")
    return 0 if all(bar.met is not False for bar in bars) else 1


def describe() -> dict[str, str]:
    from importlib.metadata import version

    return {
        "date": datetime.now(UTC).date().isoformat(),
        "driver": "simulated (wattsmith.sim.nvml)",
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        OURS: version("wattsmith"),
    }


def peer_versions(python: str) -> dict[str, str] | str:
    """The versions of the other two; a sentence when one is not there."""
    program = "from importlib.metadata import version as v; print(v('zeus'), v('codecarbon'))"
    try:
        asked = subprocess.run([python, "-c", program], capture_output=True, text=True, check=False)
    except OSError as failed:
        return f"{python} cannot be run: {failed}"
    if asked.returncode != 0:
        return (
            f"{python} has not both Zeus and CodeCarbon: {asked.stderr.strip().splitlines()[-1]}. "
            "Install the extra `bench`, name another Python with --peers-python, or leave them out with --ours-only."
        )
    return dict(zip((ZEUS, CODECARBON), asked.stdout.split(), strict=True))


def as_json(facts: Mapping[str, str], tables: Sequence[Table], bars: Sequence[Bar]) -> dict[str, Any]:
    return {
        "facts": facts,
        "tables": [{"title": t.title, "heads": t.heads, "rows": t.rows, "notes": t.notes} for t in tables],
        "bars": [{"what": bar.what, "figure": bar.figure, "met": bar.met} for bar in bars],
    }


if __name__ == "__main__":
    sys.exit(main())
