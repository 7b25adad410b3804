"""A model in this process that answers queries: on which device, in which precision, by how many servers.

All that is turned here needs no privilege: what a batch is, how many are in work, what the numbers are stored in, how
many threads and which cores the CPU side has, and which share of a GPU's multiprocessors is used.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

from wattsmith.flows.models import LoadedModel, load_model, with_batch
from wattsmith.flows.models.inputs import Inputs
from wattsmith.flows.models.python_source import moved_copy
from wattsmith.flows.record_worker import describe_device
from wattsmith.flows.serving_knobs import How, NotAvailable
from wattsmith.terms.errors import BadInput, ExtraNeeded

WARM_UPS = 3  # before anything counts: kernels are chosen and memory is taken then


def usual_device() -> str:
    """The first GPU that PyTorch sees, or else the CPU."""
    try:
        import torch
    except ImportError as missing:
        raise ExtraNeeded("serving a model needs PyTorch: pip install 'wattsmith[torch]'") from missing
    return "cuda:0" if torch.cuda.is_available() else "cpu"


class ServedModel:
    """A model on DEVICE ("cpu", "cuda:0"), with servers made for each way to serve it. Close it when done."""

    def __init__(self, source: Any, *, inputs: Any = None, device: str = "cpu") -> None:
        """SOURCE and INPUTS as in `load_model`."""
        import torch

        describe_device(device)  # says what is wrong with one that is not there
        self.device = device
        self.loaded: LoadedModel = (
            source if isinstance(source, LoadedModel) else load_model(source, inputs=inputs, device="cpu")
        )
        if self.loaded.batch < 1:
            raise BadInput("the inputs hold no sample: their first dimension is 0")
        self.cuda = device.startswith("cuda")
        self._modules: dict[tuple[str, str], Any] = {}
        self._samples: dict[tuple[int, str, str], Inputs] = {}
        self.graphs: dict[tuple[int, str, str, int], Any] = {}
        self._contexts: dict[float, Any] = {}
        self._before = torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        self._cores = os.sched_getaffinity(0)

    # What is asked of it

    def servers(self, how: How) -> "list[Server]":
        """As many as HOW says; global switches are set as it says too. Raises what the model raises.

        Each is still to be warmed in the thread that it will serve in: libraries keep what they have learned by thread.
        """
        self._switch(how)
        servers: list[Server] = []
        for number in range(how.policy.concurrency):
            server = _CudaServer(self, how, number) if self.cuda else _CpuServer(self, how)
            for size in self.sizes(how) if how.graph else ():
                server.prepare(size)  # graphs are recorded one after the other, before any thread serves
            servers.append(server)
        return servers

    def check_available(self, how: How) -> None:
        """Raise NotAvailable where HOW needs what this machine or this version of PyTorch has not."""
        if how.affinity is not None and not set(how.affinity) <= self._cores:
            missing = sorted(set(how.affinity) - self._cores)
            raise NotAvailable(f"cores {missing} are not among those that this process may use")
        if how.precision == "tf32" and not self.cuda:
            raise NotAvailable("tf32 is a precision of GPUs; a CPU has fp32 or bf16")
        if how.graph and not self.cuda:
            raise NotAvailable("graphs are recorded on GPUs alone")
        if how.share < 1:
            self.context(how.share)

    def sizes(self, how: How) -> list[int]:
        """Batches that are run: each there may be, or, from a graph, powers of two up to the largest."""
        if not how.graph:
            return list(range(1, how.policy.batch + 1))
        return [1 << at for at in range(how.policy.batch.bit_length()) if 1 << at < how.policy.batch] + [
            how.policy.batch
        ]

    def module(self, how: How) -> Any:
        """The model in the precision and layout of HOW."""
        import torch

        key = (_stored(how.precision), how.layout)
        if key not in self._modules:
            kind = None if key[0] == "fp32" else _dtype(key[0])
            ordered = torch.channels_last if how.layout == "channels-last" else None
            module = moved_copy(self.loaded.module, self.device, dtype=kind, memory_format=ordered)
            if self.loaded.kind != "exported":  # which is as it was exported, and refuses to change
                module.eval()
            module.requires_grad_(False)
            self._modules[key] = module
        return self._modules[key]

    def sample(self, size: int, how: How) -> Inputs:
        """SIZE queries as they lie in the host's memory."""
        key = (size, _stored(how.precision), how.layout)
        if key not in self._samples:
            self._samples[key] = self._made(size, how)
        return self._samples[key]

    def memory_bytes(self) -> int | None:
        """The most that was taken on the GPU since the last switch; None on a CPU."""
        import torch

        return int(torch.cuda.max_memory_allocated(self.device)) if self.cuda else None

    def forget(self) -> None:
        """Give back what trials keep for the next one, as after running out of memory."""
        self.graphs.clear()
        self._samples.clear()
        self._modules.clear()
        if self.cuda:
            import torch

            torch.cuda.empty_cache()

    def close(self) -> None:
        """Set threads, cores and switches back to what they were."""
        import torch

        threads, matmul, convolution = self._before
        torch.set_num_threads(threads)
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = convolution
        _use_cores(self._cores)
        self.forget()

    def __enter__(self) -> "ServedModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Inside

    def _switch(self, how: How) -> None:
        import torch

        self.check_available(how)
        if how.share < 1 and how.graph:
            raise NotAvailable("a recorded graph uses the whole GPU: graph and share do not go together")
        torch.set_float32_matmul_precision("high" if how.precision == "tf32" else "highest")
        torch.backends.cudnn.allow_tf32 = how.precision == "tf32"
        torch.set_num_threads(how.threads or self._before[0])
        _use_cores(set(self._cores if how.affinity is None else how.affinity))
        if self.cuda:
            torch.cuda.reset_peak_memory_stats(self.device)

    def context(self, share: float) -> Any:
        """A part of the GPU's multiprocessors, as a green context."""
        if not self.cuda:
            raise NotAvailable("a share of a GPU is not available on a CPU; use threads or affinity")
        if share not in self._contexts:
            import torch

            made = getattr(getattr(torch.cuda, "green_contexts", None), "GreenContext", None)
            if made is None:
                raise NotAvailable(f"PyTorch {torch.__version__} has no green contexts: a GPU share is not available")
            device = torch.device(self.device)
            whole = torch.cuda.get_device_properties(device).multi_processor_count
            try:
                self._contexts[share] = made.create(num_sms=max(1, round(share * whole)), device_id=device.index or 0)
            except (RuntimeError, TypeError) as refused:
                why = str(refused).splitlines()[0]
                raise NotAvailable(f"a GPU share of {share:.0%} is not available here: {why}") from refused
        return self._contexts[share]

    def _made(self, size: int, how: How) -> Inputs:
        import torch
        from torch.utils._pytree import tree_map

        own = self.loaded if size == self.loaded.batch else with_batch(self.loaded, size)
        kind = None if _stored(how.precision) == "fp32" else _dtype(how.precision)
        words = getattr(getattr(self.loaded.module, "config", None), "vocab_size", None)

        def turned(one: Any) -> Any:
            if not isinstance(one, torch.Tensor):
                return one
            if kind is not None and one.is_floating_point():
                one = one.to(kind)
            if how.layout == "channels-last" and one.dim() == 4:
                one = one.to(memory_format=torch.channels_last)
            return one.pin_memory() if self.cuda else one

        inputs = own.inputs_for("infer")
        named = dict(inputs.named)
        if words and "input_ids" in named:  # one and the same word over and over would draw less power than text
            named["input_ids"] = torch.randint(0, int(words), named["input_ids"].shape, dtype=named["input_ids"].dtype)
        return Inputs(args=tree_map(turned, inputs.args), named=tree_map(turned, named))


class Server(Protocol):
    """Answers batches; each in a thread of its own."""

    def prepare(self, size: int) -> None:
        """Run batches of SIZE, so that kernels are chosen and memory is taken."""

    def warm(self) -> None:
        """Run a batch of every size that may come, in the thread that will serve."""

    def __call__(self, size: int) -> None:
        """Answer SIZE queries; returns when that is done."""


class _CpuServer:
    """Answers on the CPU."""

    def __init__(self, model: ServedModel, how: How) -> None:
        self._model, self._how, self._module = model, how, model.module(how)

    def prepare(self, size: int) -> None:
        for _ in range(_warm_ups(size, self._how)):
            self(size)

    def warm(self) -> None:
        for size in self._model.sizes(self._how):
            self(size)

    def __call__(self, size: int) -> None:
        import torch

        inputs = self._model.sample(size, self._how)
        with torch.inference_mode():
            self._module(*inputs.args, **inputs.named)


class _CudaServer:
    """Answers on a GPU: copies the queries there, runs on its own stream, and waits without keeping a core busy."""

    def __init__(self, model: ServedModel, how: How, number: int) -> None:
        import torch

        self._model, self._how, self._number = model, how, number
        self._module = model.module(how)
        self._context = model.context(how.share) if how.share < 1 else None
        self._stream: Any = None if self._context is not None else torch.cuda.Stream(model.device)
        self._event = torch.cuda.Event(blocking=True)

    def prepare(self, size: int) -> None:
        """Warm up, outside the thread that will serve; a graph is recorded here."""
        import torch

        if self._how.graph:
            self._graph(size)
            return
        stream = self._stream or torch.cuda.Stream(self._model.device)
        with torch.inference_mode(), torch.cuda.stream(stream):
            for _ in range(_warm_ups(size, self._how)):
                self._run(size)
            stream.synchronize()

    def warm(self) -> None:
        for size in self._model.sizes(self._how):
            self(size)

    def __call__(self, size: int) -> None:
        import torch

        if self._context is not None and self._stream is None:
            torch.cuda.set_device(self._model.device)
            self._context.set_context()  # of this thread, for as long as it lives
            self._stream = torch.cuda.current_stream(self._model.device)
        with torch.inference_mode(), torch.cuda.stream(self._stream):
            if self._how.graph:
                self._replay(size)
            else:
                self._run(size)
            self._event.record(self._stream)
        self._event.synchronize()

    def _run(self, size: int) -> Any:
        inputs = _on(self._model.sample(size, self._how), self._model.device)
        return self._module(*inputs.args, **inputs.named)

    def _graph(self, size: int) -> Any:
        """The recorded graph for SIZE, with the inputs that it reads."""
        import torch

        graphs = self._model.graphs
        key = (size, self._how.precision, self._how.layout, self._number)
        if key not in graphs:
            inputs = _on(self._model.sample(size, self._how), self._model.device)
            with torch.inference_mode(), torch.cuda.stream(self._stream):
                for _ in range(WARM_UPS):
                    self._module(*inputs.args, **inputs.named)
                self._stream.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
                    output = self._module(*inputs.args, **inputs.named)
                graph.replay()
            self._stream.synchronize()
            graphs[key] = graph, inputs, output
        return graphs[key]

    def _replay(self, size: int) -> None:
        whole = next(one for one in self._model.sizes(self._how) if one >= size)
        graph, inputs, _ = self._graph(whole)
        for to, of in zip(inputs.tensors(), self._model.sample(whole, self._how).tensors(), strict=True):
            to.copy_(of, non_blocking=True)
        graph.replay()


def _on(inputs: Inputs, device: str) -> Inputs:
    import torch
    from torch.utils._pytree import tree_map

    def moved(one: Any) -> Any:
        return one.to(device, non_blocking=True) if isinstance(one, torch.Tensor) else one

    return Inputs(args=tree_map(moved, inputs.args), named=tree_map(moved, dict(inputs.named)))


def _warm_ups(size: int, how: How) -> int:
    """The smallest and the largest batch are run several times, those between once, which chooses their kernels."""
    return WARM_UPS if size in (1, how.policy.batch) else 1


def _stored(precision: str) -> str:
    """What numbers are stored in: tf32 is a way to multiply fp32."""
    return "fp32" if precision == "tf32" else precision


def _dtype(precision: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]


def _use_cores(cores: set[int]) -> None:
    """Let every thread of this process run on CORES; those that it starts later inherit them."""
    if os.sched_getaffinity(0) == cores:
        return
    for task in Path("/proc/self/task").iterdir():
        with suppress(ProcessLookupError):  # it has ended meanwhile
            os.sched_setaffinity(int(task.name), cores)
