"""Steps that are named in files, and the page that explains the cut."""

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import wattsmith
from wattsmith.flows.splitting import load_half, split_file
from wattsmith.split.problems import FrozenRandomness, NotSplittable
from wattsmith.terms.errors import BadInput

CNN = Path(__file__).parent / "models_for_tests" / "cut_step.py"
PAGE = Path(__file__).parents[2] / "docs" / "split.md"


def test_a_function_with_an_example_beside_it_is_cut():
    cut = split_file(f"{CNN}:step", trainer="gpu")
    assert cut.batch == 8
    assert [(one.dtype, one.shape) for one in cut.crossing] == [("int64", (8,)), ("uint8", (8, 3, 32, 32))]


def test_a_class_takes_sizes():
    cut = split_file(f"{CNN}:Head", inputs=["4"], batch=5, trainer="cpu")
    assert [one.shape for one in cut.crossing] == [(5, 4)]


def test_a_function_may_give_the_step_and_its_example():
    assert split_file(f"{CNN}:built").batch == 3


def test_the_data_half_and_a_picture_are_written(tmp_path):
    import torch

    split_file(f"{CNN}:Head", inputs=["4"], batch=5, save=tmp_path / "data.half", plot=tmp_path / "cut.svg")
    crossing = load_half(tmp_path / "data.half")(torch.ones(2, 4), 0)
    assert torch.equal(crossing[0], torch.full((2, 4), 2.0))
    assert (tmp_path / "cut.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("source", "options", "said"),
    [
        ("cut_step.py", {}, "which step in cut_step.py"),
        (f"{CNN}:nothing", {}, "has no 'nothing'"),
        ("no_such_file.py:step", {}, "there is no file"),
        (f"{CNN}:number", {}, "is a int; a step is a function of a batch"),
        (f"{CNN}:breaks", {}, r"breaks fails at .*cut_step.py, line \d+.*no disk"),
        (f"{CNN}:step", {"example": "other"}, "has no 'other' that gives a batch"),
        (f"{CNN}:step", {"trainer": "tpu"}, "--trainer must be cpu or gpu"),
        (f"{CNN}:step", {"batch": 4}, "--batch goes with --input"),
        (f"{CNN}:step", {"batch": 0}, "at least 1"),
        (f"{CNN}:step", {"inputs": ["3x8x8", "a=4"]}, "name all of --input, or none"),
        (f"{CNN}:step", {"inputs": ["wide"]}, "not understood"),
    ],
)
def test_what_cannot_be_cut_says_why(source, options, said):
    with pytest.raises(BadInput, match=said):
        split_file(source, **options)


def test_frozen_randomness_in_a_file_is_refused_with_its_line():
    with pytest.raises(FrozenRandomness, match=r"cut_step.py, line \d+: `return Head"):
        split_file(f"{CNN}:rolls_dice", inputs=["4"])


def test_a_step_without_an_example_asks_for_one(tmp_path):
    (tmp_path / "alone.py").write_text("def step(x):\n    return x.sum()\n")
    with pytest.raises(BadInput, match="Write a function `example`"):
        split_file(f"{tmp_path / 'alone.py'}:step")


def test_the_front_hall_has_the_marks():
    assert wattsmith.boundary(3) == 3
    assert wattsmith.opaque(lambda x: x).ragged is False


def test_the_example_of_the_page_runs_as_it_stands(tmp_path, monkeypatch, capsys):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 3
    (tmp_path / "train.py").write_text("\n".join(blocks))
    monkeypatch.chdir(tmp_path)
    space = {"__name__": "train", "__file__": str(tmp_path / "train.py")}
    exec(compile("\n".join(blocks), str(tmp_path / "train.py"), "exec"), space)
    assert space["made"].report().any_batch
    assert "the same: True" in capsys.readouterr().out


def test_a_boundary_that_the_weights_reach_is_refused_by_name():
    import torch

    layer = torch.nn.Linear(2, 2)
    with pytest.raises(NotSplittable, match=r"layer\.weight"):
        wattsmith.split(lambda rows: wattsmith.boundary(layer(rows)).sum(), torch.ones(2, 2))


def test_a_fed_run_trains_to_the_same_bits_as_one_that_is_not_split():
    import copy

    import torch
    from tests.split.steps import Small, rows
    from tests.split.test_exactness import trained, unsplit

    whole_set = rows(20)
    data_set = torch.utils.data.StackDataset(**whole_set)
    torch.manual_seed(1)
    whole = Small()
    cut = copy.deepcopy(whole)
    made = wattsmith.split(cut, rows(6))
    feeder = wattsmith.Feeder(data_set, batch_size=6, num_workers=1, data=made.data, seed=7, copy_out=True)
    batches = [{name: value[at : at + 6] for name, value in whole_set.items()} for at in range(0, 20, 6)]
    fed = trained(cut, lambda crossing, _: made.train(*crossing), feeder)
    assert fed == trained(whole, lambda batch, seed: unsplit(whole, batch, seed), batches)
    assert all(torch.equal(one, other) for one, other in zip(cut.parameters(), whole.parameters(), strict=True))
