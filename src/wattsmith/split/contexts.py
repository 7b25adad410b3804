"""Blocks without gradients and with autocast, as a cut graph enters and leaves them."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from wattsmith.split.running import autocast


class _Open(threading.local):
    def __init__(self) -> None:
        self.stacks: list[ExitStack] = []


_OPEN = _Open()


def enter(records: bool, casts: tuple[Any, ...]) -> None:
    """Begin a block; RECORDS gradients, as around it, or does not; with CASTS: device, type, whether, cached."""
    import torch

    stack = ExitStack()
    if not records:
        stack.enter_context(torch.no_grad())
    for cast in casts:
        stack.enter_context(autocast(tuple(cast)))
    _OPEN.stacks.append(stack)


def leave() -> None:
    """End the block that was begun last."""
    _OPEN.stacks.pop().close()


@contextmanager
def all_left() -> Iterator[None]:
    """Whatever goes wrong inside, the blocks that were begun there are ended."""
    before = len(_OPEN.stacks)
    try:
        yield
    finally:
        while len(_OPEN.stacks) > before:
            leave()
