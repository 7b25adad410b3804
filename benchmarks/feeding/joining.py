"""A feeder on this machine whose workers come over TCP, as they would from another."""

import contextlib
import multiprocessing
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def remote_workers(dataset: Any, workers: int, **chosen: Any) -> Iterator[Any]:
    """A Feeder that listens on the loopback, and so many workers that connect to it."""
    from wattsmith import Feeder
    from wattsmith.feed.remote import token_in
    from wattsmith.feed.remote_worker import work_for

    with socket.create_server(("127.0.0.1", 0)) as probe:
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        token_file = Path(folder) / "token"
        token = token_in(token_file)
        fed = Feeder(dataset, num_workers=workers, listen=address, token_file=token_file, **chosen)
        context = multiprocessing.get_context("fork")
        crew = [
            context.Process(target=work_for, args=(address, token), kwargs={"patience_s": 2.0}, daemon=True)
            for _ in range(workers)
        ]
        for process in crew:
            process.start()
        try:
            yield fed
        finally:
            fed.close()
            for process in crew:
                process.terminate()
                process.join()
