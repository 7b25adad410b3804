"""What a step keeps by putting one thing in the place of another is refused where a trace would freeze it."""

from collections import deque

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from torch import nn

import wattsmith
from wattsmith.split.problems import NotSplittable
from wattsmith.split.whole import split

layer = nn.Linear(4, 4)
kept = {"mean": torch.zeros(4)}
last = torch.zeros(4)


class Replacing(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layer(x - self.mean).sum()


class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x * self.calls).sum()


class MadeAtFirst(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean = None

    def forward(self, x):
        self.mean = x.mean(0) if self.mean is None else self.mean + x.mean(0)
        return self.layer(x - self.mean).sum()


def in_a_dict(x):
    kept["mean"] = 0.9 * kept["mean"] + 0.1 * x.mean(0)
    return layer(x - kept["mean"]).sum()


def in_a_variable(x):
    global last
    given = layer(x) + last
    last = given.detach().mean(0)
    return given.sum()


REPLACING = [
    (Replacing(), "mean"),
    (Counting(), "calls"),
    (MadeAtFirst(), "mean"),
    (in_a_dict, "kept.mean"),
    (in_a_variable, "last"),
]


@pytest.mark.parametrize(("step", "name"), REPLACING, ids=range(len(REPLACING)))
def test_what_a_trace_would_freeze_is_refused_by_name(step, name):
    with pytest.raises(NotSplittable, match=rf"in the place of {name}, .*write into it"):
        split(step, torch.rand(6, 4))


def test_what_the_step_replaced_is_there_again():
    mean, before = kept["mean"], last
    for step in (in_a_dict, in_a_variable):
        with pytest.raises(NotSplittable):
            split(step, torch.rand(6, 4))
    assert kept["mean"] is mean
    assert last is before


class Logging(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.attention = None
        self.losses = []
        self.recent = deque(maxlen=2)

    def forward(self, x):
        self.attention = self.layer(x)
        loss = self.attention.sum()
        self.losses.append(loss.detach())
        self.recent.append(loss.detach())
        return loss


def test_what_is_kept_and_never_read_again_does_no_harm_and_leaves_nothing_behind():
    step = Logging()
    made = split(step, torch.rand(6, 4))
    assert (step.attention, step.losses, len(step.recent)) == (None, [], 0)
    batch = torch.rand(3, 4)
    assert torch.equal(made(batch, 0), step(batch))


class AfterTheBoundary(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.mean = torch.zeros(4)

    def forward(self, x):
        given = self.layer(wattsmith.boundary(x * 2))
        self.mean = 0.9 * self.mean + 0.1 * given.detach().mean(0)
        return (given - self.mean).sum()


class BeforeTheBoundary(Replacing):
    def forward(self, x):
        self.mean = 0.9 * self.mean + 0.1 * x.mean(0)
        return self.layer(wattsmith.boundary(x - self.mean)).sum()


def test_a_module_may_keep_what_it_likes_after_its_boundary():
    cut, whole = AfterTheBoundary(), AfterTheBoundary()
    whole.load_state_dict(cut.state_dict())
    made = split(cut, torch.rand(6, 4))
    for samples in (6, 6, 3):
        batch = torch.rand(samples, 4)
        assert torch.equal(made(batch, 0), whole(batch))
    assert torch.equal(cut.mean, whole.mean)


def test_what_is_kept_before_the_boundary_is_refused_all_the_same():
    with pytest.raises(NotSplittable, match="in the place of mean"):
        split(BeforeTheBoundary(), torch.rand(6, 4))


class Deciding(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        loss = self.layer(wattsmith.boundary(x * 2)).sum()
        return loss * 2 if loss > 0 else loss


class Enclosing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Deciding()

    def forward(self, x):
        return self.inner(x.float())


@pytest.mark.parametrize("kind", [Deciding, Enclosing])
def test_a_module_that_decides_by_its_loss_is_cut_at_its_boundary(kind):
    step, batch = kind(), torch.rand(3, 4)
    made = split(step, torch.rand(6, 4))
    assert torch.equal(made(batch, 0), step(batch))
