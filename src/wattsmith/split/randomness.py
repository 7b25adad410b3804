"""Random numbers that a trace would freeze: found by their generators, by tracing twice, and by the line that drew."""

import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

from wattsmith.split.problems import FrozenRandomness, is_of_the_machine, line_of_frame
from wattsmith.split.state import Held, put_back, seed_everything
from wattsmith.split.traced import CONSTANT, OBJECT, STATE, Traced

ADVICE = (
    "every step would get the same numbers. Draw it with PyTorch inside the step (torch.rand, torch.randint on the "
    "batch), or draw in a function marked @wattsmith.opaque, which runs anew for every batch"
)


def traced_twice(trace: Callable[[], Traced], held: Held) -> Traced:
    """What TRACE gives. Raises FrozenRandomness if it drew at random, or gives something else the second time."""
    first = _traced(trace, held, 20_011)
    second = _traced(trace, held, 10_007)
    line = first_difference(first, second)
    if line is not None:
        raise FrozenRandomness(f"the step is not the same each time that it is traced, {line}: {ADVICE}.")
    return first


def _traced(trace: Callable[[], Traced], held: Held, seed: int) -> Traced:
    with put_back(held):
        seed_everything(seed)
        before = generator_states() | _own(held)
        traced = trace()
        after = generator_states() | _own(held)
        drew = [name for name, state in after.items() if before.get(name, state) != state]
    if drew:
        line = _line_that_draws(trace, held)
        at = f" at {line}" if line else ""
        raise FrozenRandomness(f"the step draws from {drew[0]} while it is traced{at}: {ADVICE}.")
    _refuse_generators_of_its_own(traced, held)
    return traced


def _refuse_generators_of_its_own(traced: Traced, held: Held) -> None:
    for node in traced.graph.nodes:
        if node.op == "get_attr" and traced.attributes[node.target].kind == OBJECT and not held.generators:
            user = next(iter(node.users), node)
            at = f" at {line}" if (line := user.meta.get("line")) else ""
            raise FrozenRandomness(
                f"the step makes a torch.Generator of its own{at}. Draw without one: on the data side every number "
                "comes from the batch's seed."
            )


def _own(held: Held) -> dict[str, Any]:
    return {f"its torch.Generator {at}": one.get_state().numpy().tobytes() for at, one in enumerate(held.generators)}


def generator_states() -> dict[str, Any]:
    """The states of the global generators, by name."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    # A trace in progress would take the state for a tensor of the step.
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        state = torch.get_rng_state().numpy().tobytes()
    states: dict[str, Any] = {"Python's random": random.getstate(), "torch's generator": state}
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        kind, keys, *rest = numpy.get_state()
        states["numpy.random"] = (kind, keys.tobytes(), *rest)
    return states


class _Blame:
    """Follows the user's lines and remembers the first after which a generator was not as before."""

    def __init__(self) -> None:
        self.line: str | None = None
        self._states = generator_states()
        self._last: str | None = None

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if is_of_the_machine(frame.f_code.co_filename):
            return None
        if self.line is None:
            states = generator_states()
            if states != self._states:
                self.line = self._last
            self._states = states
        # After a return it is the line of the caller that goes on.
        self._last = line_of_frame(frame.f_back if event == "return" else frame) or self._last
        return self.trace


def _line_that_draws(trace: Callable[[], Traced], held: Held) -> str | None:
    before = sys.gettrace()
    with put_back(held):
        blame = _Blame()
        sys.settrace(blame.trace)
        try:
            trace()
        finally:
            sys.settrace(before)
        blame.trace(sys._getframe(), "return", None)
        if blame.line is None and generator_states() != blame._states:
            blame.line = blame._last
    return blame.line


def first_difference(one: Traced, other: Traced) -> str | None:
    """Where two traces of a step differ; None: they are the same."""
    import torch

    for left, right in zip(one.graph.nodes, other.graph.nodes, strict=False):
        same = left.op == right.op and _told(left) == _told(right)
        if same and left.op == "get_attr":
            mine, yours = one.attributes[left.target], other.attributes[right.target]
            if mine.kind in (CONSTANT, STATE) and isinstance(mine.value, torch.Tensor) and mine.kind == CONSTANT:
                same = mine.value.shape == yours.value.shape and bool(
                    torch.equal(torch.nan_to_num(mine.value.detach()), torch.nan_to_num(yours.value.detach()))
                )
        if not same:
            user = left if left.op != "get_attr" else next(iter(left.users), left)
            return f"at {user.meta['line']}" if user.meta.get("line") else f"at the operator {left.target}"
    if len(one.graph.nodes) != len(other.graph.nodes):
        return f"which has {len(one.graph.nodes)} operators once and {len(other.graph.nodes)} then"
    return None


def _told(node: Any) -> tuple[str, str, str]:
    target = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))
    return str(target), repr(node.args), repr({k: v for k, v in node.kwargs.items() if k != "generator"})
