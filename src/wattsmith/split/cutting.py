"""Two graphs out of one: the data half sends what the training half receives."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.split.contexts import enter, leave
from wattsmith.split.effects import draws
from wattsmith.split.roles import DRAWN, FIXED, OPAQUE, Roles
from wattsmith.split.running import Seen, without_generator
from wattsmith.split.traced import OBJECT, ORDINARY, Attribute, Traced, context_of

_KEPT = ("aten._assert_async", "aten._assert_scalar")  # checks of the user's own


@dataclass(frozen=True, slots=True, kw_only=True)
class CutGraphs:
    """The data half's graph: placeholders `leaf_0` and so on, get_attr of constants, a tuple of tensors.

    The training half's graph: placeholders for what crosses, then for attributes in the order of `attributes`.
    """

    data: Any
    training: Any
    attributes: tuple[str, ...]  # of the training half, whose graph is None where it is the user's own code
    crossing: tuple[Any, ...]  # nodes of the whole graph


def cut_graphs(traced: Traced, roles: Roles, data: frozenset[Any], seen: dict[Any, Seen]) -> CutGraphs:
    nodes = traced.nodes()
    output = next(one for one in traced.graph.nodes if one.op == "output")
    needed = set(output.all_input_nodes)
    for node in nodes:
        if node not in data and roles.kinds[node] != FIXED and node.op != "get_attr":
            needed |= {node, *node.all_input_nodes}
    crossing = tuple(node for node in nodes if node in data and node in needed)
    return CutGraphs(
        data=data_graph(traced, roles, data, crossing, seen),
        training=(training := _training_graph(traced, roles, data, crossing, seen, output))[0],
        attributes=training[1],
        crossing=crossing,
    )


def number_sent(number: Any) -> Any:
    """A size or another number as a tensor that can be sent."""
    import torch

    return torch.tensor(number, dtype=torch.float64 if isinstance(number, float) else None)


def number_received(tensor: Any) -> Any:
    return tensor.item()


def sent(tensor: Any, order: Sequence[int]) -> Any:
    """TENSOR as it crosses: one number after the other, in ORDER of its dimensions, if that is not the usual one."""
    return (tensor.permute(tuple(order)) if order else tensor).detach().contiguous()


def received(tensor: Any, order: Sequence[int]) -> Any:
    """What was sent in that ORDER, with its dimensions and its order in memory as before."""
    return tensor.permute(tuple(order.index(at) for at in range(len(order))))


def applied(function: Any, *args: Any, **named: Any) -> Any:
    """What FUNCTION gives; stands in a graph where a layer of torch.fx is called."""
    return function(*args, **named)


def _closure(wanted: set[Any], roles: Roles, side: Any) -> set[Any]:
    """WANTED and all that they need, on that side: what they take, and who writes into it."""
    found: set[Any] = set()
    waiting = list(wanted)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += [one for one in node.all_input_nodes if side(one)]
            waiting += [one for one in roles.writers.get(node, ()) if side(one)]
    return found


class _Writer:
    """Writes nodes into a new graph, and the blocks that they stand in."""

    def __init__(self) -> None:
        import torch

        self.graph = torch.fx.Graph()
        self.known: dict[Any, Any] = {}
        self._context = ORDINARY

    def copy(self, node: Any, context: Any, on_data: bool) -> None:
        self.block(context)
        if node.op == "call_module":
            args = (self.known[str(node.target)], *(self._mapped(one) for one in node.args))
            named = {key: self._mapped(one) for key, one in node.kwargs.items()}
            self.known[node] = self.graph.call_function(applied, args, named)
            return
        made = self.graph.node_copy(node, self.known.__getitem__) if not on_data else self._without_generator(node)
        made.meta = {}
        self.known[node] = made

    def _mapped(self, value: Any) -> Any:
        from torch.fx.node import map_arg

        return map_arg(value, self.known.__getitem__)

    def _without_generator(self, node: Any) -> Any:
        args, named = self._mapped(node.args), self._mapped(without_generator(node.kwargs))
        return self.graph.create_node(node.op, node.target, args, named, name=node.name)

    def block(self, context: Any) -> None:
        if context != self._context:
            if self._context != ORDINARY:
                self.graph.call_function(leave)
            if context != ORDINARY:
                self.graph.call_function(enter, context)
            self._context = context


def data_graph(
    traced: Traced,
    roles: Roles,
    data: frozenset[Any],
    crossing: tuple[Any, ...],
    seen: Any,
    also: tuple[Any, list[Any]] | None = None,
) -> Any:
    """The graph that gives CROSSING. ALSO: a function and the nodes to call it with; what it gives is sent last."""

    def here(node: Any) -> bool:
        return node in data or (roles.kinds[node] == FIXED and not _is_generator(traced, node))

    # What draws at random is kept even if nobody uses it: what is drawn after it would otherwise change.
    kept = {node for node in data if roles.kinds[node] in (DRAWN, OPAQUE) or str(node.target).startswith(_KEPT)}
    needed = _closure({*crossing, *kept, *(also[1] if also else ())}, roles, here)
    writer = _Writer()
    for node in traced.nodes():
        if node not in needed:
            continue
        if node.op == "placeholder":
            writer.known[node] = writer.graph.placeholder(node.name)
        elif node.op == "get_attr":
            writer.known[node] = writer.graph.create_node("get_attr", node.target, name=node.name)
        else:
            if node.op == "call_module":
                writer.known[str(node.target)] = writer.graph.create_node("get_attr", str(node.target))
            writer.copy(node, (True, context_of(node)[1]), on_data=True)
    writer.block(ORDINARY)
    given = [_sent(writer, node, seen) for node in crossing]
    if also is not None:
        given.append(writer.graph.call_function(also[0], ([writer.known[one] for one in also[1]],)))
    writer.graph.output(tuple(given))
    return writer.graph


def _is_generator(traced: Traced, node: Any) -> bool:
    return node.op == "get_attr" and traced.attributes[node.target].kind == OBJECT


def _is_number(node: Any, seen: Any) -> bool:
    return node in seen and not seen[node].shape and seen[node].is_number


def _sent(writer: _Writer, node: Any, seen: Any) -> Any:
    made = writer.known[node]
    if _is_number(node, seen):
        return writer.graph.call_function(number_sent, (made,))
    return writer.graph.call_function(sent, (made, list(seen[node].order)))


def _training_graph(
    traced: Traced, roles: Roles, data: frozenset[Any], crossing: tuple[Any, ...], seen: Any, output: Any
) -> tuple[Any, tuple[str, ...]]:
    def here(node: Any) -> bool:
        return node not in data

    wanted = {
        node for node in traced.nodes() if here(node) and roles.kinds[node] != FIXED and node.op != "get_attr"
    } | {one for one in output.all_input_nodes if here(one)}
    needed = _closure(wanted, roles, here)
    writer = _Writer()
    for node in crossing:
        writer.known[node] = writer.graph.placeholder(node.name)
    attributes: list[str] = []
    for node in traced.nodes():
        names = [str(node.target)] if node in needed and node.op in ("get_attr", "call_module") else []
        for name in names:
            if name not in attributes:
                attributes.append(name)
                writer.known[name] = writer.graph.placeholder(f"attribute_{len(attributes)}")
            if node.op == "get_attr":
                writer.known[node] = writer.known[name]
    for node in crossing:
        if _is_number(node, seen):
            writer.known[node] = writer.graph.call_function(number_received, (writer.known[node],))
        elif seen[node].order:
            writer.known[node] = writer.graph.call_function(received, (writer.known[node], list(seen[node].order)))
    for node in traced.nodes():
        if node in needed and node.op != "get_attr":
            writer.copy(node, context_of(node), on_data=False)
    writer.block(ORDINARY)
    writer.graph.output(tuple(writer.known[one] if hasattr(one, "op") else one for one in output.args[0]))
    return writer.graph, tuple(attributes)


def drawing_in_training(traced: Traced, roles: Roles, data: frozenset[Any]) -> list[Any]:
    """Nodes of the training half that draw at random."""
    modules: dict[str, Attribute] = traced.attributes
    found = []
    for node in traced.nodes():
        module = modules[str(node.target)].value if node.op == "call_module" else None
        if node not in data and roles.kinds[node] != FIXED and draws(node, module):
            found.append(node)
    return found
