"""Fleets and jobs drawn from public measurements of how work answers to settings."""

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wattsmith.schedule.curves import response_from_rows
from wattsmith.terms.schedule import Doubt, Response
from wattsmith.terms.work import Setting

MEGA = 1e6


def zeus_responses(data: Path) -> dict[str, Response]:
    """Power limit against time per epoch and mean power: one response per GPU, network, batch size and optimizer."""
    rows: dict[str, list[tuple[Setting, float, float]]] = {}
    for path in sorted((data / "zeus-traces" / "nsdi23").glob("summary_power_*.csv")):
        gpu = path.stem.removeprefix("summary_power_")
        for row in _rows(path):
            job = "/".join((gpu, row["dataset"], row["network"], row["batch_size"], row["optimizer"]))
            step_s, power_w = float(row["time_per_epoch"]), float(row["average_power"])
            if 0 < step_s < math.inf and 0 < power_w < math.inf:
                setting = Setting(power_limit_w=float(row["power_limit"]))
                rows.setdefault(job, []).append((setting, step_s, power_w))
    return {job: response_from_rows(found) for job, found in rows.items() if len(found) >= 3}


def clock_responses(data: Path) -> dict[str, Response]:
    """The same of four applications on an A100, over its clocks."""
    found = {}
    for path in sorted((data / "a100-61freq").glob("GA100-dvfs-*-dcgm.csv")):
        rows = [
            (Setting(clock_hz=float(row["sm_app_clock"]) * MEGA), float(row["run_time"]), float(row["power_usage"]))
            for row in _rows(path)
            if row.get("run_time") and row.get("power_usage")
        ]
        if len(rows) >= 3:
            found[path.stem.removeprefix("GA100-dvfs-").removesuffix("-dcgm")] = response_from_rows(rows)
    return found


def program_responses(data: Path) -> dict[str, Response]:
    """Nineteen SPEC programs on an A100, over its clocks."""
    path = data / "a100-dcgm-dvfs" / "GA100-dvfs-accel-dcgm.csv"
    rows: dict[str, list[tuple[Setting, float, float]]] = {}
    for row in _rows(path) if path.exists() else ():
        setting = Setting(clock_hz=float(row["sm_app_clock"]) * MEGA)
        rows.setdefault(row["application"], []).append((setting, float(row["run_time"]), float(row["power_usage"])))
    return {name: response_from_rows(found) for name, found in rows.items()}


def stage_responses(data: Path) -> dict[str, Response]:
    """Forward and backward of the first and the last stage of two large models on two GPUs, over their clocks."""
    found = {}
    for path in sorted((data / "perseus" / "emulation" / "stage_profile").glob("*.csv")):
        rows = list(_rows(path))
        last = max(int(row["stage"]) for row in rows)
        for stage in (0, last):  # those between are the first once more
            for what in ("forward", "backward"):
                found[f"{path.stem}/{stage}/{what}"] = response_from_rows(
                    (Setting(clock_hz=float(row["frequency"]) * MEGA), float(row["time"]), _power_w(row))
                    for row in rows
                    if int(row["stage"]) == stage and row["instruction"] == what
                )
    return found


def _power_w(row: dict[str, Any]) -> float:
    return float(row["energy"]) / float(row["time"])


def epochs_to_target(data: Path) -> list[int]:
    """How many epochs trainings took to their goals."""
    path = data / "zeus-traces" / "nsdi23" / "summary_train.csv"
    counts = [float(row["target_epoch"]) for row in _rows(path) if row["target_epoch"]]
    return [int(count) for count in counts if 0 < count < math.inf]


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(newline="") as file:
        yield from csv.DictReader(file)


def drawn_fleet(responses: dict[str, Response], size: int, rng: Any) -> list[Response]:
    names = sorted(responses)
    return [responses[names[place]] for place in rng.integers(len(names), size=size)]


def weights_of(fleet: list[Response]) -> list[float]:
    """So that each device at its fastest is worth 1."""
    return [1 / max(point.rate for point in one.points) for one in fleet]


def full_draw_w(fleet: list[Response]) -> float:
    """What it draws with each device at its fastest."""
    return sum(max(one.points, key=lambda point: (point.rate, -point.power_w)).power_w for one in fleet)


def with_error(fleet: list[Response], error: float, rng: Any, *, by: str = "setting") -> list[Response]:
    """FLEET as somebody predicts it who errs by ERROR in time and power, at each setting or by device alike."""
    from dataclasses import replace

    seen = []
    for one in fleet:
        count = len(one.points) if by == "setting" else 1
        power, time = (1 + error * rng.standard_normal((2, count))).clip(0.2)
        points = tuple(
            replace(
                point,
                power_w=point.power_w * float(power[place % count]),
                rate=point.rate / float(time[place % count]),
            )
            for place, point in enumerate(one.points)
        )
        seen.append(replace(one, points=points, doubt=Doubt(power_ratio=error, time_ratio=error)))
    return seen
