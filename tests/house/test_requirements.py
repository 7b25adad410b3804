"""Every requirement says which of our files needs it, and that file is there once its room is built."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYPROJECT = (ROOT / "pyproject.toml").read_text()
LINE = re.compile(r'^\s*"(?P<requirement>[^"]+)",?\s*(?:#\s*(?P<reason>.*))?$', re.MULTILINE)
PLACE = re.compile(r"[\w.-]+/[\w./-]*")


def requirements() -> list[str]:
    project = tomllib.loads(PYPROJECT)["project"]
    every = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    return [requirement for requirement in every if not requirement.startswith("wattsmith[")]


def reasons() -> dict[str, str]:
    """What stands behind each quoted line of pyproject.toml; "" where nothing does."""
    return {found["requirement"]: found["reason"] or "" for found in LINE.finditer(PYPROJECT)}


def is_missing(place: str) -> bool:
    """Whether PLACE names a file of a room that is built, and the file is not there."""
    if place.endswith("/"):
        return False
    home = ROOT if (ROOT / place.partition("/")[0]).is_dir() else ROOT / "src" / "wattsmith"
    neighbours = {path.name for path in (home / place).parent.glob("*")} - {"__init__.py", "__pycache__"}
    return bool(neighbours) and not (home / place).exists()


@pytest.mark.parametrize("requirement", requirements())
def test_a_requirement_names_the_files_that_need_it(requirement):
    places = PLACE.findall(reasons()[requirement])
    assert places, f"write behind {requirement} which file needs it"
    assert [place for place in places if is_missing(place)] == []


def test_the_guard_sees_a_file_that_is_not_there():
    assert is_missing("terms/no_such_file.py")
    assert is_missing("scripts/no_such_script.sh")
    assert not is_missing("terms/quantity.py")
    assert not is_missing("scripts/test")
    assert not is_missing("terms/")


def test_every_requirement_of_the_tests_is_pinned():
    pinned = {
        line.partition("==")[0].lower().replace("_", "-")
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line and not line.startswith("#")
    }
    project = tomllib.loads(PYPROJECT)["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["dev"], *extras["torch"]]
    names = {re.split(r"[<>=\[]", one)[0] for one in needed if not one.startswith("wattsmith[")}
    assert names - pinned == set()
