"""Small models such as users write, right and wrong."""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Net(nn.Module):
    """From 8 numbers to scores of 4 classes: 8 × 16 + 16 + 16 × 4 + 4 = 212 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)

    def forward(self, x):
        return self.second(torch.relu(self.first(x)))


net = Net()


def build():
    return Net()


def build_with_inputs():
    return Net(), torch.randn(6, 8)


class Wide(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layer = nn.Linear(width, width)


def gives_a_number():
    return 3


class ReadsValuesWhenBuilt(Net):
    def __init__(self) -> None:
        super().__init__()
        self.rates = [rate.item() for rate in torch.linspace(0, 0.5, 3)]


def fails_when_built():
    raise KeyError("no such layer")


class ReadsValues(Net):
    def forward(self, x):
        scale = x.mean().item()
        return super().forward(x) * scale


class LooksForTheUnusual(Net):
    """Asks four questions about values, as careful models do; with ordinary data it adds nothing to what Net does."""

    def forward(self, x):
        if torch.isnan(x).any() or bool(~(x < 9).all()):
            raise ValueError("bad values")
        mask = x > -9
        if mask.sum() != mask.numel() and torch.isinf(x).any().item():
            x = x.square()
        return super().forward(x if mask.sum() == mask.numel() else x * mask)


class PicksByValue(Net):
    def forward(self, x):
        return super().forward(x[x.sum(1) > 0])


class CountsByValue(Net):
    def forward(self, x):
        torch.bincount(x.abs().long()[:, 0])
        return super().forward(x)


class JoinsDevices(Net):
    """Works on the CPU alone: the ones it makes are there wherever the model is."""

    def forward(self, x):
        return super().forward(x + torch.ones(8))


class HoldsOnTheHost(Net):
    """A tensor that is no buffer stays behind when the model moves."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = torch.ones(8, device="cpu")

    def forward(self, x):
        return super().forward(x + self.shift)


class Misspelt(Net):
    def forward(self, x):
        return self.thrid(x)


class Picture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(torch.relu(self.norm(self.conv(x))).mean((2, 3)))


class Words(nn.Module):
    """A language model of 100 words."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(100, 16)
        self.head = nn.Linear(16, 100)

    def forward(self, words, mask=None):
        x = self.table(words)
        return self.head(x if mask is None else x * mask[..., None])


class Attends(nn.Module):
    """Two heads over 32 features, and what follows them in a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(32, 96)
        self.norm = nn.LayerNorm(32)
        self.wide = nn.Linear(32, 64)
        self.narrow = nn.Linear(64, 32)

    def forward(self, x):
        query, key, value = self.mixed(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        x = x + nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        return x + self.narrow(nn.functional.gelu(self.wide(self.norm(x))))


class GivesItsLoss(Net):
    def forward(self, x):
        scores = super().forward(x)
        return {"scores": scores, "loss": scores.square().mean()}


class Pyramid(Net):
    def forward(self, x):
        return [self.first(x)[:, None, :], x]


class Decides(Net):
    def forward(self, x):
        return super().forward(x).argmax(1)


class Deep(nn.Module):
    """Eight blocks, each forgotten on the way forward and computed again on the way back if KEEPS is not set."""

    keeps = True

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU()) for _ in range(8)
        )

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.keeps else checkpoint(block, x, use_reentrant=False)
        return x


class DeepAgain(Deep):
    keeps = False


class OwnAutocast(Net):
    def forward(self, x):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            return super().forward(x)
