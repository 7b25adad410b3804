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


@pytest.fixture
def onnx_file(tmp_path):
    """x made positive and doubled, then a layer."""
    onnx = pytest.importorskip("onnx", reason="THE COMMAND split IS NOT TESTED ON ONNX FILES: onnx is not installed")
    text = """<ir_version: 8, opset_import: ["" : 17]> g (float[N,K] x) => (float[N,2] z)
        <float two = {2}, float[2,2] w = {1, 0, 0, 1}> { h = Abs(x)  k = Mul(h, two)  z = MatMul(k, w) }"""
    onnx.save(onnx.parser.parse_model(text), tmp_path / "model.onnx")
    return tmp_path / "model.onnx"


def test_an_onnx_file_becomes_two(said, onnx_file, tmp_path):
    one, two = tmp_path / "data.onnx", tmp_path / "rest.onnx"
    out, _ = said(onnx_file, "--input", "x=2", "--batch", "5", "--save", one, "--save-training", two)
    plain = " ".join(out.split())
    assert "3 nodes on the data side, 1 with training, traced by onnx, 5 samples" in plain
    assert "z MatMul training 40 B depends on w, a weight" in plain
    assert "k 5×2 float32, 40 B" in plain
    assert b"two" in one.read_bytes()
    assert b"two" not in two.read_bytes()


def test_json_of_an_onnx_file_has_every_node(said, onnx_file):
    cut = json.loads(said(onnx_file, "--input", "2", "--state", "two", "--json")[0])
    assert [(one["name"], one["side"]) for one in cut["places"]] == [
        ("x", "data"),
        ("h", "data"),
        ("k", "training"),
        ("z", "training"),
    ]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ([], "input x is N×K, with sizes left open"),
        (["--input", "2", "--input", "3"], "2 inputs are given, and"),
        (["--input", "2:uint8"], "tells the types of its inputs itself"),
        (["--input", "y=2"], "the model has no input 'y'; there are x"),
        (["--input", "2", "--frozen"], "--frozen is for a Python step"),
        (["--input", "2", "--constant", "w"], "no operator of the model holds weights"),
    ],
)
def test_what_makes_no_sense_for_an_onnx_file_is_one_message(said, onnx_file, options, told):
    _, err = said(onnx_file, *options, code=2)
    assert told in " ".join(err.split())


def test_what_is_for_onnx_files_is_refused_for_steps(said):
    _, err = said(f"{CNN}:step", "--state", "w", code=2)
    assert "--state is for an ONNX file" in err
