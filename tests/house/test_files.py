"""Modules have names that say something, and a length one can read in a sitting.

Five hundred lines is where we stop and look, not where good code ends: most files are far shorter. Only
Python is counted; the simulated driver is C and becomes one library.
"""

from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src"
SAYS_NOTHING = {"common", "helper", "helpers", "manager", "managers", "misc", "util", "utils"}
MOST_LINES = 500


def test_no_module_has_a_name_that_would_fit_any_program():
    assert [str(path) for path in SOURCES.rglob("*.py") if SAYS_NOTHING & {path.stem, path.parent.name}] == []


def test_no_module_is_too_long_to_read():
    lengths = {str(path.relative_to(SOURCES)): len(path.read_text().splitlines()) for path in SOURCES.rglob("*.py")}
    assert {name: lines for name, lines in lengths.items() if lines >= MOST_LINES} == {}
