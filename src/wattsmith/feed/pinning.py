"""Copies batches into memory from which an accelerator can read by itself, while the trainer computes.

The copy goes through torch's own store of pinned memory. That store alone knows when the device has finished
reading: a slot that was pinned in place could be written to again while a copy to the device is under way.
"""

import queue
import threading
from concurrent.futures import Future
from typing import Any


def pin_device(wanted: bool, device: str) -> str | None:
    """Which device batches are pinned for; None: none, since it was not asked for or there is no accelerator."""
    import torch

    if not wanted:
        return None
    if device:
        return device
    if torch.accelerator.is_available():
        return str(torch.accelerator.current_accelerator())
    return None


class Pinner(threading.Thread):
    """One thread that pins. It ends when it is closed or the trainer does."""

    def __init__(self, device: str) -> None:
        super().__init__(name="wattsmith-pin", daemon=True)
        self._device = device
        self._queue: queue.SimpleQueue[tuple[Any, Future[Any]] | None] = queue.SimpleQueue()
        self.start()

    def submit(self, batch: Any) -> "Future[Any]":
        """BATCH, pinned, some time from now."""
        promise: Future[Any] = Future()
        self._queue.put((batch, promise))
        return promise

    def close(self) -> None:
        self._queue.put(None)

    def run(self) -> None:
        import torch
        from torch.utils.data._utils.pin_memory import pin_memory

        torch.set_num_threads(1)
        while (given := self._queue.get()) is not None:
            batch, promise = given
            try:
                promise.set_result(pin_memory(batch, self._device))
            except Exception as failed:  # noqa: BLE001 - handed to whoever waits for the batch
                promise.set_exception(failed)
            del given, batch, promise
