"""How the families' networks are put together."""

from collections.abc import Callable
from functools import cache
from typing import Any

from wattsmith.record.program import Piece, Source
from wattsmith.terms.work import Workload


@cache
def _wired_class() -> type:
    from torch import nn

    class Wired(nn.Module):  # type: ignore[misc]
        """Modules, and a function that says how what comes in goes through them."""

        def __init__(self, wiring: Callable[..., Any], parts: dict[str, Any]) -> None:
            super().__init__()
            self.wiring = wiring
            for name, part in parts.items():
                self.add_module(name, part)

        def forward(self, *inputs: Any) -> Any:
            return self.wiring(self, *inputs)

    return Wired


def wired(wiring: Callable[..., Any], **parts: Any) -> Any:
    """A module of PARTS. WIRING is called with the module and its inputs."""
    return _wired_class()(wiring, parts)


def classified(module: Any, source: Source, workload: Workload, inputs: tuple[Any, ...]) -> Piece:
    """A network that sorts samples into `classes`, with random truths to learn."""
    from torch.nn.functional import cross_entropy

    # Made for inference as well, the truths would be counted into its memory.
    truths = source.integers(int(workload.parameters["classes"]), workload.batch) if workload.mode == "train" else None
    return Piece(
        run=module,
        module=module,
        inputs=inputs,
        sample_shape=tuple(inputs[0].shape[1:]),
        loss=lambda output: cross_entropy(output, truths),
        held=() if truths is None else (truths,),
    )
