"""The vision networks of timm's public tables, roughly, as operations, bytes and memory of a step.

The tables tell multiplications, outputs of convolutions and matrix products ("activations") and weights for one image.
What a step moves and keeps follows from them only roughly: by so many times the activations as the traced networks that
are in the tables too have at the median. How far that is off for those is part of the result.
"""

import csv
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from reach.range import Kind, Place, place_of
from reach.tracing import Use

BATCHES = (32, 256)
WIDTH_BYTES = {"fp32": 4, "bf16": 2}
WEIGHT_MOVES_BYTES = {"train": 40, "infer": 0}  # per weight: backward, gradient, update; on top of one reading
WEIGHT_KEPT_BYTES = {"train": 16, "infer": 0}  # per weight: gradient and optimizer state; instead of the weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One network at one image size, per image."""

    multiplications: float
    activations: float
    weights: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """How often a step moves its activations, and how much of them it keeps at once."""

    moves: float
    keeps: float


def read_tables(folder: Path) -> tuple[dict[tuple[str, int], Row], int]:
    """The networks of all tables in FOLDER by name and image size, and how many rows say too little."""
    rows: dict[tuple[str, int], Row] = {}
    short: set[tuple[str, int]] = set()
    for table in sorted(folder.glob("benchmark-infer-*.csv")):
        with table.open(newline="") as lines:
            for line in csv.DictReader(lines):
                key = line["model"], int(line["infer_img_size"])
                try:
                    row = Row(
                        multiplications=1e9 * float(line["infer_gmacs"]),
                        activations=1e6 * float(line["infer_macts"]),
                        weights=1e6 * float(line["param_count"]),
                    )
                except (KeyError, ValueError):  # an older table without the columns, or an empty field
                    short.add(key)
                    continue
                if min(row.multiplications, row.activations, row.weights) > 0:
                    rows.setdefault(key, row)
                else:
                    short.add(key)
    return rows, len(short - rows.keys())


def roughly(row: Row, kind: Kind, batch: int, rule: Rule) -> Place:
    """Where a step of the network lies."""
    precision, mode = kind
    width = WIDTH_BYTES[precision]
    passes = 3 if mode == "train" else 1
    made_bytes = width * batch * row.activations
    moved_bytes = row.weights * (width + WEIGHT_MOVES_BYTES[mode]) + rule.moves * made_bytes
    kept_bytes = row.weights * (WEIGHT_KEPT_BYTES[mode] or width) + rule.keeps * made_bytes
    return place_of(2 * passes * batch * row.multiplications, moved_bytes, kept_bytes)


def rules_from(uses: Iterable[Use], rows: Mapping[tuple[str, int], Row]) -> tuple[dict[Kind, Rule], list[float]]:
    """The rule of each precision and mode, and for every step it comes from by which factor it is off, at worst axis.

    A factor of 2 is twice or half. Where no traced network is in the tables, there is no rule.
    """
    known = [
        (use, rows[use.published_as, use.size])
        for use in uses
        if (use.published_as, use.size) in rows and use.batch in BATCHES
    ]
    rules = {}
    for kind in {(use.precision, use.mode) for use, _ in known}:
        width = WIDTH_BYTES[kind[0]]
        moves, keeps = [], []
        for use, row in known:
            if (use.precision, use.mode) == kind:
                made_bytes = width * use.batch * row.activations
                of_weights = row.weights * (width + WEIGHT_MOVES_BYTES[kind[1]])
                moves.append((use.structure.moved_bytes - of_weights) / made_bytes)
                of_weights = row.weights * (WEIGHT_KEPT_BYTES[kind[1]] or width)
                keeps.append((use.structure.peak_bytes - of_weights) / made_bytes)
        rules[kind] = Rule(moves=statistics.median(moves), keeps=statistics.median(keeps))
    off = []
    for use, row in known:
        said = roughly(row, (use.precision, use.mode), use.batch, rules[use.precision, use.mode])
        true = place_of(use.structure.flops, use.structure.moved_bytes, use.structure.peak_bytes)
        off.append(10 ** max(abs(a - b) for a, b in zip(said, true, strict=True)))
    return rules, off


def published_places(
    rows: Mapping[tuple[str, int], Row], rules: Mapping[Kind, Rule], memory_bytes: int | None
) -> tuple[dict[Kind, list[Place]], int]:
    """All networks of the tables at all batches, by precision and mode; and how many more need too much memory."""
    most = math.inf if memory_bytes is None else math.log10(memory_bytes)
    every = {
        kind: [roughly(row, kind, batch, rule) for row, batch in product(rows.values(), BATCHES)]
        for kind, rule in sorted(rules.items())
    }
    fits = {kind: [one for one in some if one[2] <= most] for kind, some in every.items()}
    return fits, sum(map(len, every.values())) - sum(map(len, fits.values()))
