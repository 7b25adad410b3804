"""Where trials are kept from one search to the next: by device, workload, meters and versions."""

import hashlib
import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from wattsmith import __version__
from wattsmith.flows.machine import describe_machine
from wattsmith.flows.tuning import read_trials
from wattsmith.flows.tuning_hardware import Say
from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Knob

PACKAGES = ("torch", "transformers", "torchvision", "onnx")


def cached_trials(workload: Mapping[str, Any], knobs: Sequence[Knob], *, device: str, meters: str) -> Path:
    """The file for trials of WORKLOAD, all that it is told by, at KNOBS on DEVICE: in the user's cache."""
    machine = describe_machine(meters)
    gpu = [f"{one.name} {one.uuid}" for one in machine.gpus] if device != "cpu" else []
    told = {
        "workload": workload,
        "knobs": sorted((knob.name, *map(str, knob.levels), str(knob.present)) for knob in knobs),
        "device": [device, *gpu, platform.machine(), os.cpu_count(), machine.cpu],
        "driver": machine.driver,
        "meters": meters,
        "versions": [__version__, platform.python_version(), *(f"{one} {_version(one)}" for one in PACKAGES)],
    }
    mark = hashlib.sha256(json.dumps(told, sort_keys=True, default=str).encode()).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "wattsmith" / "tune" / f"trials-{mark}.jsonl"


def set_aside_if_damaged(path: Path, say: Say) -> None:
    """Make room for a new cache where PATH cannot be read: nobody chose that file, so nobody need mend it."""
    try:
        if path.exists():
            read_trials(path)
    except BadInput as damaged:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        say(f"earlier trials cannot be used, and are made anew: {damaged}. They lie in {aside} now")


def source_mark(source: str) -> str:
    """Names a model by what is in its file, so that an edited one is another; by its name where there is none."""
    path = Path(source.partition(":")[0]).expanduser()
    path = path / "config.json" if path.is_dir() else path
    if not path.is_file():
        return source
    return f"{source} {hashlib.sha256(path.read_bytes()).hexdigest()[:16]}"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "none"
