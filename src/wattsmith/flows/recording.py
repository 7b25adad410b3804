"""Take a record: synthetic networks and operators, measured on a device and remembered."""

import gzip
import importlib.util
import json
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattsmith.flows.devices import left_out_errors
from wattsmith.flows.machine import describe_machine
from wattsmith.measure.host import cpu_count
from wattsmith.record import runner as running
from wattsmith.record.bench import Effort
from wattsmith.record.candidates import Sketch, fitting
from wattsmith.record.grid import grid
from wattsmith.record.presets import cover, cpu_sketch, gpu_sketch, points, preset_of
from wattsmith.record.runner import Point, Runner, take_record
from wattsmith.record.structure import structure_of
from wattsmith.record.worker import Worker
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.ports import RunStore
from wattsmith.terms.run import Device, Run
from wattsmith.terms.work import Setting, Workload

RecordProgress = running.Progress

SMOKE_WINDOW_S = 0.5  # a first look is not a reference
CPU_WINDOW_S = 1.0
GPU_WINDOW_S = 2.0  # a hundred of the driver's power samples
LONGEST_WINDOWS = 3  # a point that will not settle is given up after so many windows
GRID_STEP_S = 1.0  # longer steps of a grid are passed over
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToRecord:
    """What is recorded, where, and for how long."""

    preset: str = "basic"
    design: str = "cover"  # "cover"; "worst": where estimates fail most; or the name of a grid
    sample: int | None = None  # of a grid, so many points; None: as many as the preset has
    device: str | None = None  # None: the first GPU, or the CPU
    meters: str = "auto"
    record: str | None = None  # a file or a URL; None: this user's own
    budget_s: float | None = None  # None: until all points are there
    threads: int | None = None
    concurrency: int | None = None  # steps of so many copies at once; None: one
    replicas: tuple[int, ...] = (1,)  # training networks are measured on so many devices, data-parallel
    seed: int = 0
    points: Path | None = None  # a file of points, instead of preset and design
    window_s: float | None = None  # energy is measured for so long at each point; None: as long as its meter needs


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a run of the recorder did."""

    device: Device
    session: str
    place: str  # where it is kept
    progress: RecordProgress
    interrupted: bool = False  # by Ctrl-C


def record(
    how: HowToRecord | None = None, tell: Callable[[RecordProgress], object] = lambda _: None, **options: Any
) -> Recorded:
    """Measure what is missing and remember it, point by point; what is there already is passed over.

    `record(preset="basic", budget_s=480)`: OPTIONS are the fields of HowToRecord, where HOW is not given.
    """
    if how is None:
        how = how_to_record(options)
    elif options or not isinstance(how, HowToRecord):
        raise BadInput(f'what is recorded is said by name, as in record(preset="smoke"), got {how!r}')
    if importlib.util.find_spec("torch") is None:
        raise ExtraNeeded("a record is taken with PyTorch: pip install 'wattsmith[torch]'")
    device = how.device or default_device()
    effort = effort_for(how.preset, device, how.window_s)
    session = uuid.uuid4().hex[:12]
    runner = Runner(lambda: Worker(_worker_command(device, how, session, effort)), point_s=effort.point_s)
    seen: list[RecordProgress] = []

    def told(progress: RecordProgress) -> None:
        seen[:] = [progress]
        tell(progress)

    with open_store(how.record) as store:
        interrupted = False
        try:
            host = runner.host
            take_record(
                planned(how, host.device, _recorded(store, host.device) if how.design == "worst" else ()),
                runner,
                lock=device,
                known=lambda point: store.has(point.workload, host.device, point.setting),
                keep=store.add,
                tell=told,
                budget_s=how.budget_s,
            )
        except KeyboardInterrupt:
            if not seen:
                raise
            interrupted = True
        finally:
            runner.close()
        return Recorded(
            device=host.device, session=session, place=store.place, progress=seen[0], interrupted=interrupted
        )


def how_to_record(options: Mapping[str, Any]) -> HowToRecord:
    """OPTIONS by the names that HowToRecord has for them."""
    known = HowToRecord.__dataclass_fields__
    if strange := [repr(name) for name in options if name not in known]:
        raise BadInput(f"there is no option {', '.join(strange)}; there are {', '.join(known)}")
    return HowToRecord(**options)


def _recorded(store: RunStore, device: Device) -> list[Run]:
    return [run for run in store.runs() if run.device.name == device.name]


def default_device() -> str:
    """The first GPU where there is one, else the CPU."""
    gpus = [gpu for gpu in describe_machine().gpus if not gpu.simulated]
    return "cuda:0" if gpus else "cpu"


def effort_for(preset: str, device: str, window_s: float | None = None) -> Effort:
    """How much is done for each point."""
    if window_s is None:
        window_s = SMOKE_WINDOW_S if preset == "smoke" else GPU_WINDOW_S if device.startswith("cuda") else CPU_WINDOW_S
    return Effort(window_s=window_s, point_s=LONGEST_WINDOWS * window_s)


def _worker_command(device: str, how: HowToRecord, session: str, effort: Effort) -> list[str]:
    return [
        sys.executable,
        *("-m", "wattsmith.flows.record_worker"),
        *("--device", device, "--meters", how.meters, "--session", session),
        *("--effort", json.dumps(as_plain(effort)), "--seed", str(how.seed)),
    ]


def planned(how: HowToRecord, device: Device, recorded: Sequence[Run] = ()) -> list[Point]:
    """The points that are wanted on DEVICE, in order. RECORDED: what was measured there before."""
    setting = Setting(threads=how.threads, concurrency=how.concurrency)
    if how.points is not None:
        return [Point(workload=p.workload, structure=p.structure, setting=setting) for p in read_points(how.points)]
    sketch = sketch_of(device)
    if how.design == "cover":
        workloads = points(how.preset, sketch, how.seed)
    elif how.design == "worst":
        workloads = worst_first(how, sketch, recorded)
    else:
        preset = preset_of(how.preset)
        sample = how.sample or preset.networks + preset.operators
        workloads = list(fitting(grid(how.design, sample, how.seed), sketch, GRID_STEP_S))
    return [
        Point(workload=w, structure=structure_of(w), setting=setting)
        for one in workloads
        for w in replicated(one, how.replicas)
    ]


def worst_first(how: HowToRecord, sketch: Sketch, recorded: Sequence[Run]) -> list[Workload]:
    """Networks where estimates from what was RECORDED fail most, as many as the preset has; then its other points."""
    errors = left_out_errors(recorded, recorded[0].device.name) if recorded else {}
    if not errors:
        raise BadInput(
            "the design 'worst' starts from a record of this device with at least two families of networks; "
            "take one first: wattsmith record run --design cover"
        )
    preset = preset_of(how.preset)
    networks, _ = cover(preset, sketch, how.seed)
    for run in recorded:
        networks.skip(run.workload)
    found = (networks.next_worst(errors) for _ in range(preset.networks))
    return [workload for workload in found if workload is not None]


def replicated(workload: Workload, counts: Sequence[int]) -> list[Workload]:
    """WORKLOAD on each of COUNTS devices, where it can be spread: a network that trains."""
    if workload.kind != "network" or workload.mode != "train" or workload.optimizer is None:
        return [workload]
    return [replace(workload, devices=count) for count in counts]


def sketch_of(device: Device) -> Sketch:
    """What DEVICE can roughly do."""
    memory_bytes = device.memory_bytes or 8 * GIB
    return gpu_sketch(device.name, memory_bytes) if device.kind == "cuda" else cpu_sketch(cpu_count(), memory_bytes)


def device_called(name: str, memory_bytes: int) -> Device:
    """A device that is not here, to choose points for."""
    return Device(name=name, kind="cpu" if name == "cpu" else "cuda", memory_bytes=memory_bytes)


def write_points(points: Sequence[Point], path: Path) -> None:
    """Keep POINTS in a file, to be measured on another machine."""
    text = "".join(json.dumps(as_plain(point)) + "\n" for point in points).encode()
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def read_points(path: Path) -> Iterator[Point]:
    """The points of a file. Raises BadInput with the line of what is wrong."""
    if not path.is_file():
        raise BadInput(f"there is no file of points {path}")
    text = gzip.decompress(path.read_bytes()).decode() if path.suffix == ".gz" else path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            plain = json.loads(line)
        except ValueError as broken:
            raise BadInput(f"{path}, line {number}: not JSON: {broken}") from broken
        yield parse_fact(Point, plain, f"{path}, line {number}")
