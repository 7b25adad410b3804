"""A record of this machine's CPU: small synthetic networks and operators, measured one by one."""

from pathlib import Path

from wattsmith.flows.demo.charts import Dot, scatter
from wattsmith.flows.demo.facts import Figure, Found, Tell, Told, need_torch
from wattsmith.flows.recording import RecordProgress, record, write_points
from wattsmith.flows.records import runs_of
from wattsmith.record.families import workload_of
from wattsmith.record.runner import Point
from wattsmith.record.structure import structure_of
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.run import Run
from wattsmith.terms.work import Setting, Workload

TITLE = "A first record of this CPU"
YOURSELF = "wattsmith record run --preset smoke --device cpu"
RECORD = "cpu.jsonl"


def run(found: Found, tell: Tell) -> Told:
    """Measure the points of the smallest preset, and some networks that have convolutions of useful sizes."""
    need_torch("measuring networks")
    scale, place = found.scale, str(found.folder / RECORD)
    points = found.folder / "points.jsonl"
    tell("choosing what to measure")
    write_points([_point(one, found.threads) for one in convolutional()[: scale.alike]], points)
    if scale.preset is not None:
        _taken(found, place, tell, preset=scale.preset, said=f"preset {scale.preset}")
    _taken(found, place, tell, preset="smoke", points=points, said="networks with convolutions")
    runs = runs_of(place)
    measured = [one for one in runs if one.times is not None]
    found.record = place
    failed = len(runs) - len(measured)
    doubt = sorted(one.times.error_ratio for one in measured if one.times)[len(measured) // 2]
    return Told(
        means=f"{len(measured)} small steps were timed, with each operator in them; estimates for this CPU rest on it.",
        figures=(
            Figure(
                name="steps measured",
                text=f"{len(measured)}" + (f", {failed} failed" if failed else ""),
                source=f"measured here, {found.threads} thread{'s' if found.threads > 1 else ''}",
                trust=f"mean of a step known to ± {doubt:.0%} at the median; a first look, not a reference",
                value=float(len(measured)),
            ),
            Figure(
                name="operators told apart",
                text=str(len({(c.operator, c.dtype, c.shapes) for one in measured for c in one.calls})),
                source="each call of a step, timed as it ran",
                trust="one watched step for each network",
            ),
        ),
        tile=(str(len(measured)), "synthetic steps measured on this CPU"),
        pictures=(_picture(measured),),
        notes=(f"kept in {Path(place).name}; read it with `wattsmith record show {Path(place).name}`",),
    )


def _taken(found: Found, place: str, tell: Tell, *, preset: str, said: str, points: Path | None = None) -> None:
    def told(progress: RecordProgress) -> None:
        left = "" if progress.remaining_s is None else f", about {progress.remaining_s:.0f} s to go"
        tell(f"{said}: {progress.done} of {progress.total} points{left}")

    tell(f"{said}: starting PyTorch")
    record(
        preset=preset, points=points, device="cpu", threads=found.threads, record=place,
        window_s=found.scale.record_window_s, tell=told,
    )  # fmt: skip


def convolutional() -> list[Workload]:
    """Training steps of a fraction of a second, in three families, none of them the network that is asked about.

    Several families, since an estimate's interval comes from leaving out one family after the other.
    """

    def one(family: str, batch: int, **parameters: int) -> Workload:
        return workload_of(family, batch, parameters=parameters, optimizer="sgd")

    return [
        one("bottleneck", 2, image=64, width=32, blocks=1, stages=3),
        one("residual", 2, image=64, width=64, blocks=1, stages=2),
        one("cnn", 2, image=56, filter_size=1, conv_layers=3, base_filters=128, filters=256),
        one("bottleneck", 1, image=128, width=64, blocks=1, stages=4, classes=1000),
        one("residual", 1, image=128, width=32, blocks=1, stages=4, classes=100),
        one("bottleneck", 1, image=224, width=48, blocks=1, stages=2, classes=1000),
        one("residual", 2, image=128, width=64, blocks=1, stages=3, classes=1000),
        one("cnn", 4, image=64, filter_size=3, conv_layers=2, base_filters=64, filters=128),
        one("bottleneck", 4, image=128, width=32, blocks=1, stages=3, classes=100),
        one("residual", 1, image=128, width=128, blocks=1, stages=2, classes=1000),
        one("cnn", 1, image=112, filter_size=3, stride=2, conv_layers=1, base_filters=128, filters=256),
        one("bottleneck", 1, image=160, width=96, blocks=1, stages=3, classes=1000),
        one("cnn", 2, image=28, filter_size=1, conv_layers=2, base_filters=512, filters=128),
    ]


def _point(workload: Workload, threads: int) -> Point:
    return Point(workload=workload, structure=structure_of(workload), setting=Setting(threads=threads))


def _picture(runs: list[Run]) -> str:
    return scatter(
        "Each step that was measured",
        [
            Dot(
                x=one.structure.flops,
                y=one.times.mean_s,
                look="second" if one.workload.kind == "operator" else "first",
                says=f"{one.workload.family}, {one.workload.mode}: {format_quantity(one.times.mean_s, 'time', 3)}",
            )
            for one in runs
            if one.structure and one.times
        ],
        across=("operations in a step", ""),
        up=("time of a step", "time"),
        legend=(("first", "network"), ("second", "single operator")),
    )
