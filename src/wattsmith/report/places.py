"""Finds results below a folder, without following links that lead out of it."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.errors import BadInput

TINY_FILES = {"results.txt", "energy_results.txt"}
SESSION_FILES = {"client.json", "server.json", "ptd_logs.txt"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A folder with a result in it."""

    path: Path
    name: str  # relative to where the search began; "." for that itself
    kind: str  # "inference", "training", "tiny"


@dataclass(frozen=True, slots=True, kw_only=True)
class Search:
    """What was found, and which links were not followed."""

    root: Path
    places: tuple[Place, ...]
    leaving: tuple[str, ...]  # links that lead out of the folder
    inner: tuple[str, ...]  # links to another folder inside; what they show is looked at where it lies


def find_results(root: Path) -> Search:
    """All results below ROOT, in order of their paths. Raises BadInput when it is no folder."""
    if not root.is_dir():
        raise BadInput(f"{root} is no folder; give the folder of a result, or of many")
    home = root.resolve()
    leaving: list[str] = []
    inner: list[str] = []
    places: list[Place] = []
    within: set[Path] = set()  # folders of results, and what lies in them
    for folder, folders, files in os.walk(home, onerror=_complain):
        here = Path(folder)
        for name in (*list(folders), *files):
            path = here / name
            if path.is_symlink():
                inside = home in path.resolve().parents
                shown = path.relative_to(home).as_posix()
                if not inside:
                    leaving.append(f"{shown} → {path.readlink()}")
                elif name in folders:
                    inner.append(shown)
        folders[:] = sorted(name for name in folders if not (here / name).is_symlink() and not name.startswith(".git"))
        if here.parent in within:  # looked at for links alone
            within.add(here)
            continue
        kind = _kind_of(here, set(folders), set(files))
        if kind is not None:
            within.add(here)
            places.append(Place(path=here, name=here.relative_to(home).as_posix(), kind=kind))
    return Search(root=home, places=tuple(sorted(places, key=_by_name)), leaving=tuple(leaving), inner=tuple(inner))


def _kind_of(here: Path, folders: set[str], files: set[str]) -> str | None:
    power = here / "power"
    if power.is_dir() and any((power / name).exists() for name in SESSION_FILES):
        return "inference"
    if any((here / run / "spl.txt").exists() for run in ("run_1", "ranging")):
        return "inference"
    if "power" in folders and any(name.startswith("result_") for name in files) and any(_run_folders(power)):
        return "training"
    if "trace1-energy.bin" in files or (here.name == "energy" and files & TINY_FILES):
        return "tiny"
    return None


def _run_folders(power: Path) -> Iterator[Path]:
    return (path for path in power.iterdir() if path.is_dir() and path.name.startswith("result_"))


def _by_name(place: Place) -> str:
    return place.name


def _complain(refused: OSError) -> None:
    raise BadInput(f"{refused.filename} cannot be read: {refused.strerror}") from refused
