"""Data-parallel points: one process per replica, in step with each other.

The first replica is measured; the others follow. It grants them some steps at a time, so that the word to go on
costs nothing per step, and at the end all of them have taken the same number.
"""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from wattsmith.record.bench import Program

GRANTS = (1, 1, 2, 4, 8)  # steps granted at once; the last again and again
ANSWER_S = 120.0  # a replica that does not answer so long has died


class Replicas:
    """This process as one of several that train together."""

    def __init__(self, *, rank: int, count: int, meeting: Path, device: str) -> None:
        """All of them name the same MEETING, a file that is not there yet."""
        import torch
        from torch import distributed

        self._distributed = distributed
        self._device = torch.device(device)
        if self._device.type == "cuda":
            torch.cuda.set_device(self._device)
        distributed.init_process_group(
            backend="nccl" if self._device.type == "cuda" else "gloo",
            init_method=meeting.absolute().as_uri(),
            rank=rank,
            world_size=count,
            timeout=timedelta(seconds=ANSWER_S),
        )
        # Words to each other go over the host, so that they do not stand in the device's queue.
        self._words = distributed.new_group(backend="gloo", timeout=timedelta(seconds=ANSWER_S))

    def wrap(self, module: Any) -> Any:
        """MODULE, averaging its gradients over all replicas."""
        from torch.nn.parallel import DistributedDataParallel

        ids = [self._device.index] if self._device.type == "cuda" else None
        learns = any(parameter.requires_grad for parameter in module.parameters())
        return DistributedDataParallel(module, device_ids=ids) if learns else module

    def say(self, steps: int) -> None:
        """As the first replica: grant STEPS to the others; 0 ends."""
        self._broadcast(steps)

    def hear(self) -> int:
        """As one of the others: how many steps were granted."""
        return self._broadcast(0)

    def _broadcast(self, number: int) -> int:
        import torch

        word = torch.tensor([number])
        self._distributed.broadcast(word, src=0, group=self._words)
        return int(word.item())

    def close(self) -> None:
        self._distributed.destroy_process_group()


class Leading:
    """The first replica's program: stepping it grants the others their steps."""

    def __init__(self, program: Program, say: Callable[[int], None]) -> None:
        self._program = program
        self._say = say
        self._granted = 0
        self._grants = iter(GRANTS)

    def step(self) -> None:
        if self._granted == 0:
            self._granted = next(self._grants, GRANTS[-1])
            self._say(self._granted)
        self._granted -= 1
        self._program.step()

    def close(self) -> None:
        """Take the steps that the others were granted, then let them go."""
        while self._granted:
            self.step()
        self._say(0)
        self._program.close()


def follow(program: Program, hear: Callable[[], int]) -> int:
    """Take steps as granted until there are no more; how many it were."""
    taken = 0
    while granted := hear():
        for _ in range(granted):
            program.step()
        taken += granted
    return taken
