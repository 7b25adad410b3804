"""A job made ready to be sent: its file read and checked, its files taken along, its model traced here."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.flows.devices import Tell
from wattsmith.flows.estimating import how_to_estimate, traced_step
from wattsmith.flows.models import load_model
from wattsmith.flows.models.inputs import parse_input
from wattsmith.flows.models.problems import InputsDoNotFit
from wattsmith.schedule.job_submission import SubmittedJob, read_job
from wattsmith.schedule.yaml_tree import Value, Wrongs
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.facts import as_plain

MOST_BYTES = 8_000_000  # of all files together: a third is added on the way, and a service takes 16 MiB at once
STRUCTURAL = ("batch", "precision", "mode", "optimizer", "layout", "accumulation", "compiled")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyJob:
    """A job as it is sent."""

    job: SubmittedJob
    written: str  # as it stands in its file
    files: Mapping[str, bytes]
    structure: Mapping[str, Any] | None  # the traced step; None: the job states its figures
    notes: tuple[str, ...] = ()  # what was assumed


def ready_job(path: Path, tell: Tell = lambda _: None) -> ReadyJob:
    """The job in PATH with all that goes along. Raises BadInput with everything that is wrong, each with its line."""
    tell("reading the job")
    job = read_job(path, time.time())
    folder = path.resolve().parent
    files = _files(job, folder)
    structure: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    if job.work.model:
        _check_input(job)
        tell("tracing a step of the model")
        structure, notes = traced_structure(job, folder)
    return ReadyJob(
        job=job,
        written=path.read_text(encoding="utf-8"),
        files=files,
        structure=structure,
        notes=notes,
    )


def _files(job: SubmittedJob, folder: Path) -> dict[str, bytes]:
    wrongs, found = Wrongs(), {}
    for name, at in zip(job.files, _field(job, "files").items() if job.files else [], strict=True):
        with wrongs.gathered():
            found[name] = _content(at, folder / name, folder)
    wrongs.tell()
    size_bytes = sum(map(len, found.values()))
    if size_bytes > MOST_BYTES:
        raise _field(job, "files").wrong(
            f"hold {size_bytes / 1e6:.1f} MB, and {MOST_BYTES / 1e6:g} MB are the most; put large sets under data"
        )
    return found


def _field(job: SubmittedJob, name: str) -> Value:
    found: Value = job.work.at.plain[name]
    return found


def _content(at: Value, path: Path, folder: Path) -> bytes:
    if not path.resolve().is_relative_to(folder):
        raise at.wrong(f"leads out of the folder of the job file, to {path.resolve()}")
    if not path.is_file():
        raise at.wrong(f"there is no file {path}")
    if path.stat().st_size > MOST_BYTES:
        raise at.wrong(f"is larger than {MOST_BYTES / 1e6:g} MB; put large sets under data")
    try:
        return path.read_bytes()
    except OSError as refused:
        raise at.wrong(f"cannot be read: {refused.strerror}") from refused


def _check_input(job: SubmittedJob) -> None:
    """Raise BadInput where the shapes of its inputs are not understood, each with its line."""
    if "input" not in job.work.model:
        return
    at, wrongs = _field(job, "input"), Wrongs()
    for one in at.items() if isinstance(at.plain, list) else [at]:
        with wrongs.gathered():
            text = one.text()
            try:
                parse_input(text)
            except InputsDoNotFit as refused:
                raise one.wrong(str(refused)) from refused
    wrongs.tell()


def traced_structure(job: SubmittedJob, folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A step of the job's model as a service takes it, and what was assumed. FOLDER is where its files are."""
    written = job.work.model
    options = {name: written[name] for name in STRUCTURAL if name in written}
    if options.get("optimizer") == "none":
        options["optimizer"] = None
    inputs = written.get("input")
    try:
        how = how_to_estimate([inputs] if isinstance(inputs, str) else inputs, options)
        loaded = load_model(_source(str(written["model"]), folder), inputs=how.inputs, batch=how.batch)
        traced, notes = traced_step(loaded, how)
    except WattsmithError as refused:
        raise _field(job, "model").wrong(str(refused)) from refused
    told = {name: getattr(how, name) for name in STRUCTURAL} | {"batch": loaded.batch}
    return {"trace": as_plain(traced), "how": told, "name": str(written["model"])}, notes


def _source(model: str, folder: Path) -> str:
    """MODEL with its file seen from here: a job file names what stands beside it."""
    file, colon, name = model.partition(":")
    beside = folder / file
    is_file = Path(file).suffix in (".py", ".onnx", ".pt2", ".json") or beside.is_dir()
    return f"{beside}{colon}{name}" if is_file and not Path(file).is_absolute() else model
