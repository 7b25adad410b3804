"""A record as a picture: how fast, how hungry and how wide it reaches."""

from collections.abc import Sequence
from pathlib import Path

from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten
from wattsmith.terms.run import Run, Status

MARKERS = {"network": "o", "operator": "."}


def plot_record(runs: Sequence[Run], path: Path) -> None:
    """Draw the measured ones of RUNS into PATH (.png, .svg or .pdf): rate, power and time over what the steps do."""
    measured = [run for run in runs if run.status is Status.MEASURED and run.structure and run.structure.intensity]
    if not measured:
        raise BadInput("there is nothing to draw: no measured run in this record has a structure")
    try:
        from matplotlib import colormaps
        from matplotlib.figure import Figure
    except ImportError as missing:
        raise ExtraNeeded("drawing needs matplotlib: `pip install 'wattsmith[report]'`") from missing
    colours = colormaps["nipy_spectral"]
    figure = Figure(figsize=(15, 4.6), layout="constrained")
    rate, power, time = figure.subplots(1, 3)
    rate.set(xlabel="operations per byte", ylabel="operations per second", xscale="log", yscale="log")
    power.set(xlabel="operations per byte", ylabel="mean power, W", xscale="log")
    time.set(xlabel="operations per step", ylabel="step, s", xscale="log", yscale="log")
    families = sorted({run.workload.family for run in measured})
    for place, family in enumerate(families):
        group = [run for run in measured if run.workload.family == family]
        look = {
            "color": colours(place / len(families)),
            "marker": MARKERS[group[0].workload.kind],
            "s": 18,
            "alpha": 0.7,
        }
        rate.scatter([_intensity(r) for r in group], [_rate(r) for r in group], label=family, **look)
        hungry = [r for r in group if r.consumption and r.consumption.power_w is not None]
        if hungry:  # an empty logarithmic axis cannot be drawn
            power.scatter([_intensity(r) for r in hungry], [_power_w(r) for r in hungry], **look)
        time.scatter([r.structure.flops for r in group if r.structure], [_step_s(r) for r in group], **look)
    devices = ", ".join(sorted({run.device.name for run in measured}))
    simulated = any(run.consumption.simulated for run in measured if run.consumption)
    figure.suptitle(f"{len(measured)} runs on {devices}" + (" (simulated energy)" if simulated else ""))
    if not any(run.consumption and run.consumption.power_w is not None for run in measured):
        power.text(0.5, 0.5, "power unknown: no meter", transform=power.transAxes, ha="center")
    figure.legend(loc="outside right center", fontsize="x-small", ncols=1 + len(families) // 20)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as refused:
        raise NotWritten(f"the picture {path} cannot be written: {refused}") from refused


def _intensity(run: Run) -> float:
    assert run.structure is not None
    return run.structure.intensity or 0.0


def _step_s(run: Run) -> float:
    assert run.times is not None
    return run.times.mean_s


def _rate(run: Run) -> float:
    assert run.structure is not None
    return run.structure.flops / _step_s(run)


def _power_w(run: Run) -> float:
    assert run.consumption is not None
    assert run.consumption.power_w is not None
    return run.consumption.power_w
