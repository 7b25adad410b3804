"""What one step does, found without running it: a recorder of operators on "meta" tensors.

`trace` takes any step; `structure_of` takes a workload of ours. Counted per class of operator:

calls        operators that reach the device; views, and memory that is only allocated, cost nothing
flops        of products and convolutions two per multiplication, as `torch.utils.flop_counter` has them, and half of it
             where attention is causal; of everything else one per element
moved bytes  inputs read once, outputs written once; of a table only the rows that are asked for
peak bytes   the largest sum of tensors alive at once: weights, gradients, optimizer state, activations
"""

import weakref
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from wattsmith.record.calls import CallKey, Calls, key_of
from wattsmith.record.counting import (
    ALLOCATING,
    FREE,
    GATHERING,
    Traits,
    flops_of,
    launches_of,
    moved_bytes,
    tensors_in,
    traits_of,
)
from wattsmith.record.families import build
from wattsmith.record.meta import fused_kernels
from wattsmith.record.program import Program, autocast
from wattsmith.terms.run import Structure
from wattsmith.terms.trace import WAIT, Trace
from wattsmith.terms.work import Workload


@dataclass(slots=True)
class Ledger:
    """What a recorder has seen. Storages go by their address, which is theirs as long as they live."""

    device: str = "meta"  # the kind of device whose tensors count
    calls: Calls = field(default_factory=Calls)
    launches: int = 0
    sequential: int = 0
    recurrent: int = 0  # layers
    alive: dict[int, tuple[int, int, Any]] = field(default_factory=dict)  # storage → number, bytes, how we see its end
    memory: list[tuple[int, int]] = field(default_factory=list)  # as in Trace
    step_at: int = 0
    live_bytes: int = 0
    peak_bytes: int = 0
    weights: dict[int, Any] = field(default_factory=dict)  # storage → parameter
    copies: dict[int, int] = field(default_factory=dict)  # storage of a weight cast → storage of the weight
    sequence: list[CallKey | None] = field(default_factory=list)  # None: the step asked a tensor for its value
    conv: dict[int, float] = field(default_factory=dict)  # storage of a layer's weight → its strength
    dense: dict[int, float] = field(default_factory=dict)

    def assume(self, dtype: Any) -> bool | int | float:
        """A value where a step asks a tensor for one, though it has none: yes, or one."""
        self.sequence.append(None)
        one: bool | int | float = True if str(dtype) == "torch.bool" else 1.0 if dtype.is_floating_point else 1
        return one

    def start_again(self) -> None:
        """Forget what was counted, not what is alive."""
        self.sequential = self.recurrent = 0
        self.sequence.clear()
        self.step_at = len(self.memory)
        self.calls.tallies.clear()
        self.launches = 0

    def add_recurrent(self, layers: int, launches: int) -> None:
        self.recurrent += layers
        self.launches += launches
        self.sequential += launches

    def hold(self, tensor: Any) -> int:
        """Count the tensor's storage as alive until it is not. Gives the storage's address."""
        storage = tensor.untyped_storage()
        address: int = storage._cdata
        if address not in self.alive:
            size, number = storage.nbytes(), len(self.memory)
            self.alive[address] = number, size, weakref.ref(storage, lambda _: self._release(address))
            if size:
                self.memory.append((number, size))
            self.live_bytes += size
            self.peak_bytes = max(self.peak_bytes, self.live_bytes)
        return address

    def _release(self, address: int) -> None:
        number, size, _ = self.alive.pop(address)
        if size:
            self.memory.append((number, 0))
        self.live_bytes -= size
        self.weights.pop(address, None)
        self.copies.pop(address, None)

    def weight_behind(self, tensor: Any) -> int | None:
        """The storage of the parameter that TENSOR is a view or a cast of, if it is one."""
        address: int = tensor.untyped_storage()._cdata
        address = self.copies.get(address, address)
        return address if address in self.weights else None


@cache
def recorder_class() -> type:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Recorder(TorchDispatchMode):  # type: ignore[misc]
        def __init__(self, ledger: Ledger) -> None:
            super().__init__()
            self.ledger = ledger

        def __torch_dispatch__(
            self, operator: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            traits = traits_of(operator)
            if traits.name == "_local_scalar_dense" and args[0].device.type == "meta":
                return self.ledger.assume(args[0].dtype)
            if traits.composite:
                with self:
                    given = operator.decompose(*args, **kwargs)
                if given is not NotImplemented:
                    return given
            return self.call(operator, traits, args, kwargs)

        def call(self, operator: Any, traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
            given = operator(*args, **kwargs)
            if traits.name in LAID_OUT:
                given = laid_out(traits.name, args, given)
            enter(self.ledger, traits, args, kwargs, given)
            return given

    return Recorder


LAID_OUT = ("convolution", "convolution_backward")


def laid_out(name: str, args: tuple[Any, ...], given: Any) -> Any:
    """What a convolution on "meta" gives, in the order that a GPU has it: channels last if its input or weight is."""
    import torch

    backward = name == "convolution_backward"
    taken, weight = args[1:3] if backward else args[:2]
    if taken.device.type != "meta" or taken.dim() != 4 or not (_is_last(taken) or _is_last(weight)):
        return given

    def turned(one: Any) -> Any:
        return one.contiguous(memory_format=torch.channels_last) if one is not None and one.dim() == 4 else one

    return tuple(turned(one) for one in given) if backward else turned(given)


def _is_last(tensor: Any) -> bool:
    import torch

    return bool(tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous())


def enter(
    ledger: Ledger, traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any
) -> CallKey | None:
    """Write one call into the ledger. Gives what tells it from others; None: it costs nothing."""
    inputs = [one for one in tensors_in((*args, *kwargs.values())) if one.device.type == ledger.device]
    outputs = [one for one in tensors_in((given,)) if one.device.type == ledger.device]
    if not inputs and not outputs:
        return None  # the host's own arithmetic, such as an optimizer's count of steps
    before = {ledger.hold(one) for one in inputs}
    after = [ledger.hold(one) for one in outputs]
    note_weights(ledger, traits, inputs, after)
    fresh = [one for one, address in zip(outputs, after, strict=True) if address not in before]
    written = [one for arg, writes in zip(args, traits.writes, strict=False) if writes for one in tensors_in((arg,))]
    if (not fresh and not written) or traits.name in ALLOCATING or traits.name in FREE:
        return None
    key = key_of(traits, args, kwargs, inputs or outputs)
    touched = [*inputs, *fresh] if traits.name not in GATHERING else fresh
    ledger.calls.add(key, flops_of(traits, args, kwargs, given, touched), moved_bytes(traits, inputs, fresh, written))
    ledger.launches += launches_of(traits, args, written or fresh)
    ledger.sequence.append(key)
    return key


def in_backward() -> bool:
    import torch

    return bool(torch._C._current_graph_task_id() != -1)


def note_weights(ledger: Ledger, traits: Traits, inputs: list[Any], after: list[int]) -> None:
    """Learn which storages are weights, and of which layers."""
    import torch

    for one in inputs:
        if isinstance(one, torch.nn.Parameter):
            ledger.weights[one.untyped_storage()._cdata] = one
    if traits.name == "_to_copy" and inputs and (weight := ledger.weight_behind(inputs[0])) is not None:
        ledger.copies[after[0]] = weight
    if traits.its_class not in ("conv", "matmul") or in_backward():
        return
    layers = ledger.conv if traits.its_class == "conv" else ledger.dense
    for one in inputs:
        weight = ledger.weight_behind(one) if one.dim() >= 2 else None
        if weight is not None:
            layers[weight] = float(one.shape[0] * one.shape[1])


def trace(
    step: Callable[[], object],
    *,
    parameters: Iterable[Any] | None = None,
    inputs: Iterable[Any] = (),
    resident: Iterable[Any] = (),
    precision: str = "fp32",
    steps: int = 2,
    device: str = "meta",
) -> Trace:
    """What one call of STEP does, whose tensors are all on "meta"; or on "cpu", where it runs in earnest.

    PARAMETERS: those of the model; None: those that were seen at work. INPUTS: one batch. RESIDENT: tensors that are
    there from the beginning, such as optimizer state. PRECISION "bf16" or "fp16": as under autocast to it. The last of
    STEPS is counted; the first makes what stays, such as optimizer state, so fewer than two are right only where that
    is resident already.
    """
    ledger = Ledger(device=device)
    batch = list(inputs)
    known = None if parameters is None else list(parameters)
    for tensor in (*batch, *resident, *(known or ())):
        ledger.hold(tensor)
    with ExitStack() as modes:
        modes.enter_context(recorder_class()(ledger))
        modes.enter_context(fused_kernels(ledger.add_recurrent))
        if precision in ("bf16", "fp16"):
            modes.enter_context(autocast(precision, device))
        for _ in range(steps):
            ledger.start_again()
            step()
    places = {key: at for at, key in enumerate(ledger.calls.keys())}
    return Trace(
        structure=summed_up(ledger, list(ledger.weights.values()) if known is None else known, batch),
        calls=ledger.calls.of_one_step(1, timed=False),
        memory=tuple(ledger.memory),
        last_step_at=ledger.step_at,
        sequential=ledger.sequential,
        order=tuple(WAIT if key is None else places[key] for key in ledger.sequence),
    )


def trace_step(step: Callable[[], object], **how: Any) -> Structure:
    """The structure alone, as `trace` finds it."""
    return trace(step, **how).structure


def summed_up(ledger: Ledger, parameters: list[Any], batch: list[Any]) -> Structure:
    trainable = [one for one in parameters if one.requires_grad]
    operators = ledger.calls.by_kind()
    return Structure(
        parameters=sum(one.numel() for one in trainable),
        parameter_bytes=sum(one.numel() * one.element_size() for one in parameters),
        input_bytes=sum(one.numel() * one.element_size() for one in batch),
        flops=sum(one.flops for one in operators.values()),
        moved_bytes=sum(one.moved_bytes for one in operators.values()),
        launches=ledger.launches,
        peak_bytes=ledger.peak_bytes,
        conv_layers=len(ledger.conv),
        dense_layers=len(ledger.dense),
        recurrent_layers=ledger.recurrent,
        conv_strength=sum(ledger.conv.values()),
        dense_strength=sum(ledger.dense.values()),
        operators=operators,
    )


def structure_of(workload: Workload) -> Structure:
    """What one step of the workload does. A compiled step is described as the eager one that it replaces."""
    with build(workload, "meta") as program:
        held = [*program.resident, *optimizer_state(program)]
        return trace(
            program.step,
            parameters=program.learning,
            inputs=program.inputs,
            resident=held,
            steps=2 if workload.kind == "operator" else 1,  # an operator's first step makes the gradient sent back
        ).structure


def optimizer_state(program: Program) -> list[Any]:
    """What the optimizer keeps between steps, made as its first step would make it."""
    import torch

    optimizer = program.optimizer
    if optimizer is None:
        return []
    learning = program.learning
    empty = [one for one in learning if one.grad is None]
    for one in empty:
        one.grad = torch.empty_like(one)
    optimizer.step()
    for one in empty:
        one.grad = None
    kept = (one for state in optimizer.state.values() for one in tensors_in(state.values()))
    return [one for one in kept if one.device.type == "meta"]
