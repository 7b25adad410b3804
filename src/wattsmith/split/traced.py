"""A step as a flat graph, whichever tracer made it."""

import re
from dataclasses import dataclass, field
from typing import Any

STATE, CONSTANT, GRAPH, OBJECT = "state", "constant", "graph", "object"
ONE_IS_SPECIAL = re.compile(r"!= [01]$|>= [12]$|^[12] <=|> [01]$")  # what tracers take for granted of every size
ORDINARY = (True, ())  # gradients are recorded, no autocast


@dataclass(frozen=True, slots=True, kw_only=True)
class Attribute:
    """What a get_attr node of a graph stands for."""

    kind: str  # "state": a parameter or buffer; "constant": a tensor; "graph": of a branch; "object": a generator
    value: Any
    name: str  # as its owner calls it; for a constant of the trace, as the trace does
    owner: Any = None  # the module that has it under the last part of its name, so that it can be looked up anew


@dataclass(slots=True)
class Traced:
    """A step's graph. Placeholders are the leaves of the batch in order, or the batch itself for torch.fx.

    A node's meta has "context": whether gradients are recorded, and the autocasts around it; "line" of the source;
    "val": an example or a stand-in of its value; "opaque": it is one call of an opaque step.
    """

    tracer: str
    graph: Any
    attributes: dict[str, Attribute]
    output_form: Any  # how the step puts its outputs together
    outputs: list[tuple[str, Any]]  # for each output ("node", which one) or ("constant", what)
    sizes: list[tuple[int | None, ...]] = field(default_factory=list)  # of each leaf; None: any
    guards: list[str] = field(default_factory=list)  # conditions on the sizes of leaves, for which the graph is right
    notes: list[str] = field(default_factory=list)

    def nodes(self) -> list[Any]:
        """All nodes that do something, in order."""
        return [one for one in self.graph.nodes if one.op != "output"]


def functions_of_sizes() -> dict[str, Any]:
    """What conditions on sizes may call, by name, as tracers write them."""
    from torch.fx.experimental.symbolic_shapes import SYMPY_INTERP

    return {one.__name__: one for one in (max, min, abs, int, float, bool, round, pow)} | dict(SYMPY_INTERP)


def context_of(node: Any) -> tuple[bool, tuple[Any, ...]]:
    return node.meta.get("context", ORDINARY)  # type: ignore[no-any-return]
