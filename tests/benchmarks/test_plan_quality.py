"""The benchmark of plans runs, and says what is missing. Its figures are in docs/plan.md."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "plan_quality.py"
DATA = Path(__file__).parents[3] / "shared" / "data"


def quality(*arguments):
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=150
    )


def test_data_that_is_not_there_is_named(tmp_path):
    done = quality("--data", tmp_path)
    assert done.returncode == 2
    assert "--data" in done.stdout


@pytest.mark.skipif(
    not (DATA / "zeus-traces").exists(),
    reason="needs the public measurements beside this repository, in ../shared/data",
)
def test_plans_meet_their_bars(tmp_path):
    wrote = tmp_path / "figures.json"
    parts = [word for part in ("carbon", "running") for word in ("--only", part)]  # none watches the clock
    done = quality("--data", DATA, "--quick", *parts, "--json", wrote)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads(wrote.read_text())
    assert all(bar["met"] for bar in told["bars"])
    assert told["running"]["lost"] == []
