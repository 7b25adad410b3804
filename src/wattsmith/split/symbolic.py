"""A step traced by torch.fx, which asks nothing of shapes or values: second choice, for what torch.export refuses."""

import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from wattsmith.split.handing import CONSTANT as CONSTANT_LEAF
from wattsmith.split.handing import Leaf, rebuilt
from wattsmith.split.lengths import open_lengths
from wattsmith.split.problems import NotSplittable, calling_place
from wattsmith.split.state import Held, original_of
from wattsmith.split.traced import CONSTANT, OBJECT, STATE, Attribute, Traced


def symbolic(
    call: Callable[[Any], Any], like: Any, structure: Any, leaves: Sequence[Leaf], values: Sequence[Any], held: Held
) -> Traced:
    """The graph of CALL with a batch LIKE this. Raises whatever torch.fx does."""
    import torch
    from torch.utils._pytree import tree_flatten

    inputs = [at for at, leaf in enumerate(leaves) if leaf.kind != CONSTANT_LEAF]
    names = {f"m{at}": name for at, name in enumerate(held.modules)}
    outputs: list[tuple[str, Any]] = []
    forms: list[Any] = []

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            filled = list(values)
            for at, one in zip(inputs, given, strict=True):
                filled[at] = one
            flat, form = tree_flatten(call(rebuilt(structure, like, filled)))
            kept = [one for one in flat if isinstance(one, torch.fx.Proxy | torch.Tensor)]
            places = iter(range(len(kept)))
            forms[:] = [form]
            outputs[:] = [
                ("node", next(places)) if isinstance(one, torch.fx.Proxy | torch.Tensor) else ("constant", one)
                for one in flat
            ]
            return tuple(kept)

    class Tracer(torch.fx.Tracer):  # type: ignore[misc]
        proxy_buffer_attributes = True  # otherwise what is read from a buffer is frozen

        def create_args_for_root(self, root_fn: Any, is_module: bool, concrete_args: Any = None) -> Any:
            del is_module, concrete_args
            return root_fn, [
                self.root,
                *(self.create_proxy("placeholder", f"leaf_{at}", (), {}) for at in range(len(inputs))),
            ]

        def create_node(self, *args: Any, **named: Any) -> Any:
            node = super().create_node(*args, **named)
            node.meta.update(line=calling_place(), context=_context())
            return node

    whole = Whole()
    for name, module in zip(names, held.modules.values(), strict=True):
        whole.add_module(name, module)
    for at, one in enumerate(held.loose.values()):
        if isinstance(one, torch.nn.Parameter):
            whole.register_parameter(f"loose{at}", one)  # torch.fx knows parameters of its root alone
    tracer = Tracer()
    with open_lengths(held.spaces), _nothing_frozen_of(held):
        graph = tracer.trace(whole)
    attributes = {
        str(node.target): _attribute(tracer.root, str(node.target), names, held)
        for node in graph.nodes
        if node.op in ("get_attr", "call_module")
    }
    for node in graph.nodes:
        if node.op == "placeholder":
            node.meta["kind"] = leaves[inputs[int(node.target.removeprefix("leaf_"))]].kind
    return Traced(
        tracer="torch.fx",
        graph=graph,
        attributes=attributes,
        output_form=forms[0],
        outputs=list(outputs),
        notes=["traced by torch.fx, since torch.export could not"],
    )


@contextmanager
def _nothing_frozen_of(held: Held) -> Iterator[None]:
    """Inside, what is computed of tensors that HELD has beside modules, and not followed by torch.fx, is refused."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_leaves

    loose = {id(one): name for name, one in held.loose.items()}

    class Refusing(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
            del types
            given = tree_leaves((args, named))
            name = next((loose[id(one)] for one in given if id(one) in loose), None)
            reads = getattr(function, "__name__", "") != "__get__"
            if name is not None and reads and not any(isinstance(one, torch.fx.Proxy) for one in given):
                at = f" at {place}" if (place := calling_place()) else ""
                raise NotSplittable(f"torch.fx would freeze what is computed of {name}{at}")
            return function(*args, **(named or {}))

    with Refusing():
        yield


def _context() -> tuple[bool, tuple[Any, ...]]:
    """Whether gradients are recorded here, and the autocasts."""
    import torch

    casts = tuple(
        (device, torch.get_autocast_dtype(device), True, torch.is_autocast_cache_enabled())
        for device in ("cpu", "cuda")
        if torch.is_autocast_enabled(device)
    )
    return torch.is_grad_enabled(), casts


def _attribute(root: Any, target: str, names: dict[str, str], held: Held) -> Attribute:
    import torch

    value = operator.attrgetter(target)(root)
    first, _, path = target.partition(".")
    called = f"{names[first]}.{path}".lstrip(".") if first in names else target
    owner = operator.attrgetter(target.rpartition(".")[0])(root) if "." in target else root
    if not isinstance(value, torch.Tensor):
        return Attribute(kind=OBJECT, value=value, name=called, owner=owner)
    last = target.rpartition(".")[2]
    is_state = first in names and (last in owner._parameters or last in owner._buffers)
    if is_state:
        return Attribute(kind=STATE, value=value, name=called, owner=owner)
    found = original_of(value, held)
    return Attribute(kind=CONSTANT, value=value, name=called if found is None else found[0])
