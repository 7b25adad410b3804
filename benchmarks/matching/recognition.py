"""Which of 19 programs a few seconds of telemetry come from, at the clock of the record and at others."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np  # noqa: TID253 - a script, not part of the package

from matching.rows import Row
from matching.sweeps import a100_series, a100_sweep
from wattsmith.match.clean import cleaned
from wattsmith.match.features import POWER, features_in
from wattsmith.match.recognising import ROOTED, Gallery, far_from, gallery_of, is_same
from wattsmith.match.stretches import worked_between_s
from wattsmith.terms.telemetry import Benchmark, RelativeResponse, Stretch, Telemetry

RECORD_MHZ = 1410.0
WINDOWS = 6
LENGTHS_S = (1.0, 3.0, 6.0)
SETS: Mapping[str, tuple[str, ...]] = {
    "power alone": POWER,
    "power and utilisation": (*POWER, "busy", "memory_busy"),
    "activity counters": tuple(name for name in ROOTED if name != "tensor"),
    "everything": (*POWER, "busy", "memory_busy", *(name for name in ROOTED if name != "tensor")),
}
# What research on the same series reached: least and most over windows of 1, 3 and 6 s.
FLOORS = {"activity counters": (88.0, 85.0), "power alone": (82.0, 10.0)}
Window = tuple[str, float, dict[str, float | None]]  # program, clock, features


def windows_of(telemetry: Telemetry, length_s: float) -> list[Stretch]:
    """Six windows spread over the time in which the device worked, or all of it where that is short."""
    begin_s, end_s = worked_between_s(telemetry)
    starts = np.linspace(begin_s, end_s - length_s, WINDOWS) if end_s - begin_s > length_s else [begin_s]
    return [
        Stretch(begin_s=float(start), end_s=min(float(start) + length_s, end_s), power_w=None, kind="steady")
        for start in starts
    ]


def only(telemetry: Telemetry, features: Sequence[str]) -> Telemetry:
    """TELEMETRY as a client has it that can read no more than FEATURES need: what it works with comes from them too."""
    channels = {f"{name}_ratio" for name in features} | ({"power_w"} if POWER[0] in features else set())
    return replace(telemetry, series={name: one for name, one in telemetry.series.items() if name in channels})


def read_windows(
    data: Path, lengths_s: Iterable[float] = LENGTHS_S
) -> dict[tuple[str, float], dict[bool, list[Window]]]:
    """By set of features and length, and by whether it is of the record: windows of every run."""
    found: dict[tuple[str, float], dict[bool, list[Window]]] = {
        (name, length_s): {True: [], False: []} for name in SETS for length_s in lengths_s
    }
    for program, mhz, run, telemetry in a100_series(data):
        for name, features in SETS.items():
            clean = cleaned(only(telemetry, features))
            for length_s in lengths_s:
                for window in windows_of(clean, length_s):
                    seen = (program, mhz, features_in(clean, [window]))
                    found[name, length_s][mhz == RECORD_MHZ and run == 0].append(seen)
    return found


def gallery_at(
    recorded: Sequence[Window],
    names: Sequence[str],
    curves: Mapping[str, RelativeResponse],
    mhz: float,
    without: str = "",
) -> Gallery:
    points = [
        Benchmark(
            name=f"{program} {place}", group=program, family=program, features=features, response=curves.get(program)
        )
        for place, (program, _, features) in enumerate(recorded)
        if program != without
    ]
    return gallery_of(points, names, mhz / RECORD_MHZ)


def right(
    recorded: Sequence[Window], asked: Sequence[Window], names: Sequence[str], curves: Mapping[str, RelativeResponse]
) -> float:
    """Share in per cent whose nearest window of the record is of the same program."""
    galleries = {mhz: gallery_at(recorded, names, curves, mhz) for mhz in {one[1] for one in asked}}
    hits = 0
    for program, mhz, features in asked:
        gallery = galleries[mhz]
        hits += gallery.points[int(np.argmin(far_from(gallery, features)))].group == program
    return 100 * hits / len(asked)


def said_same(recorded: Sequence[Window], asked: Sequence[Window], names: Sequence[str], *, unknown: bool) -> float:
    """Share in per cent that is called a program of the record; with UNKNOWN its own program is taken out first."""
    called = 0
    for program, mhz, features in asked:
        gallery = gallery_at(recorded, names, {}, mhz, program if unknown else "")
        called += is_same(gallery, float(np.min(far_from(gallery, features))))
    return 100 * called / len(asked)


def recognition_rows(data: Path) -> list[Row]:
    found = read_windows(data)
    curves = {one.name: one.response for one in a100_sweep(data).points if one.response is not None}
    rows: list[Row] = []
    for where, takes in (
        ("same clock", lambda mhz: mhz == RECORD_MHZ),
        ("another clock (1005 MHz)", lambda mhz: mhz == 1005.0),
        ("far clocks (510, 705, 1200 MHz)", lambda mhz: mhz not in (RECORD_MHZ, 1005.0)),
    ):
        for name, features in SETS.items():
            shares, still = [], []
            for length_s in LENGTHS_S:
                parts = found[name, length_s]
                asked = [one for one in parts[False] if takes(one[1])]
                shares.append(right(parts[True], asked, features, curves))
                still.append(right(parts[True], asked, features, {}))
            at = 0 if where == "same clock" else 1
            bar = FLOORS.get(name, (None, None))[at] if at == 0 or where.startswith("another") else None
            rows.append(
                Row(
                    test=f"19 programs, {where}", measure=f"right, {name}", ours=min(shares), at_least=bar,
                    count=len(asked), note=f"1, 3, 6 s: {', '.join(f'{one:.0f}' for one in shares)}",
                    others={} if at == 0 else {"record not moved to the clock": min(still)},
                )
            )  # fmt: skip
    parts = found["activity counters", 3.0]
    asked = [one for one in parts[False] if one[1] == RECORD_MHZ]
    counters = SETS["activity counters"]
    rows.append(
        Row(test="19 programs, same clock, 3 s", measure="known ones called known",
            ours=said_same(parts[True], asked, counters, unknown=False), count=len(asked))
    )  # fmt: skip
    rows.append(
        Row(test="19 programs, same clock, 3 s", measure="unknown ones refused as such",
            ours=100 - said_same(parts[True], asked, counters, unknown=True), count=len(asked))
    )  # fmt: skip
    return rows
