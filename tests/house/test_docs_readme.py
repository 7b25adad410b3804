"""The README fits one screen, its example runs, and each figure of its table is among the results."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
RESULTS = ROOT / "docs" / "results.md"
FIGURE = re.compile(r"\d[\d,.]*\d|\d")


def measured() -> list[list[str]]:
    """The cells of each row of the table: what, ours, others', script."""
    table = README.partition("## Measured")[2].partition("## ")[0]
    rows = [line.strip("|").split("|") for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def test_the_readme_fits_one_screen():
    assert len(README.splitlines()) <= 65


def test_the_example_runs(capsys):
    [example] = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(compile(example, "README.md", "exec"), {"train_one_epoch": lambda: None})
    assert "epoch" in capsys.readouterr().out


def test_each_row_names_a_script_that_is_there():
    rows = measured()
    assert len(rows) >= 5
    named = [row[3].strip("`") for row in rows if row[3] != "the same"]
    assert [name for name in named if not (ROOT / name).exists()] == []


def figures(text: str) -> set[str]:
    return {figure.replace(",", "") for figure in FIGURE.findall(text)}


def test_every_figure_is_in_the_results():
    printed = figures(RESULTS.read_text())
    quoted = {figure for row in measured() for figure in figures(f"{row[1]} {row[2]}")}
    assert len(quoted) >= 10
    assert quoted - printed == set()
