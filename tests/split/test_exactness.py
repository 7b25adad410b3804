"""A cut step trains to the same losses and weights, bit for bit, as the step that was never cut.

The unsplit reference is the user's own code: its data work with torch's generator at the batch's seed, its training
work with the trainer's own generator.
"""

import copy

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
from tests.split.steps import STEPS

from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER
from wattsmith.split.whole import split
from wattsmith.terms.feed import batch_seed

ROUNDS = 12
SAMPLES = [6, 6, 6, 5, 6, 6, 2, 6, 6, 6, 6, 3]  # the last batch of an epoch is smaller


def unsplit(step, batch, seed):
    before = torch.get_rng_state()
    torch.manual_seed(seed)
    with torch.no_grad():
        parts = step.prepare(batch)
    torch.set_rng_state(before)
    return step.learn(parts)


def trained(step, loss_of, batches):
    """Losses of all rounds; the step's weights are changed."""
    torch.manual_seed(99)
    optimizer = torch.optim.SGD([p for p in step.parameters() if p.requires_grad], lr=0.05, momentum=0.9)
    losses = []
    for number, batch in enumerate(batches):
        loss = loss_of(batch, batch_seed(7, 0, number))
        optimizer.zero_grad()
        loss.backward()
        step.after(optimizer)
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize(
    ("name", "trainer"),
    [(name, CPU_TRAINER) for name in STEPS] + [(name, GPU_TRAINER) for name in ("written in place",)],
    ids=lambda one: one if isinstance(one, str) else "cpu" if one is CPU_TRAINER else "gpu",
)
def test_split_and_unsplit_runs_are_the_same_bit_for_bit(name, trainer):
    kind, make = STEPS[name]
    torch.manual_seed(1)
    whole = kind()
    cut = copy.deepcopy(whole)
    before = {key: value.clone() for key, value in cut.state_dict().items()}
    made = split(cut, make(), prices=trainer)
    assert all(torch.equal(value, before[key]) for key, value in cut.state_dict().items()), "the cut changed the model"
    batches = [make(samples, seed) for seed, samples in enumerate(SAMPLES)]
    assert trained(cut, made, batches) == trained(whole, lambda batch, seed: unsplit(whole, batch, seed), batches)
    ours, theirs = cut.state_dict(), whole.state_dict()
    assert list(made.train.state_dict()) == list(theirs)
    assert [key for key in theirs if not torch.equal(ours[key], theirs[key])] == []
    assert made.report().any_batch
    assert made.report().data_nodes > 3


def test_the_cheaper_cut_of_a_gpu_sends_bytes_instead_of_fractions():
    weight = torch.nn.Parameter(torch.ones(()))

    def step(images):
        return ((images.flip(-1).float() / 255 - 0.5) * weight).mean()

    batch = torch.zeros(8, 3, 64, 64, dtype=torch.uint8)
    on_cpu = split(step, batch, prices=CPU_TRAINER, check=False).report()
    on_gpu = split(step, batch, prices=GPU_TRAINER, check=False).report()
    assert [(one.dtype, one.size_bytes) for one in on_cpu.crossing] == [("float32", 4 * 8 * 3 * 64 * 64)]
    assert [(one.dtype, one.size_bytes) for one in on_gpu.crossing] == [("uint8", 8 * 3 * 64 * 64)]
    assert [one.operator for one in on_gpu.stayed] == ["to", "div", "sub"]
    assert "makes 393216 bytes of 98304" in on_gpu.stayed[0].why
