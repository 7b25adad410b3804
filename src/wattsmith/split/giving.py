"""What a step gives back: tensors, numbers and texts, in tuples, dicts and dataclasses."""

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

from wattsmith.split.problems import NotSplittable


@dataclasses.dataclass(frozen=True, slots=True)
class Fields:
    """Stands for a dataclass, which PyTorch does not look into."""

    kind: type
    values: dict[str, Any]


@cache
def _known_to_torch() -> type[Fields]:
    from torch.utils._pytree import GetAttrKey, register_pytree_node

    register_pytree_node(
        Fields,
        lambda one: (list(one.values.values()), (one.kind, tuple(one.values))),
        lambda values, form: Fields(form[0], dict(zip(form[1], values, strict=True))),
        flatten_with_keys_fn=lambda one: (
            [(GetAttrKey(name), value) for name, value in one.values.items()],
            (one.kind, tuple(one.values)),
        ),
    )
    return Fields


def taken_apart(given: Any) -> Any:
    """What a step GIVEs, with its dataclasses as Fields."""
    from torch.utils._pytree import tree_map

    def part(value: Any) -> Any:
        if not dataclasses.is_dataclass(value) or isinstance(value, type | Fields):
            return value
        named = {one.name: getattr(value, one.name) for one in dataclasses.fields(value)}
        return _known_to_torch()(type(value), {name: taken_apart(one) for name, one in named.items()})

    return tree_map(part, given)


def as_given(parts: Any) -> Any:
    """PARTS, with Fields as the dataclasses that they stand for."""
    from torch.utils._pytree import tree_map

    def whole(value: Any) -> Any:
        if not isinstance(value, Fields):
            return value
        made: Any = object.__new__(value.kind)
        for name, one in value.values.items():
            object.__setattr__(made, name, as_given(one))
        return made

    return tree_map(whole, parts, is_leaf=lambda one: isinstance(one, Fields))


def giving_parts(call: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """CALL, whose results are taken apart."""
    return lambda batch: taken_apart(call(batch))


def refuse_objects(given: Any) -> None:
    """Whatever has no value of its own cannot be given back by a half."""
    from torch import Tensor
    from torch.utils._pytree import keystr, tree_flatten_with_path

    for path, one in tree_flatten_with_path(given)[0]:
        if one is None or isinstance(one, Tensor) or any("__eq__" in vars(kind) for kind in type(one).__mro__[:-1]):
            continue
        place = f" as {keystr(path)}" if path else ""
        advice = " (a model of transformers: with use_cache=False)" if "Cache" in type(one).__name__ else ""
        raise NotSplittable(
            f"the step gives a {type(one).__name__} back{place}, which is neither a tensor nor a number. Give back the "
            f"loss, and what else you need as tensors{advice}."
        )
