"""`wattsmith estimate` as a user has it: what it prints, what it refuses, and how it exits."""

import json
from dataclasses import fields
from functools import partial
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="THE COMMAND estimate IS NOT TESTED: torch is not installed")
pytest.importorskip("scipy", reason="THE COMMAND estimate IS NOT TESTED: scipy is not installed")

from tests.cli.running import Terminal
from tests.cli.running import wattsmith as wattsmith_apart
from tests.flows.knowing import few_runs, written

from wattsmith.terms.estimate import Estimate

MODELS = Path(__file__).parents[1] / "flows" / "models_for_tests"
NET = f"{MODELS / 'small.py'}:Net"
RESNET = f"{MODELS / 'resnet.py'}:ResNet50"


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Somebody who has neither a record nor a cache yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """A small record, which is learned from in a moment."""
    return written(tmp_path_factory.mktemp("record") / "few.jsonl", few_runs())


@pytest.fixture
def said(wattsmith_here):
    """Runs `wattsmith estimate ARGUMENTS`."""
    return partial(wattsmith_here, "estimate")


@pytest.fixture
def refused(said):
    """The one message of a command that must be refused, and prints nothing else."""

    def run(*arguments):
        out, err = said(*arguments, code=2)
        assert out == ""
        assert err.startswith(("wattsmith: ", "Usage: "))
        return " ".join(err.split())

    return run


def intervals(plain):
    """Every interval of a plain answer."""
    if isinstance(plain, dict):
        if {"value", "low", "high"} <= plain.keys():
            yield plain
        for one in plain.values():
            yield from intervals(one)
    elif isinstance(plain, list):
        for one in plain:
            yield from intervals(one)


ISSUE = ("--batch", 64, "--input", "3x224x224", "--precision", "bf16", "--device", "h200")
JOB = ("--epochs", 90, "--samples", 1281167)


class TestPrinted:
    def test_all_that_a_user_asks_for_is_there(self):
        done = wattsmith_apart("estimate", RESNET, *ISSUE, *JOB)
        assert done.returncode == 0, done.stderr
        told = done.stdout
        assert told.startswith("NVIDIA H200, batch 64, bf16, training, contiguous\n")
        rows = {line.split("  ")[0]: line for line in told.splitlines()}
        for name in ("step", "memory, tensors", "memory, held", "power", "energy of a step", "epoch"):
            assert " … " in rows[name]
        assert " … " in rows["job, 1801710 steps"]
        assert " … " in rows["energy of the job"]
        assert "90 % interval" in told
        assert "sets the pace" in rows["step"]
        assert "of 140 GiB; runs out with 0%" in rows["memory, held"]
        assert "device time by kind: " in told
        assert "the step by simpler methods: constant " in told
        assert ", two-phase " in told
        assert ", roofline " in told
        assert "inside what was measured: operators like its own were measured" in told
        assert " runs of h200); measured operators do " in told
        assert "note: loss: cross-entropy over the 1000 scores of each sample" in told
        # Where the output is a file, no figure is broken over two lines.
        assert [line for line in told.splitlines() if line.strip() in ("s", "min")] == []

    def test_json_has_everything(self, said, record):
        out, _ = said(NET, "--input", "8", "--db", record, "--json", "--samples", 1000, "--gpus", 2)
        (line,) = out.splitlines()
        found = json.loads(line)
        assert found.keys() == {one.name for one in fields(Estimate)}
        some = list(intervals(found))
        assert len(some) == 5 + 2 + 3
        assert all(one["low"] <= one["value"] <= one["high"] for one in some)
        assert found["basis"] == "operators"
        assert found["devices"] == 2
        assert found["job"]["steps"] == 500
        assert found["others_s"].keys() >= {"constant", "roofline"}

    def test_a_terminal_shows_it_too(self, record):
        terminal = Terminal("estimate", NET, "--input", "8", "--db", record)
        assert terminal.finish() == 0
        assert "sets the pace" in terminal.output

    def test_what_a_model_prints_is_no_part_of_the_answer(self, said, record, tmp_path):
        (tmp_path / "net.py").write_text(
            "import torch\nprint('loading')\ndef build():\n    print('building')\n    return torch.nn.Linear(8, 2)\n"
        )
        out, err = said(f"{tmp_path}/net.py:build", "--input", "8", "--db", record, "--json")
        json.loads(out)
        assert "loading\nbuilding\n" in err

    def test_brackets_in_a_note_stay(self, said, record, tmp_path):
        (tmp_path / "net.py").write_text(
            "import torch\nclass Net(torch.nn.Linear):\n    def __init__(self):\n        super().__init__(8, 2)\n"
            "    def forward(self, x):\n        mask = {'bold': x > 0}\n        red = 'bold'\n"
            "        return super().forward(x + 1 if mask[red].any() else x)\n"
        )
        out, _ = said(f"{tmp_path}/net.py:Net", "--input", "8", "--db", record)
        assert "mask[red].any()" in " ".join(out.split())

    def test_an_unmeasured_device_says_so(self, said):
        out, _ = said(NET, "--input", "8", "--device", "a100")
        told = " ".join(out.split())
        assert "outside what was measured: this device was not measured" in told
        assert "rests on data sheet" in told
        assert "note: to have this device measured, run there: wattsmith record run --device cuda:0" in told

    def test_inference(self, said, record):
        assert "inference" in said(NET, "--input", "8", "--infer", "--db", record)[0]

    def test_a_power_limit_has_a_unit(self, said, record):
        out, _ = said(NET, "--input", "8", "--power-limit", "0.4kW", "--db", record, "--json")
        assert json.loads(out)["power_w"]["high"] <= 400


class TestRanked:
    def test_limits_rank_and_say_what_others_break(self, said, record):
        limits = ("--limit", "gpus<=2", "--limit", "epoch<=20min", "--minimise", "energy")
        out, _ = said(NET, "--input", "8", "--samples", 10_000_000, *limits, "--db", record)
        told = " ".join(out.split())
        assert told.startswith("least energy under limits: gpus at most 2, epoch at most 20 min 00 s")
        assert "gpus device type batch step memory epoch energy 1*" in told
        assert "more (--json has all)" in told
        assert "break a limit; nearest to keeping it:" in told
        assert " beyond " in told

    def test_where_none_fits_the_exit_code_is_1(self, said, record):
        limits = ("--limit", "gpus<=2", "--limit", "epoch<=1us")
        out, _ = said(NET, "--input", "8", "--samples", 1000, *limits, "--db", record, code=1)
        told = " ".join(out.split())
        assert "no configuration keeps all limits; nearest to it:" in told
        assert "epoch may be" in told

    def test_json_has_all_of_them(self, said, record):
        out, _ = said(NET, "--input", "8", "--limit", "gpus<=2", "--db", record, "--json")
        ranking = json.loads(out)
        # Eleven batches, two types, one or two devices; and four or eight.
        assert (len(ranking["fitting"]), len(ranking["rejected"])) == (44, 44)
        assert ranking["rejected"][0]["breaches"][0]["limit"]["name"] == "gpus"
        assert all(one["low"] <= one["value"] <= one["high"] for one in intervals(ranking))

    def test_what_is_given_is_all_that_there_is_to_choose_among(self, said, record):
        given = ("--gpus", 2, "--batch", 64, "--precision", "fp16", "--db", record, "--json")
        out, _ = said(NET, "--input", "8", "--minimise", "time", *given)
        (one,) = json.loads(out)["fitting"]
        made = one["option"]["configuration"]
        assert (made["devices"], made["batch"], made["precision"]) == (2, 64, "fp16")

    def test_several_devices_are_ranked_without_being_asked_to(self, said):
        out, _ = said(NET, "--input", "8", "--device", "h200, a100", "--batch", 8, "--gpus", 1)
        told = " ".join(out.split())
        assert "least time under limits: none" in told
        assert "1 H200 fp32 8" in told
        assert "1 A100 SXM4 40GB fp32 8" in told
        assert "time/sample" in told

    def test_prices_make_a_cost(self, said, record):
        given = ("--samples", 1000, "--minimise", "cost", "--price", "h200=3.5", "--db", record)
        assert " cost " in said(NET, "--input", "8", *given)[0].splitlines()[1] + " "


class TestRefused:
    def test_a_file_that_fails_to_import(self, refused, tmp_path):
        (tmp_path / "net.py").write_text("import no_such_package\n")
        told = refused(f"{tmp_path}/net.py:Net", "--input", "8")
        assert f"{tmp_path}/net.py fails to import at {tmp_path}/net.py, line 1: `import no_such_package`" in told

    def test_a_corrupt_onnx_file(self, refused, tmp_path):
        pytest.importorskip("onnx", reason="ONNX FILES ARE NOT TESTED: onnx is not installed")
        (tmp_path / "net.onnx").write_bytes(b"\x08\x07nonsense")
        assert "net.onnx" in refused(tmp_path / "net.onnx", "--infer")

    def test_a_corrupt_exported_program(self, refused, tmp_path):
        (tmp_path / "net.pt2").write_bytes(b"nonsense")
        assert "net.pt2" in refused(tmp_path / "net.pt2")

    def test_a_corrupt_config(self, refused, tmp_path):
        (tmp_path / "config.json").write_text("{")
        assert "config.json" in refused(tmp_path / "config.json")

    @pytest.mark.parametrize(
        ("arguments", "told"),
        [
            (["nothing"], "'nothing' leads to no model: write file.py:NAME"),
            (["none.py:Net"], "there is no file none.py"),
            ([f"{NET}t"], "did you mean"),
            ([NET], "what does Net take? forward(x): give the sizes of one sample for each input"),
            ([NET, "--input", "9"], "wants 8 features in the last dimension"),
            ([NET, "--input", "eight"], "--input 'eight' is not understood"),
            ([NET, "--input", "8", "--batch", "0"], "batch must be at least 1, got 0"),
            ([NET, "--input", "8", "--batch", "many"], "--batch"),
            ([NET, "--input", "8", "--precision", "fp8"], "precision must be fp32, tf32, bf16, fp16, got 'fp8'"),
            ([NET, "--input", "8", "--optimizer", "lion"], "there is no optimizer 'lion'"),
            ([NET, "--input", "8", "--layout", "nhwc"], "there is no layout 'nhwc'"),
            ([NET, "--input", "8", "--gpus", "0"], "devices must be at least 1, got 0"),
            ([NET, "--input", "8", "--epochs", "90"], "90 epochs of how many samples?"),
            ([NET, "--input", "8", "--power-limit", "400"], "'400' has no unit: write 400W"),
            ([NET, "--input", "8", "--device", "b900"], "Known devices: NVIDIA H200 NVL, NVIDIA H200,"),
            ([NET, "--input", "8", "--device", "cpu"], "wattsmith record run --preset smoke --device cpu"),
            ([NET, "--input", "8", "--db", "none.sqlite"], "there is no record at none.sqlite"),
            ([NET, "--input", "8", "--limit", "gups<=2"], "did you mean gpus?"),
            ([NET, "--input", "8", "--limit", "epoch<=20W"], "W is a unit of power"),
            ([NET, "--input", "8", "--limit", "epoch<=20min"], "say how many samples it has (--samples)"),
            ([NET, "--input", "8", "--minimise", "joy"], "'joy' cannot be minimised"),
            ([NET, "--input", "8", "--minimise", "time", "--price", "h200"], "--price must be like h200=3.5"),
            ([NET, "--input", "8", "--minimise", "cost", "--samples", "9"], "give it, as in --price h200=3.5"),
            (["torch.nn:Flatten", "--input", "8x2", "--infer"], "the step calls no operator on the device"),
            (["torch.nn:Flatten", "--input", "8x2"], "no parameter that learns"),
        ],
    )
    def test_with_a_message_that_says_what_to_do(self, refused, arguments, told):
        assert told in refused(*arguments)
