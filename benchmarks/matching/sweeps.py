"""Measured sweeps as benchmarks with curves: programs at many clocks or limits, and raw counter series of some."""

import csv
import gzip
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.telemetry import Benchmark, RelativeResponse, Series, Telemetry

A100 = "a100-dcgm-dvfs"
ZEUS = "zeus-traces"
LIMIT_W = 400.0
MAX_CLOCK_HZ = 1_410e6
SAMPLE_S = 0.02
UNSEEN = ("LSTM", "NAMD", "LAMMPS", "GROMACS")
COUNTERS = {
    "engine": "gr_engine_active",
    "sm": "sm_active",
    "occupancy": "sm_occupancy",
    "dram": "dram_active",
    "fp64": "fp64_active",
    "fp32": "fp32_active",
    "fp16": "fp16_active",
}
CHANNELS = {
    "engine_ratio": "gract",
    "sm_ratio": "smact",
    "occupancy_ratio": "smocc",
    "tensor_ratio": "tenso",
    "dram_ratio": "drama",
    "fp64_ratio": "fp64a",
    "fp32_ratio": "fp32a",
    "fp16_ratio": "fp16a",
    "power_w": "power_w",
}
SHARES = {"busy_ratio": "gputl", "memory_busy_ratio": "mcutl"}  # in per cent


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """Programs that were all run at the same settings, the usual one last."""

    name: str
    points: tuple[Benchmark, ...]
    knob: str


def a100_sweep(data: Path, *, counters: bool = True) -> Sweep:
    """23 programs at 61 clocks; features from their own counters at the highest clock."""
    rows: dict[str, dict[float, Mapping[str, str]]] = {}
    names = ["GA100-dvfs-accel-dcgm.csv", *(f"GA100-dvfs-{name}-dcgm.csv" for name in UNSEEN)]
    for name in names:
        for row in _rows(data / A100 / name):
            rows.setdefault(row["application"], {})[float(row["sm_app_clock"])] = row
    return Sweep(
        name="A100, 61 clocks", knob="clock", points=tuple(_a100_point(name, by, counters) for name, by in rows.items())
    )


def _a100_point(name: str, by_clock: Mapping[float, Mapping[str, str]], counters: bool) -> Benchmark:
    clocks = sorted(by_clock)
    usual = by_clock[clocks[-1]]
    features: dict[str, float | None] = {"power_mean": float(usual["power_usage"]) / LIMIT_W}
    features["busy"] = float(usual["gpu_utilization"]) / 100
    features["memory_busy"] = float(usual.get("mem_copy_utilization") or usual.get("MCUTL") or 0) / 100
    if counters:
        features |= {mine: float(usual[theirs]) for mine, theirs in COUNTERS.items()}
    return Benchmark(
        name=name,
        group=name,
        family=name,
        features=features,
        response=_response(
            clocks,
            [float(by_clock[clock]["run_time"]) for clock in clocks],
            [float(by_clock[clock]["power_usage"]) for clock in clocks],
        ),
    )


def zeus_sweeps(data: Path) -> list[Sweep]:
    """Training of six networks at power limits, on four GPUs; a group is a network, whatever its batch."""
    found = []
    for path in sorted((data / ZEUS / "nsdi23").glob("summary_power_*.csv")):
        series: dict[tuple[str, str, str], dict[float, Mapping[str, str]]] = {}
        for row in _rows(path):
            key = (row["dataset"], row["batch_size"], row["optimizer"])
            series.setdefault(key, {})[float(row["power_limit"])] = row
        most = max((len(by) for by in series.values()), default=0)
        whole = {key: by for key, by in series.items() if len(by) == most}
        points = []
        for key, by in whole.items():
            limits = sorted(by)
            times = [float(by[limit]["time_per_epoch"]) for limit in limits]
            powers = [float(by[limit]["average_power"]) for limit in limits]
            features: dict[str, float | None] = {"power_mean": powers[-1] / limits[-1]}
            points.append(
                Benchmark(
                    name=" ".join(key), group=key[0], family=key[0], features=features,
                    response=_response(limits, times, powers, "power_limit"),
                )
            )  # fmt: skip
        found.append(Sweep(name=f"Zeus {path.stem.removeprefix('summary_power_')}", knob="limit", points=tuple(points)))
    return found


def own_sweep(path: Path) -> Sweep:
    """Any other sweep: a CSV with program, setting, time_s, power_w, and columns of features named as ours.

    A group, where there is such a column, is left out whole; a knob is clock, or power_limit.
    """
    rows: dict[str, dict[float, Mapping[str, str]]] = {}
    for row in _rows(path):
        rows.setdefault(row["program"], {})[float(row["setting"])] = row
    points = []
    for name, by in rows.items():
        levels = sorted(by)
        usual = by[levels[-1]]
        kept = ("program", "group", "knob", "setting", "time_s", "power_w")
        others = {key: value for key, value in usual.items() if key not in kept}
        features: dict[str, float | None] = {key: float(value) if value else None for key, value in others.items()}
        points.append(
            Benchmark(
                name=name, group=usual.get("group") or name, family=name,
                features=features,
                response=_response(
                    levels,
                    [float(by[level]["time_s"]) for level in levels],
                    [float(by[level]["power_w"]) for level in levels],
                    usual.get("knob") or "clock",
                ),
            )
        )  # fmt: skip
    return Sweep(name=path.stem, knob="setting", points=tuple(points))


def _response(levels: list[float], times: list[float], powers: list[float], knob: str = "clock") -> RelativeResponse:
    return RelativeResponse(
        settings=tuple(level / levels[-1] for level in levels),
        time_ratio=tuple(one / times[-1] for one in times),
        power_ratio=tuple(one / powers[-1] for one in powers),
        knob=knob,
    )


def a100_series(data: Path) -> Iterator[tuple[str, float, int, Telemetry]]:
    """Program, clock in MHz, number of the run, and what was read of it every 20 ms."""
    for path in sorted((data / A100 / "dcgm_series").glob("*.csv.gz")):
        program, clock, run = path.name.removesuffix(".csv.gz").rsplit("-", 2)
        rows = list(_rows(path))
        times_s = tuple(place * SAMPLE_S for place in range(len(rows)))
        series = {mine: Series(time_s=times_s, values=_column(rows, theirs)) for mine, theirs in CHANNELS.items()}
        series |= {
            mine: Series(time_s=times_s, values=tuple(value / 100 for value in _column(rows, theirs)))
            for mine, theirs in SHARES.items()
        }
        yield (
            program,
            float(clock),
            int(run),
            Telemetry(
                series=series, device="A100", power_limit_w=LIMIT_W, max_clock_hz=MAX_CLOCK_HZ, sensor_s=SAMPLE_S
            ),
        )


def _column(rows: list[Mapping[str, str]], name: str) -> tuple[float, ...]:
    return tuple(float(row[name]) if row[name] not in ("", "None", "N/A") else float("nan") for row in rows)


def _rows(path: Path) -> Iterator[Mapping[str, str]]:
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        yield from csv.DictReader(file)
