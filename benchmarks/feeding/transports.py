"""One way of moving finished batches, in a process of its own: `python -m feeding.transports NAME DTYPE SECONDS`.

Two workers hold four prepared batches each; the consumer ends with all bytes in its own buffer. Prints one line of
JSON: batches, seconds, the CPU seconds of all own processes within the window, and the share of the machine's CPU
that others used meanwhile.
"""

import contextlib
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

SHAPE = (32, 3, 224, 224)
PREPARED = 4  # batches that a worker holds
WORKERS = 2
WARM = 12  # batches before the window
ENDLESS = 1_000_000  # batches of an epoch that does not end within the window
IN_FLIGHT = 4  # calls of each Ray actor
BARE_SLOTS = 24

Batches = Iterator[Any]


def room(dtype: str) -> "np.ndarray":
    """Memory as trainers have it: from PyTorch, where it is there. NumPy's own large arrays lie on huge pages."""
    import numpy as np

    try:
        import torch
    except ModuleNotFoundError:
        return np.zeros(SHAPE, dtype)
    return torch.zeros(SHAPE, dtype=getattr(torch, dtype)).numpy()


def prepared(dtype: str) -> "list[np.ndarray]":
    import numpy as np

    chance, batches = np.random.default_rng(0), [room(dtype) for _ in range(PREPARED)]
    for batch in batches:
        batch[...] = chance.integers(0, 256, SHAPE, np.uint8)
    return batches


class Prepared:
    """A dataset of whole batches, made once in each worker."""

    def __init__(self, dtype: str) -> None:
        self._dtype = dtype
        self._batches: list[Any] = []

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, place: int) -> Any:
        # Arrays, not tensors: a loader that shares a tensor's memory once would send it for nothing ever after.
        if not self._batches:
            self._batches = prepared(self._dtype)
        return self._batches[place % PREPARED]


@contextlib.contextmanager
def memcpy(dtype: str) -> Iterator[Batches]:
    def repeat() -> Batches:
        batches = prepared(dtype) + prepared(dtype)  # as many as two workers hold
        while True:
            yield from batches

    yield repeat()


@contextlib.contextmanager
def bare(dtype: str) -> Iterator[Batches]:
    """One process writes into shared memory and one reads, and neither does anything but copy, and spin while it waits.

    No order, no seeds, no messages, nothing that survives a kill: what two cores and two copies allow at all. With
    fewer slots it is slower, since a core then writes to what the other has in its cache.
    """
    import mmap

    import numpy as np

    batch = room(dtype)
    shared = mmap.mmap(-1, BARE_SLOTS * batch.nbytes)
    slots = np.frombuffer(shared, dtype).reshape(BARE_SLOTS, *SHAPE)
    slots[...] = 0
    written, read = np.frombuffer(mmap.mmap(-1, 4096), np.int64)[:2].reshape(2, 1)
    writer = os.fork()
    if writer == 0:
        batches = prepared(dtype)
        while True:
            number = int(written[0])
            while number - read[0] >= BARE_SLOTS:
                pass
            np.copyto(slots[number % BARE_SLOTS], batches[number % PREPARED])
            written[0] = number + 1

    def arriving() -> Batches:
        for number in range(ENDLESS):
            while written[0] <= number:
                pass
            yield slots[number % BARE_SLOTS]
            read[0] = number + 1

    try:
        yield arriving()
    finally:
        os.kill(writer, signal.SIGKILL)
        os.waitpid(writer, 0)


@contextlib.contextmanager
def data_loader(dtype: str) -> Iterator[Batches]:
    from torch.utils.data import DataLoader

    yield iter(DataLoader(Prepared(dtype), batch_size=None, num_workers=WORKERS))


@contextlib.contextmanager
def feeder(dtype: str, **chosen: Any) -> Iterator[Batches]:
    from wattsmith import Feeder

    yield iter(Feeder(Prepared(dtype), batch_size=None, num_workers=WORKERS, **chosen))


class Samples(Prepared):
    """The same batches as single samples, so that workers have to put them together."""

    def __getitem__(self, place: int) -> Any:
        import torch

        batch, sample = divmod(place, SHAPE[0])
        return torch.from_numpy(super().__getitem__(batch)[sample])


@contextlib.contextmanager
def data_loader_samples(dtype: str) -> Iterator[Batches]:
    from torch.utils.data import DataLoader

    yield iter(DataLoader(Samples(dtype), batch_size=SHAPE[0], num_workers=WORKERS))


@contextlib.contextmanager
def feeder_samples(dtype: str) -> Iterator[Batches]:
    from wattsmith import Feeder

    yield iter(Feeder(Samples(dtype), batch_size=SHAPE[0], num_workers=WORKERS))


@contextlib.contextmanager
def feeder_socket(dtype: str) -> Iterator[Batches]:
    from feeding.joining import remote_workers

    with remote_workers(Prepared(dtype), WORKERS, batch_size=None) as fed:
        yield iter(fed)


@contextlib.contextmanager
def ray_here() -> Iterator[Any]:
    import logging

    import ray

    # Twice the workers: Ray Data's own reading needs a place beside them.
    # A cluster of its own, whatever else of Ray runs on this machine.
    quiet = {"include_dashboard": False, "logging_level": logging.ERROR, "log_to_driver": False}
    ray.init(address="local", num_cpus=2 * WORKERS, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextlib.contextmanager
def ray_actors(dtype: str) -> Iterator[Batches]:
    with ray_here() as ray:

        @ray.remote(num_cpus=1)
        class Worker:
            def __init__(self) -> None:
                self._batches, self._given = prepared(dtype), 0

            def batch(self) -> Any:
                self._given += 1
                return self._batches[self._given % PREPARED]

        def calls() -> Batches:
            workers = [Worker.remote() for _ in range(WORKERS)]
            waiting = [worker.batch.remote() for _ in range(IN_FLIGHT) for worker in workers]
            asked = 0
            while True:
                first = waiting.pop(0)
                waiting.append(workers[asked % WORKERS].batch.remote())
                asked += 1
                yield ray.get(first)

        yield calls()


@contextlib.contextmanager
def ray_data(dtype: str) -> Iterator[Batches]:
    class Make:
        def __init__(self) -> None:
            self._batches, self._given = prepared(dtype), 0

        def __call__(self, _rows: Any) -> dict[str, Any]:
            self._given += 1
            return {"images": self._batches[self._given % PREPARED]}

    with ray_here() as ray:
        ray.data.DataContext.get_current().enable_progress_bars = False
        rows = ray.data.range(SHAPE[0] * 3000, override_num_blocks=150)
        made = rows.map_batches(Make, batch_size=SHAPE[0], compute=ray.data.ActorPoolStrategy(size=WORKERS))
        batches = made.iter_torch_batches(batch_size=SHAPE[0], prefetch_batches=IN_FLIGHT)
        yield (batch["images"] for batch in batches)


def _serve_tf(pipe: Any, dispatcher: str | None) -> None:
    """A server of tf.data service in a process of its own: within the consumer's it would not send anything."""
    import tensorflow as tf

    service = tf.data.experimental.service
    if dispatcher is None:
        server = service.DispatchServer()
        pipe.send(server.target)
    else:
        server = service.WorkerServer(service.WorkerConfig(dispatcher_address=dispatcher.split("://")[1]))
        pipe.send("ready")
    server.join()


@contextlib.contextmanager
def tf_service(dtype: str) -> Iterator[Batches]:
    import multiprocessing

    import numpy as np
    import tensorflow as tf

    context = multiprocessing.get_context("spawn")
    servers, target = [], None
    for _ in range(1 + WORKERS):
        mine, theirs = context.Pipe()
        servers.append(context.Process(target=_serve_tf, args=(theirs, target), daemon=True))
        servers[-1].start()
        told = mine.recv()
        target = target or told
    batches = tf.constant(np.stack(prepared(dtype)))
    source = tf.data.Dataset.range(ENDLESS).map(lambda place: batches[place % PREPARED])
    distribute = tf.data.experimental.service.distribute
    served = source.apply(distribute(processing_mode="parallel_epochs", service=target, compression=None))
    try:
        yield served.prefetch(IN_FLIGHT).as_numpy_iterator()
    finally:
        for server in servers:
            server.kill()


TRANSPORTS: dict[str, Callable[[str], contextlib.AbstractContextManager[Batches]]] = {
    "memcpy": memcpy,
    "bare copies": bare,
    "ours, slots": feeder,
    "ours, delivered": feeder,
    "ours, socket": feeder_socket,
    "DataLoader": data_loader,
    "DataLoader, delivered": data_loader,
    "ours, collated": feeder_samples,
    "DataLoader, collated": data_loader_samples,
    "Ray actors": ray_actors,
    "Ray Data": ray_data,
    "tf.data service": tf_service,
}

DELIVERED = ("ours, delivered", "DataLoader, delivered")  # used as its user gets it: no copy out


def cpu_s() -> float:
    """CPU seconds of this process and all below it."""
    import psutil

    me = psutil.Process()
    total_s = 0.0
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def machine_busy_s() -> float:
    """CPU seconds that all processes of this machine have used."""
    import psutil

    times = psutil.cpu_times()
    return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice)


def measured(name: str, dtype: str, seconds: float) -> dict[str, Any]:
    import numpy as np

    own = room(dtype)
    with TRANSPORTS[name](dtype) as batches:
        for _ in range(WARM):
            np.copyto(own, np.asarray(next(batches)))
        count, cpu_before_s, busy_before_s, began_s = 0, cpu_s(), machine_busy_s(), time.perf_counter()
        while (took_s := time.perf_counter() - began_s) < seconds:
            batch = np.asarray(next(batches))
            if name not in DELIVERED:
                np.copyto(own, batch)
            count += 1
        cpu_took_s, busy_s = cpu_s() - cpu_before_s, machine_busy_s() - busy_before_s
    expected = {batch[0, 0, 0, :8].tobytes() for batch in prepared(dtype)}
    if own[0, 0, 0, :8].tobytes() not in expected:
        raise SystemExit(f"{name}: what arrived is not what was sent")
    return {
        "batches": count,
        "seconds": took_s,
        "cpu_s": cpu_took_s,
        "batch_bytes": own.nbytes,
        "foreign": max(0.0, busy_s - cpu_took_s) / (took_s * (os.cpu_count() or 1)),
    }


if __name__ == "__main__":
    print(json.dumps(measured(sys.argv[1], sys.argv[2], float(sys.argv[3]))), flush=True)
    os._exit(0)  # some peers take long to end, or do not
