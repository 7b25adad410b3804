"""The part of a step that depends on no state, run once with the example, to see sizes and kinds of its values."""

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from wattsmith.split.roles import TAINTED, Roles
from wattsmith.split.traced import Traced, context_of

_NUMBERS = {bool: "bool", int: "int64", float: "float64"}
NUMBER_BYTES = 8  # a size or another single number that crosses


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one node gave."""

    output_bytes: int | None  # None: it cannot be sent, as it is a list or no tensor
    moved_bytes: int  # of all tensors that it took and gave
    makes_new: bool  # whether it made a tensor, and not a view of one
    has_fractions: bool  # whether it gave floating-point numbers
    takes_fractions: bool
    shape: tuple[int, ...] = ()
    dtype: str = ""
    is_number: bool = False  # a size or another number, which crosses as a tensor of one
    order: tuple[int, ...] = ()  # of its dimensions in memory, where that is not the usual one; it crosses in it


def seen_in_run(traced: Traced, roles: Roles, inputs: Sequence[Any]) -> dict[Any, Seen]:
    """INPUTS: what the placeholders stand for. Nodes that depend on state are left out."""
    import torch
    from torch.fx.node import map_arg

    values: dict[Any, Any] = {}
    seen: dict[Any, Seen] = {}
    given = iter(inputs)
    with torch.no_grad():
        for node in traced.nodes():
            if node.op == "placeholder":
                value = next(given)
                values[node] = value.clone() if node in roles.written_inputs and hasattr(value, "clone") else value
            elif node.op == "get_attr":
                values[node] = traced.attributes[node.target].value
            elif roles.kinds[node] != TAINTED and not _needs_state(node, roles):
                args, named = map_arg((node.args, node.kwargs), values.__getitem__)
                with ExitStack() as stack:
                    for cast in context_of(node)[1]:
                        stack.enter_context(autocast(cast))
                    values[node] = called(node, args, named, traced)
            else:
                continue
            seen[node] = _told(values[node], [values[one] for one in node.all_input_nodes])
    return seen


def _needs_state(node: Any, roles: Roles) -> bool:
    return any(roles.kinds[one] == TAINTED for one in node.all_input_nodes)


def autocast(cast: tuple[Any, ...]) -> Any:
    import torch

    device, dtype, enabled, cached = cast
    return torch.autocast(device, dtype=dtype, enabled=enabled, cache_enabled=cached)


def called(node: Any, args: Any, named: Mapping[str, Any], traced: Traced) -> Any:
    """What NODE gives for these arguments."""
    if node.op == "call_function":
        return node.target(*args, **without_generator(named))
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **named)
    return traced.attributes[str(node.target)].value(*args, **named)


def without_generator(named: Mapping[str, Any]) -> dict[str, Any]:
    """On the data side every number is drawn from the batch's seed, whichever generator the step names."""
    return {name: None if name == "generator" else value for name, value in named.items()}


def _told(value: Any, taken: Sequence[Any]) -> Seen:
    import torch

    into = [one for many in taken for one in _tensors(many)]
    given = _tensors(value)
    moved = sum(one.numel() * one.element_size() for one in (*into, *given))
    old = {one.untyped_storage().data_ptr() for one in into}
    makes_new = any(one.untyped_storage().data_ptr() not in old for one in given)
    common: dict[str, Any] = {
        "moved_bytes": moved,
        "makes_new": makes_new,
        "has_fractions": any(one.is_floating_point() for one in given),
        "takes_fractions": any(one.is_floating_point() for one in into),
    }
    if isinstance(value, torch.Tensor):
        return Seen(
            output_bytes=value.numel() * value.element_size(),
            shape=tuple(value.shape),
            dtype=str(value.dtype).removeprefix("torch."),
            order=order_in_memory(value),
            **common,
        )
    if isinstance(value, bool | int | float):
        return Seen(output_bytes=NUMBER_BYTES, dtype=_NUMBERS[type(value)], is_number=True, **common)
    return Seen(output_bytes=None, **common)


def order_in_memory(tensor: Any) -> tuple[int, ...]:
    """The dimensions of TENSOR from the slowest to the quickest, if it lies densely in another order than usual.

    Layers choose their method by the order in memory, so that it must be the same after the crossing.
    """
    if tensor.is_contiguous() or 0 in tensor.stride():
        return ()
    order = tuple(sorted(range(tensor.dim()), key=lambda at: -tensor.stride(at)))
    return order if tensor.permute(order).is_contiguous() else ()


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, list | tuple):
        return [one for many in value for one in _tensors(many)]
    return []
