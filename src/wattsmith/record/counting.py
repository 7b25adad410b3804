"""What one call of an operator costs, by its name and the shapes that go in and out."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

ALLOCATING = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"}
FREE = {"detach", "alias", "lift_fresh", "_unsafe_view", "_reshape_alias", "set_", "record_stream"}
OVERWRITING = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_"}  # what they write, they do not read
GATHERING = {"embedding", "index_select", "gather", "index", "take"}  # read as many elements as they give
SCATTERING = {"index_put_", "index_add_", "index_copy_", "scatter_", "scatter_add_"}  # write as much as they are given

# By what the operator's name has in it; the first that fits. Everything else is "elementwise".
CLASSES = (
    ("_foreach", "update"),
    ("_fused_", "update"),
    ("attention", "attention"),
    ("convolution", "conv"),
    ("pool", "pool"),
    ("softmax", "softmax"),
    ("norm", "norm"),
    ("embedding", "embedding"),
    ("index", "embedding"),
    ("gather", "embedding"),
    ("scatter", "embedding"),
    ("nll_loss", "reduce"),
    ("mm", "matmul"),
)
EXACTLY = {
    **dict.fromkeys(("mv", "dot", "addmv", "addr", "_cudnn_rnn"), "matmul"),
    **dict.fromkeys(("sum", "mean", "amax", "amin", "max", "min", "argmax", "argmin", "var", "std"), "reduce"),
    **dict.fromkeys(("prod", "any", "all", "logsumexp", "cumsum", "topk", "sort"), "reduce"),
    **dict.fromkeys(("_to_copy", "clone", "copy_", "cat", "stack", "repeat", "flip", "roll"), "copy"),
    **dict.fromkeys(("zeros", "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "arange"), "copy"),
    **dict.fromkeys(("full", "full_like", "fill_", "slice_backward", "select_backward", "constant_pad_nd"), "copy"),
}


def class_of(name: str) -> str:
    """The class of the operator that aten calls NAME."""
    if name in EXACTLY:
        return EXACTLY[name]
    return next((its_class for part, its_class in CLASSES if part in name), "elementwise")


@dataclass(frozen=True, slots=True)
class Traits:
    """What is known of an operator before it is called."""

    name: str
    its_class: str
    writes: tuple[bool, ...]  # by argument
    composite: bool  # made of others, which are counted instead
    flop_rule: Callable[..., int] | None
    causal_at: int | None  # where it is told that attention is causal


@cache
def traits_of(operator: Any) -> Traits:
    import torch
    from torch.utils.flop_counter import flop_registry

    packet = operator._overloadpacket
    name = packet.__name__
    arguments = operator._schema.arguments
    return Traits(
        name=name,
        its_class=class_of(name),
        writes=tuple(bool(one.alias_info and one.alias_info.is_write) for one in arguments),
        composite=torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"),
        flop_rule=flop_registry.get(packet),
        causal_at=next((at for at, one in enumerate(arguments) if one.name == "is_causal"), None),
    )


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    import torch

    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)


def bytes_of(tensor: Any) -> int:
    """What lies behind the tensor in memory; an expanded dimension is there once."""
    count: int = tensor.element_size()
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        if stride:
            count *= size
    return count


def label(traits: Traits, args: tuple[Any, ...]) -> str:
    if traits.its_class == "conv":
        groups = args[9] if traits.name == "convolution_backward" else args[8]
        return "grouped-conv" if groups > 1 else "conv"
    return traits.its_class


def flops_of(traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], given: Any, touched: list[Any]) -> float:
    if traits.name == "convolution_backward":
        # Each gradient takes as many as the way forward. torch's own rule forgets the groups.
        gradient, image, weight, wanted = args[0], args[1], args[2], args[-1]
        placed = image if args[7] else gradient  # args[7]: transposed
        return float(2 * placed.numel() / placed.shape[1] * weight.numel() * sum(wanted[:2]))
    if traits.name.startswith("_scaled_dot_product"):
        return attention_flops(traits, args, kwargs)
    if traits.flop_rule is None:
        return float(max((one.numel() for one in touched), default=0)) if traits.its_class != "copy" else 0.0
    return float(traits.flop_rule(*args, **kwargs, out_val=given))


def attention_flops(traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> float:
    """Two products of length by length on the way forward, five on the way back; half of it where it is causal.

    torch's own rule takes neither heads that share keys nor causality.
    """
    backward = traits.name.endswith("backward")
    query, key, value = args[1:4] if backward else args[:3]
    pairs = query.shape[0] * query.shape[1] * query.shape[-2] * key.shape[-2]
    widths = (3 * key.shape[-1] + 2 * value.shape[-1]) if backward else (key.shape[-1] + value.shape[-1])
    at = traits.causal_at
    causal = at is not None and (args[at] if at < len(args) else kwargs.get("is_causal", False))
    return float(pairs * widths) if causal else float(2 * pairs * widths)


def moved_bytes(traits: Traits, inputs: list[Any], fresh: list[Any], written: list[Any]) -> int:
    given_bytes = sum(map(bytes_of, fresh))
    if traits.name in GATHERING:
        return 2 * given_bytes + sum(bytes_of(one) for one in inputs if not one.is_floating_point())
    if traits.name in SCATTERING:
        return sum(map(bytes_of, inputs[1:])) + bytes_of(inputs[-1])
    read = inputs
    if traits.name in OVERWRITING:
        read = [one for one in inputs if all(one is not other for other in written)]
    return sum(map(bytes_of, read)) + given_bytes + sum(map(bytes_of, written))


def launches_of(traits: Traits, args: tuple[Any, ...], made: list[Any]) -> int:
    if traits.name == "convolution_backward":
        return int(sum(args[-1]))  # one for each gradient that is asked for
    if traits.its_class == "update":
        # Many tensors share a launch: up to about 60 of them, or 320 pieces of 65,536 elements.
        pieces: int = sum(-(-one.numel() // 65_536) for one in made)
        return max(-(-len(made) // 60), -(-pieces // 320))
    return 1
