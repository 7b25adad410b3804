"""What a node does besides giving a value: it draws at random, writes into what it is given, or gives a part of it."""

import operator
from collections.abc import Iterator
from functools import cache
from typing import Any

from wattsmith.split.marks import OpaqueCall, OpaqueStep, crossing_here

# These write their running statistics when they train, and their schemas do not say so: places of what is written,
# and of what says whether.
_SILENT_WRITERS = {
    "aten::batch_norm": ((3, 4), 5),
    "aten::native_batch_norm": ((3, 4), 5),
    "aten::_batch_norm_impl_index": ((3, 4), 5),
    "aten::cudnn_batch_norm": ((3, 4), 5),
    "aten::miopen_batch_norm": ((3, 4), 5),
    "aten::instance_norm": ((3, 4), 5),
}
_DRAW_WHEN_TRAINING = {  # place of what says whether they train
    "aten::dropout": 2,
    "aten::feature_dropout": 2,
    "aten::alpha_dropout": 2,
    "aten::feature_alpha_dropout": 2,
}
# Names in torch, torch.nn.functional and of methods; with or without an underscore at the end.
_DRAWS = {
    *("rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "bernoulli", "multinomial"),
    *("normal", "poisson", "uniform", "random", "exponential", "cauchy", "geometric", "log_normal", "gumbel_softmax"),
}
_DROPS = {"dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout", "rrelu"}
_GIVES_PARTS = {
    *("view", "reshape", "permute", "transpose", "t", "flatten", "squeeze", "unsqueeze", "expand", "expand_as"),
    *("narrow", "select", "chunk", "split", "unbind", "contiguous", "to", "float", "double", "half", "bfloat16"),
    *("int", "long", "bool", "detach", "type", "cpu", "cuda", "view_as", "swapaxes", "swapdims", "movedim", "moveaxis"),
    *("diagonal", "unfold", "type_as", "real", "imag", "as_strided", "tensor_split", "hsplit", "vsplit", "dsplit"),
    *("adjoint", "unflatten", "ravel", "getitem", "getattr", "broadcast_to", "atleast_1d", "atleast_2d", "numpy"),
}
_PART_MODULES = {"Flatten", "Unflatten", "Identity"}
_WRITING_OPERATORS = {"iadd", "isub", "imul", "itruediv", "ifloordiv", "imod", "ipow", "iand", "ior", "ixor", "setitem"}


def is_opaque(node: Any) -> bool:
    return isinstance(node.target, OpaqueCall | OpaqueStep)


def draws(node: Any, module: Any = None) -> bool:
    """Whether NODE takes from a generator of random numbers. MODULE: of a call_module node."""
    if node.op == "call_module":
        kind = type(module).__name__
        return bool(getattr(module, "training", False)) and ("Dropout" in kind or kind == "RReLU")
    if node.op == "call_method":
        return node.target.rstrip("_") in _DRAWS
    if node.op != "call_function" or is_opaque(node):
        return False
    if hasattr(node.target, "_schema"):
        return _draws_by_schema(node)
    if _is_of_higher_order(node.target):
        return any(draws(one) for graph in _branches(node) for one in graph.nodes)
    name = getattr(node.target, "__name__", "").rstrip("_")
    if name in _DROPS:
        return bool(node.kwargs.get("training", node.args[2] if len(node.args) > 2 else name != "rrelu"))
    return name in _DRAWS and _is_of_torch(node.target)


def _draws_by_schema(node: Any) -> bool:
    import torch

    if torch.Tag.nondeterministic_seeded not in node.target.tags:
        return False
    at = _DRAW_WHEN_TRAINING.get(node.target._schema.name)
    return at is None or (len(node.args) > at and bool(node.args[at]))


def _is_of_torch(function: Any) -> bool:
    # Functions of C++ such as torch.rand do not say whose they are.
    return (getattr(function, "__module__", None) or "torch").startswith("torch")


def _is_of_higher_order(target: Any) -> bool:
    return type(target).__module__.startswith(("torch._higher_order_ops", "torch._ops")) and not hasattr(
        target, "_schema"
    )


def _branches(node: Any) -> Iterator[Any]:
    for one in node.all_input_nodes:
        if hasattr(one.meta.get("val"), "graph"):
            yield one.meta["val"].graph


def written(node: Any, module: Any = None) -> list[Any]:
    """The nodes whose tensors NODE writes into."""
    if node.op == "call_module":
        return _first(node) if getattr(module, "inplace", False) else []
    if node.op == "call_method":
        return _first(node) if node.target.endswith("_") and not node.target.endswith("__") else []
    if node.op != "call_function" or is_opaque(node):
        return []
    if hasattr(node.target, "_schema"):
        return _written_by_schema(node)
    name = getattr(node.target, "__name__", "")
    out = node.kwargs.get("out")
    if hasattr(out, "op"):
        return [out]
    in_place = node.kwargs.get("inplace") is True or (name.endswith("_") and not name.endswith("__"))
    return _first(node) if in_place or (node.target in _in_place_operators()) else []


@cache
def _in_place_operators() -> frozenset[Any]:
    return frozenset(getattr(operator, name) for name in _WRITING_OPERATORS)


def _first(node: Any) -> list[Any]:
    return [node.args[0]] if node.args and hasattr(node.args[0], "op") else []


def _written_by_schema(node: Any) -> list[Any]:
    schema = node.target._schema
    found = [one for name, one in _arguments(node) if schema.is_mutable and _alias(schema, name, writes=True)]
    if schema.name in _SILENT_WRITERS:
        places, trains = _SILENT_WRITERS[schema.name]
        if len(node.args) > trains and bool(node.args[trains]):
            found += [node.args[at] for at in places]
    return [one for many in found for one in _nodes_in(many)]


def parts_of(node: Any, module: Any = None) -> list[Any]:
    """The nodes whose memory NODE's value may share."""
    if node.op == "call_module":
        named = type(module).__name__ in _PART_MODULES or getattr(module, "inplace", False)
        return _first(node) if named else []
    if node.op == "call_method":
        return _first(node) if node.target.rstrip("_") in _GIVES_PARTS or node.target.endswith("_") else []
    if node.op != "call_function" or is_opaque(node):
        return []
    if node.target is operator.getitem or node.target is crossing_here:
        return _first(node)
    if hasattr(node.target, "_schema"):
        schema = node.target._schema
        if not any(one.alias_info for one in schema.returns):
            return []
        return [one for name, many in _arguments(node) if _alias(schema, name) for one in _nodes_in(many)]
    name = getattr(node.target, "__name__", "")
    return _first(node) if name.rstrip("_") in _GIVES_PARTS or written(node) else []


def _arguments(node: Any) -> Iterator[tuple[str, Any]]:
    names = [one.name for one in node.target._schema.arguments]
    yield from zip(names, node.args, strict=False)
    yield from node.kwargs.items()


def _alias(schema: Any, name: str, writes: bool = False) -> bool:
    info = next((one.alias_info for one in schema.arguments if one.name == name), None)
    return info is not None and (not writes or bool(info.is_write))


def _nodes_in(value: Any) -> list[Any]:
    if isinstance(value, list | tuple):
        return [node for one in value for node in _nodes_in(one)]
    return [value] if hasattr(value, "op") and hasattr(value, "users") else []
