"""Ways of writing a step that are common and hard to trace: each trains as it does uncut, bit for bit."""

import copy
import pickle
from dataclasses import dataclass

import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

from wattsmith.split.whole import split


class Cutmix(nn.Module):
    """Its share comes from torch.distributions."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        share = torch.distributions.Beta(0.4, 0.4).sample()
        noise = torch.distributions.Normal(0.0, 0.1).sample((4,))
        other = torch.randperm(len(x))
        given = self.layer(torch.where(torch.arange(4) < share * 4, x, x[other]) + noise)
        return share * F.cross_entropy(given, y) + (1 - share) * F.cross_entropy(given, y[other])


class Variational(nn.Module):
    """Draws with a mean that is learned, by torch.distributions."""

    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(4, 4), nn.Linear(2, 4)

    def forward(self, x, _):
        middle, width = self.encoder(x * 2).chunk(2, 1)
        found = torch.distributions.Normal(middle, width.exp())
        loss = F.mse_loss(self.decoder(found.rsample()), x)
        return loss + torch.distributions.kl_divergence(found, torch.distributions.Normal(0.0, 1.0)).mean()


class Momentum(nn.Module):
    """A queue of keys, and an average of weights that the step itself updates through .data."""

    def __init__(self):
        super().__init__()
        self.query = nn.Linear(4, 3)
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.register_buffer("queue", torch.rand(8, 3))
        self.register_buffer("at", torch.zeros((), dtype=torch.long))

    def forward(self, x, _):
        with torch.no_grad():
            for mine, theirs in zip(self.key.parameters(), self.query.parameters(), strict=True):
                mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)
            key = self.key(x + 0.1 * torch.rand_like(x))
        loss = (self.query(x) @ self.queue.clone().T).logsumexp(1).mean() - (self.query(x) * key).sum(1).mean()
        with torch.no_grad():
            self.queue[(self.at + torch.arange(len(x))) % 8] = key
            self.at.add_(len(x))
        return loss


@dataclass
class Given:
    loss: torch.Tensor
    samples: int


class Hardest(nn.Module):
    """Learns from the worse half of a batch, and gives a dataclass back."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x, y):
        losses = F.cross_entropy(self.layer(x * 2), y, reduction="none")
        return Given(losses.topk(max(1, len(losses) // 2)).values.mean(), len(x))


def batch(samples, seed=0):
    made = torch.Generator().manual_seed(seed)
    return torch.rand(samples, 4, generator=made), torch.randint(0, 3, (samples,), generator=made)


def trained(step, call):
    optimizer = torch.optim.AdamW([one for one in step.parameters() if one.requires_grad], lr=0.05)
    losses = []
    for seed, samples in enumerate((6, 6, 5, 2, 6)):
        given = call(batch(samples, seed), seed)
        loss = given.loss if isinstance(given, Given) else given
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append((loss.item(), getattr(given, "samples", None)))
    return losses


def uncut(step, parts, seed):
    torch.manual_seed(seed)
    return step(*parts)


def cut(made, half, parts, seed):
    crossing, generator = half.and_generator(parts, seed)
    torch.set_rng_state(generator)
    return made.train(*crossing)


@pytest.mark.parametrize("kind", [Cutmix, Variational, Momentum, Hardest])
def test_a_step_as_users_write_it_trains_the_same(kind):
    torch.manual_seed(1)
    whole = kind()
    step = copy.deepcopy(whole)
    made = split(step, batch(6))
    half = pickle.loads(pickle.dumps(made.data))
    assert trained(step, lambda parts, seed: cut(made, half, parts, seed)) == trained(
        whole, lambda parts, seed: uncut(whole, parts, seed)
    )
    ours, theirs = step.state_dict(), whole.state_dict()
    assert [name for name in theirs if not torch.equal(ours[name], theirs[name])] == []


def test_a_generator_draws_sizes_of_the_batch():
    held, layer = torch.Generator().manual_seed(4), nn.Linear(4, 3)

    def step(x):
        return layer(x + torch.rand(x.shape, generator=held)).sum()

    made = split(step, batch(6)[0])
    held.manual_seed(11)
    assert torch.equal(made(batch(5)[0], 11), step(batch(5)[0]))


def test_sizes_by_fractions_hold_for_the_batches_that_they_were_traced_with():
    layer = nn.Linear(4, 3)

    def step(x):
        return layer(x)[: int(len(x) * 0.75)].sum()

    made = split(step, batch(6)[0])
    assert torch.equal(made(batch(6)[0], 0), step(batch(6)[0]))
    assert not made.report().any_batch
