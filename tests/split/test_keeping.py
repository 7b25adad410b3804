"""What a step keeps by putting one thing in the place of another is refused where a trace would freeze it."""

import itertools
from collections import deque

import numpy as np
import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from torch import nn

import wattsmith
from wattsmith.split.problems import NotSplittable, StateChanged
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


class Late(nn.Module):
    """Does nothing else until its hundredth call."""

    calls_of_all = 0

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return self.layer(x if self.calls < 100 else x * 2).sum()


class LateByClass(Late):
    def forward(self, x):
        LateByClass.calls_of_all += 1
        return self.layer(x if LateByClass.calls_of_all < 100 else x * 2).sum()


class LateByAnObject(Late):
    class Schedule:
        seen = 0

        def rate(self):
            self.seen += 1
            return 1.0 if self.seen < 100 else 0.1

    def __init__(self):
        super().__init__()
        self.schedule = self.Schedule()

    def forward(self, x):
        return self.layer(x).sum() * self.schedule.rate()


class Averaging(Late):
    """Keeps an average that nothing depends on: it would be missing from what is saved."""

    def __init__(self):
        super().__init__()
        self.register_buffer("loss", torch.zeros(()))

    def forward(self, x):
        loss = self.layer(x).sum()
        self.loss = 0.9 * self.loss + 0.1 * loss.detach()
        return loss


count, memory, seen = 0, deque(maxlen=1000), np.zeros(2)


def late_by_a_global(x):
    global count
    count += 1
    return layer(x).sum() * (1 if count < 100 else 2)


def late_by_an_array(x):
    seen[0] += 1
    return layer(x).sum() * (1 if seen[0] < 100 else 2)


def late_by_a_list(x):
    memory.append(x)
    loss = layer(x).sum()
    return loss if len(memory) < 100 else loss + layer(memory[0]).sum()


def late_by_a_list_item(x):
    items[0] += 1
    return layer(x).sum() * (1 if items[0] < 100 else 2)


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0


slotted, items = Slotted(), [0]


def late_by_a_slot(x):
    slotted.calls += 1
    return layer(x).sum() * (1 if slotted.calls < 100 else 2)


rates = itertools.count()


def late_by_an_iterator(x):
    return layer(x).sum() * (1 if next(rates) < 100 else 2)


optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)


def setting_the_rate(x):
    """Nothing in the step shows it, and the optimizer would never know."""
    optimizer.param_groups[0]["lr"] = 0.2
    return layer(x).sum()


def late_by_itself(x):
    late_by_itself.calls += 1
    return layer(x).sum() * (1 if late_by_itself.calls < 100 else 2)


late_by_itself.calls = 0


def late_by_a_variable():
    calls = 0

    def step(x):
        nonlocal calls
        calls += 1
        return layer(x).sum() * (1 if calls < 100 else 2)

    return step


LATE = [
    (Late(), "calls"),
    (LateByClass(), "LateByClass.calls_of_all"),
    (LateByAnObject(), "schedule.seen"),
    (Averaging(), "loss"),
    (late_by_a_global, "count"),
    (late_by_an_array, "seen"),
    (late_by_a_list, "memory"),
    (late_by_itself, "late_by_itself.calls"),
    (late_by_a_variable(), "calls"),
    (late_by_a_list_item, "items"),
    (late_by_a_slot, "slotted.calls"),
    (setting_the_rate, "optimizer.param_groups.0.lr"),
    (late_by_an_iterator, r"rates \(an iterator\)"),
]


@pytest.mark.parametrize(("step", "name"), LATE, ids=range(len(LATE)))
def test_what_would_show_only_after_many_calls_is_refused_by_name(step, name):
    with pytest.raises(NotSplittable, match=rf"in the place of {name}, .*write into it"):
        split(step, torch.rand(6, 4))


def test_what_the_step_counted_is_as_before():
    for step, _ in LATE:
        with pytest.raises(NotSplittable):
            split(step, torch.rand(6, 4))
    assert (LATE[0][0].calls, LateByClass.calls_of_all, LATE[2][0].schedule.seen) == (0, 0, 0)
    assert (count, seen.tolist(), len(memory), late_by_itself.calls) == (0, [0, 0], 0, 0)
    assert LATE[8][0].__closure__[0].cell_contents == 0
    assert (items, slotted.calls, optimizer.param_groups[0]["lr"]) == ([0], 0, 0.1)


class Scheduled(nn.Module):
    """Works with numbers that its training loop changes."""

    def __init__(self):
        super().__init__()
        self.drop = nn.Dropout(0.5)
        self.layer = nn.Linear(4, 4)
        self.noise, self.epoch = 0.1, 0
        self.options = {"weight": 1.0, "name": "first", "shift": torch.zeros(4)}
        self.shares, self.ends = [1.0, 1.0, 1.0, 1.0], (0, 4)

    def forward(self, x):
        x = x[:, self.ends[0] : self.ends[1]]
        given = self.layer(self.drop(x) * (1 + self.noise)) * torch.tensor(self.shares)
        return (given + self.options["shift"]).sum() * self.options["weight"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda step: setattr(step, "noise", 0.2), r"noise was 0\.1 .* is 0\.2 now.*tensor"),
        (lambda step: setattr(step.drop, "p", 0.4), r"drop\.p was 0\.5"),
        (lambda step: setattr(step, "drop", nn.Identity()), r"drop is another module"),
        (lambda step: setattr(step, "ends", (1, 4)), r"ends was \(0, 4\)"),
        (lambda step: step.options.update(weight=2.0), r"options\.weight was 1\.0"),
        (lambda step: step.options.update(shift=torch.ones(4)), r"options\.shift is another tensor.*copy_"),
        (lambda step: step.shares.reverse() or step.shares.append(2.0), r"shares was \(1\.0, .* 2\.0\) now"),
    ],
)
def test_a_number_that_is_frozen_and_changes_later_is_noticed(change, said):
    step, batch = Scheduled(), torch.rand(6, 4)
    made = split(step, batch)
    step.epoch, step.options["name"] = 1, "second"  # which the step does not read
    made(batch, 0)
    change(step)
    with pytest.raises(StateChanged, match=said):
        made(batch, 0)


def test_what_the_loop_counts_for_itself_is_no_business_of_the_step():
    step, batch = Scheduled(), torch.rand(6, 4)

    def update():
        step.epoch += 1

    made = split(step, batch, update=update)
    assert step.epoch == 0
    for _ in range(2):
        made(batch, 0)
        update()


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
    (note,) = made.report().notes
    assert note == "what the step puts into attention, losses, recent is not put there by the training half"
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


class LateAfterTheBoundary(Late):
    def forward(self, x):
        x = wattsmith.boundary(x * 2)
        return super().forward(x)


class LateBeforeTheBoundary(Late):
    def forward(self, x):
        self.calls += 1
        return self.layer(wattsmith.boundary(x if self.calls < 100 else x * 2)).sum()


def test_a_number_may_be_counted_after_the_boundary_and_not_before_it():
    step = LateAfterTheBoundary()
    made = split(step, torch.rand(6, 4))
    assert step.calls == 0
    made(torch.rand(6, 4), 0)
    assert step.calls == 1
    with pytest.raises(NotSplittable, match="in the place of calls"):
        split(LateBeforeTheBoundary(), torch.rand(6, 4))


class Sizing(nn.Module):
    """What it keeps is overwritten before it is read."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.samples = 0

    def forward(self, x):
        self.samples = x.shape[0]
        return self.layer(x).sum() / self.samples


def test_what_is_overwritten_in_every_call_is_no_state():
    step = Sizing()
    made = split(step, torch.rand(6, 4))
    for samples in (3, 5):
        batch = torch.rand(samples, 4)
        assert torch.equal(made(batch, 0), step(batch))


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
