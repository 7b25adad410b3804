"""What kind of network a real one is, recognised from telemetry with a record that does not hold it.

Two sources. Run-level: what the runs in estimate_h200 told of 15 real networks on an H200 (mean power, share of time
busy, memory, steps per second), with and without their traced layers, beside the shipped record of synthetic networks.
Traces: telemetry of real networks as `match_accuracy.py --record-telemetry DIR` takes it on a GPU.
"""

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matching.rows import Row
from wattsmith.flows.matching import benchmarks_in, match
from wattsmith.flows.records import runs_of
from wattsmith.flows.telemetry_files import read_telemetry
from wattsmith.match.features import LAYERS, fingerprint_of
from wattsmith.match.points import benchmarks_of
from wattsmith.terms.run import OperatorCount, Structure
from wattsmith.terms.telemetry import Benchmark, Fingerprint

HERE = Path(__file__).parents[1] / "estimate_h200"
TRANSFORMERS = ("vit_b_16", "swin_t", "bert-base", "gpt2", "t5-small", "llama-220m")
RIGHT = 90.0


def kind_of(network: str) -> str:
    return "transformer" if network in TRANSFORMERS else "convolutional"


def real_networks() -> list[Benchmark]:
    """The measured runs of real networks, with the layers of their traced steps."""
    layers = _structures()
    found = []
    for run in runs_of(str(HERE / "measured.jsonl.gz")):
        name = run.workload.family
        structure = layers.get((name, run.workload.batch, run.workload.precision))
        (point,) = benchmarks_of([replace(run, structure=structure)])
        found.append(replace(point, group=name, family=kind_of(name)))
    return found


def _structures() -> dict[tuple[str, int, str], Structure]:
    found = {}
    with gzip.open(HERE / "traces.jsonl.gz", "rt") as lines:
        for line in lines:
            one = json.loads(line)
            plain = one["trace"]["structure"]
            operators = {
                kind: OperatorCount(calls=count["calls"], flops=count["flops"], moved_bytes=count["moved_bytes"])
                for kind, count in plain["operators"].items()
            }
            fields = {key: value for key, value in plain.items() if key in Structure.__dataclass_fields__}
            found[one["name"], int(one["batch"]), one["precision"]] = Structure(**{**fields, "operators": operators})
    return found


def asked(points: Sequence[Benchmark], real: Sequence[Benchmark], hidden: Sequence[str]) -> Mapping[str, float]:
    """Per cent of REAL whose kind is right, that are refused, and that are refused once their kind is taken out."""
    right = refused = unknown = 0
    for one in real:
        print_ = Fingerprint(features={name: None if name in hidden else value for name, value in one.features.items()})
        others = [point for point in points if point.group != one.group]
        found = match(print_, others)
        right += found.family is not None and found.family.family == one.family
        refused += not found.recognised
        unknown += not match(print_, [point for point in others if point.family != one.family]).recognised
    count = len(real) / 100
    return {"right": right / count, "refused": refused / count, "unknown": unknown / count}


def family_rows() -> list[Row]:
    synthetic, real = benchmarks_in("h200"), real_networks()
    sources = {"synthetic record": synthetic, "synthetic and other real ones": [*synthetic, *real]}
    majority = 100 * max(sum(one.family == kind for one in real) for kind in {one.family for one in real}) / len(real)
    rows = []
    for sees, hidden in (("run-level telemetry", LAYERS), ("and traced layers", ())):
        for name, points in sources.items():
            found = asked(points, real, hidden)
            test = f"H200, 15 real networks: {sees}"
            rows.append(
                Row(test=test, measure=f"kind right, {name}", ours=found["right"], count=len(real),
                    at_least=RIGHT if not hidden else None, others={"commonest kind": majority},
                    note=f"refused {found['refused']:.0f}; refused when their kind is unknown {found['unknown']:.0f}")
            )  # fmt: skip
    return rows


def trace_rows(folder: Path) -> list[Row]:
    """Of traces named NETWORK-BATCH-PRECISION.parquet: every network beside all others."""
    points = []
    for path in sorted(folder.glob("*.parquet")):
        network, batch, precision = path.stem.rsplit("-", 2)
        seen = fingerprint_of(read_telemetry(path))
        points.append(
            Benchmark(
                name=path.stem, group=network, family=kind_of(network), features=seen.features,
                parameters={"batch": int(batch), "precision": precision},
            )
        )  # fmt: skip
    found = asked(points, points, ())
    return [
        Row(test=f"{folder.name}: telemetry of real networks", measure="kind right, other real networks",
            ours=found["right"], at_least=RIGHT, count=len(points),
            note=f"refused {found['refused']:.0f}; refused when their kind is unknown {found['unknown']:.0f}")
    ]  # fmt: skip
