"""Datasets for tests of feeders, in a module that workers elsewhere can import."""

import hashlib
import time
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Numbered(Dataset):
    """Sample i holds i, and chance: large enough to travel in a slot if LARGE."""

    def __init__(self, length: int, *, large: bool = False, takes_s: float = 0.0) -> None:
        self.length, self.large, self.takes_s = length, large, takes_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.takes_s:
            time.sleep(self.takes_s)
        shape = (3, 48, 48) if self.large else (3,)
        return torch.full(shape, place, dtype=torch.int32), torch.rand(2)


class Failing(Numbered):
    """Raises at sample 13."""

    def __getitem__(self, place: int) -> Any:
        if place == 13:
            raise ValueError("sample 13 is bad")
        return super().__getitem__(place)


class Stream(IterableDataset):
    """Counts up; each worker has its own part."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __iter__(self) -> Any:
        info = get_worker_info()
        return iter(range(0 if info is None else info.id, self.length, 1 if info is None else info.num_workers))


def stream_of(batches: Any) -> tuple[list[int], str]:
    """The numbers of all samples in order, and a hash of every byte."""
    numbers, hashed = [], hashlib.sha256()
    for values, chance in batches:
        numbers += values.reshape(len(values), -1)[:, 0].tolist()
        hashed.update(values.numpy().tobytes())
        hashed.update(chance.numpy().tobytes())
    return numbers, hashed.hexdigest()
