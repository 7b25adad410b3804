"""docs/results.md is what the kept results make of it, every benchmark is in it, and so is every figure of README."""

import ast
import importlib
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
SCRIPTS = sorted(path.stem for path in BENCHMARKS.glob("*.py"))
NUMBER = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?")


@pytest.fixture
def page(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("results.page")


def all_sh(*arguments):
    return subprocess.run(
        ["bash", str(BENCHMARKS / "all.sh"), *arguments],
        capture_output=True, text=True, check=False, env={"PATH": "/usr/bin:/bin", "PYTHON": sys.executable},
    )  # fmt: skip


def test_the_page_is_what_is_kept(page):
    assert page.PAGE.read_text() == page.page(), "made by `bash benchmarks/all.sh --render`, and not by hand"


def test_every_benchmark_is_run_and_has_a_place_on_the_page(page):
    listed = {
        line.split()[1]
        for line in (BENCHMARKS / "all.sh").read_text().splitlines()
        if line[:3] in ("any", "cpu", "gpu")
    }
    assert sorted(listed) == SCRIPTS
    assert sorted(name for names in page.ORDER.values() for name in names) == SCRIPTS
    assert sorted(page.PAGES) == SCRIPTS


@pytest.mark.parametrize("name", SCRIPTS)
def test_what_a_benchmark_shows_is_one_line(page, name):
    assert ast.get_docstring(ast.parse((BENCHMARKS / f"{name}.py").read_text()))
    assert page.shows(name).endswith((".", "?"))


def test_what_is_kept_has_figures_or_says_why_not(page):
    for path in sorted(page.KEPT.glob("*.json")):
        kept = json.loads(path.read_text())
        assert {"tables", "bars"} <= set(kept) or {"not_run", "failed"} & set(kept), path.name
        assert (kept.get("exit_code", 0) == 0) == all(bar["met"] is not False for bar in kept.get("bars", [])), (
            path.name
        )


# ---- keeping


def keep(page, monkeypatch, tmp_path, figures, exit_code, said=""):
    monkeypatch.setattr(page, "KEPT", tmp_path)
    (tmp_path / "said.txt").write_text(said)
    (tmp_path / "figures.txt").write_text(json.dumps(figures)) if figures is not None else None
    words = ["keep", "serve_load", "--exit-code", str(exit_code), "--figures", str(tmp_path / "figures.txt"), "--said"]
    monkeypatch.setattr(
        sys, "argv", ["page.py", *words, str(tmp_path / "said.txt"), "--busy", "0.05", "--", "python x"]
    )
    assert page.main() == 0
    return json.loads((tmp_path / "serve_load.json").read_text())


def a_bar(met):
    return {"tables": [], "bars": [{"what": "all is well", "figure": 1.0, "met": met}]}


def test_a_missed_bar_is_said_plainly(page, monkeypatch, tmp_path, capsys):
    kept = keep(page, monkeypatch, tmp_path, a_bar(False), 1)
    assert "MISSED: all is well" in capsys.readouterr().out
    assert "| all is well | 1 | **MISSED** |" in list(page.told_lines(kept))
    assert "0 of 1 | **1**" in next(page.in_short("serve_load", [kept]))


def test_what_lacks_its_data_is_not_shown_as_passed(page, monkeypatch, tmp_path):
    kept = keep(
        page, monkeypatch, tmp_path, None, 2, "12 grids\nNOT DONE: there are no grids in /home/somebody/grids\n"
    )
    assert kept["not_run"]["reason"] == "there are no grids in grids"
    assert "**Not run here**" in "\n".join(page.section("serve_load", [kept]))
    assert "not run here: there are no grids" in next(page.in_short("serve_load", [kept]))


def test_an_earlier_run_stays_beside_the_reason_why_it_is_not_newer(page, monkeypatch, tmp_path):
    keep(page, monkeypatch, tmp_path, a_bar(True), 0)
    kept = keep(page, monkeypatch, tmp_path, None, 2, "SKIPPED: LoadGen is missing")
    told = "\n".join(page.section("serve_load", [kept]))
    assert "loadgen is missing**; what follows is of an earlier run." in told.lower()
    assert "| all is well | 1 | met |" in told
    assert "LoadGen is missing" in next(page.in_short("serve_load", [kept]))


def test_a_benchmark_that_breaks_has_failed(page, monkeypatch, tmp_path):
    kept = keep(page, monkeypatch, tmp_path, None, 1, "Traceback\nValueError: no")
    assert kept["failed"] == "ValueError: no"
    assert "FAILED: ValueError: no" in next(page.in_short("serve_load", [kept]))


def test_rows_of_tests_become_a_table_and_bars(page):
    row = {
        "test": "t",
        "measure": "MAPE",
        "ours": 2.0,
        "others": {"theirs": 5.0},
        "bar": "≤ 3",
        "met": True,
        "note": "",
    }
    told = page.of_tests([row, row | {"met": None, "bar": ""}])
    assert told["bars"] == [{"what": "t: MAPE ≤ 3", "figure": "2.0", "met": True}]
    assert told["tables"][0]["rows"][0][6] == "theirs 5.0 (2.5 ×)"


@pytest.mark.parametrize(("busy", "told"), [(0.6, "60% of the cores were busy"), (0.05, ""), (None, "")])
def test_a_run_beside_other_work_says_so(page, busy, told):
    assert told in page.busy_words({"busy_before": busy})
    assert bool(told) == bool(page.busy_words({"busy_before": busy}))


def test_how_busy_a_machine_is_is_a_share(page, monkeypatch):
    monkeypatch.setattr(page, "LOOK_S", 0.05)
    assert 0 <= page.busy_share() <= 1


# ---- all.sh


def test_all_sh_lists_what_it_would_run_without_running_it():
    done = all_sh("--list", "--only", "tune_replay", "--only", "report_loopback")
    assert done.stdout.splitlines() == [
        "python benchmarks/tune_replay.py --data DIR",
        "python benchmarks/report_loopback.py",
    ]


def test_all_sh_says_what_it_does_not_know():
    assert all_sh("--fast").returncode == 2
    done = all_sh("--only", "tune_replays")
    assert (done.returncode, done.stderr) == (
        2,
        "there is no benchmark tune_replays; see bash benchmarks/all.sh --list\n",
    )


# ---- README


def readme_figures():
    """Script and figure, for every number in a table of README whose rows name the script that prints them."""
    script = None
    for line in (ROOT / "README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        named = re.search(r"benchmarks/(\w+)\.py", line)
        script = named[1] if named else script if cells and "same" in cells[-1] else None
        if script:
            yield from ((script, found) for cell in cells[1:-1] for found in NUMBER.findall(cell))


def same(quoted: str, printed: str) -> bool:
    """Whether PRINTED, in this unit or in one a thousand times larger or smaller, may be QUOTED, both being rounded."""
    (value, half), (other, its_half) = map(with_half_a_digit, (quoted, printed))
    return any(abs(value - scale * other) < (half + scale * its_half) * (1 - 1e-9) for scale in (1, 1000, 0.001))


def with_half_a_digit(number: str) -> tuple[float, float]:
    return float(number.replace(",", "")), 0.5 * 10.0 ** -len(number.partition(".")[2])


@pytest.mark.parametrize(("script", "figure"), sorted(set(readme_figures())))
def test_every_figure_of_readme_is_among_the_results_of_its_script(page, script, figure):
    found = NUMBER.findall("\n".join(page.section(script, page.kept_runs()[script])))
    assert any(same(figure, one) for one in found), f"{figure} is not in what {script} printed, see docs/results.md"


def test_readme_quotes_figures():
    assert len(set(readme_figures())) > 5


@pytest.mark.parametrize(
    ("quoted", "printed", "is_it"),
    [
        ("48", "48,324", True),
        ("1.3", "1.29", True),
        ("0.2", "0.195", True),
        ("5.6", "5583", True),
        ("7", "7.6", False),
        ("0.7", "0.8", False),
    ],
)
def test_a_figure_is_the_same_when_rounded_as_it_is_quoted(quoted, printed, is_it):
    assert same(quoted, printed) is is_it
