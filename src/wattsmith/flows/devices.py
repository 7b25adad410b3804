"""Devices as their records know them: found by name, learned from runs, and what takes long to find is kept."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from wattsmith.estimate.costs import timed_steps
from wattsmith.estimate.device import DeviceModel, Known, compiled, errors_of_left_out, signature, usable
from wattsmith.estimate.operators import Peak
from wattsmith.estimate.parallel import Link, sheet_link, usual_link
from wattsmith.estimate.sheets import DataSheet, UnknownDevice, sheet_of
from wattsmith.estimate.whole import Whole
from wattsmith.flows.records import runs_of, shipped_records
from wattsmith.store.opening import default_path
from wattsmith.store.shipped import RECORDS
from wattsmith.terms.errors import BadInput, ExtraNeeded, NoRecord
from wattsmith.terms.estimate import Basis
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import OperatorCall, Run, Status

Tell = Callable[[str], object]
FEWEST_STEPS = 10  # measured networks without calls
ENOUGH_OF_ONES_OWN = 60  # runs with calls, before a record of one's own is better than the one shipped for that device
FEWEST = 5  # runs with calls; a record of fewer says too little of a device
PRECISIONS = ("fp32", "tf32", "bf16", "fp16")
# The record of a CPU or of a GPU without a data sheet fits its own efficiencies; these make them numbers near one.
CPU_PEAK = Peak(flops_per_s=dict.fromkeys(PRECISIONS, 1e11), bandwidth_bytes_per_s=2e10)
GPU_PEAK = Peak(flops_per_s={"fp32": 2e13, "tf32": 8e13, "bf16": 1.6e14, "fp16": 1.6e14}, bandwidth_bytes_per_s=1e12)
OWN = "your own record"
MODEL_VERSION = 5  # of what is kept; raise it when the models change


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownDevice:
    """A device, what its record teaches, and where that record is."""

    name: str
    sheet: DataSheet | None  # None: a CPU, or a GPU that is only known from its record
    model: DeviceModel
    runs: tuple[Run, ...]
    record: str
    basis: Basis
    power_ratio: float = 1.0
    whole: Whole | None = None  # what its record teaches of whole steps, where it tells nothing of operators

    @property
    def link(self) -> Link:
        """What usually joins such devices."""
        return usual_link(self.sheet.architecture, self.sheet.name) if self.sheet is not None else sheet_link("pcie4")

    def has_step(self, calls: Sequence[OperatorCall], precision: str) -> bool:
        """Whether the record has a step that makes these very calls in this precision."""
        return self.basis is Basis.OPERATORS and signature(calls, precision) in self.model.steps

    @property
    def capacity_bytes(self) -> int | None:
        sizes = [run.device.memory_bytes for run in self.runs if run.device.memory_bytes]
        if self.basis is not Basis.SHEET and sizes:
            return sizes[0]
        return None if self.sheet is None else self.sheet.memory_bytes


def known_device(name: str, record: str | None = None, tell: Tell = lambda _: None) -> KnownDevice:
    """The device called NAME: from RECORD or else from this user's own, else from one shipped, else by its data sheet.

    "cpu" is the CPU of RECORD or else of this user's own. A record that tells too little of a device is passed over.
    """
    _need_scipy()
    if name == "cpu":
        return _learned("cpu", None, _cpu_runs(record), record, tell)
    try:
        sheet = sheet_of(name)
    except UnknownDevice as unknown:
        return _unlisted(name, record, tell, unknown)
    for place in _places(record):
        runs = _runs_on(sheet, place)
        shipped_too = record is None and place is None and any(_runs_on(sheet, one) for one in shipped_records())
        if shipped_too and len(runs) < ENOUGH_OF_ONES_OWN:
            continue
        if len(runs) >= FEWEST:
            return _learned(sheet.name, sheet, runs, place, tell)
        steps = _steps_on(sheet, place)
        if len(steps) >= FEWEST_STEPS:
            return _by_steps(sheet, steps, place, tell)
    return _scaled(sheet, tell)


def _need_scipy() -> None:
    try:
        import numpy  # noqa: F401
        import scipy  # type: ignore[import-untyped]  # noqa: F401
    except ImportError as missing:
        raise ExtraNeeded("an estimate needs numpy and scipy: pip install 'wattsmith[estimate]'") from missing


def known_names(record: str | None = None) -> list[str]:
    """Devices that a record knows, by names that `known_device` takes."""
    found: list[str] = []
    for place in [record] if record is not None else _places(None):
        with suppress(BadInput):
            runs = [run for run in _all_runs(place) if usable(run)]
            counted = Counter("cpu" if run.device.kind == "cpu" else run.device.name for run in runs)
            found += [name for name, count in counted.items() if count >= FEWEST]
    return list(dict.fromkeys(found))


def record_named(place: str | None) -> str:
    """PLACE as it may be shown: without a password. None: this user's own record."""
    return OWN if place is None else re.sub(r"(://[^:/@]*):[^@/]*@", r"\1:***@", place)


def _places(record: str | None) -> list[str | None]:
    """Where to look for a device: in RECORD or else in the user's own, then in those that are shipped."""
    return list(dict.fromkeys([record, *shipped_records()]))


def _unlisted(name: str, record: str | None, tell: Tell, unknown: UnknownDevice) -> KnownDevice:
    """A GPU of which there is no data sheet, by its record alone."""
    words = set(name.lower().split())
    for place in _places(record) if words else ():
        runs = [run for run in _all_runs(place) if usable(run) and words <= set(run.device.name.lower().split())]
        if len(runs) >= FEWEST and len({run.device.name for run in runs}) == 1 and runs[0].device.kind == "cuda":
            return _learned(runs[0].device.name, None, runs, place, tell)
    measured = ", ".join(one for one in known_names(record) if one != "cpu") or "none"
    raise NoRecord(f"{unknown}. Devices with a record here: {measured}; `cpu` for this machine's own.") from unknown


def _all_runs(place: str | None) -> Sequence[Run]:
    if place is None and not default_path().is_file():
        return ()
    return _shipped_runs(place) if place in shipped_records() else runs_of(place)


@cache
def _shipped_runs(name: str) -> tuple[Run, ...]:
    return tuple(runs_of(name))  # a shipped record does not change, and one question may ask for it several times


def _runs_on(sheet: DataSheet, place: str | None) -> list[Run]:
    return [run for run in _all_runs(place) if _tells(run) and run.device.kind == "cuda" and _is(sheet, run)]


def _tells(run: Run) -> bool:
    return usable(run) or compiled(run)


def _steps_on(sheet: DataSheet, place: str | None) -> list[Run]:
    """Measured networks, whatever is known of their operators."""
    return [
        run
        for run in _all_runs(place)
        if run.status is Status.MEASURED
        and run.workload.kind == "network"
        and run.device.kind == "cuda"
        and _is(sheet, run)
    ]


def _by_steps(sheet: DataSheet, runs: Sequence[Run], place: str | None, tell: Tell) -> KnownDevice:
    """A device whose record has whole steps alone, as records of other tools do."""
    tell("learning how long whole steps take")
    near = _scaled(sheet, tell)
    whole = Whole.learn(timed_steps(runs))
    return replace(near, runs=tuple(runs), record=record_named(place), basis=Basis.STEPS, whole=whole)


@cache
def _name_of(device: str) -> str | None:
    with suppress(UnknownDevice):
        return sheet_of(device).name
    return None


def _is(sheet: DataSheet, run: Run) -> bool:
    return _name_of(run.device.name) == sheet.name


def _cpu_runs(record: str | None) -> list[Run]:
    runs = [run for run in _all_runs(record) if usable(run) and run.device.kind == "cpu"]
    if len(runs) < FEWEST:
        raise NoRecord(
            "no record tells what this CPU does. Take one first: wattsmith record run --preset smoke --device cpu"
        )
    return runs


_models: dict[tuple[Path, str], DeviceModel] = {}  # by what they were learned from


def _learned(name: str, sheet: DataSheet | None, runs: Sequence[Run], place: str | None, tell: Tell) -> KnownDevice:
    peak = peak_of(sheet) if sheet is not None else CPU_PEAK if name == "cpu" else GPU_PEAK
    record = record_named(place)
    kept = kept_at(runs, record)
    known = _read_known(kept)
    model = _models.get((kept, name))
    if model is None or known is None:
        model = DeviceModel.learn(
            runs, peak, known=known, eager_calls=eager_calls, tell=tell if known is None else lambda _: None
        )
        _models[kept, name] = model  # a process asks for one and the same device again and again
    if known is None and model.known is not None:
        _keep(model.known, kept)
    return KnownDevice(name=name, sheet=sheet, model=model, runs=tuple(runs), record=record, basis=Basis.OPERATORS)


def eager_calls(run: Run) -> tuple[OperatorCall, ...]:
    """What a compiled run would call if it were not compiled."""
    from wattsmith.record.families import build
    from wattsmith.record.structure import trace

    with build(replace(run.workload, compiled=False), "meta") as program:
        return trace(program.step, parameters=program.learning, inputs=program.inputs).calls


def _scaled(sheet: DataSheet, tell: Tell) -> KnownDevice:
    """A device that nobody measured: the record that is shipped, by the ratio of the data sheets."""
    near = known_device(shipped_records()[0], shipped_records()[0], tell)
    assert near.sheet is not None
    return KnownDevice(
        name=sheet.name,
        sheet=sheet,
        model=near.model.on(peak_of(sheet)),
        runs=near.runs,
        record=f"{near.record}, scaled by data sheets",
        basis=Basis.SHEET,
        power_ratio=sheet.tdp_w / near.sheet.tdp_w,
    )


def left_out_errors(runs: Sequence[Run], device: str) -> dict[str, float]:
    """By workload: how far estimates of recorded networks are off when their family is left out, as a logarithm."""
    watched = [run for run in runs if usable(run)]
    sheet = _name_of(device)
    return errors_of_left_out(watched, CPU_PEAK if sheet is None else peak_of(sheet_of(sheet)))


def peak_of(sheet: DataSheet) -> Peak:
    return Peak(flops_per_s={one: sheet.peak(one) for one in PRECISIONS}, bandwidth_bytes_per_s=sheet.bandwidth)


def fingerprint(runs: Sequence[Run]) -> str:
    """Names what was learned from: these runs, by this version of the models."""
    of_runs = sorted(f"{run.workload.key} {run.provenance.session} {len(run.calls)}" for run in runs)
    return hashlib.sha256("\n".join([str(MODEL_VERSION), *of_runs]).encode()).hexdigest()[:16]


def kept_at(runs: Sequence[Run], record: str) -> Path:
    """Where what was found out of RUNS is kept: beside a record that is shipped, else in the user's cache."""
    mark = fingerprint(runs)
    beside = RECORDS / f"{record}.{mark}.json"
    if record in shipped_records() and beside.is_file():
        return beside
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wattsmith" / f"known-{mark}.json"


def _read_known(path: Path) -> Known | None:
    with suppress(OSError, ValueError, BadInput):
        return parse_fact(Known, json.loads(path.read_text(encoding="utf-8")))
    return None


def _keep(known: Known, path: Path) -> None:
    """Keep KNOWN for the next time; where that cannot be, it is found again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(as_plain(known)), encoding="utf-8")
        part.replace(path)
