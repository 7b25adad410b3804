"""What torch.export cannot trace, torch.fx may: blocks, layers, marks and chance are kept there too."""

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from torch import nn

from wattsmith.split.halves import loads
from wattsmith.split.marks import boundary, opaque
from wattsmith.split.problems import NotSplittable
from wattsmith.split.whole import split

# An operator as a package brings it, without telling the shape of what it gives: torch.export needs that.
LIBRARY = torch.library.Library("wattsmith_tests", "DEF")
LIBRARY.define("twice(Tensor rows) -> Tensor")
LIBRARY.impl("twice", lambda rows: rows * 2, "CPU")


@opaque
def lengths(texts):
    return torch.tensor([[float(len(one))] * 4 for one in texts])


class Step(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 0.5))
        self.flat = nn.Flatten()
        self.net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(inplace=True), nn.Dropout(0.3))
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, batch):
        rows, labels = batch["rows"], batch["label"]
        rows = torch.ops.wattsmith_tests.twice(rows)
        noisy = self.flat(rows - self.mean) + torch.rand_like(rows) + lengths(batch["text"])
        noisy *= 2
        noisy[:, 0].mul_(0.5)
        given = self.net(noisy)
        with torch.no_grad():
            scale = given.std() + len(labels)
        return nn.functional.cross_entropy(given * self.weight / scale, labels)


def batch(samples=6):
    rows = torch.arange(4.0 * samples).reshape(samples, 4)
    return {"rows": rows, "label": torch.arange(samples) % 4, "text": ["a" * at for at in range(1, samples + 1)]}


@pytest.fixture(scope="module")
def step():
    torch.manual_seed(2)
    return Step()


@pytest.fixture(scope="module")
def made(step):
    return split(step, batch())


def test_the_report_says_who_traced_it_and_why(made):
    assert made.report().tracer == "torch.fx"
    assert any("torch.export said" in note for note in made.report().notes)


def test_data_work_goes_and_layers_stay(made):
    places = {one.name: one for one in made.report().places}
    assert {places[name].side for name in ("twice", "rand_like", "lengths", "mul", "mul_")} == {"data"}
    assert "net" in next(one.why for one in made.report().places if one.side == "training" and "net" in one.operator)
    assert [one.shape for one in made.crossing if len(one.shape) == 2] == [(6, 4)]


def test_it_gives_what_the_step_gives_with_any_number_of_samples(step, made):
    for samples in (6, 4, 2):
        crossing, generator = made.data.and_generator(batch(samples), 3)
        torch.set_rng_state(generator)
        ours = made.train(*crossing)
        torch.manual_seed(3)
        assert torch.equal(ours, step(batch(samples)))


def test_blocks_without_gradients_are_kept(step, made):
    step.zero_grad()
    crossing, generator = made.data.and_generator(batch(), 3)
    torch.set_rng_state(generator)
    made.train(*crossing).backward()
    ours = step.net[0].weight.grad.clone()
    step.zero_grad()
    torch.manual_seed(3)
    step(batch()).backward()
    assert torch.equal(ours, step.net[0].weight.grad)


def test_the_file_holds_it_all(made):
    again = loads(made.data._written)
    assert all(torch.equal(one, other) for one, other in zip(again(batch(), 1), made.data(batch(), 1), strict=True))
    assert "wattsmith_tests" in made.data.needs


def test_a_boundary_is_kept():
    layer = nn.Linear(4, 4)

    def marked(rows):
        return layer(boundary(torch.ops.wattsmith_tests.twice(rows)) * 3).sum()

    report = split(marked, torch.ones(3, 4)).report()
    assert [(one.operator, one.side) for one in report.places if one.operator in ("twice", "boundary", "mul")] == [
        ("twice", "data"),
        ("boundary", "training"),
        ("mul", "training"),
    ]


def test_a_function_of_the_users_that_torch_fx_does_not_look_into_must_be_marked():
    layer = nn.Linear(4, 4)

    def wrapped(rows):
        return layer(hidden(torch.ops.wattsmith_tests.twice(rows))).sum()

    with pytest.raises(NotSplittable, match=r"hidden.* mark it with @wattsmith\.opaque"):
        split(wrapped, torch.ones(3, 4))


@torch.fx.wrap
def hidden(rows):
    return rows + 1
