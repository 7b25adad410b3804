"""Where an ONNX graph is cut: which nodes hold weights, what depends on them, and the cheapest of the cuts before."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from wattsmith.split.onnx_reading import Value, inputs_of, reads, subgraphs
from wattsmith.split.placing import Step, cheapest_side, needed
from wattsmith.split.pricing import Prices
from wattsmith.split.problems import NotSplittable
from wattsmith.terms.errors import BadInput

# These hold weights whatever they take; all but their first input.
HOLDERS = {
    *("Conv", "ConvTranspose", "ConvInteger", "QLinearConv", "DeformConv", "PRelu", "GRU", "LSTM", "RNN"),
    *("BatchNormalization", "InstanceNormalization", "LayerNormalization", "GroupNormalization", "RMSNormalization"),
}
PRODUCTS = {"Gemm", "MatMul", "MatMulInteger", "QLinearMatMul", "Einsum"}  # if one side is a constant
TABLES = {"Gather", "GatherND", "GatherElements"}  # of a constant with fractions and two dimensions or more
_MODELS = ("Linear", "SVM", "TreeEnsemble")  # what of ai.onnx.ml has its weights in attributes
_NUMBERS = ("int32", "int64", "bool")  # types of sizes, axes and places, which nobody trains
_RANDOM = {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli"}
_KNOWN = ("", "ai.onnx", "ai.onnx.ml")
_VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Shape", "Size"}
_HEAVY = {"Resize": 10.0, "Upsample": 10.0, "GridSample": 20.0, "DFT": 20.0, "STFT": 20.0, "TopK": 20.0, "Unique": 20.0}
_HEAVY |= dict.fromkeys((*PRODUCTS, *HOLDERS), 50.0)
_HEAVY |= dict.fromkeys(("Exp", "Log"), 4.0) | dict.fromkeys(("Pow", "Sin", "Cos"), 8.0)
# The same bits on every machine: movement of data, comparisons, and arithmetic that IEEE 754 rounds in one way.
ALIKE = {
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sign", "Clip", "Min", "Max", "Floor", "Ceil", "Round", "Relu", "Sqrt"),
    *("Cast", "CastLike", "Where", "Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "IsNaN", "IsInf"),
    *(
        "Identity",
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Transpose",
        "Expand",
        "Tile",
        "Concat",
        "Split",
        "Pad",
    ),
    *("Slice", "Gather", "GatherND", "GatherElements", "ScatterND", "ScatterElements", "Compress", "DepthToSpace"),
    *("SpaceToDepth", "ReverseSequence", "OneHot", "EyeLike", "ConstantOfShape", "Trilu", "MaxPool", "ReduceMax"),
    *("ReduceMin", "ArgMax", "ArgMin", "TopK", "Shape", "Size", "NonZero", "Dropout", "CenterCropPad"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """What each of the nodes is that the outputs need."""

    live: tuple[Any, ...]  # depend on an input, or draw at random
    fixed: tuple[Any, ...]  # depend on constants alone, and are made on both sides
    kept: dict[str, str]  # what stays with training, by a node's key or an input's name, and what it depends on


def key_of(node: Any) -> str:
    """What NODE is known by: its first output, which no other node has."""
    return str(next(name for name in node.output if name))


def roles_of(model: Any, values: Mapping[str, Value], state: Collection[str], constants: Collection[str]) -> Roles:
    """STATE: names of weights besides those that the rule finds; CONSTANTS: of those that it finds and are none."""
    graph = model.graph
    state = {*state, *(one.key for part in model.training_info for one in part.update_binding)}
    nodes = needed(graph.node, [one.name for one in graph.output], (), takes=reads, gives=attrgetter("output"))
    roots = {name: frozenset({name}) for name in held_by(graph)}
    fixed = [node for node in nodes if _is_fixed(node, roots)]
    live = [node for node in nodes if key_of(node) not in roots]
    known = frozenset().union(*roots.values())
    _check_names("state", state, known.union(one.name for one in inputs_of(model)))
    _check_names("constants", constants, known)
    weights = state.union(*(_weights(node, roots, values) for node in live)) - {*constants}
    kept = {name: f"{name}, which is state" for name in state - roots.keys()}
    for node in live:
        why = _why(node, roots, weights) or next((kept[name] for name in reads(node) if name in kept), None)
        if why is not None:
            kept |= {name: why for name in node.output if name}
    if not any(key_of(node) in kept for node in live):
        raise NotSplittable(
            "no operator of the model holds weights, so that all of it would be data work. Name what is trained with "
            "state=… (--state NAME), or run the model itself on the workers"
        )
    if not any(key_of(node) not in kept for node in live):
        raise NotSplittable(
            f"there is no data work to cut: the first node, {live[0].op_type}, depends on {kept[key_of(live[0])]}"
        )
    return Roles(live=tuple(live), fixed=tuple(fixed), kept=kept)


def held_by(graph: Any) -> list[str]:
    """Names of the constants that a graph holds beside its nodes."""
    return [one.name for one in graph.initializer] + [one.values.name for one in graph.sparse_initializer]


def _is_fixed(node: Any, roots: dict[str, frozenset[str]]) -> bool:
    """Whether NODE depends on constants alone; if so, ROOTS gets the names of those for what it gives."""
    taken = reads(node)
    if any(name not in roots for name in taken) or draws(node) or node.domain not in _KNOWN:
        return False
    of_all = frozenset().union(*(roots[name] for name in taken))
    roots |= {name: of_all if taken else frozenset({name}) for name in node.output if name}
    return True


def draws(node: Any) -> bool:
    """Whether NODE may draw at random."""
    in_training = node.op_type == "Dropout" and len(node.input) > 2 and node.input[2] != ""
    return in_training or node.op_type in _RANDOM or any(draws(one) for graph in subgraphs(node) for one in graph.node)


def _weights(node: Any, roots: Mapping[str, frozenset[str]], values: Mapping[str, Value]) -> set[str]:
    """Names of what NODE holds as weights, in its branches and bodies too."""
    found: set[str] = set()
    for graph in subgraphs(node):
        inner = {**roots, **{name: frozenset({name}) for name in held_by(graph)}}
        for one in graph.node:
            if not _is_fixed(one, inner):
                found |= _weights(one, inner, values)
    if node.op_type in HOLDERS:
        found = found.union(*(roots.get(name, {name}) for name in node.input[1:] if name))
    elif node.op_type in PRODUCTS:
        found = found.union(*(roots.get(name, ()) for name in node.input))
    elif node.op_type in TABLES and node.input[0] in roots:
        table = values.get(node.input[0])
        found |= roots[node.input[0]] if table is None or len(table.shape) > 1 else set()
    return {name for name in found if name not in values or values[name].dtype not in _NUMBERS}


def _why(node: Any, roots: Mapping[str, frozenset[str]], weights: Collection[str]) -> str | None:
    """What makes NODE stay with training by itself; None: nothing does."""
    if node.domain not in _KNOWN:
        return f"{node.domain}.{node.op_type}, an operator of which nothing is known here"
    if node.domain == "ai.onnx.ml" and node.op_type.startswith(_MODELS):
        return f"the weights in {node.op_type}"
    if draws(node):
        return "chance, and an operator of ONNX cannot be given the seed of a batch (let the loader draw, as an input)"
    held = [root for name in reads(node) for root in roots.get(name, (name,)) if root in weights]
    inside = [name for graph in subgraphs(node) for name in _all_names(graph) if name in weights]
    return f"{(held + inside)[0]}, a weight" if held or inside else None


def _all_names(graph: Any) -> list[str]:
    inner = [name for node in graph.node for one in subgraphs(node) for name in _all_names(one)]
    return [*held_by(graph), *(name for node in graph.node for name in node.output), *inner]


def _check_names(option: str, names: Collection[str], known: Collection[str]) -> None:
    if unknown := sorted({*names} - {*known}):
        raise BadInput(f"{option}: the model has no input or constant {unknown[0]!r}")


def cheapest_data(
    model: Any, roles: Roles, values: Mapping[str, Value], prices: Prices, strict: bool
) -> tuple[frozenset[Any], list[Any]]:
    """Keys of the nodes that go to the data side, and names of the values that cross, in the graph's order."""
    steps = [
        Step(
            name=key_of(node),
            takes=reads(node),
            gives=[name for name in node.output if name],
            stays=key_of(node) in roles.kept,
            weight=None if node.op_type in _VIEWS else _HEAVY.get(node.op_type, 1.0),
            shunned=strict and not is_alike(node, values),
        )
        for node in roles.live
    ]
    inputs = [one.name for one in inputs_of(model) if one.name not in roles.kept]
    sizes = {name: one.size_bytes for name, one in values.items()}
    return cheapest_side(steps, inputs, [one.name for one in model.graph.output], sizes, prices)


def is_alike(node: Any, values: Mapping[str, Value]) -> bool:
    """Whether NODE gives the same bits on every kind of CPU and with any number of threads."""
    kinds = {values[name].dtype if name in values else "float" for name in (*reads(node), *node.output) if name}
    return node.op_type in ALIKE or not any("float" in kind for kind in kinds)


def part_of(model: Any, takes: list[Any], gives: list[Any]) -> Any:
    """The part of MODEL that makes GIVES of TAKES, both as graphs tell inputs and outputs; with its constants."""
    import onnx

    given = {one.name for one in takes}
    nodes = needed(model.graph.node, [one.name for one in gives], given, takes=reads, gives=attrgetter("output"))
    used = {name for node in nodes for name in reads(node)} | {one.name for one in gives}
    graph = onnx.helper.make_graph(
        nodes,
        model.graph.name,
        takes,
        gives,
        initializer=[one for one in model.graph.initializer if one.name in used - given],
        sparse_initializer=[one for one in model.graph.sparse_initializer if one.values.name in used - given],
    )
    made = onnx.helper.make_model(
        graph, opset_imports=model.opset_import, ir_version=model.ir_version, producer_name="wattsmith"
    )
    onnx.helper.set_model_props(made, {one.key: one.value for one in model.metadata_props})
    return made
