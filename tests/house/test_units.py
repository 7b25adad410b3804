"""A number that is a quantity carries its unit in its name.

Looked at: annotated fields of classes, and parameters, in `src`, whose name has a word such as "power" in it
and whose annotation is a plain number, or one that may be None. So `power_limit_w: float` passes and
`power_limit: float` fails.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "wattsmith"
QUANTITIES = {
    *("clock", "duration", "energy", "frequency", "latency", "memory"),
    *("power", "temperature", "time", "timeout"),
}
UNITS = ("_s", "_j", "_w", "_hz", "_bytes", "_c", "_ratio", "_ns")
NUMBERS = {"float", "int", "None"}
ALLOWED = {
    "feed/feeder.py: timeout",  # the name is DataLoader's
    "sim/nvml_profile.py: memory_bus_bits",  # a width, counted in wires
}


def named_numbers(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of every field and parameter that is annotated as a plain number."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and is_number(field.annotation):
                    yield field.lineno, ast.unparse(field.target)
        elif isinstance(node, ast.arguments):
            for parameter in (*node.posonlyargs, *node.args, *node.kwonlyargs):
                if parameter.annotation is not None and is_number(parameter.annotation):
                    yield parameter.lineno, parameter.arg


def is_number(annotation: ast.expr) -> bool:
    parts = {part.strip() for part in ast.unparse(annotation).strip("'\"").split("|")}
    return parts <= NUMBERS and parts != {"None"}


def without_unit(source: str) -> list[tuple[int, str]]:
    return [
        (line, name)
        for line, name in named_numbers(source)
        if QUANTITIES & set(name.lower().split("_")) and not name.endswith(UNITS)
    ]


def test_every_quantity_carries_its_unit():
    missing = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for path in PACKAGE.rglob("*.py")
        for _, name in without_unit(path.read_text())
    }
    assert missing - ALLOWED == set()
    assert ALLOWED - missing == set(), "allowed, but no longer there"


@pytest.mark.parametrize(
    "source",
    [
        "class Fact:\n    power: float",
        "class Fact:\n    power_limit: float | None = None",
        "class Fact:\n    memory_mb: int",
        "class Fact:\n    clock: 'int | None'",
        "def wait(timeout: float): ...",
        "def wait(*, timeout_ms: int = 3): ...",
        "def outer():\n    def inner(latency: float, /): ...",
    ],
)
def test_the_guard_sees_a_quantity_without_unit(source):
    assert len(without_unit(source)) == 1


@pytest.mark.parametrize(
    "source",
    [
        "class Fact:\n    power_w: float\n    clock_hz: float | None\n    time_ns: int",
        "class Fact:\n    power: tuple[PowerSample, ...]\n    clock: Clock",
        "def wait(timeout_s: float, sometimes: int, timeout: Timeout): ...",
    ],
)
def test_the_guard_lets_a_named_unit_pass(source):
    assert without_unit(source) == []
