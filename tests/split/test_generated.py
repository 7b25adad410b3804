"""Programs put together at random, cut, and compared bit for bit with the same program run by hand."""

import copy

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from hypothesis import HealthCheck, Phase, example, given, reject, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples
from torch import nn

from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER
from wattsmith.split.whole import split

# Each takes one or two values of the program; all values are 4 columns of float32.
PLAIN = {
    "double": lambda a, _: a * 2,
    "sum": lambda a, b: a + b,
    "flip": lambda a, _: a.flip(-1),
    "bytes": lambda a, _: a.clamp(0, 9).to(torch.uint8).float(),
    "rows": lambda a, _: a.roll(1, 0),
    "halves": lambda a, _: torch.cat([part * 3 for part in a.chunk(2, 1)], 1),
    "table": lambda a, _: a * torch.arange(4),
    "view": lambda a, _: a.view(-1, 2, 2).transpose(1, 2).reshape(-1, 4),
}
WRITES = {
    "add in place": lambda a, _: a.add_(1),
    "column in place": lambda a, _: a[:, 0].mul_(2).unsqueeze(1).expand(-1, 4),
    "copy in place": lambda a, b: a.copy_(b * 2),
}
DRAWS = {
    "noise": lambda a, _: a + torch.rand(a.shape[0], 4),
    "dropout": lambda a, _: nn.functional.dropout(a, 0.5),
    "mask in place": lambda a, _: a.mul_((torch.rand_like(a) < 0.5).float()),
}
STATE = ("layer", "statistics", "scale", "count")
KINDS = [*PLAIN, *WRITES, *DRAWS, *STATE]
# Shrinking what fails takes minutes, since each try is traced; the lines that fail are told as they are.
QUICK = {"suppress_health_check": list(HealthCheck), "phases": [Phase.explicit, Phase.generate]}
PROGRAMS = lists(tuples(sampled_from(KINDS), integers(0, 9), integers(0, 9)), min_size=2, max_size=9)


class Program(nn.Module):
    def __init__(self, lines):
        super().__init__()
        self.lines = lines
        self.layer = nn.Linear(4, 4)
        self.statistics = nn.BatchNorm1d(4)
        self.scale = nn.Parameter(torch.full((4,), 0.5))
        self.register_buffer("count", torch.zeros(()))

    def forward(self, rows):
        return self.run(rows, None)

    def run(self, rows, chance):
        """CHANCE: keeps the generators of data and of training apart; None: there is one for both."""
        values, owners = [rows.clone(), rows * 0.5], [{0}, {1}]  # which memory a value may share
        learned = set()  # memory that depends on state
        for name, first, second in self.lines:
            a, b = first % len(values), second % len(values)
            mine, other = owners[a], owners[b]
            depends = bool((mine | (other if name in ("sum", "copy in place") else set())) & learned)
            if name in STATE:
                given, depends = self.state(name, values[a]), True
            elif name in DRAWS:
                given = self.drawn(DRAWS[name], values[a], values[b], name, depends, chance)
            else:
                given = {**PLAIN, **WRITES}[name](values[a], values[b])
            owner = mine if name in WRITES or name == "mask in place" else {len(owners) + 10}
            if depends:
                learned |= owner
            values.append(given)
            owners.append(owner)
        return sum(value.square().sum() for value in values) + self.scale.sum()

    def drawn(self, draw, a, b, name, depends, chance):
        if chance is None or (depends and name != "noise" and name != "mask in place"):
            return draw(a, b)
        # What is drawn by shape alone does not depend on state, even where it is then used with what does.
        by_shape = name == "noise"
        return chance(lambda: draw(a, b)) if by_shape or not depends else draw(a, b)

    def state(self, name, value):
        if name == "layer":
            return self.layer(value)
        if name == "statistics":
            return self.statistics(value)
        if name == "count":
            self.count.add_(1)
            return value * self.count
        return value * self.scale


class DataChance:
    """Runs draws of the data side from a generator of their own."""

    def __init__(self, seed):
        self.state = torch.Generator().manual_seed(seed).get_state()

    def __call__(self, draw):
        trainer = torch.get_rng_state()
        torch.set_rng_state(self.state)
        given = draw()
        self.state = torch.get_rng_state()
        torch.set_rng_state(trainer)
        return given


@settings(max_examples=8, deadline=None, derandomize=True, **QUICK)
@example(lines=[("count", 0, 0), ("mask in place", 0, 0)], prices=CPU_TRAINER)
@given(lines=PROGRAMS, prices=sampled_from([CPU_TRAINER, GPU_TRAINER]))
def test_a_program_of_any_kind_gives_the_same_cut_and_whole(lines, prices):
    torch.manual_seed(0)
    whole = Program(lines)
    cut = Program(lines)
    cut.load_state_dict(whole.state_dict())
    try:
        copy.deepcopy(whole)(torch.rand(6, 4)).backward()
    except RuntimeError:  # it writes over what its own gradient needs
        reject()
    made = split(cut, torch.rand(6, 4), prices=prices)
    for seed, samples in enumerate((6, 3)):
        batch = torch.rand(samples, 4, generator=torch.Generator().manual_seed(seed))
        torch.manual_seed(50 + seed)
        ours = made(batch, seed)
        torch.manual_seed(50 + seed)
        theirs = whole.run(batch, DataChance(seed))
        assert torch.equal(ours, theirs)
        for one in (cut, whole):
            one.zero_grad()
        ours.backward()
        theirs.backward()
    for (name, one), other in zip(cut.named_parameters(), whole.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        assert one.grad is None or torch.equal(one.grad, other.grad), name
    assert all(torch.equal(one, other) for one, other in zip(cut.buffers(), whole.buffers(), strict=True))
