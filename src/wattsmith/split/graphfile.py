"""A graph in plain JSON values, with its tensors and Python functions beside it, and back."""

import importlib
import operator
import pickle
import pickletools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from wattsmith.split.marks import OpaqueCall, OpaqueStep, pickled_by_name
from wattsmith.split.problems import HalfNotRead, NotSplittable, is_of_the_machine
from wattsmith.split.traced import CONSTANT, GRAPH, STATE, Attribute

_MAY_CALL = ("torch.", "_operator.", "operator.", "math.", "builtins.", "wattsmith.split.")
# What a graph of numbers has no use for, and a file from a stranger might.
_MAY_NOT_CALL = (
    *("torch.load", "torch.save", "torch.hub", "torch.jit", "torch.package", "torch.utils", "torch.serialization"),
    *("torch.compile", "torch.export", "torch.distributed", "torch.multiprocessing", "torch.classes", "torch.testing"),
    *("torch.ops.load", "torch._dynamo", "torch._inductor", "torch.storage", "torch.from_file", "torch.cuda"),
)
_BUILTINS = {"len", "getattr", "slice", "int", "float", "bool", "max", "min", "abs", "round", "sum", "pow"}
_MAY_GET = {"shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag", "is_cuda", "layout"}
_WITH_OPERATORS = ("torchvision", "torchaudio", "torchcodec")  # whose import registers their operators
_ALWAYS_THERE = {"torch", "numpy", "wattsmith", "cloudpickle", "__main__", "typing_extensions"}


class Packed:
    """A graph and what it needs, as it is filled."""

    def __init__(self) -> None:
        self.tensors: dict[str, Any] = {}
        self.pickled: list[bytes] = []
        self.needs: set[str] = set()


def packed_graph(graph: Any, attributes: dict[str, Attribute], packed: Packed) -> list[Any]:
    """GRAPH as a list of nodes in JSON values; its tensors, functions and what those need are put into PACKED."""
    nodes = []
    for node in graph.nodes:
        if node.op == "get_attr":
            what = _packed_attribute(attributes[node.target], packed)
        elif node.op == "call_function":
            what = _packed_target(node.target, packed)
        else:
            what = str(node.target)
        nodes.append([node.op, node.name, what, _plain(node.args), _plain(dict(node.kwargs))])
    return nodes


def _packed_attribute(attribute: Attribute, packed: Packed) -> Any:
    import torch

    if attribute.kind == GRAPH:
        inner = {}
        for node in attribute.value.graph.nodes:
            if node.op == "get_attr":
                value = operator.attrgetter(node.target)(attribute.value)
                kind = GRAPH if isinstance(value, torch.nn.Module) else CONSTANT
                inner[node.target] = Attribute(kind=kind, value=value, name=node.target)
        return {"graph": packed_graph(attribute.value.graph, inner, packed)}
    if attribute.kind in (STATE, CONSTANT):
        name = f"t{len(packed.tensors)}"
        packed.tensors[name] = attribute.value.detach().cpu().clone()
        return {"tensor": name}
    return {"pickled": _pickled(attribute.value, packed)}


def _packed_target(target: Any, packed: Packed) -> Any:
    from torch.fx.node import _get_qualified_name

    if isinstance(target, OpaqueCall | OpaqueStep):
        return {"pickled": _pickled(target, packed)}
    if hasattr(target, "_schema"):
        _need_package(str(target._schema.name).partition("::")[0], packed)
        return {"operator": f"{target._schema.name}.{target._schema.overload_name or 'default'}"}
    if type(target).__module__.startswith("torch._higher_order_ops") or type(target).__name__ == "HigherOrderOperator":
        return {"higher": target.name() if callable(getattr(target, "name", None)) else str(target)}
    try:
        name = _get_qualified_name(target)
        name = name if "." in name else f"builtins.{name}"
        if name.startswith(_MAY_CALL) and found(name) is target:
            if name.startswith("torch.ops."):
                _need_package(name.split(".")[2], packed)
            return {"function": name}
    except (AttributeError, ImportError, RuntimeError, HalfNotRead):
        pass
    told = getattr(target, "__qualname__", repr(target))
    raise NotSplittable(f"{told} is a function of your own that is not traced; mark it with @wattsmith.opaque")


def _need_package(package: str, packed: Packed) -> None:
    """PACKAGE: whose operator is called."""
    if package not in ("aten", "prim", "prims", "wattsmith_split"):
        packed.needs.add(package)


def found(name: str) -> Callable[..., Any]:
    """The function that is called NAME, of a module that a data half may call."""
    module, _, last = name.rpartition(".")
    if (
        not name.startswith(_MAY_CALL)
        or name.startswith(_MAY_NOT_CALL)
        or (module == "builtins" and last not in _BUILTINS)
    ):
        raise HalfNotRead(f"the file wants to call {name}, which no data half does")
    parts = name.split(".")
    for at in range(len(parts) - 1, 0, -1):
        try:
            thing: Any = importlib.import_module(".".join(parts[:at]))
        except ImportError:
            continue
        if name.startswith("torch.ops.") and parts[2] in _WITH_OPERATORS:
            importlib.import_module(parts[2])
        try:
            for part in parts[at:]:
                thing = getattr(thing, part)
        except AttributeError as missing:
            raise HalfNotRead(f"the data half calls {name}, which is not here: import what has it first") from missing
        return thing  # type: ignore[no-any-return]
    raise HalfNotRead(f"there is no {name} here; the file was written with another PyTorch")


def _plain(value: Any) -> Any:
    """An argument in JSON values; what JSON has no word for becomes a dict of one key."""
    import torch

    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, float):
        return {"float": value.hex()}
    if isinstance(value, complex):
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if isinstance(value, torch.fx.Node):
        return {"node": value.name}
    if isinstance(value, tuple):
        return {"tuple": [_plain(one) for one in value]}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {"dict": [[_plain(key), _plain(one)] for key, one in value.items()]}
    if isinstance(value, slice):
        return {"slice": [_plain(value.start), _plain(value.stop), _plain(value.step)]}
    if value is Ellipsis:
        return {"ellipsis": True}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    if isinstance(value, torch.dtype | torch.layout | torch.memory_format):
        return {"torch": str(value).removeprefix("torch.")}
    raise NotSplittable(f"an operator on the data side takes {value!r}, which cannot be written into a file")


def unpacked_graph(nodes: list[Any], tensors: dict[str, Any], pickled: list[bytes]) -> Any:
    """A module that runs the graph."""
    import torch

    graph, known, held = torch.fx.Graph(), dict[str, Any](), torch.nn.Module()
    for op, name, what, args, named in nodes:
        target = what
        if op == "get_attr":
            target = f"held_{len(known)}"
            value = _unpacked_attribute(what, tensors, pickled)
            if isinstance(value, torch.Tensor):
                held.register_buffer(target, value)
            elif isinstance(value, torch.nn.Module):
                held.add_module(target, value)
            else:
                setattr(held, target, value)
        elif op == "call_function":
            target = _unpacked_target(what, pickled)
        args, named = _value(args, known), _value(named, known)
        if target is getattr and args[1] not in _MAY_GET:
            raise HalfNotRead(f"the file wants the attribute {args[1]!r}, which no data half does")
        if op == "output":
            graph.output(args[0])
        else:
            known[name] = graph.create_node(op, target, args, named, name=name)
    return torch.fx.GraphModule(held, graph)


def _unpacked_attribute(what: dict[str, Any], tensors: dict[str, Any], pickled: list[bytes]) -> Any:
    if "graph" in what:
        return unpacked_graph(what["graph"], tensors, pickled)
    return tensors[what["tensor"]] if "tensor" in what else pickle.loads(pickled[what["pickled"]])


def _unpacked_target(what: dict[str, Any], pickled: list[bytes]) -> Any:
    import torch

    if "pickled" in what:
        return _unpickled(pickled[what["pickled"]])
    if "function" in what:
        return found(what["function"])
    if "higher" in what:
        return getattr(torch.ops.higher_order, what["higher"])
    package, _, rest = what["operator"].partition("::")
    name, _, overload = rest.rpartition(".")
    if package in _WITH_OPERATORS:
        importlib.import_module(package)
    try:
        return getattr(getattr(getattr(torch.ops, package), name), overload)
    except (AttributeError, RuntimeError) as missing:
        raise HalfNotRead(
            f"the data half calls {what['operator']}, which is not there. Import the package that has it first, or use "
            "the PyTorch that the step was cut with."
        ) from missing


def _value(plain: Any, known: dict[str, Any]) -> Any:
    import torch

    if isinstance(plain, list):
        return [_value(one, known) for one in plain]
    if not isinstance(plain, dict):
        return plain
    kind, inner = next(iter(plain.items()))
    if kind == "node":
        return known[inner]
    if kind == "tuple":
        return tuple(_value(one, known) for one in inner)
    if kind == "dict":
        return {_value(key, known): _value(one, known) for key, one in inner}
    if kind == "float":
        return float.fromhex(inner)
    if kind == "complex":
        return complex(*map(float.fromhex, inner))
    if kind == "slice":
        return slice(*(_value(one, known) for one in inner))
    if kind == "ellipsis":
        return Ellipsis
    return torch.device(inner) if kind == "device" else getattr(torch, inner)


def _pickled(thing: Any, packed: Packed) -> int:
    """The number of THING among what is pickled: by value if cloudpickle is there, else by the name of its module."""
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError:
        cloudpickle = None
    try:
        if cloudpickle is None:
            with pickled_by_name():
                written = pickle.dumps(thing)
        else:
            with _by_value(cloudpickle, thing):
                written = cloudpickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError, ValueError) as refused:
        advice = "" if cloudpickle is not None else "; `pip install cloudpickle` lets functions of any place be carried"
        raise NotSplittable(f"{thing!r} cannot be sent to workers: {refused}{advice}") from refused
    packed.pickled.append(written)
    packed.needs |= set(_packages_in(written))
    return len(packed.pickled) - 1


@contextmanager
def _by_value(cloudpickle: Any, thing: Any) -> Iterator[None]:
    """Functions of the user's own files are carried whole, since workers need not have those files."""
    step = getattr(thing, "step", thing)
    function = getattr(step, "function", step)
    module = sys.modules.get(getattr(function, "__module__", None) or "")
    path = getattr(module, "__file__", None)
    own = module is not None and path is not None and not is_of_the_machine(path) and module.__name__ != "__main__"
    if own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if own:
            cloudpickle.unregister_pickle_by_value(module)


def _packages_in(written: bytes) -> Iterator[str]:
    """Packages outside of Python that the pickle WRITTEN names, and that are here."""
    for _, argument, _ in pickletools.genops(written):
        if isinstance(argument, str):
            package = argument.split(" ")[0].partition(".")[0]
            module = sys.modules.get(package)
            installed = module is not None and "site-packages" in (getattr(module, "__file__", None) or "")
            if installed and package not in _ALWAYS_THERE and package not in sys.stdlib_module_names:
                yield package


def _unpickled(written: bytes) -> Any:
    try:
        return pickle.loads(written)
    except (ImportError, AttributeError) as missing:
        raise HalfNotRead(f"the data half has an opaque step that cannot be loaded here: {missing}") from missing
