"""What is recognised from its telemetry on a real GPU: held-out real networks of several kinds, and strangers.

Kinds are those of the record (`wattsmith.match.points.KINDS`). No record holds any of these. Strangers are programs
that no network is like; a matcher should refuse them.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

from estimate_h200.networks import Network, bert, gpt2, language, llama, t5, vision

WORDS = 33_278  # WikiText-2
TABLES, ROWS, VECTOR = 26, 100_000, 64  # about as Criteo's
ITEMS = 17_768  # Netflix


def held_out() -> tuple[tuple[Network, str], ...]:
    """Real networks with their kind, at usual batches. Kinds take turns: who stops early has some of each."""
    return (
        (vision("resnet50", (16, 64, 192)), "convolutional"),
        (language("bert-base", bert, 128, 30522, (8, 64, 128)), "transformer"),
        (recommender("dlrm"), "embedding"),
        (lstm_language("lstm-lm"), "recurrent"),
        (autoencoder("deep-autoencoder"), "dense"),
        (vision("efficientnet_b0", (16, 64, 192)), "convolutional"),
        (language("gpt2", gpt2, 512, 50257, (4, 12, 32)), "transformer"),
        (vision("densenet121", (16, 48, 128)), "convolutional"),
        (vision("vit_b_16", (16, 64, 128), "adamw"), "transformer"),
        (vision("mobilenet_v3_large", (32, 128, 384)), "convolutional"),
        (language("llama-220m", llama, 512, 32000, (4, 12, 32)), "transformer"),
        (vision("vgg16", (8, 64, 96)), "convolutional"),
        (vision("swin_t", (16, 64, 128), "adamw"), "transformer"),
        (vision("regnet_y_3_2gf", (16, 64, 192)), "convolutional"),
        (language("t5-small", t5, 128, 32128, (8, 64, 128)), "transformer"),
        (vision("convnext_tiny", (16, 64, 128), "adamw"), "convolutional"),
        (gru_speech("gru-speech"), "recurrent"),
        (tabular("tabular-mlp"), "dense"),
        (matrix_factors("neumf"), "embedding"),
    )


def strangers() -> tuple[tuple[str, Callable[[str], Callable[[], None]]], ...]:
    return (("sort", sorting), ("fft", transforming), ("copy", copying), ("histogram", counting))


# ---- Networks that no library has


def recommender(name: str) -> Network:
    """DLRM (2019): dense features through an MLP, one embedding each of the others, products of all pairs, an MLP."""
    import torch
    from torch import nn

    class Dlrm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, VECTOR, mode="sum") for _ in range(TABLES))
            self.below = layers((13, 512, 256, VECTOR))
            pairs = (TABLES + 1) * TABLES // 2
            self.above = layers((pairs + VECTOR, 512, 256, 1))
            self.upper = [(i, j) for i in range(TABLES + 1) for j in range(i)]

        def forward(self, dense: Any, sparse: Any) -> Any:
            bottom = self.below(dense)
            vectors = [table(sparse[:, place]) for place, table in enumerate(self.tables)]
            stacked = torch.stack([bottom, *(one.to(bottom.dtype) for one in vectors)], dim=1)
            products = torch.bmm(stacked, stacked.transpose(1, 2))
            left = torch.tensor([i for i, _ in self.upper], device=products.device)
            right = torch.tensor([j for _, j in self.upper], device=products.device)
            return self.above(torch.cat([bottom, products[:, left, right]], dim=1))

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return (
            torch.randn(batch, 13, device=device),
            torch.randint(0, ROWS, (batch, TABLES, 4), device=device),
            torch.rand(batch, 1, device=device),
        )

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(module(*given[:2]).float(), given[2])

    return Network(name=name, make=Dlrm, inputs=inputs, loss=loss, batches=(2048, 8192, 32768), optimizer="sgd")


def matrix_factors(name: str) -> Network:
    """NeuMF (2017): users and items by two pairs of embeddings, one multiplied, one through an MLP."""
    import torch
    from torch import nn

    class NeuMf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.users, self.items = nn.Embedding(138_493, 64), nn.Embedding(26_744, 64)
            self.users_deep, self.items_deep = nn.Embedding(138_493, 128), nn.Embedding(26_744, 128)
            self.deep = layers((256, 256, 128, 64))
            self.last = nn.Linear(128, 1)

        def forward(self, user: Any, item: Any) -> Any:
            product = self.users(user) * self.items(item)
            deep = self.deep(torch.cat([self.users_deep(user), self.items_deep(item)], dim=1))
            return self.last(torch.cat([product, deep], dim=1))

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return (
            torch.randint(0, 138_493, (batch,), device=device),
            torch.randint(0, 26_744, (batch,), device=device),
            torch.rand(batch, 1, device=device),
        )

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.binary_cross_entropy_with_logits(module(*given[:2]).float(), given[2])

    return Network(name=name, make=NeuMf, inputs=inputs, loss=loss, batches=(16384, 65536, 131072), optimizer="adamw")


def autoencoder(name: str) -> Network:
    """A deep autoencoder for ratings (2017): 17,768 – 512 – 512 – 1,024 and back."""
    import torch

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return (torch.rand(batch, ITEMS, device=device),)

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.mse_loss(module(given[0]).float(), given[0])

    make = lambda: layers((ITEMS, 512, 512, 1024, 512, 512, ITEMS))  # noqa: E731
    return Network(name=name, make=make, inputs=inputs, loss=loss, batches=(512, 4096, 8192), optimizer="sgd")


def tabular(name: str) -> Network:
    """An MLP with dropout and normalisation on a table of 784 columns."""
    import torch
    from torch import nn

    def make() -> Any:
        wide = [784, 4096, 4096, 4096, 4096]
        inner = [
            part
            for before, after in pairwise(wide)
            for part in (nn.Linear(before, after), nn.BatchNorm1d(after), nn.ReLU(), nn.Dropout(0.2))
        ]
        return nn.Sequential(*inner, nn.Linear(4096, 1000))

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return torch.randn(batch, 784, device=device), torch.randint(0, 1000, (batch,), device=device)

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.cross_entropy(module(given[0]), given[1])

    return Network(name=name, make=make, inputs=inputs, loss=loss, batches=(512, 4096, 16384), optimizer="adamw")


def lstm_language(name: str) -> Network:
    """A language model of three LSTM layers of 1,150 (2017), on 70 words."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(WORDS, 400)
            self.lstm = nn.LSTM(400, 1150, num_layers=3, batch_first=True, dropout=0.2)
            self.last = nn.Linear(1150, WORDS)

        def forward(self, words: Any) -> Any:
            return self.last(self.lstm(self.words(words))[0])

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return (torch.randint(0, WORDS, (batch, 70), device=device),)

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.cross_entropy(module(given[0]).flatten(0, 1).float(), given[0].flatten())

    return Network(name=name, make=Model, inputs=inputs, loss=loss, batches=(16, 64, 128), optimizer="sgd")


def gru_speech(name: str) -> Network:
    """Five GRU layers both ways, of 800, on 200 frames of 161 features: the recurrent part of Deep Speech 2."""
    import torch
    from torch import nn

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = nn.GRU(161, 800, num_layers=5, batch_first=True, bidirectional=True)
            self.last = nn.Linear(1600, 29)

        def forward(self, frames: Any) -> Any:
            return self.last(self.gru(frames)[0].mean(dim=1))

    def inputs(batch: int, device: str) -> tuple[Any, ...]:
        return torch.randn(batch, 200, 161, device=device), torch.randint(0, 29, (batch,), device=device)

    def loss(module: Any, given: tuple[Any, ...]) -> Any:
        return torch.nn.functional.cross_entropy(module(given[0]).float(), given[1])

    return Network(name=name, make=Model, inputs=inputs, loss=loss, batches=(16, 64, 128), optimizer="sgd")


def layers(widths: tuple[int, ...]) -> Any:
    """Dense layers with ReLU between them."""
    from torch import nn

    parts: list[Any] = []
    for before, after in pairwise(widths):
        parts += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*parts[:-1])


# ---- Programs that no network is like


def sorting(device: str, count: int = 2**25) -> Callable[[], None]:
    import torch

    values = torch.randint(0, 2**31 - 1, (count,), device=device, dtype=torch.int32)
    return lambda: (torch.sort(values), None)[1]


def transforming(device: str, rows: int = 4096) -> Callable[[], None]:
    import torch

    values = torch.randn(rows, 8192, device=device, dtype=torch.complex64)
    return lambda: (torch.fft.ifft(torch.fft.fft(values)), None)[1]


def copying(device: str, count: int = 2**30) -> Callable[[], None]:
    import torch

    one = torch.zeros(count, dtype=torch.uint8, device=device).random_()
    other = torch.empty_like(one)
    return lambda: (other.copy_(one), None)[1]


def counting(device: str, count: int = 2**26) -> Callable[[], None]:
    import torch

    values = torch.randint(0, 4096, (count,), device=device)
    return lambda: (torch.bincount(values, minlength=4096), None)[1]
