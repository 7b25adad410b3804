"""Several programs on one device at once, as when a server answers several requests: one step is one step of each.

On a GPU each has a stream of its own, and the host queues them one after the other; on the CPU each has a thread.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from wattsmith.record.program import Program


class Concurrent:
    """PROGRAMS side by side on DEVICE."""

    def __init__(self, programs: Sequence[Program], device: str) -> None:
        self._programs = list(programs)
        self._threads = None if device.startswith("cuda") else ThreadPoolExecutor(len(self._programs))
        self._step: Callable[[], None] = self._on_threads if self._threads else self._on_streams(device)

    def step(self) -> None:
        """One step of each."""
        self._step()

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
        for program in self._programs:
            program.close()

    def _on_threads(self) -> None:
        assert self._threads is not None
        for done in [self._threads.submit(program.step) for program in self._programs]:
            done.result()

    def _on_streams(self, device: str) -> Callable[[], None]:
        import torch

        streams: list[Any] = [torch.cuda.Stream(device) for _ in self._programs]
        for stream in streams:
            stream.wait_stream(torch.cuda.current_stream(device))  # what was built there must be there

        def step() -> None:
            now = torch.cuda.current_stream(device)
            for program, stream in zip(self._programs, streams, strict=True):
                stream.wait_stream(now)
                with torch.cuda.stream(stream):
                    program.step()
            for stream in streams:
                now.wait_stream(stream)

        return step
