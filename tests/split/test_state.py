"""What lasts from step to step stays with training, however it is held; all is put back after it was watched."""

import functools

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from tests.split.steps import SmallTeacher, rows
from torch import nn

from wattsmith.split.problems import StateChanged
from wattsmith.split.state import held_by, put_back
from wattsmith.split.whole import split

layer = nn.Linear(4, 4)


class Held:
    def __init__(self):
        self.parts = {"model": [nn.Linear(4, 4)]}

    def step(self, x):
        return self.parts["model"][0](x).sum()


def of_global(x):
    return layer(x).sum()


def of_default(x, model=layer):
    return model(x).sum()


def of_closure():
    model = nn.Linear(4, 4)

    def step(x):
        return model(x).sum()

    return step


def of_helper(x):
    return of_global(x)


STEPS = [of_global, of_default, of_closure(), of_helper, Held().step, functools.partial(of_default, model=layer)]


@pytest.mark.parametrize("step", STEPS, ids=range(len(STEPS)))
def test_weights_are_found_wherever_a_step_has_them(step):
    assert [tuple(one.shape) for one in held_by(step).parameters().values()] == [(4, 4), (4,)]


def test_whatever_happens_is_undone():
    norm = nn.BatchNorm1d(3)
    norm.counter = 7
    optimizer = torch.optim.Adam(norm.parameters())

    def step(x):
        norm.counter += 1
        return norm(x).sum()

    def update():
        optimizer.step()

    before = {name: value.clone() for name, value in norm.state_dict().items()}
    held = held_by(step, update)
    seen = torch.get_rng_state()
    with put_back(held) as changed:
        step(torch.rand(4, 3)).backward()
        update()
        norm.extra = 1
    assert set(changed) == {
        "norm.weight",
        "norm.bias",
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
    }
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    assert norm.counter == 7
    assert not hasattr(norm, "extra")
    assert norm.weight.grad is None
    assert optimizer.state == {}
    assert torch.equal(torch.get_rng_state(), seen)


def sides(report, operator):
    return {one.side for one in report.places if one.operator == operator}


class Frozen(nn.Module):
    """A frozen encoder, then a trained head."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False)).requires_grad_(False).eval()
        self.head = nn.Linear(4, 2)

    def forward(self, x):
        with torch.no_grad():
            seen = self.encoder(x * 2)
        return self.head(seen).sum()


def test_weights_that_are_not_trained_stay_unless_they_are_let_go():
    step, batch = Frozen(), torch.rand(6, 4)
    stayed = split(step, batch).report()
    moved = split(step, batch, frozen=True).report()
    assert "frozen=True lets" in next(one.why for one in stayed.places if one.operator == "linear")
    assert [one.side for one in stayed.places if one.operator == "linear"] == ["training", "training"]
    assert [one.side for one in moved.places if one.operator == "linear"] == ["data", "training"]
    assert sides(moved, "batch_norm") == {"data"}


def test_a_teacher_that_the_training_loop_changes_never_goes_to_the_data_side():
    step = SmallTeacher()
    step.teacher.eval()
    optimizer = torch.optim.SGD(step.head.parameters(), 0.1)
    report = split(step, rows(), frozen=True, update=lambda: step.after(optimizer)).report()
    assert sides(report, "linear") == {"training"}
    teacher = [one.why for one in report.places if "teacher" in one.why and one.operator == "linear"]
    assert teacher == ["depends on teacher.weight, which is changed by one real step"]


def test_a_teacher_that_was_let_go_by_mistake_is_noticed_after_the_first_change():
    step = SmallTeacher()
    step.teacher.eval()
    made = split(step, rows(), frozen=True)
    made(rows(), 1)
    with torch.no_grad():
        for one in step.teacher.parameters():
            one.data.mul_(0.9)
    with pytest.raises(StateChanged, match=r"teacher.weight has changed.*update="):
        made(rows(), 1)


def test_a_buffer_that_the_step_counts_in_stays_with_training():
    class Warm(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("steps", torch.zeros(()))
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            self.steps.add_(1)
            return (self.layer(x + 1) * self.steps).sum()

    step, batch = Warm(), torch.rand(6, 4)
    made = split(step, batch)
    assert step.steps == 0
    assert [one.why for one in made.report().places if one.name == "add_"] == [
        "depends on steps, which the step writes into"
    ]
    made(batch, 0)
    made(batch, 0)
    assert step.steps == 2


def test_constants_do_not_cross():
    table = torch.arange(400.0).reshape(100, 4)

    def step(x):
        return ((layer(x) + table.sum(0)) * table.mean()).sum() + (x * table[0]).sum()

    report = split(step, torch.rand(6, 4)).report()
    assert {one.side for one in report.places if one.operator in ("mean",)} == {"both"}
    assert all(one.shape[:1] in ((6,), ()) for one in report.crossing)
    assert report.bytes_per_step <= 6 * 4 * 4 + 4


def test_a_tensor_that_training_writes_into_is_training():
    def step(x):
        seen = torch.zeros(6, 4)
        before = (seen * 2).sum()
        seen.copy_(layer(x))
        return (seen * x).sum() + before

    batch = torch.rand(6, 4)
    made = split(step, batch, sizes="none")
    assert torch.equal(made(batch, 0), step(batch))
    assert [one.name for one in made.crossing] == ["leaf_0"]


def test_a_step_that_is_typed_at_a_prompt_is_followed_too():
    space = {"nn": nn, "torch": torch}
    typed = """
model = nn.Linear(4, 4)
def step(rows):
    return model(rows * len(rows)).sum()
"""
    exec(compile(typed, "<stdin>", "exec"), space)
    made = split(space["step"], torch.ones(6, 4))
    assert made.report().any_batch
    assert torch.equal(made(torch.ones(3, 4), 0), space["step"](torch.ones(3, 4)))
    assert "len" not in space


def test_a_large_table_stays_with_training_unless_it_is_let_go():
    table, head = torch.zeros(2**21, 9), nn.Linear(9, 2)  # 72 MiB

    def step(rows):
        return head(table[rows].sum(1)).sum()

    batch = torch.zeros(6, 3, dtype=torch.long)
    stayed, moved = split(step, batch), split(step, batch, frozen=True)
    assert "72 MiB that every worker" in next(one.why for one in stayed.report().places if one.operator == "index")
    assert len(stayed.data._written) < 10_000
    assert sides(moved.report(), "index") == {"data"}


def test_weights_behind_a_decorator_are_found():
    model = nn.Linear(4, 4)

    @torch.no_grad()
    def without(x):
        return model(x)

    @functools.cache
    def cached():
        return model

    assert list(held_by(without).parameters()) == ["model.weight", "model.bias"]
    assert list(held_by(cached).parameters()) == ["model.weight", "model.bias"]
