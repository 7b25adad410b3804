"""An ONNX graph as a module: its nodes called one after the other, by the rules. Loaded late, by `onnx_source`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

# Both enter their rules in the table as they are loaded.
import wattsmith.flows.models.onnx_rules
import wattsmith.flows.models.onnx_shape_rules  # noqa: F401
from wattsmith.flows.models.onnx_node import BY_VALUE, RULES, Node
from wattsmith.flows.models.problems import (
    InputsDoNotFit,
    ModelNotLoaded,
    NotTraceable,
    first_line,
    operator_without_values,
    told_shape,
)

_STAND_INS = torch.library.Library("wattsmith_onnx", "DEF")
_DEFINED: set[str] = set()


class Constant:
    """A tensor that the file holds: on "meta" for the device, and by value where it is small."""

    def __init__(self, on_device: torch.Tensor, known: torch.Tensor | None) -> None:
        self.on_device = on_device
        self.known = known


class OnnxModule(torch.nn.Module):  # type: ignore[misc]
    """The graph of one file. INFERRED: shapes of the outputs of operators without a rule, as far as known."""

    def __init__(
        self,
        nodes: Sequence[Node],
        inputs: Sequence[str],
        outputs: Sequence[str],
        weights: Mapping[str, Constant],
        constants: Mapping[str, Constant],
        inferred: Mapping[str, tuple[tuple[int, ...], torch.dtype]],
    ) -> None:
        super().__init__()
        self.nodes, self.takes, self.gives = list(nodes), list(inputs), list(outputs)
        self.inferred = dict(inferred)
        self.known = {name: one.known for name, one in (*weights.items(), *constants.items()) if one.known is not None}
        self.places: dict[str, str] = {}  # constant → the name under which the module holds it
        for at, (name, one) in enumerate(weights.items()):
            self.places[name] = f"weight_{at}"
            self.register_parameter(f"weight_{at}", torch.nn.Parameter(one.on_device))
        for at, (name, one) in enumerate(constants.items()):
            self.places[name] = f"constant_{at}"
            self.register_buffer(f"constant_{at}", one.on_device)
        self.last_use = {name: at for at, node in enumerate(self.nodes) for name in names_read(node)}

    def forward(self, *args: Any, **named: Any) -> Any:
        values: dict[str, Any] = {**dict(zip(self.takes, args, strict=False)), **named}
        self.run(self.nodes, values)
        return tuple(self.look_up(name, values, None) for name in self.gives)

    def run(self, nodes: Sequence[Node], values: dict[str, Any]) -> None:
        kept = set(self.gives)
        for at, node in enumerate(nodes):
            given = self.call(node, values)
            values.update(zip(node.outputs, given, strict=False))
            del given
            if nodes is self.nodes:
                for name in {*node.inputs, *node.outputs}:
                    # What nobody reads any more is freed, as a runtime would.
                    if self.last_use.get(name, at) <= at and name not in kept:
                        values.pop(name, None)

    def call(self, node: Node, values: dict[str, Any]) -> Sequence[Any]:
        try:
            given = self.by_rule(node, values)
        except (NotTraceable, ModelNotLoaded, InputsDoNotFit):
            raise
        except Exception as failed:  # a model may raise anything, also what it defines itself
            if operator := operator_without_values(failed):
                raise NotTraceable(_needs_values(node), operator) from failed
            handed = ", ".join(
                told_shape(one) for name in node.inputs if isinstance(one := values.get(name), torch.Tensor)
            )
            raise InputsDoNotFit(
                f"node {node.name or node.outputs[0]} ({node.operator}) is handed {handed or 'constants'}, which does "
                f"not fit: {first_line(failed)}. Give the sizes that the file was exported for with --input."
            ) from failed
        given = given if isinstance(given, tuple | list) else (given,)
        if missed := [name for name in node.outputs[len(given) :] if name in self.last_use or name in self.gives]:
            raise NotTraceable(
                f"node {node.name or node.outputs[0]} ({node.operator}) should give {missed[0]!r} too, for which "
                "there is no rule here. Give the Python model.",
                node.operator,
            )
        return given

    def by_rule(self, node: Node, values: dict[str, Any]) -> Any:
        if node.operator == "If":
            return self.branch(node, values)
        inputs = [self.look_up(name, values, node) for name in node.inputs]
        by_value = BY_VALUE.get(node.operator, set())
        for at in by_value & set(range(len(inputs))):
            if inputs[at] is not None and inputs[at].device.type == "meta":
                raise NotTraceable(_needs_values(node), node.operator)
        if any(one is not None and one.device.type == "meta" for one in inputs):
            inputs = [
                one if at in by_value else self.on_device(name, one)
                for at, (name, one) in enumerate(zip(node.inputs, inputs, strict=True))
            ]
        if node.operator in RULES:
            return RULES[node.operator](node, *inputs)
        return self.stand_in(node, [one for one in inputs if one is not None])

    def look_up(self, name: str, values: Mapping[str, Any], node: Node | None) -> Any:
        if not name:
            return None
        if name in values:
            return values[name]
        if name in self.known:
            return self.known[name]
        if name in self.places:
            return getattr(self, self.places[name])
        user = f"node {node.name or node.outputs[0]} ({node.operator})" if node else "the file"
        raise ModelNotLoaded(f"{user} wants {name!r}, which no node gives: the file is damaged; export it again")

    def on_device(self, name: str, one: Any) -> Any:
        if one is None or one.device.type == "meta" or one.dim() == 0:
            return one  # a scalar of the host joins any tensor
        if name in self.places:
            return getattr(self, self.places[name])
        # What comes from constants and shapes is small, and is found but once.
        return torch.empty_like(one, device="meta")

    def branch(self, node: Node, values: dict[str, Any]) -> Any:
        condition = self.look_up(node.inputs[0], values, node)
        if condition.device.type == "meta":
            raise NotTraceable(_needs_values(node), "If")
        taken: OnnxModule = node.get("then_branch" if bool(condition) else "else_branch")
        inside = dict(values)
        for name, one in taken.known.items():
            inside.setdefault(name, one)
        for name, place in taken.places.items():
            inside.setdefault(name, getattr(taken, place))
        self.run(taken.nodes, inside)
        return [self.look_up(name, inside, node) for name in taken.gives]

    def stand_in(self, node: Node, inputs: list[Any]) -> Any:
        """What NODE would give, by its shapes: an operator that reads its inputs and writes its outputs."""
        wanted = [self.inferred.get(name) for name in node.outputs if name]
        if any(one is None for one in wanted):
            if not inputs or len(wanted) != 1:
                raise NotTraceable(
                    f"node {node.name or node.outputs[0]} ({node.operator}) has no rule here, and the file does not "
                    "tell the shapes that come out of it. Run onnx.shape_inference over it, or give the Python model.",
                    node.operator,
                )
            wanted = [(tuple(inputs[0].shape), inputs[0].dtype)]
        if node.operator not in _DEFINED:
            _STAND_INS.define(
                f"{node.operator}(Tensor[] inputs, int[] sizes, int[] ranks, ScalarType[] types) -> Tensor[]"
            )
            _STAND_INS.impl(node.operator, _outputs, "CompositeExplicitAutograd")
            _DEFINED.add(node.operator)
        shapes = [one[0] for one in wanted if one is not None]
        types = [one[1] for one in wanted if one is not None]
        called = getattr(torch.ops.wattsmith_onnx, node.operator)
        return called(inputs, [size for one in shapes for size in one], [len(one) for one in shapes], types)


def _outputs(_inputs: list[Any], sizes: list[int], ranks: list[int], types: list[Any]) -> list[Any]:
    made = []
    for rank, kind in zip(ranks, types, strict=True):
        made.append(torch.empty(sizes[:rank], dtype=kind, device="meta"))
        sizes = sizes[rank:]
    return made


def names_read(node: Node) -> Iterator[str]:
    """What NODE reads, in its branches too."""
    yield from node.inputs
    for option in node.options.values():
        if isinstance(option, OnnxModule):
            for inner in option.nodes:
                yield from names_read(inner)
            yield from option.gives


def _needs_values(node: Node) -> str:
    return (
        f"node {node.name or node.outputs[0]} ({node.operator}) needs the values of a tensor that is only known when "
        "the model runs, and a trace has shapes alone. Export the model with fixed shapes, or give the Python model."
    )
