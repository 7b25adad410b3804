"""Trace the real networks for machines without torchvision: `cd benchmarks && python -m estimate_h200.trace`.

Writes `traces.jsonl.gz` beside this file: what each step calls and in which order, and its memory played through the
allocator's model. Needs torchvision and transformers, no GPU. Anew whenever tracing changes.
"""

import gzip
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from estimate_h200.networks import Network, networks, ready
from wattsmith.estimate.memory import replay
from wattsmith.record.structure import trace
from wattsmith.terms.facts import as_plain

TRACES = Path(__file__).with_name("traces.jsonl.gz")


def torchvision_by_name() -> list[Any]:
    """Let torchvision be imported where its compiled operators do not fit: only their names are asked for."""
    import torch

    kept = []
    for schema in ("nms", "qnms"):
        library = torch.library.Library("torchvision", "FRAGMENT")
        library.define(f"{schema}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        kept.append(library)
    return kept


def main() -> None:
    kept = torchvision_by_name()  # as long as it is used
    lines = []
    for network in networks():
        for batch in network.batches:
            for precision in ("fp32", "bf16"):
                began_s = time.monotonic()
                lines.append(json.dumps(traced(network, batch, precision)))
                print(f"{network.name} {batch} {precision}: {time.monotonic() - began_s:.1f} s", flush=True)
    kept.clear()
    TRACES.write_bytes(gzip.compress("\n".join(lines).encode() + b"\n", mtime=0))
    print(f"{len(lines)} traces in {TRACES}, {TRACES.stat().st_size} bytes")


def traced(network: Network, batch: int, precision: str) -> dict[str, Any]:
    step = ready(network, batch, precision, "meta")
    found = trace(
        step.step,
        parameters=list(step.module.parameters()),
        inputs=step.inputs,
        resident=list(step.module.buffers()),
        precision=precision,
    )
    return {
        "name": network.name,
        "batch": batch,
        "precision": precision,
        "trace": as_plain(replace(found, memory=(), last_step_at=0)),
        "peaks": as_plain(replay(found.memory, found.last_step_at)),
        "accelerate_bytes": by_accelerate(step.module),
    }


def by_accelerate(module: Any) -> int:
    """What Hugging Face's accelerate says that training with Adam needs: four times the weights."""
    from accelerate.utils import calculate_maximum_sizes

    whole, _ = calculate_maximum_sizes(module)
    return 4 * int(whole)


if __name__ == "__main__":
    main()
