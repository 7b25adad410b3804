"""The records that come with the package, by name."""

import json
from collections.abc import Mapping
from pathlib import Path

from wattsmith.store.lines import LinesStore
from wattsmith.terms.errors import BadInput

RECORDS = Path(__file__).parents[1] / "records"
_SUFFIX = ".jsonl.gz"


def shipped_records(folder: Path = RECORDS) -> list[str]:
    """The names of the records that come with the package."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))


def open_shipped(name: str, folder: Path = RECORDS) -> LinesStore:
    """The record called NAME that comes with the package. It can only be read."""
    names = shipped_records(folder)
    if name not in names:
        there = f"there are {', '.join(names)}" if names else "none is shipped with this version"
        raise BadInput(f"no record called {name!r} comes with wattsmith: {there}")
    return LinesStore(folder / f"{name}{_SUFFIX}")


def shipped_activity(name: str, folder: Path = RECORDS) -> Mapping[str, Mapping[str, float]]:
    """What activity counters told of networks of the shipped record NAME on another occasion, by their workload's key.

    Beside the counters stand `steps_per_s`, `power_w` and `memory_used_ratio` of that occasion. Empty: none were taken.
    """
    path = folder / f"{name}.activity.json"
    networks: Mapping[str, Mapping[str, float]] = json.loads(path.read_text())["networks"] if path.exists() else {}
    return networks
