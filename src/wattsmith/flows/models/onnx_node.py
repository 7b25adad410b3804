"""One call of an operator of ONNX, and the table of rules that say what it does in PyTorch.

A rule takes a node and its inputs, None for those left out, and gives one tensor or several. Inputs that decide shapes
are on the CPU with their values; so is all that is computed from shapes alone, which costs a device nothing.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SMALL = 4096  # elements that are still worth knowing by value


@dataclass(frozen=True, slots=True)
class Node:
    """One call of an operator in the graph."""

    operator: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    name: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    version: int = 0  # of the set of operators

    def get(self, name: str, otherwise: Any = None) -> Any:
        return self.options.get(name, otherwise)


Rule = Callable[..., Any]
RULES: dict[str, Rule] = {}
# Which inputs must be known by value, by position: they decide shapes.
_SECOND = (
    *("Reshape", "Expand", "Tile", "Squeeze", "Unsqueeze", "TopK", "CumSum", "Split", "Trilu", "OneHot", "Upsample"),
    *("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceSumSquare"),
    *("ReduceLogSum", "ReduceLogSumExp", "Compress"),
)
BY_VALUE: dict[str, set[int]] = {
    **{name: {1} for name in _SECOND},
    **{name: {0} for name in ("ConstantOfShape", "If", "NonZero", "Unique")},
    **{name: {1, 2, 3, 4} for name in ("Slice", "Pad", "Resize")},
    "Range": {0, 1, 2},
}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Enters a function as the rule of these operators."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def plain(name: str, function: Callable[..., Any]) -> None:
    """Enters a function that needs nothing but the inputs."""
    RULES[name] = lambda _node, *inputs: function(*inputs)
