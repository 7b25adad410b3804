"""`wattsmith split` as a user has it: what it prints, what it refuses, and how it exits."""

import json
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="THE COMMAND split IS NOT TESTED: torch is not installed")

from tests.cli.running import wattsmith as wattsmith_apart

CNN = Path(__file__).parents[1] / "flows" / "models_for_tests" / "cut_step.py"


@pytest.fixture
def said(wattsmith_here):
    """Runs `wattsmith split ARGUMENTS`."""
    return partial(wattsmith_here, "split")


def test_the_table_says_what_runs_where_and_what_crosses(said):
    out, err = said(f"{CNN}:step", "--trainer", "gpu")
    plain = " ".join(out.split())
    assert "7 nodes on the data side" in plain
    assert "rand rand data 32 B draws at random, from the batch's seed" in plain
    assert "to to training 96 KiB cheaper with training: it makes 98304 bytes of 24576" in plain
    assert "depends on net.0.weight, which is trained" in plain or "net.0.weight" in plain
    assert "24.1 KiB cross per step" in plain
    assert "8×3×32×32 uint8, 24 KiB" in plain
    assert "a step that prints" not in out
    assert "a step that prints" in err


def test_json_holds_every_node(said, tmp_path):
    out, _ = said(f"{CNN}:Head", "--input", "4", "--batch", "5", "--json", "--plot", tmp_path / "cut.html")
    cut = json.loads(out)
    assert cut["bytes_per_step"] == 5 * 4 * 4
    assert [one["side"] for one in cut["places"]] == ["data", "data", "training", "training"]
    assert "linear" in (tmp_path / "cut.html").read_text()


def test_frozen_randomness_is_one_message(said):
    _, err = said(f"{CNN}:rolls_dice", "--input", "4", code=2)
    assert err.startswith("wattsmith: ")
    assert "cut_step.py, line " in err


def test_the_command_by_itself_exits_with_2_and_one_message():
    done = wattsmith_apart("split", f"{CNN}:nothing")
    assert done.returncode == 2
    assert done.stdout == ""
    assert "has no 'nothing'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
