"""Training steps as users write them, each beside the same work written in two parts by hand.

`prepare` draws from the batch's seed; `learn` from the trainer's own generator.
"""

import copy

import torch
import torch.nn.functional as F
from torch import nn


class TwoParts(nn.Module):
    """A step that does both; what is compared with its cut is each part called by hand."""

    def forward(self, batch):
        return self.learn(self.prepare(batch))

    def after(self, optimizer):
        optimizer.step()


def small_net(channels=3, classes=4, *more):
    return nn.Sequential(
        nn.Conv2d(channels, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(inplace=True), *more,
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(24, classes),
    )  # fmt: skip


class BatchNorm(TwoParts):
    """Random crop and flip, normalised by buffers; a net with running statistics."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([100.0, 120.0, 130.0]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([50.0, 60.0, 70.0]).view(3, 1, 1))
        self.net = small_net()

    def prepare(self, batch):
        images, labels = batch["image"], batch["label"]
        flip = torch.rand(len(images), 1, 1, 1) < 0.5
        images = torch.where(flip, images.flip(-1), images)
        images = (images.float() - self.mean) / self.std
        return images, labels

    def learn(self, parts):
        images, labels = parts
        return F.cross_entropy(self.net(images), labels)


class Dropout(BatchNorm):
    """Chance on both sides: noise on the data, dropout in the net."""

    def __init__(self):
        super().__init__()
        self.net = small_net(3, 4, nn.Dropout(0.4))

    def prepare(self, batch):
        images, labels = super().prepare(batch)
        return images + 0.1 * torch.rand(images.shape), labels


class Teacher(BatchNorm):
    """An average of the student's weights teaches it; the average changes after each step, outside of the step."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.net).requires_grad_(False)

    def learn(self, parts):
        images, labels = parts
        with torch.no_grad():
            wanted = self.teacher(images).softmax(-1)
        given = self.net(images)
        return F.cross_entropy(given, labels) + F.kl_div(given.log_softmax(-1), wanted, reduction="batchmean")

    def after(self, optimizer):
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
                mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


class LabelSmoothing(BatchNorm):
    """Labels are made soft by hand, which is data work that feeds no layer."""

    def prepare(self, batch):
        images, labels = super().prepare(batch)
        return images, F.one_hot(labels, 4).float() * 0.9 + 0.1 / 4


class Mixup(LabelSmoothing):
    """Each sample is mixed with another one of its batch."""

    def prepare(self, batch):
        images, soft = super().prepare(batch)
        share = torch.rand(len(images))
        other = torch.randperm(len(images))
        across = share.view(-1, 1, 1, 1)
        images = across * images + (1 - across) * images[other]
        return images, share.view(-1, 1) * soft + (1 - share.view(-1, 1)) * soft[other]


class MultiCrop(BatchNorm):
    """Two large and two small views of each image, at places drawn for the whole batch."""

    def prepare(self, batch):
        images, labels = super().prepare(batch)
        views = []
        for size, count in ((10, 2), (6, 2)):
            for _ in range(count):
                top, left = torch.randint(0, 12 - size, (2,)).unbind()
                rows = top + torch.arange(size)
                columns = left + torch.arange(size)
                views.append(images[:, :, rows][:, :, :, columns])
        return torch.cat(views[:2]), torch.cat(views[2:]), labels

    def learn(self, parts):
        large, small, labels = parts
        centre = self.net(large)
        return F.cross_entropy(centre, labels.repeat(2)) + F.cross_entropy(self.net(small), labels.repeat(2))


class Tokens(TwoParts):
    """Texts as numbers, some of them hidden at random; lengths differ from batch to batch."""

    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.layer = nn.Linear(8, 8)
        self.head = nn.Linear(8, 20)

    def prepare(self, batch):
        tokens, mask = batch
        hidden = (torch.rand(tokens.shape) < 0.3) & mask
        return tokens.masked_fill(hidden, 0), tokens.masked_fill(~hidden, -100), mask

    def learn(self, parts):
        tokens, wanted, mask = parts
        words = self.words(tokens) * mask.unsqueeze(-1)
        seen = (self.layer(words) @ words.transpose(1, 2)).softmax(-1) @ words
        given = self.head(F.dropout(seen, 0.1))
        return F.cross_entropy(given.flatten(0, 1), wanted.flatten(), ignore_index=-100, reduction="sum") / len(tokens)


class Pairs(BatchNorm):
    """Two views of each image, which shall be near each other and far from all others."""

    def prepare(self, batch):
        images, _ = super().prepare(batch)
        return tuple(self.view(images) for _ in range(2))

    def view(self, images):
        bright = 0.5 + torch.rand(len(images), 1, 1, 1)
        flip = torch.rand(len(images), 1, 1, 1) < 0.5
        return torch.where(flip, images.flip(-1), images) * bright

    def learn(self, views):
        one, other = (F.normalize(self.net(view), dim=-1) for view in views)
        return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))


class Small(TwoParts):
    """A little of everything, which is traced in a moment."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.full((4,), 100.0))
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 4)

    def prepare(self, batch):
        rows = batch["row"] - self.mean + torch.rand(batch["row"].shape)
        rows[:, 0] = 0
        return rows, batch["label"]

    def learn(self, parts):
        rows, labels = parts
        return F.cross_entropy(self.head(F.dropout(self.norm(rows), 0.2)), labels)


class SmallTeacher(Small):
    """The teacher sees the data as it is, so that nothing but its own weights keeps it with training."""

    def __init__(self):
        super().__init__()
        self.teacher = copy.deepcopy(self.head).requires_grad_(False)

    def learn(self, parts):
        rows, _ = parts
        with torch.no_grad():
            wanted = self.teacher(rows).softmax(-1)
        return super().learn(parts) + F.cross_entropy(self.head(rows), wanted)

    def after(self, optimizer):
        optimizer.step()
        with torch.no_grad():
            for mine, theirs in zip(self.teacher.parameters(), self.head.parameters(), strict=True):
                mine.data.mul_(0.9).add_(theirs.data, alpha=0.1)


class Blackened(BatchNorm):
    """Parts of each image are written over in place."""

    def prepare(self, batch):
        images, labels = super().prepare(batch)
        dark = torch.rand(len(images), 1, 12, 12) < 0.2
        images.masked_fill_(dark, 0.0)
        images[:, 0].mul_(0.5)
        return images, labels


class HalfPrecision(BatchNorm):
    """The net runs under autocast; the statistics of a batch are drawn without gradients."""

    def learn(self, parts):
        images, labels = parts
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = self.net(images)
        with torch.no_grad():
            scale = given.float().std() + 1
        return F.cross_entropy(given.float() / scale, labels)


def images(samples=6, seed=0):
    made = torch.Generator().manual_seed(seed)
    return {
        "image": torch.randint(0, 256, (samples, 3, 12, 12), dtype=torch.uint8, generator=made),
        "label": torch.randint(0, 4, (samples,), generator=made),
    }


def rows(samples=6, seed=0):
    made = torch.Generator().manual_seed(seed)
    return {
        "row": torch.randint(0, 256, (samples, 4), dtype=torch.uint8, generator=made),
        "label": torch.randint(0, 4, (samples,), generator=made),
    }


def texts(samples=6, seed=0):
    made = torch.Generator().manual_seed(seed)
    length = 5 + seed % 4
    tokens = torch.randint(1, 20, (samples, length), generator=made)
    return tokens, torch.rand(samples, length, generator=made) < 0.9


STEPS = {
    "BatchNorm": (BatchNorm, images),
    "Dropout": (Dropout, images),
    "EMA teacher": (Teacher, images),
    "label smoothing": (LabelSmoothing, images),
    "mixup": (Mixup, images),
    "multi-crop": (MultiCrop, images),
    "text tokens": (Tokens, texts),
    "contrastive pairs": (Pairs, images),
    "written in place": (Blackened, images),
    "autocast": (HalfPrecision, images),
}
