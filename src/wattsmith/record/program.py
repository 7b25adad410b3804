"""A program: one workload built on one device, ready to take steps.

How a precision is meant:

fp32, tf32   single precision, with matrix and convolution kernels kept from TF32, or allowed it
bf16, fp16   a network that trains keeps its weights in fp32 and runs under autocast; a network that infers, every
             operator, and families that autocast would leave in fp32, are in that precision altogether.
             fp16 trains with a constant loss scale and a learning rate smaller by as much: a scaler that looks for
             overflow would make the host wait for the device in every step.
"""

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from wattsmith.record.meta import autocast_rules
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Workload

LOSS_SCALE = 1024.0
# So small that thousands of steps on one batch leave values as random as they were: power depends on values.
LEARNING_RATES = {"sgd": 1e-5, "adamw": 1e-6}


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where a family's random tensors come from: the device, the kind of number, the seed."""

    device: str
    dtype: Any
    generator: Any  # None on "meta", which holds no values

    def normal(self, *shape: int, requires_grad: bool = False) -> Any:
        import torch

        return torch.randn(
            shape, device=self.device, dtype=self.dtype, generator=self.generator, requires_grad=requires_grad
        )

    def integers(self, below: int, *shape: int) -> Any:
        import torch

        return torch.randint(below, shape, device=self.device, generator=self.generator)


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a family makes of its parameters: something to run, and what learns from it."""

    run: Callable[..., Any]  # one pass; its arguments are `inputs`
    inputs: tuple[Any, ...] = ()
    sample_shape: tuple[int, ...] = ()  # of one sample of the batch
    module: Any = None
    loss: Callable[[Any], Any] | None = None  # of a network's output
    leaves: tuple[Any, ...] = ()  # operators: what gets a gradient when they train
    learners: tuple[Any, ...] = ()  # already hold their gradients; the step is the optimizer's alone
    held: tuple[Any, ...] = field(default=())  # other tensors that stay for the whole run: a cache, say


class Program:
    """One workload on one device. `step` takes one step as the workload says; `close` gives everything back."""

    def __init__(
        self, workload: Workload, piece: Piece, device: str, casts: bool, settle: AbstractContextManager[None]
    ) -> None:
        self.workload = workload
        self.device = device
        self.module = piece.module
        self.sample_shape = piece.sample_shape
        self.inputs = piece.inputs
        self.casts = casts
        self._settle = settle
        learning = list(piece.module.parameters()) if piece.module is not None else list(piece.learners)
        self.learning = learning
        self.parameters = sum(tensor.numel() for tensor in learning)
        self.parameter_bytes = sum(tensor.numel() * tensor.element_size() for tensor in learning)
        self.optimizer = optimizer_of(workload, learning)
        self.resident = (*learning, *piece.inputs, *piece.leaves, *piece.held)
        self._step: Callable[[], Any] | None = self._stepper(piece)
        settle.__enter__()

    def step(self) -> Any:
        """One step. Gives the loss or the output, on the device and maybe not computed yet."""
        if self._step is None:
            raise BadTerm(f"this program of {self.workload.family} was closed; build it again")
        return self._step()

    def close(self) -> None:
        """Frees what the program holds, and puts torch's global settings back. Closing twice is closing once."""
        import torch

        if self._step is None:
            return
        self._step = self.module = self.optimizer = None
        self.inputs = self.resident = ()
        self.learning = []
        self._settle.__exit__(None, None, None)
        if self.workload.compiled:
            torch.compiler.reset()
        if self.device.startswith("cuda"):
            gc.collect()  # modules refer to themselves; memory must be free before the next program
            # A workspace that stays would keep the whole segment that it lies in, and the next program would be said
            # to hold it.
            torch._C._cuda_clearCublasWorkspaces()
            torch.cuda.empty_cache()

    def __enter__(self) -> "Program":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _stepper(self, piece: Piece) -> Callable[[], Any]:
        import torch

        run = piece.run
        if self.workload.compiled and self.device != "meta":
            run = torch.compile(run)
        if piece.learners:
            return update_step(self.optimizer)
        if self.workload.mode == "infer":
            return infer_step(run, piece.inputs)
        if piece.module is None:
            return operator_step(run, piece.inputs, piece.leaves)
        context = partial(autocast, self.workload.precision, self.device) if self.casts else nullcontext
        return train_step(run, piece, self.workload, context, self.optimizer)


def train_step(
    run: Callable[..., Any],
    piece: Piece,
    workload: Workload,
    casting: Callable[[], AbstractContextManager[Any]],
    optimizer: Any,
) -> Callable[[], Any]:
    """Forward and backward, as often as gradients accumulate; then the update, and gradients dropped."""
    loss_of = piece.loss
    assert loss_of is not None
    scale = LOSS_SCALE if workload.precision == "fp16" else 1.0
    factor = scale / workload.accumulation

    def step() -> Any:
        for _ in range(workload.accumulation):
            with casting():
                loss = loss_of(run(*piece.inputs))
            (loss if factor == 1.0 else loss * factor).backward()
        if optimizer is not None:
            optimizer.step()
        piece.module.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def infer_step(run: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[[], Any]:
    import torch

    def step() -> Any:
        with torch.inference_mode():
            return run(*inputs)

    return step


def operator_step(run: Callable[..., Any], inputs: tuple[Any, ...], leaves: tuple[Any, ...]) -> Callable[[], Any]:
    """An operator and its backward, from a random gradient that is made once."""
    import torch

    sent_back: list[Any] = []

    def step() -> Any:
        output = run(*inputs)
        if not sent_back:
            sent_back.append(torch.randn_like(output))
        torch.autograd.grad(output, leaves, sent_back[0])
        return output.detach()

    return step


def update_step(optimizer: Any) -> Callable[[], Any]:
    def step() -> None:
        optimizer.step()

    return step


def optimizer_of(workload: Workload, learning: list[Any]) -> Any:
    """The workload's optimizer over LEARNING; None where nothing is updated."""
    import torch

    if workload.optimizer is None:
        return None
    rate = LEARNING_RATES[workload.optimizer] / (LOSS_SCALE if workload.precision == "fp16" else 1.0)
    # One kernel for many tensors is what GPUs do by themselves; asked for, meta tensors show the same.
    if workload.optimizer == "sgd":
        return torch.optim.SGD(learning, lr=rate, momentum=0.9, foreach=True)
    return torch.optim.AdamW(learning, lr=LEARNING_RATES["adamw"], foreach=True)


def dtype_of(precision: str) -> Any:
    import torch

    return {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision, torch.float32)


def autocast(precision: str, device: str) -> AbstractContextManager[Any]:
    import torch

    dtype = dtype_of(precision)
    if device == "meta":
        return autocast_rules(dtype)  # type: ignore[no-any-return]
    return torch.autocast(device.partition(":")[0], dtype=dtype)  # type: ignore[no-any-return]


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """TF32 in matrix products, convolutions and recurrent layers, or not, and afterwards as before."""
    import torch

    # Of the two ways to say it, the older keeps both readable; the newer makes reading the older an error.
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    cudnn.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        cudnn.allow_tf32 = before[1]
