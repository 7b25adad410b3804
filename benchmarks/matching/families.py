"""What kind of network a real one is, recognised from telemetry with a record that does not hold it.

Two sources. Run-level: what the runs in estimate_h200 told of 15 real networks on an H200 (mean power, share of time
busy, memory, steps per second), with and without their traced layers, beside the shipped record of synthetic networks.
Traces: telemetry of real networks as `match_accuracy.py --record-telemetry DIR` takes it on a GPU, beside counters of
97 networks of the shipped record that were taken in the same way; those of an H200 are in h200_telemetry.
"""

import gzip
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimate_public.structures import read
from matching.programs import held_out
from matching.recording import LAYERS as LAYERS_FILE
from matching.recording import SYNTHETIC, read_lines
from matching.rows import Row
from wattsmith.flows.matching import benchmarks_in, match
from wattsmith.flows.records import runs_of
from wattsmith.flows.telemetry_files import read_telemetry
from wattsmith.match.features import LAYERS, fingerprint_of, layer_features
from wattsmith.match.points import benchmarks_of, with_activity
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
            found[one["name"], int(one["batch"]), one["precision"]] = structure_from(one["trace"]["structure"])
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


def left_out_rows() -> list[Row]:
    """Networks of the record by their layers, each beside all the others."""
    points = [point for point in benchmarks_in("h200") if point.features["matmul_mixing"] is not None]
    right = 0
    for one in points:
        layers = Fingerprint(features={name: one.features[name] for name in LAYERS})
        right += match(layers, [point for point in points if point.group != one.group]).family.family == one.family
    kinds = Counter(point.family for point in points)
    return [
        Row(test="the record, each left out, by layers", measure="kind right", ours=100 * right / len(points),
            count=len(points), others={"commonest kind": 100 * kinds.most_common(1)[0][1] / len(points)})
    ]  # fmt: skip


def timm_rows() -> list[Row]:
    """Networks of timm by the layers of their traced step alone: many more than were ever run here."""
    points = benchmarks_in("h200")
    steps = {key.split("|")[0]: structure for key, structure in read("timm").items()}
    kinds = {name: kind for name in steps if (kind := timm_kind(name)) is not None}
    wrong = [name for name, kind in kinds.items() if match(steps[name], points).family.family != kind]
    return [
        Row(test="timm, by traced layers alone", measure="kind right, synthetic record",
            ours=100 * (1 - len(wrong) / len(kinds)), at_least=RIGHT, count=len(kinds),
            others={"commonest kind": 100 * Counter(kinds.values()).most_common(1)[0][1] / len(kinds)},
            note=f"wrong: {', '.join(sorted(wrong))}")
    ]  # fmt: skip


def timm_kind(name: str) -> str | None:
    """The kind of one of timm's networks, by its name; None: it is half of one and half of another."""
    mixed = ("botn", "halo", "lambda", "mobilevit", "edgenext", "bat_resnext")
    if any(one in name for one in mixed) or (name.startswith("vit_") and ("_r" in name and "relpos" not in name)):
        return None
    if name.startswith("sequencer"):
        return "recurrent"
    if name.startswith(("mixer_", "gmixer", "gmlp", "resmlp")):
        return "dense"
    attending = "beit cait coat crossvit convit deit pit_ swin tnt twins vit_ visformer volo xcit jx_nest nest_ levit"
    return "transformer" if name.startswith(tuple(attending.split())) else "convolutional"


def trace_rows(folder: Path) -> list[Row]:
    """Of traces that `recording.record_all` took: real networks beside the record's synthetic ones, and strangers."""
    known = [*held_out()]
    points = counted(folder)
    kinds = {f"{network.name}-{network.batches[1]}-bf16": kind for network, kind in known}
    layers = json.loads(gzip.decompress((folder / LAYERS_FILE).read_bytes()))
    traces = {path.stem: fingerprint_of(read_telemetry(path)) for path in sorted(folder.glob("*.parquet"))}
    majority = 100 * Counter(kinds.values()).most_common(1)[0][1] / len(kinds)
    rows = []
    for sees, layered in (("traces with counters", False), ("and traced layers", True)):
        found = {}
        for name, seen in traces.items():
            more = layer_features(structure_from(layers[name])) if layered and name in layers else {}
            found[name] = match(replace(seen, features={**seen.features, **more}), points)
        real = [name for name in found if name in kinds]
        right = [name for name in real if found[name].family.family == kinds[name]]
        wrong = ", ".join(
            f"{name.rsplit('-', 2)[0]} as {found[name].family.family}" for name in real if name not in right
        )
        rows.append(
            Row(test=f"H200, {len(real)} real networks: {sees}", measure="kind right, synthetic record",
                ours=100 * len(right) / len(real), at_least=RIGHT if layered else None, count=len(real),
                others={"commonest kind": majority},
                note=f"wrong: {wrong}; refused {sum(not found[name].recognised for name in real)}")
        )  # fmt: skip
        if not layered:
            strange = [name for name in found if name not in kinds]
            refused = [name for name in strange if not found[name].recognised]
            far = {name: one.nearest / one.farthest_known for name, one in found.items()}
            own, other = ([far[name] for name in names] for names in (real, strange))
            rows.append(
                Row(test=f"H200, {len(strange)} programs that are no networks", measure="refused",
                    ours=100 * len(refused) / len(strange), at_least=100.0, count=len(strange),
                    note=f"not refused: {', '.join(sorted(set(strange) - set(refused))) or 'none'}; of the distance of "
                    f"refusal, networks lie at {min(own):.1f} to {max(own):.1f}, "
                    f"these at {min(other):.1f} to {max(other):.1f}")
            )  # fmt: skip
    return rows


def counted(folder: Path) -> list[Benchmark]:
    """Networks of the shipped record, with the activity that was counted of them: in FOLDER, if it holds any."""
    points = benchmarks_in("h200")
    if not (folder / SYNTHETIC).exists():
        return points
    seen = {one["key"]: {**one, **one["activity"]} for one in read_lines(folder / SYNTHETIC)}
    return with_activity(points, seen)


def structure_from(plain: Mapping[str, Any]) -> Structure:
    operators = {
        kind: OperatorCount(calls=count["calls"], flops=count["flops"], moved_bytes=count["moved_bytes"])
        for kind, count in plain["operators"].items()
    }
    fields = {key: value for key, value in plain.items() if key in Structure.__dataclass_fields__}
    return Structure(**{**fields, "operators": operators})
