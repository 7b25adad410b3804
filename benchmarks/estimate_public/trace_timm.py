"""Makes timm.jsonl.gz: what the networks of timm's training tables do in one step.

    cd benchmarks && python -m estimate_public.trace_timm --data DIR --timm FOLDER --unpacked FILE

FOLDER is where `pip install --no-deps --target FOLDER timm` put it. About 20 minutes. The tables were measured with
PyTorch 1.12 under autocast to fp16, attention as separate products, and SGD that updates one tensor after another.
"""

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from estimate_public.structures import Point, collect
from wattsmith.record.structure import trace_step
from wattsmith.terms.run import Structure

TABLES = ("nchw", "nhwc")


def without_torchvision() -> None:
    """Put empty classes where timm looks for torchvision's; none of them is called to build a network."""
    from enum import Enum

    modes = Enum("InterpolationMode", "NEAREST BILINEAR BICUBIC BOX HAMMING LANCZOS")
    names = ("", ".datasets", ".models", ".models.feature_extraction", ".ops", ".ops.misc", ".transforms",
             ".transforms.functional", ".utils")  # fmt: skip
    for name in names:
        module = ModuleType(f"torchvision{name}")
        module.__getattr__ = _empty_class  # type: ignore[method-assign]
        module.__path__ = []
        module.InterpolationMode = modes  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        holder, _, last = module.__name__.rpartition(".")
        if holder:
            setattr(sys.modules[holder], last, module)


def _empty_class(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def points(data_dir: Path) -> Iterator[Point]:
    for table in TABLES:
        with (data_dir / f"timm/benchmark-train-amp-{table}-pt112-cu113-rtx3090.csv").open() as lines:
            for row in csv.DictReader(lines):
                yield Point(network=row["model"], batch=int(row["train_batch_size"]), size=int(row["train_img_size"]))


def trace(point: Point) -> Structure:
    import timm
    import torch

    with torch.device("meta"):
        model = timm.create_model(point.network, pretrained=False).train()
        images = torch.empty(point.batch, 3, point.size, point.size)
        labels = torch.empty(point.batch, dtype=torch.long)
    learning = list(model.parameters())
    optimizer = torch.optim.SGD(learning, lr=1e-4, momentum=0.9, nesterov=True, foreach=False)

    def step() -> None:
        optimizer.zero_grad(set_to_none=False)
        with torch.device("meta"):  # for what it makes on the way
            given = model(images)
        given = given[0] if isinstance(given, tuple) else given
        if given.dim() > 2:
            given = given.flatten(1)
        torch.nn.functional.cross_entropy(given, labels).backward()
        optimizer.step()

    return trace_step(step, parameters=learning, inputs=[images, labels], precision="fp16", steps=2)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--data", type=Path, required=True)
    asked.add_argument("--timm", type=Path, required=True)
    asked.add_argument("--unpacked", type=Path, required=True)
    given = asked.parse_args()
    os.environ["TIMM_FUSED_ATTN"] = "0"
    sys.path.insert(0, str(given.timm))
    without_torchvision()
    collect(points(given.data), trace, given.unpacked, "timm")


if __name__ == "__main__":
    main()
