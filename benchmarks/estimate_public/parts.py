"""The tests on public whole-step measurements: timm, PROFET, NeuSight, and the flag over all of them."""

import csv
from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

from estimate_public import tables
from estimate_public.rows import Row
from estimate_public.trials import (
    Trial,
    baseline_mapes,
    coverage,
    each_left_out,
    mape,
    median_error,
    tried,
    typical_factor,
)
from wattsmith.estimate.costs import shares
from wattsmith.estimate.whole import folds_of

MAPE_AT_MOST = {"nchw": 12.0, "nhwc": 20.0}
COVERED = {"at_least": 88.0, "at_most": 93.0}


@cache
def timm_trials(data_dir: Path, table: str) -> list[Trial]:
    """Ten parts, no family in two of them."""
    rows = tables.timm(data_dir, table)
    return each_left_out(rows, folds_of([row.group for row in rows], 10))


@cache
def timm_crossed(data_dir: Path, table: str) -> list[Trial]:
    """Networks that are mostly matrix products, from those that are mostly convolutions."""
    rows = tables.timm(data_dir, table)
    shared = [shares(row.step) for row in rows]
    heavy = [one.get("matmul", 0.0) > one.get("conv", 0.0) + one.get("grouped-conv", 0.0) for one in shared]
    known = [row for row, is_heavy in zip(rows, heavy, strict=True) if not is_heavy]
    return tried(known, [row for row, is_heavy in zip(rows, heavy, strict=True) if is_heavy])


@cache
def profet_trials(data_dir: Path, held_out: str) -> list[Trial]:
    """HELD_OUT: "model", "family" or "device". An unseen model was measured on none of the four GPUs."""
    rows = tables.profet(data_dir)
    parts = {
        "model": lambda row: row.group,
        "family": lambda row: tables.family(row.group).removesuffix("Small"),
        "device": lambda row: row.step.device.name,
    }
    return each_left_out(rows, [parts[held_out](row) for row in rows])


@cache
def neusight_trials(data_dir: Path) -> list[Trial]:
    rows = tables.neusight(data_dir)
    found = []
    for device in sorted({row.step.device.name for row in rows}):
        asked = [row for row in rows if row.step.device.name == device and row.step.regime.mode == "train"]
        if asked:
            found += tried([row for row in rows if row.step.device.name != device], asked)
    return found


def timm_rows(data_dir: Path) -> list[Row]:
    found = []
    for table, layout in (("nchw", "NCHW"), ("nhwc", "NHWC")):
        trials = timm_trials(data_dir, table)
        families = len({one.timed.group for one in trials})
        found.append(
            Row(
                test=f"timm training, RTX 3090, {layout}, unseen family",
                measure="MAPE",
                ours=mape(trials),
                at_most=MAPE_AT_MOST[table],
                others=baseline_mapes(trials),
                rows=len(trials),
                note=f"median {median_error(trials):.1f} %, {families} families in ten parts",
            )
        )
        found.append(covered(f"timm training, {layout}", trials))
        crossed = timm_crossed(data_dir, table)
        found.append(
            Row(
                test=f"timm training, {layout}, attention predicted from convolution alone",
                measure="MAPE",
                ours=mape(crossed),
                others=baseline_mapes(crossed),
                rows=len(crossed),
                note=f"{100 * fmean(one.said.standing.outside for one in crossed):.0f} % flagged as outside",
            )
        )
    return found


def profet_rows(data_dir: Path) -> list[Row]:
    found = []
    for held_out, named, bar in (
        ("model", "unseen model", 18.0),
        ("family", "unseen family: all VGGs, all ResNets", None),
        ("device", "unseen GPU", 28.0),
    ):
        trials = profet_trials(data_dir, held_out)
        by_device = _by_device(trials)
        others = {name: [baseline_mapes(some)[name] for some in by_device.values()] for name in baseline_mapes(trials)}
        found.append(
            Row(
                test=f"PROFET training, {named}",
                measure="MAPE",
                ours=fmean(mape(some) for some in by_device.values()),
                at_most=bar,
                others={name: fmean(each) for name, each in others.items()},
                rows=len(trials),
                note="mean of " + ", ".join(f"{device} {mape(some):.1f}" for device, some in by_device.items()),
            )
        )
    found.append(covered("PROFET, unseen model", profet_trials(data_dir, "model")))
    found.append(covered("PROFET, unseen GPU", profet_trials(data_dir, "device"), asked=False))
    return found


def neusight_rows(data_dir: Path) -> list[Row]:
    trials = neusight_trials(data_dir)
    published = _published(data_dir)
    found = []
    for vendor, at_most in (("NVIDIA", 15.0), ("AMD", None)):
        some = [one for one in trials if one.timed.step.device.vendor == vendor]
        by_device = _by_device(some)
        found.append(
            Row(
                test=f"NeuSight's Transformers, training, each {vendor} GPU left out",
                measure="MAPE",
                ours=mape(some),
                at_most=at_most,
                others={**baseline_mapes(some), **(published if vendor == "NVIDIA" else {})},
                rows=len(some),
                note=", ".join(f"{device} {mape(part):.1f}" for device, part in by_device.items()),
            )
        )
    return found


def flag_rows(data_dir: Path) -> list[Row]:
    """The flag on every prediction of the other tests, and on those alone whose device was measured."""
    here = [
        *timm_trials(data_dir, "nchw"),
        *timm_trials(data_dir, "nhwc"),
        *profet_trials(data_dir, "model"),
    ]
    elsewhere = [*profet_trials(data_dir, "device"), *neusight_trials(data_dir)]
    everywhere = [*here, *elsewhere]
    return [
        Row(
            test="errors beyond a factor of two that were flagged as outside",
            measure="caught",
            ours=100 * fmean(one.said.standing.outside for one in everywhere if one.twofold),
            at_least=80.0,
            rows=sum(one.twofold for one in everywhere),
            note="all tests above, of which unseen GPUs are always flagged",
        ),
        Row(
            test="the same, where the device was measured",
            measure="caught",
            ours=100 * fmean(one.said.standing.outside for one in here if one.twofold),
            rows=sum(one.twofold for one in here),
        ),
        Row(
            test="smaller errors flagged all the same, where the device was measured",
            measure="flagged",
            ours=100 * fmean(one.said.standing.outside for one in here if not one.twofold),
            at_most=20.0,
            rows=sum(not one.twofold for one in here),
        ),
    ]


def covered(test: str, trials: Sequence[Trial], *, asked: bool = True) -> Row:
    return Row(
        test=f"90 % intervals, {test}",
        measure="coverage",
        ours=coverage(trials),
        **(COVERED if asked else {}),
        rows=len(trials),
        note=f"half of them narrower than a factor of {typical_factor(trials):.2f}",
    )


def _by_device(trials: Sequence[Trial]) -> dict[str, list[Trial]]:
    found = defaultdict(list)
    for one in trials:
        found[one.timed.step.device.name].append(one)
    return dict(sorted(found.items()))


def _published(data_dir: Path) -> dict[str, float]:
    """Mean errors of others on the same rows, as NeuSight's authors give them."""
    errors = defaultdict(list)
    with (data_dir / "neusight/summary/nvidia_train.csv").open() as lines:
        for row in csv.reader(lines):
            if row and row[0] in ("NeuSight", "Habitat", "Roofline", "Li et al."):
                errors[row[0]] += [float(one) for one in row[1:] if one]
    names = {"Roofline": "roofline (theirs)"}
    return {names.get(name, name): fmean(each) for name, each in errors.items()}
