"""Fine-tuning beside a model that is served: steps one by one on a stream and a thread of its own, and their cost."""

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from wattsmith.flows.estimating import HowToEstimate, traced_step
from wattsmith.flows.models import LoadedModel, NotTraceable, load_model, step_of, with_batch
from wattsmith.flows.models.inputs import Inputs
from wattsmith.flows.models.python_source import moved_copy
from wattsmith.flows.serving_knobs import How
from wattsmith.flows.serving_model import ServedModel
from wattsmith.terms.errors import BadInput
from wattsmith.tune.contention import Contention, Job, Pair
from wattsmith.tune.load import percentile_s

SLOWEST = 0.95  # share of the batches that were no slower than what a pair is told to take
LEAST_CALLS = 12


class FineTuning:
    """Steps that follow each other until it is closed; they can be held up and let go on."""

    def __init__(self, source: Any, *, batch: int, inputs: Any = None, device: str = "cpu", optimizer: str = "sgd"):
        """SOURCE and INPUTS as in `load_model`. On a GPU it trains under autocast to bf16."""
        loaded = source if isinstance(source, LoadedModel) else load_model(source, inputs=inputs, device="cpu")
        self.batch, self.device, self.optimizer = batch, device, optimizer
        self.loaded = with_batch(loaded, batch)
        self.steps = 0
        self._cuda = device.startswith("cuda")
        self._go, self._over = threading.Event(), threading.Event()
        self._between = threading.Event()  # no step is in work
        self._between.set()
        self._failure: BaseException | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> "FineTuning":
        """Prepare a step, take it once, and go on from there."""
        step = self._prepared()
        step()
        self._over.clear()
        self._go.set()
        self._thread = threading.Thread(target=self._work, args=(step,), daemon=True)
        self._thread.start()
        return self

    def hold(self) -> None:
        """No further step; returns when the present one is done."""
        self._go.clear()
        self._between.wait()

    def go_on(self) -> None:
        self._go.set()

    def close(self) -> None:
        """End after the present step. Raises what a step has raised."""
        self._over.set()
        self._go.set()
        if self._thread is not None:
            self._thread.join()
        if self._failure is not None:
            raise self._failure

    def __enter__(self) -> "FineTuning":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _work(self, step: Callable[[], object]) -> None:
        while not self._over.is_set():
            self._go.wait()
            if self._over.is_set():
                return
            self._between.clear()
            try:
                if self._go.is_set():
                    step()
                    self.steps += 1
            except BaseException as failed:  # noqa: BLE001 - handed to whoever closes it
                self._failure = failed
                return
            finally:
                self._between.set()

    def _prepared(self) -> Callable[[], object]:
        import torch

        ready = step_of(_moved(self.loaded, self.device), mode="train", optimizer=self.optimizer, precision="fp32")
        if not self._cuda:
            return ready.step
        stream, event = torch.cuda.Stream(self.device), torch.cuda.Event(blocking=True)

        def step() -> None:
            with torch.cuda.stream(stream), torch.autocast("cuda", dtype=torch.bfloat16):
                ready.step()
                event.record(stream)
            event.synchronize()  # one after the other: what has been queued cannot be held up

        return step


def _moved(loaded: LoadedModel, device: str) -> LoadedModel:
    """LOADED with its own copies of all tensors on DEVICE."""
    import torch
    from torch.utils._pytree import tree_map

    def moved(one: Any) -> Any:
        return one.to(device) if isinstance(one, torch.Tensor) else one

    inputs = Inputs(args=tree_map(moved, loaded.inputs.args), named=tree_map(moved, dict(loaded.inputs.named)))
    return replace(
        loaded,
        module=moved_copy(loaded.module, device),
        inputs=inputs,
        device=device,
        train_only=tree_map(moved, dict(loaded.train_only)),
        infer_only=tree_map(moved, dict(loaded.infer_only)),
    )


def jobs_of(loaded: LoadedModel, batches: Sequence[int], *, trains: bool) -> dict[int, Job]:
    """By batch, what a step of LOADED does. The smallest and the largest are traced; between them work grows evenly."""
    few, many = min(batches), max(batches)
    least, most = (_traced_job(loaded, batch, trains) for batch in (few, many))

    def between(a: float, b: float, batch: int) -> float:
        return a if many == few else a + (b - a) * (batch - few) / (many - few)

    return {
        batch: Job(
            flops=between(least.flops, most.flops, batch),
            moved_bytes=between(least.moved_bytes, most.moved_bytes, batch),
            batch=batch,
        )
        for batch in batches
    }


def _traced_job(loaded: LoadedModel, batch: int, trains: bool) -> Job:
    """A step of LOADED without running it; models that look at values are run once on the CPU."""
    how = HowToEstimate(batch=batch, mode="train" if trains else "infer", optimizer="sgd" if trains else None)
    try:
        traced = traced_step(with_batch(_moved(loaded, "meta"), batch), how)[0]
    except NotTraceable:
        traced = traced_step(with_batch(loaded, batch), replace(how, with_values=True))[0]
    return Job(flops=traced.structure.flops, moved_bytes=traced.structure.moved_bytes, batch=batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """What was measured of a served model beside fine-tuning, and what was learned from it."""

    pairs: tuple[Pair, ...]
    contention: Contention


def learn_contention(
    model: ServedModel,
    how: How,
    besides: Sequence[FineTuning],
    batches: Sequence[int],
    seconds_each_s: float = 0.5,
) -> Shared:
    """Measure batches alone and beside each of BESIDES, some of which may be empty, and learn what it costs.

    A pair tells the latency that 95 of 100 batches do not exceed, since it is the slow ones that break a limit.
    """
    if not batches:
        raise BadInput("contention is learned from batches of some sizes, got none")
    jobs = jobs_of(model.loaded, batches, trains=False)
    pairs: list[Pair] = []
    for beside in (None, *besides):
        job = None if beside is None else jobs_of(beside.loaded, [beside.batch], trains=True)[beside.batch]
        with ExitStack() as running:
            running.enter_context(nullcontext() if beside is None else beside)
            for size in batches:
                took_s = _service_s(model, how, size, seconds_each_s)
                pairs.append(Pair(inference=jobs[size], fine_tuning=job, latency_s=took_s))
    return Shared(pairs=tuple(pairs), contention=Contention.fit(pairs))


def _service_s(model: ServedModel, how: How, size: int, seconds_s: float) -> float:
    """How long batches of SIZE take at most, but for the slowest few."""
    policy = replace(how.policy, batch=size, concurrency=1)
    (answer,) = model.servers(replace(how, policy=policy))
    answer.prepare(size)
    took: list[float] = []
    until_s = time.perf_counter() + seconds_s
    while len(took) < LEAST_CALLS or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        answer(size)
        took.append(time.perf_counter() - began_s)
    return percentile_s(took, SLOWEST)
