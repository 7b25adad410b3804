"""A training step that is heavy on preparing its data, as a user would write it, and a dataset for it."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

CLASSES = 10
DIFFERENT = 64  # pictures in memory; an epoch shows them again and again
SIDE, CROP, SIZE = 192, 160, 64  # of a picture, of what is cut out of it, and of what the network sees


class Pictures(Dataset):  # type: ignore[misc]
    """Coloured noise in place of photographs, uint8, with a label each."""

    def __init__(self, length: int) -> None:
        self._length = length
        chance = torch.Generator().manual_seed(0)
        coarse = torch.rand(DIFFERENT, 3, 12, 12, generator=chance) * 255
        self._pictures = functional.interpolate(coarse, size=(SIDE, SIDE), mode="bilinear").to(torch.uint8)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        return self._pictures[place % DIFFERENT], place % CLASSES


class Step(nn.Module):  # type: ignore[misc]
    """The whole step: raw pictures and labels in, the loss out. Nothing in it knows of workers."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for depth, filters in ((3, 16), (16, 32), (32, 64)):
            layers += [nn.Conv2d(depth, filters, 3, 2, 1, bias=False), nn.BatchNorm2d(filters), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = batch
        images = prepared(pictures)
        return functional.cross_entropy(self.network(images), labels)


def prepared(pictures: Tensor) -> Tensor:
    """A crop of each, flipped or not, in other light, made small, and normalised."""
    count = pictures.shape[0]
    place = torch.randint(0, SIDE - CROP + 1, (2, count))
    across = torch.arange(CROP)
    rows, columns = place[0][:, None] + across, place[1][:, None] + across
    crops = pictures.permute(0, 2, 3, 1)[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    images = crops.permute(0, 3, 1, 2).float() / 255
    images = torch.where(torch.rand(count, 1, 1, 1) < 0.5, images.flip(-1), images)
    brightness, contrast, saturation = torch.rand(3, count, 1, 1, 1) * 0.8 + 0.6
    images = (images * brightness).clamp(0, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = ((images - mean) * contrast + mean).clamp(0, 1)
    grey = images.mean(dim=1, keepdim=True)
    images = ((images - grey) * saturation + grey).clamp(0, 1)
    images = functional.interpolate(images, size=(SIZE, SIZE), mode="bilinear", antialias=True)
    return (images - 0.45) / 0.23


def one_thread(_worker: int) -> None:
    """For workers: one thread each, as many workers as there are cores to spare."""
    torch.set_num_threads(1)


def example(batch: int) -> Any:
    """A batch as a loader gives it."""
    dataset = Pictures(batch)
    samples = [dataset[place] for place in range(batch)]
    return torch.stack([picture for picture, _ in samples]), torch.tensor([label for _, label in samples])
