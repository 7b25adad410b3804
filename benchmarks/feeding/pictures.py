"""A step that is heavy on preprocessing: JPEGs decoded, cropped, flipped, jittered, resized, normalised; a CNN."""

import io
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, default_collate

MEAN, SPREAD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CLASSES = 100
DIFFERENT = 64  # pictures; enough that none stays in a decoder's cache


class Pictures(Dataset):
    """JPEGs made on the fly from smooth noise, decoded with Pillow when asked for: height × width × 3, uint8."""

    def __init__(self, length: int, size: int) -> None:
        self._length = length
        chance = np.random.default_rng(0)
        self._files = [_jpeg(chance, size) for _ in range(DIFFERENT)]

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        with Image.open(io.BytesIO(self._files[place % DIFFERENT])) as picture:
            return torch.from_numpy(np.array(picture.convert("RGB"))), place % CLASSES


def _jpeg(chance: np.random.Generator, size: int) -> bytes:
    """Blobs of several sizes and a little grain: about as many bytes for each pixel as a photograph."""
    layers = [
        Image.fromarray(chance.integers(0, 256, (cells, cells, 3), np.uint8)).resize(
            (size, size), Image.Resampling.BICUBIC
        )
        for cells in (4, 16, 64)
    ]
    mixed = sum(np.asarray(layer, np.float32) * share for layer, share in zip(layers, (0.5, 0.3, 0.15), strict=True))
    grain = chance.normal(0, 12, (size, size, 3))
    written = io.BytesIO()
    Image.fromarray(np.clip(mixed + grain, 0, 255).astype(np.uint8)).save(written, "JPEG", quality=90)
    return written.getvalue()


def chosen(pictures: Tensor, crop: int) -> tuple[Tensor, Tensor]:
    """A crop of each picture, flipped or not; and by how much to change its brightness, contrast and saturation."""
    count, height = pictures.shape[0], pictures.shape[1]
    across = torch.arange(crop)
    top, left = torch.randint(0, height - crop + 1, (2, count))
    flipped = torch.rand(count) < 0.5
    columns = torch.where(flipped[:, None], crop - 1 - across, across) + left[:, None]
    rows = top[:, None] + across
    crops = pictures[torch.arange(count)[:, None, None], rows[:, :, None], columns[:, None, :]]
    return crops, torch.rand(3, count, 1, 1, 1) * 0.8 + 0.6


def finished(crops: Tensor, factors: Tensor, size: int, means: Tensor, spreads: Tensor) -> Tensor:
    """To floats, on the device of MEANS; brightness, contrast, saturation; resize; normalise."""
    brightness, contrast, saturation = factors.to(means.device, non_blocking=True)
    images = crops.to(means.device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
    images = (images * brightness).clamp(0, 1)
    mean = images.mean(dim=(1, 2, 3), keepdim=True)
    images = ((images - mean) * contrast + mean).clamp(0, 1)
    grey = images.mean(dim=1, keepdim=True)
    images = ((images - grey) * saturation + grey).clamp(0, 1)
    images = functional.interpolate(images, size=(size, size), mode="bilinear", antialias=True, align_corners=False)
    return (images - means) / spreads


def _norms() -> tuple[Tensor, Tensor]:
    return torch.tensor(MEAN).view(1, 3, 1, 1), torch.tensor(SPREAD).view(1, 3, 1, 1)


class Step(nn.Module):
    """A user's whole step: what comes from the loader in, the loss out."""

    def __init__(self, model: nn.Module, crop: int, size: int, device: str) -> None:
        super().__init__()
        self.model = model
        self.crop, self.size, self.device = crop, size, device
        for name, values in zip(("means", "spreads"), _norms(), strict=True):
            self.register_buffer(name, values.to(device))

    def forward(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        pictures, labels = batch
        crops, factors = chosen(pictures, self.crop)
        return self.learn_crops((crops, factors, labels))

    def learn_crops(self, batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """From where one would cut by hand: whole numbers cross, and the device does the rest."""
        crops, factors, labels = batch
        return self.learned(finished(crops, factors, self.size, self.means, self.spreads), labels)

    def learned(self, images: Tensor, labels: Tensor) -> Tensor:
        """The part that a DataLoader cannot take: the model."""
        with torch.autocast(self.device.partition(":")[0], torch.bfloat16, enabled=self.device != "cpu"):
            scores = self.model(images.to(memory_format=torch.channels_last))
        return functional.cross_entropy(scores.float(), labels.to(self.device, non_blocking=True))


class Collate:
    """What DataLoader's workers do: the same preparation, up to finished float batches."""

    def __init__(self, crop: int, size: int) -> None:
        self._crop, self._size = crop, size

    def __call__(self, samples: list[Any]) -> tuple[Tensor, Tensor]:
        pictures, labels = default_collate(samples)
        return finished(*chosen(pictures, self._crop), self._size, *_norms()), labels


class CollateCrops:
    """What DataLoader's workers do where a person has cut the step by hand."""

    def __init__(self, crop: int) -> None:
        self._crop = crop

    def __call__(self, samples: list[Any]) -> tuple[Tensor, Tensor, Tensor]:
        pictures, labels = default_collate(samples)
        return *chosen(pictures, self._crop), labels


def small_cnn() -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        layers += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES))


class Bottleneck(nn.Module):
    """Narrow, convolve, widen, beside a shortcut."""

    def __init__(self, before: int, narrow: int, stride: int) -> None:
        super().__init__()
        after = 4 * narrow
        self.way = nn.Sequential(
            *_normed(before, narrow, 1, 1),
            nn.ReLU(),
            *_normed(narrow, narrow, 3, stride),
            nn.ReLU(),
            *_normed(narrow, after, 1, 1),
        )
        same = before == after and stride == 1
        self.shortcut = nn.Identity() if same else nn.Sequential(*_normed(before, after, 1, stride))

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu(self.way(images) + self.shortcut(images))


def _normed(before: int, after: int, kernel: int, stride: int) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(after)


def resnet50() -> nn.Module:
    layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for narrow, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            layers.append(Bottleneck(before, narrow, stride if block == 0 else 1))
            before = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, CLASSES))
