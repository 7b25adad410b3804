"""Datasets for the tests, at the top level of a module so that they can be pickled, and what tests do with streams."""

import hashlib
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info


class Chancy(Dataset):
    """Sample i: i, plus chance from all three generators that a batch's seed covers."""

    def __init__(self, length: int, side: int = 64, sleep_s: float = 0.0) -> None:
        self.length = length
        self.side = side
        self.sleep_s = sleep_s

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, float, float]:
        time.sleep(self.sleep_s)
        return torch.rand(self.side, self.side) + index, index, random.random(), float(np.random.rand())


class Plain(Dataset):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


class Shards(IterableDataset):
    """The numbers below LENGTH, every n-th in each of n workers, with chance beside them."""

    def __init__(self, length: int, sleep_s: float = 0.0) -> None:
        self.length = length
        self.sleep_s = sleep_s

    def __iter__(self) -> Iterator[tuple[int, float]]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        for number in range(first, self.length, step):
            time.sleep(self.sleep_s)
            yield number, float(torch.rand(()))


class Counting(IterableDataset):
    """Counts to LENGTH in each worker and can say where it is."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.at = 0

    def __iter__(self) -> "Counting":
        return self

    def __next__(self) -> int:
        if self.at >= self.length:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Uneven(Counting):
    """Two quick numbers in the first worker, six slow ones in the second; begins anew by itself when it has ended."""

    def __next__(self) -> int:
        info = get_worker_info()
        if self.at == (2 if info.id == 0 else 6):
            self.at = 0
            raise StopIteration
        time.sleep(0.4 * info.id)
        self.at += 1
        return 100 * info.id + self.at


class Deadly(Dataset):
    """Sample POISON ends its worker by SIGNAL."""

    def __init__(self, length: int, poison: int, ends_by: signal.Signals) -> None:
        self.length = length
        self.poison = poison
        self.ends_by = ends_by

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.poison:
            os.kill(os.getpid(), self.ends_by)
            time.sleep(10)
        return index


class Parent(Dataset):
    """Sample 3, made for the first time, ends its worker, of which a child lives on. FOLDER has the child's id."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        if index == 3 and not list(self.folder.iterdir()):
            child = os.fork()
            if child == 0:
                time.sleep(60)
                os._exit(0)
            (self.folder / str(child)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return index


class Slow(Dataset):
    """Each sample takes a while; each worker that makes one leaves its process id in FOLDER."""

    def __init__(self, length: int, sleep_s: float, folder: Path | None = None) -> None:
        self.length = length
        self.sleep_s = sleep_s
        self.folder = folder

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if self.folder is not None:
            (self.folder / str(os.getpid())).touch()
        time.sleep(self.sleep_s)
        return index


class Picky(Dataset):
    """Sample 5 raises ERROR."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> int:
        if index == 5:
            raise self.error
        return index


class Whole(Dataset):
    """Sample i is whatever MAKE(i) gives."""

    def __init__(self, length: int, make: Any) -> None:
        self.length = length
        self.make = make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def digest(batches: Any) -> str:
    """SHA-256 of all bytes of a stream of batches, in order."""
    found = hashlib.sha256()
    for batch in batches:
        for part in batch if isinstance(batch, tuple | list) else [batch]:
            found.update(part.numpy().tobytes())
    return found.hexdigest()


def alive(pid: int) -> bool:
    """Whether process PID is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def all_gone(pids: list[int], within_s: float = 5.0) -> bool:
    until_s = time.monotonic() + within_s
    while any(map(alive, pids)):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.01)
    return True
