"""The two operators that stand in a traced graph for what a user marked."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any


class SplitOperators:
    """`boundary` gives its tensor; `opaque` gives tensors of the shapes that whoever follows the trace says."""

    def __init__(self) -> None:
        import torch

        # The library lives as long as this object: without it the operators would be gone.
        self._library = torch.library.Library("wattsmith_split", "DEF")
        self._library.define("boundary(Tensor value) -> Tensor")
        self._library.define("opaque(Tensor[] values, Tensor[] hints, SymInt[] numbers, int call) -> Tensor[]")
        self._library.impl("boundary", lambda value: value.clone(), "CompositeExplicitAutograd")
        self._library.impl("opaque", self._no_values, "CompositeExplicitAutograd")
        torch.library.register_fake("wattsmith_split::boundary", torch.empty_like, lib=self._library)
        torch.library.register_fake("wattsmith_split::opaque", self._shapes, lib=self._library)
        self._shapes_of_draws = _shapes_of_draws()
        self.boundary = torch.ops.wattsmith_split.boundary.default
        self.opaque = torch.ops.wattsmith_split.opaque.default
        self._follower: Any = None

    @contextmanager
    def followed_by(self, follower: Any) -> Iterator[None]:
        self._follower = follower
        try:
            yield
        finally:
            self._follower = None

    def _shapes(self, values: Sequence[Any], hints: Sequence[Any], numbers: Sequence[Any], call: int) -> list[Any]:
        import torch

        del values, numbers
        return [torch.empty(sizes, dtype=dtype) for sizes, dtype in self._follower.shapes_of(call, hints)]

    def _no_values(self, *_: Any) -> list[Any]:
        raise RuntimeError("an opaque step is followed in a trace alone; its graph calls the function itself")


def _shapes_of_draws() -> Any:
    """Tells the shapes of operators behind torch.distributions (Beta, Binomial) where PyTorch does not."""
    import torch

    library = torch.library.Library("aten", "IMPL")
    for name in ("_sample_dirichlet", "binomial"):
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "Meta"):
            library.impl(name, lambda first, *_, **__: torch.empty_like(first), "Meta")
    return library


@cache
def split_operators() -> SplitOperators:
    return SplitOperators()
