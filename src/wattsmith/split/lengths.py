"""`len(x)` of a tensor that is traced."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wattsmith.split.problems import is_of_the_machine


@contextmanager
def open_lengths(spaces: Sequence[dict[str, Any]]) -> Iterator[None]:
    """Inside, `len(x)` of a traced tensor in the user's code stays open. SPACES: globals of the user's functions.

    Python itself lets `len` give whole numbers alone, which would fix the size of the batch to that of the example.
    """
    import torch

    def length(value: Any) -> Any:
        if isinstance(value, torch.fx.Proxy):
            return value.tracer.create_proxy("call_function", len, (value,), {})
        return value.shape[0] if isinstance(value, torch.Tensor) and value.dim() > 0 else len(value)

    # Only in the user's own modules: PyTorch's compiler must find Python's own `len`.
    every = [*spaces, *(vars(one) for one in list(sys.modules.values()) if _is_the_users(one))]
    patched = [one for one in every if "len" not in one]
    for space in patched:
        space["len"] = length
    try:
        yield
    finally:
        for space in patched:
            space.pop("len", None)  # a module may be known under two names


def _is_the_users(module: Any) -> bool:
    path = getattr(module, "__file__", None)
    return isinstance(path, str) and not is_of_the_machine(path)
