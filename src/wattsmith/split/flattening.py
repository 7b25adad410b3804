"""An exported program's graph with its blocks taken apart, its marks made plain, and its checks of types left out."""

import operator
from collections.abc import Sequence
from typing import Any

from wattsmith.split.handing import THING
from wattsmith.split.marks import OpaqueCall, crossing_here
from wattsmith.split.operators import split_operators
from wattsmith.split.problems import WAYS_OUT, NotSplittable, line_of_stack
from wattsmith.split.traced import GRAPH, ORDINARY, Attribute

_DROPPED = ("aten._assert_tensor_metadata", "aten.sym_constrain_range")


_ARITHMETIC = ("_operator", "operator", "builtins", "math", "torch.fx.experimental", "torch")
_NOT_ARITHMETIC = ("torch._C", "torch._functorch", "torch.autograd")


def _line(node: Any) -> str | None:
    return (node.meta.get("custom") or {}).get("line") or line_of_stack(node.meta.get("stack_trace"))


class Later:
    """A node that can be written only once the opaque step has run that makes its size."""

    def __init__(self, node: Any, known: dict[Any, Any], hint: int | None = None, context: Any = ORDINARY) -> None:
        self.node, self.known, self.hint, self.context = node, known, hint, context


class Flattener:
    """Copies a graph node by node. Once."""

    def __init__(self, attributes: dict[str, Attribute], users: Sequence[str], kinds: Sequence[str], exporter: Any):
        import torch

        self.attributes: dict[str, Attribute] = {}
        self._named, self._users, self._kinds, self._exporter = attributes, list(users), list(kinds), exporter
        self.graph = torch.fx.Graph()
        self._made_by: dict[int, tuple[Any, int, int]] = {}  # hint: opaque node, which tensor, which dimension

    def flattened(self, module: Any) -> Any:
        known: dict[Any, Any] = {}
        for node in module.graph.nodes:
            if node.op == "placeholder":
                known[node] = self._input(node)
        outputs = self._copied(module, known, ORDINARY)
        self.graph.output(tuple(outputs))
        return self.graph

    def _input(self, node: Any) -> Any:
        if node.name in self._named:
            self.attributes[node.name] = self._named[node.name]
            made = self.graph.create_node("get_attr", node.name, name=node.name)
        else:
            at = self._users.index(node.name)
            if at >= len(self._kinds):
                return Later(node, {}, at - len(self._kinds))
            made = self.graph.placeholder(f"leaf_{at}")
            made.meta["kind"] = self._kinds[at]
        made.meta.update(val=node.meta.get("val"), context=ORDINARY)
        return made

    def _copied(self, module: Any, known: dict[Any, Any], context: Any) -> Sequence[Any]:
        for node in module.graph.nodes:
            if node.op == "output":
                return [self._ready(known, one) for one in node.args[0]]
            if node.op != "placeholder":
                known[node] = self._one(module, node, known, context)
        return []

    def _one(self, module: Any, node: Any, known: dict[Any, Any], context: Any) -> Any:
        target = str(node.target)
        if node.op == "get_attr":
            return self._attribute(module, node)
        if target.startswith(_DROPPED):
            return None
        self._refuse_unknown(node)
        if target in ("wrap_with_set_grad_enabled", "wrap_with_autocast"):
            return self._block(node, known, context)
        if node.target is operator.getitem and isinstance(known.get(node.args[0]), list | tuple):
            return known[node.args[0]][node.args[1]]
        waits = any(isinstance(known.get(one), Later) and not self._can(known[one]) for one in node.all_input_nodes)
        if waits and node.target is not split_operators().opaque:
            return Later(node, known, context=context)
        return self._written(node, known, context)

    def _refuse_unknown(self, node: Any) -> None:
        """Whatever is no operator, such as torch.vmap's steps, works as a whole alone."""
        known = hasattr(node.target, "_schema") or type(node.target).__module__.startswith("torch._higher_order_ops")
        home = getattr(node.target, "__module__", None) or ""
        if (
            not known
            and type(node.target).__name__ != "HigherOrderOperator"
            and (not home.startswith(_ARITHMETIC) or home.startswith(_NOT_ARITHMETIC))
        ):
            name = "torch.vmap or torch.func" if "functorch" in home else getattr(node.target, "__name__", node.target)
            while (line := _line(node)) is None and node.next.op != "root":
                node = node.next  # what torch.vmap does first bears no line
            at = f" at {line}" if line else ""
            raise NotSplittable(f"{name} cannot be cut{at}. {WAYS_OUT}.")

    def _attribute(self, module: Any, node: Any) -> Any:
        import torch

        value = operator.attrgetter(node.target)(module)
        if isinstance(value, torch.nn.Module):
            return ("block", value)
        kind = "constant" if isinstance(value, torch.Tensor) else "object"
        return self._new_attribute(node.target, Attribute(kind=kind, value=value, name=node.target))

    def _new_attribute(self, name: str, attribute: Attribute) -> Any:
        name = name.replace(".", "_")
        while name in self.attributes:
            name += "_"
        self.attributes[name] = attribute
        made = self.graph.create_node("get_attr", name, name=name)
        made.meta.update(val=attribute.value, context=ORDINARY)
        return made

    def _block(self, node: Any, known: dict[Any, Any], context: Any) -> Sequence[Any]:
        grad, casts = context
        if str(node.target) == "wrap_with_set_grad_enabled":
            enabled, block, *given = node.args
            inner = (bool(enabled), casts)
        else:
            device, dtype, enabled, cached, block, *given = node.args
            inner = (grad, (*casts, (device, dtype, bool(enabled), cached)))
        _, module = known[block]
        places = [one for one in module.graph.nodes if one.op == "placeholder"]
        inside = {place: known.get(one, one) for place, one in zip(places, given, strict=True)}
        return self._copied(module, inside, inner)

    def _can(self, later: Later) -> bool:
        if later.hint is not None:
            return later.hint in self._made_by
        found = [later.known.get(one) for one in later.node.all_input_nodes]
        return all(self._can(one) for one in found if isinstance(one, Later))

    def _ready(self, known: dict[Any, Any], one: Any) -> Any:
        """The node that stands for ONE in the new graph, written now if it had to wait."""
        found = known.get(one, one) if hasattr(one, "op") else one
        if isinstance(found, Later):
            found = known[one] = self._written(found.node, known, found.context)
        if isinstance(found, tuple) and len(found) == 2 and found[0] == "block":
            found = self._new_attribute("branch", Attribute(kind=GRAPH, value=found[1], name="branch"))
            known[one] = found
        return found

    def _written(self, node: Any, known: dict[Any, Any], context: Any) -> Any:
        line = _line(node)
        if node.target is split_operators().opaque:
            made = self._opaque(node, known)
        elif node.target is split_operators().boundary:
            made = self.graph.call_function(crossing_here, (self._ready(known, node.args[0]),))
        elif str(node.target) == "aten.sym_size.int" and self._is_thing(known.get(node.args[0])):
            made = self.graph.call_function(len, (known[node.args[0]],))
        elif node.all_input_nodes and self._is_hint(known.get(node.all_input_nodes[0])):
            made = self._size(node, known[node.all_input_nodes[0]].hint)
        else:
            made = self.graph.node_copy(node, lambda one: self._ready(known, one))
        made.meta = {**made.meta, "val": node.meta.get("val"), "context": context, "line": line}
        return made

    def _size(self, node: Any, hint: int) -> Any:
        """The size that HINT stood for, taken from the tensor that the opaque step made."""
        call, which, dim = self._made_by[hint]
        tensor = self.graph.call_function(operator.getitem, (call, which))
        tensor.meta.update(context=ORDINARY, line=call.meta.get("line"))
        return self.graph.call_function(node.target, (tensor, dim))

    def _is_hint(self, found: Any) -> bool:
        return isinstance(found, Later) and found.hint is not None

    def _is_thing(self, node: Any) -> bool:
        return getattr(node, "op", None) == "placeholder" and node.meta.get("kind") == THING

    def _opaque(self, node: Any, known: dict[Any, Any]) -> Any:
        values, _, numbers, which = node.args
        step, layout, form = self._exporter.made[which]
        call = OpaqueCall(step, layout, form, self._exporter.fixed(which), self._exporter.conditions)
        ready = [self._ready(known, one) for one in values], [self._ready(known, one) for one in numbers]
        made = self.graph.call_function(call, ready)
        made.meta["opaque"] = step.__name__
        for tensor, dims in enumerate(self._exporter.plans[which]):
            for dim, (kind, at) in enumerate(dims):
                if kind == "hint":
                    self._made_by.setdefault(at, (made, tensor, dim))
        return made
