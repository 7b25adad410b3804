"""The comparison with Zeus and CodeCarbon runs. What it finds is in docs/benchmarks.md."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "measure_peers.py"
MISSING_PEERS = [name for name in ("zeus", "codecarbon") if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, ("cc", "gcc", "clang"))), reason="the simulated driver needs a C compiler"
)


def compared(tmp_path, *options):
    """What the script says and writes. Whether its bars are met depends on how busy this machine is."""
    wrote = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--json", str(wrote), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout, json.loads(wrote.read_text())


def test_our_side_answers_by_itself(tmp_path):
    said, wrote = compared(tmp_path, "--ours-only", "--only", "accuracy", "--only", "nothing")
    met = {bar["what"]: bar["met"] for bar in wrote["bars"]}
    assert met["no driver: the GPU's energy is unknown, with a reason"]
    assert "2b. Energy error by polling at 10 Hz" in said
    assert "Zeus median" not in said


@pytest.mark.skipif(bool(MISSING_PEERS), reason=f"not installed: {', '.join(MISSING_PEERS)}; see the extra `bench`")
def test_all_three_are_asked_the_same(tmp_path):
    said, wrote = compared(tmp_path, "--only", "cost", "--only", "nothing")
    assert {"Wattsmith", "Zeus", "CodeCarbon"} <= set(wrote["facts"])
    assert all(bar["met"] is not None for bar in wrote["bars"])
    assert "Zeus ÷ ours" in said


def test_without_the_other_two_it_says_so_and_fails(tmp_path):
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')  # no site packages, so nothing is installed
    python.chmod(0o755)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--peers-python", str(python)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "has not both Zeus and CodeCarbon" in done.stdout
    assert "--ours-only" in done.stdout
