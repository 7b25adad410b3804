"""The cut where the user marked it, for training that cannot be traced: `boundary(...)` around all that crosses.

The data half is traced up to the first boundary. The training half is the user's own code: up to the boundary it runs
on tensors without values, which costs next to nothing, and from there on with what was received.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from wattsmith.split.cutting import data_graph
from wattsmith.split.cutting import received as received_in
from wattsmith.split.exporting import Exporter, exported
from wattsmith.split.handing import CONSTANT, TENSOR, Unseen, rebuilt
from wattsmith.split.marks import OpaqueStep, watched_by
from wattsmith.split.problems import NotSplittable, first_line, place_of
from wattsmith.split.roles import FIXED, TAINTED, Roles
from wattsmith.split.running import Seen
from wattsmith.split.traced import Traced


class Reached(BaseException):
    """The step has come to its boundary. No user's `except Exception` stops it."""

    def __init__(self, values: tuple[Any, ...]) -> None:
        super().__init__()
        self.values = values


class ToTheBoundary(Exporter):
    """Follows a step up to its first boundary, and no further."""

    def boundary(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        raise Reached(values)


def traced_to_boundary(watched: Any, exporter: ToTheBoundary, sizes: str) -> Traced:
    """The graph of what comes before the boundary; its outputs are what crosses."""

    def first_part(batch: Any) -> Any:
        try:
            with _module_stack_kept():
                watched.call(batch)
        except Reached as reached:
            return reached.values
        raise NotSplittable("the step does not come to its wattsmith.boundary; mark what every step passes")

    common = (watched.example, watched.structure, watched.leaves, watched.values, watched.held)
    traced = exported(first_part, *common, exporter, watched.batch, sizes)
    traced.tracer = "by hand"
    return traced


@contextmanager
def _module_stack_kept() -> Iterator[None]:
    """Whatever is raised inside, the tracer knows afterwards in which module it is; of itself it counts on no error."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode

    mode = get_proxy_mode()
    stack = {} if mode is None else mode.tracer.module_stack
    depth = len(stack)
    try:
        yield
    finally:
        while len(stack) > depth:
            stack.popitem()


def refuse_state_before_boundary(traced: Traced, roles: Roles) -> None:
    for node in traced.nodes():
        if roles.kinds[node] == TAINTED and node.op != "get_attr":
            at = f", at {line}" if (line := node.meta.get("line")) else ""
            raise NotSplittable(
                f"before its boundary the step depends on {roles.origin[node]}{at}. Mark what does not depend on state."
            )


def shapes_sent(leaves: list[Any]) -> Any:
    """All sizes of LEAVES, one after the other: what the user's code may ask of a batch that it does not see."""
    import torch

    return torch.tensor([size for one in leaves for size in (one.shape if hasattr(one, "shape") else (len(one),))])


def graph_to_boundary(traced: Traced, roles: Roles, seen: dict[Any, Any]) -> tuple[Any, tuple[Any, ...]]:
    """The data half's graph, which sends the sizes of the batch last, and the nodes that cross."""
    output = next(one for one in traced.graph.nodes if one.op == "output")
    crossing = tuple(output.args[0])
    data = frozenset(one for one in traced.nodes() if roles.kinds[one] != FIXED)
    leaves = [one for one in traced.nodes() if one.op == "placeholder"]
    return data_graph(traced, roles, data, crossing, seen, also=(shapes_sent, leaves)), crossing


class Replay:
    """Runs the user's code on tensors without values up to the boundary, and with what was received after it."""

    def __init__(self, watched: Any, traced: Traced, exporter: Exporter, crossing: Sequence[Seen]) -> None:
        """CROSSING: what was seen of all that crosses, but for the sizes of the batch."""
        self._watched, self._traced, self._exporter = watched, traced, exporter
        self._numbers = frozenset(at for at, one in enumerate(crossing) if one.is_number)
        self._orders = [one.order for one in crossing]

    def __call__(self, received: tuple[Any, ...]) -> Any:
        from torch._subclasses.fake_tensor import FakeTensorMode

        *values, sizes = received
        self._values = [self._restored(at, one) for at, one in enumerate(values)]
        self._calls = 0
        with ExitStack() as self._without_values:
            self._mode = FakeTensorMode(allow_non_fake_inputs=True)
            self._without_values.enter_context(self._mode)
            batch = self._batch([int(one) for one in sizes.tolist()])
            with watched_by(self):
                try:
                    given = self._watched.call(batch)
                except Exception as failed:
                    if "Fake" not in str(failed):
                        raise
                    at = f" at {place}" if (place := place_of(failed)) else ""
                    raise NotSplittable(
                        f"something goes around the boundary and is needed after it{at}: {first_line(failed)}. Mark "
                        "all that crosses with one call: images, labels = wattsmith.boundary(images, labels)."
                    ) from failed
        return given

    def _restored(self, at: int, one: Any) -> Any:
        if at in self._numbers:
            return one.item()
        return received_in(one, self._orders[at]) if self._orders[at] else one

    def _batch(self, sizes: list[int]) -> Any:
        import torch

        filled, rest = list(self._watched.values), iter(sizes)
        self._samples = sizes[0] if sizes else self._watched.batch
        for at, leaf in enumerate(self._watched.leaves):
            if leaf.kind == TENSOR:
                shape = [next(rest) for _ in leaf.shape]
                filled[at] = torch.empty(shape, dtype=getattr(torch, leaf.dtype))
            elif leaf.kind != CONSTANT:
                next(rest)
                filled[at] = Unseen(leaf.path, None)
        return rebuilt(self._watched.structure, self._watched.example, filled)

    def opaque(self, step: OpaqueStep, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """Before the boundary, tensors of the usual shapes; after it, what the step really gives."""
        import torch
        from torch.utils._pytree import tree_unflatten

        if not self._values:
            return step.run(*args, **named)
        outputs, plan = self._exporter.calls[self._calls][0], self._exporter.plans[self._calls]
        self._calls += 1
        shapes = [
            [self._samples if kind == "hint" and at == 0 else size for at, ((kind, _), size) in enumerate(dims)]
            for dims in (list(zip(one, shape, strict=True)) for one, shape in zip(plan, outputs.shapes, strict=True))
        ]
        made = [torch.empty(shape, dtype=dtype) for shape, dtype in zip(shapes, outputs.dtypes, strict=True)]
        return tree_unflatten(made, outputs.form)

    def boundary(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        from torch.utils._pytree import tree_unflatten

        if not self._values:
            return values  # a later mark changes nothing
        self._without_values.close()
        self._mode.allow_non_fake_inputs = False  # from here on, a tensor without values is a mistake
        received, self._values = self._values, []
        filled = [received[what] if kind == "node" else what for kind, what in self._traced.outputs]
        return tree_unflatten(filled, self._traced.output_form)  # type: ignore[no-any-return]


def training_by_hand(replay: Replay) -> Callable[..., Any]:
    def run(*received: Any) -> Any:
        return replay(received)

    return run
