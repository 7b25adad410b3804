"""How fast finished batches reach a trainer: Wattsmith's slots and sockets, and its peers, in one run.

    python benchmarks/feed_transport.py [--json FILE] [--quick] [--only NAME] [--tensorflow-python PATH]

Two workers hold prepared batches of 32×3×224×224, as uint8 and as float32. "Delivered" is a batch as its user gets it,
and that is judged; without that word the consumer copies all bytes into a further buffer, and with "collated" the
workers hold single samples and put each batch together with torch's default collate: both are told. "Bare copies"
are two processes that do nothing but copy, the most that the further copy leaves of memcpy. Each transport
runs in a process of its own, in turns, several rounds; a figure is the median of its three rounds with the least CPU
used by others. Ratios are to one thread's memcpy in the same run. Ray comes with the extra `ray`, Ray Data's pandas
with `bench`; tf.data service runs where a Python with TensorFlow is named.
Exits with 1 when a bar is not met.
"""

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from feeding.transports import TRANSPORTS, WORKERS
from results.shape import Cell, bar, table
from wattsmith import __version__

HERE = Path(__file__).parent
DTYPES = ("uint8", "float32")
NEEDS = {
    "DataLoader": ("torch",),
    "DataLoader, delivered": ("torch",),
    "DataLoader, collated": ("torch",),
    "ours, collated": ("torch",),
    "Ray actors": ("ray",),
    "Ray Data": ("ray", "pandas", "pyarrow"),
    "ours, slots": ("torch",),
    "ours, delivered": ("torch",),
    "ours, socket": ("torch",),
}
# As their users get batches: ours in memory that is the trainer's own, DataLoader's in a segment of its worker.
BARS = (
    ("ours, delivered", "memcpy", 0.6),
    ("ours, delivered", "DataLoader, delivered", 4.0),
    ("ours, socket", "Ray Data", 2.0),
)
# With a copy into another buffer behind both, which nobody needs who trains: told, and not judged.
COPIED = (("ours, slots", "memcpy", 0.6), ("bare copies", "memcpy", 0.6), ("ours, slots", "DataLoader", 4.0))
CLEANEST = 3
CLEAN = 0.06  # share of the machine that others may use in a window that counts as undisturbed
LIMIT_S = 180


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one short round")
    parser.add_argument("--rounds", type=int, default=5, help="rounds for each; the three cleanest count")
    parser.add_argument("--only", action="append", choices=sorted(TRANSPORTS), help="this one; may be repeated")
    parser.add_argument("--tensorflow-python", help="a Python that has TensorFlow, for tf.data service")
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    options = parser.parse_args()
    rounds, seconds = (1, 0.5) if options.quick else (options.rounds, 2.0)
    names = [name for name in TRANSPORTS if not options.only or name in options.only]
    skipped = {name: why for name in names if (why := why_not(name, options.tensorflow_python)) is not None}
    facts = describe()
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    for name, why in skipped.items():
        print(f"left out: {name}: {why}")
    tries: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for turn in range(rounds):
        for name in names:
            for dtype in DTYPES:
                if name not in skipped:
                    python = options.tensorflow_python if name == "tf.data service" else sys.executable
                    tries.setdefault((name, dtype), []).append(run(name, dtype, seconds, python))
        print(f"round {turn + 1} of {rounds} done", flush=True)
    rows = {key: figure(found) for key, found in tries.items()}
    show(rows)
    bars = bars_of(rows, BARS)
    for what, value, met in bars:
        print(f"{'met   ' if met else 'MISSED'}  {what}: {value:.2f}")
    for what, value, met in bars_of(rows, COPIED):
        print(f"told, {'above' if met else 'below'}: {what}: {value:.2f}")
    busy = max(row["foreign"] for row in rows.values())
    if busy > CLEAN:
        print(f"others used up to {busy:.0%} of this machine meanwhile: run it again when they are done")
    if options.json:
        plain = [{"transport": name, "dtype": dtype, **row} for (name, dtype), row in rows.items()]
        told = told_of(facts, plain, [bar(*one) for one in bars], skipped)
        options.json.write_text(json.dumps(told, indent=1) + "\n")
    return 0 if all(met for _, _, met in bars) else 1


def told_of(
    facts: dict[str, str], rows: list[dict[str, Any]], bars: list[dict[str, Any]], skipped: dict[str, str]
) -> dict[str, Any]:
    """What is written: the figures, and the same as a table."""
    speeds = {(row["transport"], row["dtype"]): row["bytes_per_s"] for row in rows}

    def over(row: dict[str, Any], peer: str) -> float | None:
        base = speeds.get((peer, row["dtype"]))
        return None if base is None else row["bytes_per_s"] / base

    cells: list[list[Cell]] = [
        [row["transport"], row["dtype"], f"{row['bytes_per_s'] / 1e6:.0f}", over(row, "memcpy"),
         over(row, "DataLoader, delivered"), row["cpu_s_per_gb"], f"{row['foreign']:.0%}"]
        for row in rows
    ]  # fmt: skip
    heads = ["transport", "dtype", "MB/s", "÷ memcpy", "÷ DataLoader, delivered", "CPU s/GB", "used by others"]
    notes = [f"Left out: {name}: {why}." for name, why in skipped.items()]
    return {"facts": facts, "rows": rows, "tables": [table("", heads, cells, notes)], "bars": bars}


def describe() -> dict[str, str]:
    versions = {name: metadata.version(name) for name in ("torch", "ray") if _there(name)}
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "python": platform.python_version(),
        "cores": str(os.cpu_count()),
        "workers": str(WORKERS),
        "wattsmith": __version__,
        **versions,
    }


def why_not(name: str, tensorflow_python: str | None) -> str | None:
    if name == "tf.data service":
        return None if tensorflow_python else "name a Python that has TensorFlow with --tensorflow-python"
    missing = [module for module in NEEDS.get(name, ()) if not _there(module)]
    return f"not installed: {', '.join(missing)}" if missing else None


def _there(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def run(name: str, dtype: str, seconds: float, python: str) -> dict[str, Any]:
    """One window of one transport. Its processes have one thread each for arithmetic."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RAY_DEDUP_LOGS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
    done = subprocess.run(
        [python, "-m", "feeding.transports", name, dtype, str(seconds)],
        cwd=HERE,
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise SystemExit(f"{name}, {dtype} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def figure(found: list[dict[str, Any]]) -> dict[str, float]:
    """Of the cleanest rounds, the middle one's figures."""
    clean = sorted(found, key=lambda one: one["foreign"])[:CLEANEST]

    def middle(value: Any) -> float:
        return statistics.median(value(one) for one in clean)

    return {
        "bytes_per_s": middle(lambda one: one["batches"] * one["batch_bytes"] / one["seconds"]),
        "batches_per_s": middle(lambda one: one["batches"] / one["seconds"]),
        "cpu_s_per_gb": middle(lambda one: one["cpu_s"] / (one["batches"] * one["batch_bytes"] / 1e9)),
        "foreign": middle(lambda one: one["foreign"]),
    }


def show(rows: dict[tuple[str, str], dict[str, float]]) -> None:
    print(f"\n{'transport':<22}{'dtype':<10}{'MB/s':>8}{'batch/s':>9}{'× memcpy':>10}{'CPU s/GB':>10}{'foreign':>9}")
    for (name, dtype), row in rows.items():
        base = rows.get(("memcpy", dtype))
        ratio = "" if base is None else f"{row['bytes_per_s'] / base['bytes_per_s']:.2f}"
        print(
            f"{name:<22}{dtype:<10}{row['bytes_per_s'] / 1e6:>8.0f}{row['batches_per_s']:>9.0f}{ratio:>10}"
            f"{row['cpu_s_per_gb']:>10.2f}{row['foreign']:>8.0%}"
        )
    print()


def bars_of(
    rows: dict[tuple[str, str], dict[str, float]], bars: Sequence[tuple[str, str, float]]
) -> list[tuple[str, float, bool]]:
    """What was promised, what it came to, and whether that will do. A bar whose peer is not there is left out."""
    found = []
    for ours, peer, least in bars:
        for dtype in DTYPES:
            if (ours, dtype) in rows and (peer, dtype) in rows:
                ratio = rows[ours, dtype]["bytes_per_s"] / rows[peer, dtype]["bytes_per_s"]
                found.append((f"{ours} ÷ {peer}, {dtype}, at least {least:g}", ratio, ratio >= least))
    return found


if __name__ == "__main__":
    sys.exit(main())
