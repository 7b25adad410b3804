"""Public measurements as timed steps: where a step of which network took how long."""

import csv
from collections import defaultdict
from pathlib import Path
from statistics import median

from estimate_public.structures import Point, read
from wattsmith.estimate.costs import Regime, Step, Timed
from wattsmith.estimate.sheets import sheet_of

PROFET_DEVICES = {
    "g3s.xlarge": "Tesla M60",
    "g4dn.xlarge": "Tesla T4",
    "p2.xlarge": "Tesla K80",
    "p3.2xlarge": "Tesla V100 SXM2",
}
TIMM_LAYOUTS = {"nchw": "contiguous", "nhwc": "channels-last"}


WEIGHT_SOURCES = ("tf", "gluon", "ssl", "swsl", "ig", "legacy", "cs3", "ese")  # what timm puts before a name


def family(network: str) -> str:
    """The letters that timm's name begins with: "efficientnet" of "tf_efficientnet_b0_ns"."""
    name = "_".join(word for word in network.split("_") if word not in WEIGHT_SOURCES)
    return name[: next((at for at, letter in enumerate(name) if not letter.isalpha()), len(name))]


def timm(data_dir: Path, table: str) -> list[Timed]:
    """Training on an RTX 3090 under autocast to fp16. Groups are families."""
    structures = read("timm")
    regime = Regime(precision="fp16", layout=TIMM_LAYOUTS[table])
    found = []
    with (data_dir / f"timm/benchmark-train-amp-{table}-pt112-cu113-rtx3090.csv").open() as lines:
        for row in csv.DictReader(lines):
            point = Point(
                network=row["model"], batch=int(row["train_batch_size"]), size=int(row["train_img_size"])
            )  # fmt: skip
            if point.key in structures:
                step = Step(structure=structures[point.key], device=sheet_of("RTX 3090"), regime=regime)
                step_s = float(row["train_step_time"]) / 1_000
                found.append(Timed(step=step, step_s=step_s, group=family(row["model"]), name=point.key))
    return found


def profet(data_dir: Path) -> list[Timed]:
    """Training under TensorFlow in fp32 on four GPUs; the median of nine repeats. Groups are networks."""
    structures = read("profet")
    taken = defaultdict(list)
    with (data_dir / "profet/profet_train_latency.csv").open() as lines:
        for row in csv.DictReader(lines):
            size = int(row["dataset"].removesuffix("dataset"))
            point = Point(network=row["model"], batch=int(row["batchsize"]), size=size)
            taken[point, row["instance_name"]].append(float(row["batch_latency"]))
    return [
        Timed(
            step=Step(
                structure=structures[point.key],
                device=sheet_of(PROFET_DEVICES[machine]),
                regime=Regime(precision="fp32"),
            ),
            step_s=median(seconds),
            group=point.network,
            name=point.key,
        )
        for (point, machine), seconds in taken.items()
    ]


def neusight(data_dir: Path) -> list[Timed]:
    """Transformers in fp32 on single GPUs: forward and backward, no update; or inference. Groups are networks."""
    structures = read("neusight")
    found = []
    with (data_dir / "neusight/summary/summary.csv").open() as lines:
        for row in csv.DictReader(lines):
            mode = {"train": "train", "inf": "infer"}[row["mode"]]
            point = Point(network=row["model_name"], batch=int(row["batch"]), size=int(row["seqlen"]), mode=row["mode"])
            if row["option"] or point.key not in structures:
                continue  # several devices, or compiled
            step = Step(
                structure=structures[point.key],
                device=sheet_of(row["device"]),
                regime=Regime(precision="fp32", mode=mode),
            )
            step_s = float(row["label_all_e2e_latency"]) / 1_000
            found.append(Timed(step=step, step_s=step_s, group=row["model_name"], name=point.key))
    return found
