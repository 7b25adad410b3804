"""Opaque steps and boundaries: Python that is not traced, and the cut where the user wants it."""

import pickle
import random
import subprocess
import sys
import textwrap
import zlib

import numpy as np
import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from torch import nn

from wattsmith.split.halves import load
from wattsmith.split.marks import boundary, opaque
from wattsmith.split.problems import BatchDoesNotFit, NotSplittable, StateChanged
from wattsmith.split.whole import split

words = nn.Embedding(256, 4)
layer = nn.Linear(4, 4)


@opaque
def decoded(files):
    """Stands for a picture decoder: bytes in, numbers out."""
    return np.stack([np.frombuffer(zlib.decompress(one), dtype=np.uint8) for one in files])


@opaque(ragged=True)
def tokens(texts):
    longest = max(len(one) for one in texts)
    return torch.tensor([[*one.encode(), *([0] * (longest - len(one)))] for one in texts])


@opaque
def jittered(rows):
    return rows + random.random() + np.random.rand()


def files(samples=6):
    rows = [bytes([at, at + 1, at + 2, at + 3]) for at in range(samples)]
    return {"file": [zlib.compress(one) for one in rows], "label": torch.arange(samples) % 4}


def learn_files(batch):
    rows = decoded(batch["file"]).float() / 255
    return nn.functional.cross_entropy(layer(rows * torch.rand(len(rows), 1)), batch["label"])


def learn_texts(texts):
    seen = tokens(texts)
    return (words(seen) * (seen > 0).unsqueeze(-1)).sum(1).square().mean()


def test_an_opaque_function_is_still_a_function():
    assert decoded.__name__ == "decoded"
    assert decoded(files(1)["file"]).tolist() == [[0, 1, 2, 3]]


def test_a_decoder_runs_on_the_data_side_and_its_bytes_cross():
    made = split(learn_files, files())
    places = {one.operator: one for one in made.report().places}
    assert places["opaque decoded"].side == "data"
    assert places["opaque decoded"].why == "an opaque step"
    torch.manual_seed(8)
    whole = learn_files(files(3))
    assert torch.equal(made(files(3), 8), whole)


def test_texts_of_any_length_and_number_may_come():
    texts = ["one", "two words", "three more words", "four"]
    made = split(learn_texts, texts)
    for some in (texts, texts[:1], ["a", "b"], ["a much longer text than the example has"] * 7):
        assert torch.equal(made(some, 0), learn_texts(some))
    assert made.report().any_batch


def test_a_fresh_process_runs_an_opaque_step_without_its_source(tmp_path):
    made = split(learn_files, files())
    made.data.save(tmp_path / "data.half")
    program = """
        import sys, torch, zlib
        from wattsmith.split.halves import load
        batch = {"file": [zlib.compress(bytes([1, 2, 3, 4]))] * 2, "label": torch.ones(2).long()}
        torch.save(load("data.half")(batch, 5), "crossing.pt")
        assert not any("test_marks" in name for name in sys.modules)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True, cwd=tmp_path)
    batch = {"file": [zlib.compress(bytes([1, 2, 3, 4]))] * 2, "label": torch.ones(2).long()}
    wanted = load(tmp_path / "data.half")(batch, 5)
    got = torch.load(tmp_path / "crossing.pt")
    assert all(torch.equal(one, other) for one, other in zip(got, wanted, strict=True))


def test_without_cloudpickle_an_opaque_step_travels_by_its_name(monkeypatch):
    monkeypatch.setitem(sys.modules, "cloudpickle", None)  # as if it were not installed
    made = split(learn_files, files())
    assert b"test_marks" in made.data._written
    assert torch.equal(pickle.loads(pickle.dumps(made.data))(files(2), 1)[0], made.data(files(2), 1)[0])

    @opaque
    def nameless(rows):
        return rows * 2

    with pytest.raises(NotSplittable, match=r"cannot be sent to workers.*pip install cloudpickle"):
        split(lambda rows: layer(nameless(rows)).sum(), torch.ones(2, 4))


def test_python_and_numpy_draw_from_the_seed_inside_an_opaque_step():
    made = split(lambda rows: layer(jittered(rows)).sum(), torch.ones(4, 4))
    before = random.getstate(), np.random.get_state()[1].tobytes()
    assert torch.equal(made(torch.ones(4, 4), 3), made(torch.ones(4, 4), 3))
    assert not torch.equal(made(torch.ones(4, 4), 3), made(torch.ones(4, 4), 4))
    assert (random.getstate(), np.random.get_state()[1].tobytes()) == before


def test_sizes_that_change_without_being_announced_are_refused():
    @opaque
    def cut_to_longest(texts):
        longest = max(len(one) for one in texts)
        return torch.ones(len(texts), longest)

    made = split(lambda texts: (cut_to_longest(texts) * layer.weight[0, 0]).sum(), ["abc", "abd", "abe"])
    with pytest.raises(NotSplittable, match=r"cut_to_longest gave a tensor of 2×5 .* any×3.*ragged=True"):
        made(["abcde", "a"], 0)


def test_a_step_that_goes_another_way_by_the_number_of_texts_refuses_others():
    def step(texts):
        seen = tokens(texts)
        return words(seen).sum() * (2 if seen.shape[0] % 2 == 0 else 1)

    made = split(step, ["a", "b", "c", "d"])
    assert torch.equal(made(["a", "b"], 0), step(["a", "b"]))
    with pytest.raises(BatchDoesNotFit, match="% 2"):
        made(["a", "b", "c"], 0)


def test_a_step_that_goes_another_way_by_the_length_of_texts_refuses_other_lengths():
    def step(texts):
        seen = tokens(texts)
        return words(seen).sum() * (2 if seen.shape[1] > 4 else 1)

    made = split(step, ["abcdefg", "ab"])
    assert torch.equal(made(["abcdefghij"], 0), step(["abcdefghij"]))
    with pytest.raises(NotSplittable, match=r"tokens gave a tensor with a size of 3.*sizes > 4"):
        made(["abc"], 0)


def test_what_is_no_tensor_is_for_opaque_steps_alone():
    with pytest.raises(NotSplittable, match=r"batch is no tensor, and the step looks into it at .*opaque"):
        split(lambda texts: layer(torch.ones(len(texts), 4)).sum(), ["a", "b"])


def test_texts_that_a_step_gives_back_are_refused_by_name():
    batch = {"row": torch.rand(6, 4), "path": list("abcdef")}
    with pytest.raises(NotSplittable, match=r"gives batch\['path'\] back"):
        split(lambda batch: ((batch["row"] * 2).sum(), batch["path"]), batch)


def test_an_opaque_step_that_returns_something_else_is_refused():
    @opaque
    def wrong(rows):
        return str(rows)

    with pytest.raises(NotSplittable, match="wrong returns a str; it must return tensors"):
        split(lambda rows: layer(wrong(rows)).sum(), torch.ones(2, 4))


def test_only_functions_are_opaque():
    with pytest.raises(NotSplittable, match="marks a function"):
        opaque(3)


def test_a_boundary_gives_what_it_is_given():
    one, other = torch.ones(2), torch.zeros(2)
    assert boundary(one) is one
    assert boundary(one, other) == (one, other)


def test_a_boundary_moves_the_cut():
    def step(rows):
        return layer(boundary(rows * 2) * 3 + 1).sum()

    batch = torch.ones(6, 4)
    made = split(step, batch)
    assert torch.equal(made(batch, 0), step(batch))
    sides = [(one.operator, one.side) for one in made.report().places if one.operator in ("mul", "boundary", "add")]
    assert sides == [("mul", "data"), ("boundary", "training"), ("mul", "training"), ("add", "training")]
    assert next(one.why for one in made.report().places if one.operator == "add") == "comes after the boundary"


def decides(batch):
    """Training that looks at values, which no tracer follows."""
    rows, labels = batch
    rows = (rows - rows.mean()) * torch.rand(len(rows), 1)
    rows, labels, samples = boundary(rows, labels, len(rows))
    seen = nn.functional.dropout(layer(rows), 0.2)
    if seen.sum() > 0:
        seen = seen * 2
    return nn.functional.cross_entropy(seen, labels, reduction="sum") / samples


def rows_and_labels(samples=6):
    return torch.arange(4.0 * samples).reshape(samples, 4), torch.arange(samples) % 4


def test_training_that_cannot_be_traced_is_cut_at_the_boundary():
    made = split(decides, rows_and_labels())
    assert made.report().tracer == "by hand"
    for samples in (6, 3, 1):
        torch.manual_seed(7)
        rows, labels = rows_and_labels(samples)
        share = torch.rand(samples, 1)
        crossing = made.data((rows, labels), 7)
        assert torch.equal(crossing[0], (rows - rows.mean()) * share)
        after = torch.get_rng_state()
        torch.manual_seed(7)
        whole = decides((rows, labels))
        torch.set_rng_state(after)
        assert torch.equal(made.train(*crossing), whole)


def test_gradients_flow_through_training_by_hand():
    made = split(decides, rows_and_labels())
    layer.zero_grad()
    made(rows_and_labels(), 1).backward()
    assert layer.weight.grad is not None
    layer.zero_grad()


def test_what_goes_around_the_boundary_is_refused():
    def step(batch):
        rows = boundary(batch[0] * 2)
        seen = layer(rows)
        if seen.sum() > 0:
            seen = seen * 2
        return nn.functional.cross_entropy(seen, batch[1])

    with pytest.raises(NotSplittable, match=r"goes around the boundary.*Mark all that crosses with one call"):
        split(step, rows_and_labels())


def test_weights_before_the_boundary_of_such_a_step_are_refused():
    def step(rows):
        seen = boundary(layer(rows))
        return seen.sum() if seen.sum() > 0 else -seen.sum()

    with pytest.raises(NotSplittable, match=r"before its boundary the step depends on layer\.weight"):
        split(step, torch.ones(2, 4))


class Louder(torch.autograd.Function):
    """Its gradient is not that of what it does; a trace loses that."""

    @staticmethod
    def forward(_, rows):
        return rows * 2

    @staticmethod
    def backward(_, grad):
        return grad * 5


def test_gradients_that_a_trace_would_lose_are_refused_and_kept_by_a_boundary():
    def plain(rows):
        return Louder.apply(layer(rows * 3)).sum()

    def marked(rows):
        return Louder.apply(layer(boundary(rows * 3))).sum()

    batch = torch.ones(2, 4)
    with pytest.raises(NotSplittable, match="autograd functions of your own are lost in a trace"):
        split(plain, batch)
    made = split(marked, batch)
    layer.zero_grad()
    made(batch, 0).backward()
    assert torch.equal(layer.bias.grad, torch.full((4,), 10.0))
    layer.zero_grad()


def test_transforms_of_functions_are_refused_and_leave_nothing_behind():
    def step(rows):
        return torch.vmap(lambda row: layer(row).sum())(rows * 2).sum()

    with pytest.raises(NotSplittable, match=r"torch\.vmap or torch\.func cannot be cut at .*test_marks\.py, line \d+"):
        split(step, torch.ones(2, 4))
    layer(torch.ones(2, 4)).sum().backward()
    layer.zero_grad()


def test_gradients_of_the_data_are_training():
    def step(rows):
        rows = (rows * 2).requires_grad_()
        loss = layer(rows).sum()
        (slope,) = torch.autograd.grad(loss, rows, create_graph=True)
        return loss + slope.square().sum()

    made = split(step, torch.ones(2, 4))
    assert torch.equal(made(torch.ones(2, 4), 0), step(torch.ones(2, 4)))


def test_an_example_of_one_sample_leaves_the_batch_open():
    made = split(lambda rows: layer(rows * 2).sum(), torch.ones(1, 4))
    assert made.report().batch == 2
    assert made(torch.ones(5, 4), 0) == layer(torch.full((5, 4), 2.0)).sum()
    assert made(torch.ones(1, 4), 0) == layer(torch.full((1, 4), 2.0)).sum()


def test_weights_that_are_trained_do_not_go_into_an_opaque_step():
    model = torch.nn.Linear(4, 4)

    @opaque
    def seen_by_the_model(x):
        return model(x).detach()

    with pytest.raises(NotSplittable, match=r"opaque step seen_by_the_model uses model\.weight, which changes"):
        split(lambda x: layer(seen_by_the_model(x)).sum() + model(x).sum(), torch.ones(2, 4))


def test_a_table_of_an_opaque_step_must_stay():
    table = torch.ones(4)

    @opaque
    def scaled(x):
        return x * table

    made = split(lambda x: layer(scaled(x)).sum(), torch.ones(2, 4))
    made(torch.ones(2, 4), 0)
    table.mul_(2)
    with pytest.raises(StateChanged, match="table has changed"):
        made(torch.ones(2, 4), 0)


def test_an_opaque_step_that_counts_is_refused():
    calls = [0]

    @opaque
    def late(x):
        calls[0] += 1
        return x if calls[0] < 100 else x * 2

    with pytest.raises(NotSplittable, match="in the place of calls"):
        split(lambda x: layer(late(x)).sum(), torch.ones(2, 4))
    assert calls == [0]
