"""The data half is a file and a pure function; the training half has the user's weights."""

import pickle
import random
import subprocess
import sys
import textwrap

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from tests.split.steps import Small, rows

from wattsmith.split.halves import load, loads, opened, sealed
from wattsmith.split.problems import BatchDoesNotFit, HalfNotRead, StateChanged
from wattsmith.split.whole import split
from wattsmith.terms.errors import NotWritten


@pytest.fixture(scope="module")
def step():
    torch.manual_seed(3)
    return Small()


@pytest.fixture(scope="module")
def made(step):
    return split(step, rows())


def same(ones, others):
    return len(ones) == len(others) and all(torch.equal(a, b) for a, b in zip(ones, others, strict=True))


def test_the_same_seed_gives_the_same_tensors_and_another_gives_others(made):
    assert same(made.data(rows(), 5), made.data(rows(), 5))
    assert not same(made.data(rows(), 5), made.data(rows(), 6))


def test_what_crosses_is_as_the_report_says(made):
    crossing = made.data(rows(), 5)
    assert made.data.names == tuple(one.name for one in made.crossing)
    assert [tuple(one.shape) for one in crossing] == [one.shape for one in made.crossing]
    assert sum(one.nbytes for one in crossing) == made.report().bytes_per_step


def test_the_callers_generators_are_left_alone(made):
    before = torch.get_rng_state(), random.getstate()
    made.data(rows(), 5)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def test_a_saved_and_a_pickled_half_give_the_same(made, tmp_path):
    made.data.save(tmp_path / "data.half")
    wanted = made.data(rows(), 5)
    assert same(load(tmp_path / "data.half")(rows(), 5), wanted)
    assert same(pickle.loads(pickle.dumps(made.data))(rows(), 5), wanted)
    assert (tmp_path / "data.half").stat().st_size < 20_000, "the example must not be in the file"


def test_a_fresh_process_without_the_users_source_gives_identical_tensors(made, tmp_path):
    made.data.save(tmp_path / "data.half")
    torch.save([(rows(6, seed), seed) for seed in range(3)] + [(rows(2, 9), 9)], tmp_path / "batches.pt")
    program = """
        import sys, torch
        from wattsmith.split.halves import load
        half = load("data.half")
        torch.save([half(batch, seed) for batch, seed in torch.load("batches.pt")], "crossing.pt")
        assert not any("steps" in name or "tests" in name.split(".") for name in sys.modules if "split" not in name)
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    subprocess.run(run, check=True, cwd=tmp_path)
    for (batch, seed), got in zip(
        torch.load(tmp_path / "batches.pt"), torch.load(tmp_path / "crossing.pt"), strict=True
    ):
        assert same(got, made.data(batch, seed))


def test_a_worker_draws_fractions_of_the_kind_that_the_step_was_cut_with():
    torch.set_default_dtype(torch.float64)
    try:
        model = torch.nn.Linear(4, 1)
        made = split(lambda x: model(x + torch.rand(4)).sum(), torch.ones(6, 4, dtype=torch.float64))
        wanted = made.data(torch.ones(2, 4, dtype=torch.float64), 1)
    finally:
        torch.set_default_dtype(torch.float32)
    assert same(made.data(torch.ones(2, 4, dtype=torch.float64), 1), wanted)


def test_a_batch_that_is_written_into_stays_as_it_was():
    class InPlace(Small):
        def prepare(self, batch):
            batch["label"].add_(1).remainder_(4)
            return super().prepare(batch)

    made, batch = split(InPlace(), rows()), rows()
    first = made.data(batch, 1)
    assert torch.equal(batch["label"], rows()["label"])
    assert same(made.data(batch, 1), first)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"row": rows()["row"]}, "batch has no 'label'"),
        ([rows()["row"], rows()["label"]], "batch has no 'row'"),
        (
            {**rows(), "row": rows()["row"].float()},
            r"batch\['row'\] is 6×4 float32; the step was cut for",
        ),
        ({**rows(), "row": rows()["row"][:, :3]}, "any×4 uint8"),
        ({**rows(), "row": 3}, "is a int; the step was cut with a tensor"),
        ({**rows(), "label": rows(5)["label"]}, "shape"),
    ],
)
def test_a_batch_of_another_kind_is_refused(made, batch, said):
    with pytest.raises(BatchDoesNotFit, match=said):
        made.data(batch, 0)


def test_what_is_frozen_into_the_step_must_stay():
    made = split(lambda x, scale: (x * scale * weight).sum(), (torch.ones(4), 3))
    assert made((torch.ones(2), 3), 0) == 6
    with pytest.raises(BatchDoesNotFit, match=r"batch\[1\] is 4, and was 3"):
        made((torch.ones(2), 4), 0)


weight = torch.nn.Parameter(torch.ones(()))


def test_a_file_that_is_no_half_is_refused(tmp_path):
    (tmp_path / "nothing").write_bytes(b"nothing")
    torch.save({"a": 1}, tmp_path / "other")
    for name in ("nothing", "other", "missing"):
        with pytest.raises(HalfNotRead):
            load(tmp_path / name)


@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.5, 0.7, 0.999])
def test_a_half_that_was_damaged_or_cut_short_is_refused(made, share):
    at = int(share * len(made.data._written))
    damaged = bytearray(made.data._written)
    damaged[at] ^= 1
    for written in (bytes(damaged), made.data._written[:at]):
        with pytest.raises(HalfNotRead, match=r"no data half|damaged or not whole"):
            loads(written)


@pytest.mark.parametrize("name", ["os.system", "builtins.eval", "torch.hub.load", "torch.load", "torch.nothing"])
def test_a_half_that_asks_for_more_than_pytorch_is_refused(made, name):
    import json

    parts = opened(made.data._written)
    facts = json.loads(parts["facts"])
    facts["nodes"].insert(0, ["call_function", "evil", {"function": name}, {"tuple": ["true"]}, {"dict": []}])
    with pytest.raises(HalfNotRead, match=name):
        loads(sealed({**parts, "facts": json.dumps(facts)}))


def test_a_half_that_cannot_be_written_says_so(made, tmp_path):
    with pytest.raises(NotWritten, match="no such folder"):
        made.data.save(tmp_path / "no such folder" / "data.half")


def test_the_training_half_has_the_users_weights_under_their_names(step, made):
    assert list(made.train.state_dict()) == list(step.state_dict())
    assert all(mine is theirs for mine, theirs in zip(made.train.parameters(), step.parameters(), strict=True))


def test_weights_that_are_loaded_or_moved_are_followed():
    step = Small()
    made = split(step, rows())
    step.load_state_dict(Small().state_dict())
    step.norm.to(torch.float64)
    step.norm.to(torch.float32)
    step.norm.running_mean = torch.full((4,), 3.0)
    before = step.norm.running_mean
    made(rows(), 1)
    assert not torch.equal(before, torch.full((4,), 3.0)), "statistics go into the buffer that the module has now"


def test_a_constant_that_changes_later_is_noticed():
    step = Small()
    made = split(step, rows())
    made(rows(), 1)
    step.mean.data.add_(1)  # behind the back of the version counter
    with pytest.raises(StateChanged, match="mean has changed"):
        made(rows(), 1)


def test_a_step_in_another_mode_than_it_was_cut_in_is_refused():
    step = Small()
    made = split(step, rows())
    step.eval()
    with pytest.raises(StateChanged, match="training mode when the step was cut"):
        made(rows(), 1)


def test_a_failure_in_the_middle_leaves_no_block_open(made):
    with pytest.raises(RuntimeError):
        made.train(torch.ones(6, 5), torch.zeros(6, dtype=torch.int64))
    assert torch.is_grad_enabled()


def test_strict_keeps_what_differs_between_cpus_with_the_trainer():
    def step(x):
        return (torch.nn.functional.interpolate(x * 2, size=(5, 5), mode="bilinear") * weight).sum()

    batch = torch.rand(4, 3, 8, 8)
    made = split(step, batch)
    free = made.report()
    assert pickle.loads(pickle.dumps(made.data)).unlike == ("upsample_bilinear2d",)
    strict = split(step, batch, strict=True).report()
    assert free.unlike == ("upsample_bilinear2d",)
    assert strict.unlike == ()
    assert [one.operator for one in strict.stayed] == ["upsample_bilinear2d"]


def test_in_place_writes_stay_on_one_side(made):
    by_name = {one.name: one for one in made.report().places}
    assert {by_name[name].side for name in ("add", "select", "fill_")} == {"data"}


def test_the_order_in_memory_is_the_same_after_the_crossing():
    layer = torch.nn.Conv2d(3, 2, 3)

    def step(images):
        wide = (images.float() / 255).to(memory_format=torch.channels_last)
        return layer(wide).sum() + wide.shape[0]

    batch = torch.arange(4 * 3 * 8 * 8, dtype=torch.uint8).reshape(4, 3, 8, 8)
    made = split(step, batch)
    crossing = made.data(batch, 0)
    assert [tuple(one.shape) for one in crossing if one.dim() == 4] == [(4, 8, 8, 3)]
    assert all(one.is_contiguous() for one in crossing), "what is sent lies in one piece"
    plain = [one.clone() for one in crossing]  # as after a journey
    assert torch.equal(made.train(*plain), step(batch))


def test_a_tensor_that_is_spread_without_memory_is_sent_in_one_piece():
    def step(rows):
        wide = rows.unsqueeze(1).expand(-1, 3, -1)
        return (wide * weight).sum() + wide.sum()

    made = split(step, torch.ones(2, 4))
    assert all(one.is_contiguous() for one in made.data(torch.ones(2, 4), 0))


class Many(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, rows, labels=None, scale=None):
        given = self.layer(rows * 2).sum()
        return {"loss": given if labels is None else given + labels.sum(), "scale": scale}


@pytest.mark.parametrize(
    "batch",
    [
        torch.ones(3, 4),
        (torch.ones(3, 4),),
        [torch.ones(3, 4), torch.ones(3)],
        {"rows": torch.ones(3, 4)},
        {"labels": torch.ones(3), "rows": torch.ones(3, 4)},
    ],
    ids=["tensor", "one of a tuple", "list", "by name", "by name in any order"],
)
def test_a_batch_is_handed_over_as_the_step_takes_it(batch):
    step = Many()
    given = split(step, batch)(batch, 0)
    more = 3 if len(batch) == 2 else 0
    assert torch.equal(given["loss"], step(torch.ones(3, 4))["loss"] + more)
    assert given["scale"] is None
