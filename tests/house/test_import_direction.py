"""Rooms meet only in terms; flows introduces them to each other; the doors call flows.

Read from the syntax tree, so imports inside functions and under TYPE_CHECKING count too.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "wattsmith"
EVERY_ROOM = {folder.parent.name for folder in PACKAGE.glob("*/__init__.py")}
DOORS = {"cli", "serve"}
VERSION = "__version__"  # the one thing of the front hall that a room may use
IMPORTERS = {"import_module", "__import__"}


def allowed_from(room: str) -> set[str]:
    """What ROOM may import of ours, itself aside."""
    if room == "terms":
        return set()
    if room == "flows":
        return (EVERY_ROOM - DOORS) | {VERSION}
    if room == "cli":
        return {"flows", "serve", "terms", VERSION}  # `wattsmith serve` opens the other door
    if room == "serve":
        return {"flows", "terms", VERSION}
    return {"terms", VERSION}


def imports_of_ours(source: str) -> Iterator[tuple[int, str]]:
    """Line, and what is imported there: a room, a name of the front hall, or "a relative import"."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                yield node.lineno, "a relative import"
            elif node.module == "wattsmith":
                yield from ((node.lineno, alias.name) for alias in node.names)
            else:
                yield from ((node.lineno, room) for room in room_of(node.module))
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, room) for alias in node.names for room in room_of(alias.name))
        elif isinstance(node, ast.Call) and called_name(node) in IMPORTERS:
            texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
            yield from ((node.lineno, room) for text in texts for room in room_of(str(text)))


def room_of(module: str | None) -> list[str]:
    """The room that holds MODULE; "the front hall" for wattsmith itself; [] for what is not ours."""
    package, _, rest = (module or "").partition(".")
    if package != "wattsmith":
        return []
    return [rest.partition(".")[0] or "the front hall"]


def called_name(call: ast.Call) -> str | None:
    if isinstance(call.func, ast.Attribute):
        return call.func.attr
    return call.func.id if isinstance(call.func, ast.Name) else None


def breaches(room: str, source: str) -> list[str]:
    """The imports in SOURCE that a module of ROOM must not have."""
    allowed = allowed_from(room) | {room}
    return [f"line {line}: {room} imports {what}" for line, what in imports_of_ours(source) if what not in allowed]


@pytest.mark.parametrize("room", sorted(EVERY_ROOM))
def test_a_room_imports_only_what_it_may(room):
    found = {
        str(path.relative_to(PACKAGE)): wrong
        for path in sorted((PACKAGE / room).rglob("*.py"))
        if (wrong := breaches(room, path.read_text()))
    }
    assert not found


def test_the_front_hall_imports_nothing_relatively():
    for path in PACKAGE.glob("*.py"):
        assert "a relative import" not in [what for _, what in imports_of_ours(path.read_text())]


@pytest.mark.parametrize(
    ("room", "source"),
    [
        ("measure", "from wattsmith.sim.nvml import start"),
        ("measure", "def later():\n    from wattsmith.sim.nvml import start"),
        ("measure", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import wattsmith.store.tables"),
        ("measure", "import wattsmith.store.tables as tables"),
        ("measure", "import os, wattsmith.store"),
        ("measure", "from wattsmith import sim"),
        ("measure", "import wattsmith"),
        ("measure", "from . import nvml"),
        ("measure", "from ..sim import nvml"),
        ("measure", "import importlib\nimportlib.import_module('wattsmith.sim.nvml')"),
        ("measure", "from wattsmith.flows.measuring import measure"),
        ("sim", "from wattsmith.measure.nvml import NvmlMeter"),
        ("terms", "from wattsmith.measure.nvml import NvmlMeter"),
        ("terms", "from wattsmith import __version__"),
        ("flows", "from wattsmith.cli import app"),
        ("cli", "from wattsmith.measure.nvml import NvmlMeter"),
        ("serve", "from wattsmith.cli import app"),
    ],
)
def test_the_guard_sees_a_wrong_import(room, source):
    assert len(breaches(room, source)) == 1


@pytest.mark.parametrize(
    ("room", "source"),
    [
        (
            "measure",
            "from wattsmith.terms.energy import Window\nfrom wattsmith.measure.nvml import NvmlMeter",
        ),
        ("measure", "import wattsmithery\nfrom json import loads"),
        ("measure", "from wattsmith import __version__"),
        ("terms", "from wattsmith.terms.errors import BadTerm"),
        ("flows", "from wattsmith.measure.nvml import NvmlMeter\nfrom wattsmith.store.tables import runs"),
        ("cli", "from wattsmith.flows.measuring import measure\nfrom wattsmith.terms.facts import as_plain"),
    ],
)
def test_the_guard_lets_a_right_import_pass(room, source):
    assert breaches(room, source) == []
