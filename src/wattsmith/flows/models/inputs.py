"""Example inputs of a model, as a user writes them: sizes without the batch, such as 3x224x224 or 128:int64."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattsmith.flows.models.problems import InputsDoNotFit, told_shape

_WRITTEN = re.compile(r"(?:(?P<name>[A-Za-z_]\w*)=)?(?P<sizes>\d+(?:[x×*]\d+)*)?(?::(?P<dtype>\w+))?")
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "float": "float32", "int": "int64", "long": "int64"}
LARGEST_BYTES = 2**60  # PyTorch counts bytes in 64 bits; a step needs some room above its input
DTYPES = (
    *("float32", "float64", "float16", "bfloat16", "complex64"),
    *("int64", "int32", "int16", "int8", "uint8", "bool"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputShape:
    """One input of a model, for one sample."""

    sizes: tuple[int, ...]
    dtype: str | None = None  # None: as the model expects, or float32
    name: str | None = None  # of the argument; None: by position


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What a model is called with."""

    args: tuple[Any, ...] = ()
    named: Mapping[str, Any] = field(default_factory=dict)

    def tensors(self) -> tuple[Any, ...]:
        return tuple(tensors_in((self.args, self.named)))

    def with_more(self, more: Mapping[str, Any]) -> "Inputs":
        return Inputs(args=self.args, named={**self.named, **more})

    def told(self) -> str:
        """The shapes, for a message."""
        by_name = [f"{name}={told_shape(one)}" for name, one in self.named.items() if hasattr(one, "dtype")]
        return ", ".join([*(told_shape(one) for one in tensors_in(self.args)), *by_name]) or "no inputs"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user says of a model's inputs."""

    shapes: tuple[InputShape, ...] = ()
    examples: Any = None  # tensors as the model takes them; None: none were given
    batch: int | None = None
    device: str = "meta"

    @property
    def given(self) -> bool:
        return bool(self.shapes) or self.examples is not None


def wanted_inputs(inputs: Any, batch: int | None, device: str) -> Wanted:
    """INPUTS: sizes as texts, or tensors; None: nothing is said."""
    if batch is not None and batch < 1:
        raise InputsDoNotFit(f"a batch has at least 1 sample, got {batch}")
    if inputs is None:
        return Wanted(batch=batch, device=device)
    texts = [inputs] if isinstance(inputs, str) else inputs
    if isinstance(texts, list | tuple) and all(isinstance(one, str) for one in texts):
        return Wanted(shapes=tuple(map(parse_input, texts)), batch=batch, device=device)
    return Wanted(examples=inputs, batch=batch, device=device)


def parse_input(text: str) -> InputShape:
    """TEXT as written behind --input: [NAME=]SIZES[:TYPE]."""
    found = _WRITTEN.fullmatch(text.strip())
    advice = "write the sizes of one sample, as in 3x224x224, 128:int64 or mask=128:bool; the batch comes in front"
    if found is None or (found["sizes"] is None and found["dtype"] is None):
        raise InputsDoNotFit(f"--input {text!r} is not understood: {advice}")
    sizes = tuple(int(size) for size in re.split(r"[x×*]", found["sizes"] or "") if size)
    if 0 in sizes:
        raise InputsDoNotFit(f"--input {text!r} has a size of 0: {advice}")
    dtype = found["dtype"] and _SHORT.get(found["dtype"], found["dtype"])
    if dtype is not None and dtype not in DTYPES:
        raise InputsDoNotFit(f"--input {text!r}: there is no type {dtype!r}; there are {', '.join(DTYPES)}")
    return InputShape(sizes=sizes, dtype=dtype, name=found["name"])


def made(shape: InputShape, batch: int, device: str, dtype: str = "float32") -> Any:
    """A batch of such samples. DTYPE: where the shape does not say."""
    return tensor_of((batch, *shape.sizes), shape.dtype or dtype, device)


def tensor_of(sizes: Sequence[int], dtype: str, device: str) -> Any:
    """A tensor without values on "meta"; elsewhere normal ones, and zeros of whole numbers, which index any table."""
    import torch

    kind = getattr(torch, dtype)
    told, smaller = f"an input of {'x'.join(map(str, sizes))} {dtype}", "give a smaller batch or --input"
    if math.prod(sizes) * kind.itemsize > LARGEST_BYTES:
        raise InputsDoNotFit(f"{told} is larger than any memory; {smaller}")
    try:
        if device != "meta" and kind.is_floating_point:
            return torch.randn(*sizes, device=device).to(kind)
        return torch.zeros(*sizes, dtype=kind, device=device)
    except RuntimeError as too_large:
        if "allocate memory" not in str(too_large):
            raise
        raise InputsDoNotFit(f"{told} does not fit into this machine's memory; {smaller}") from too_large


def inputs_of_shapes(shapes: Sequence[InputShape], batch: int, device: str) -> Inputs:
    return Inputs(
        args=tuple(made(one, batch, device) for one in shapes if one.name is None),
        named={one.name: made(one, batch, device) for one in shapes if one.name is not None},
    )


def inputs_of_examples(examples: Any, batch: int | None, device: str) -> Inputs:
    """EXAMPLES, a tensor, several, or a mapping of them, on DEVICE and BATCH long; None: as long as they are."""
    from torch.utils._pytree import tree_map

    if isinstance(examples, Inputs):
        args, named = examples.args, dict(examples.named)
    elif isinstance(examples, Mapping):
        args, named = (), dict(examples)
    else:
        args, named = tuple(examples) if isinstance(examples, tuple | list) else (examples,), {}
    args, named = tree_map(lambda one: placed(one, device), (args, named))
    if batch is not None:
        args, named = rebatched((args, named), batch)
    return Inputs(args=args, named=named)


def placed(one: Any, device: str) -> Any:
    import torch

    if not isinstance(one, torch.Tensor) or one.device.type == device:
        return one
    if device == "meta":
        return torch.empty_like(one, device="meta")
    return tensor_of(one.shape, str(one.dtype).removeprefix("torch."), device)


def rebatched(examples: Any, batch: int) -> Any:
    """EXAMPLES with BATCH samples instead of as many as there are."""
    from torch.utils._pytree import tree_map

    old = batch_of(examples)

    def resized(one: Any) -> Any:
        if not hasattr(one, "dtype") or one.dim() == 0 or one.shape[0] != old:
            return one
        return tensor_of((batch, *one.shape[1:]), str(one.dtype).removeprefix("torch."), one.device.type)

    return tree_map(resized, examples)


def batch_of(examples: Any) -> int:
    """How many samples EXAMPLES hold: the first size of their first tensor that has one."""
    return next((int(one.shape[0]) for one in tensors_in((examples,)) if one.dim() > 0), 1)


def tensors_in(values: Any) -> Iterator[Any]:
    """Every tensor in VALUES, however deep, in order."""
    import torch

    if isinstance(values, torch.Tensor):
        yield values
    elif isinstance(values, Mapping):
        for one in values.values():
            yield from tensors_in(one)
    elif isinstance(values, list | tuple):
        for one in values:
            yield from tensors_in(one)
