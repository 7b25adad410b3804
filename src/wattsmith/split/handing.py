"""How a batch is handed to a step, and what is in it: tensors, things that only opaque steps look into, constants."""

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.split.problems import BatchDoesNotFit, NotSplittable, calling_place

TENSOR, THING, CONSTANT = "tensor", "thing", "constant"
_PLAIN = (bool, int, float, complex, str, type(None))


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """One value in a batch."""

    kind: str  # "tensor", "thing" (a list of texts, an image, bytes) or "constant"
    path: str  # as its author would write it, such as batch["image"]
    constant: Any = None  # what it is worth, if it is a constant
    shape: tuple[int | None, ...] = ()  # of a tensor; None: any size goes
    dtype: str = ""  # of a tensor, such as "float32"


class Unseen:
    """Stands for something that is no tensor while a step is traced: only opaque steps may look into it."""

    def __init__(self, path: str, handle: Any) -> None:
        self._path, self._handle = path, handle

    def _refuse(self, *_: Any, **__: Any) -> Any:
        at = f" at {place}" if (place := calling_place()) else ""
        raise NotSplittable(
            f"{self._path} is no tensor, and the step looks into it{at}. Do that in a function that is marked with "
            "@wattsmith.opaque, which gets it as it is and returns tensors."
        )

    __len__ = __iter__ = __getitem__ = __bool__ = __call__ = __array__ = __contains__ = _refuse

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._refuse()


def is_tensor(value: Any) -> bool:
    import torch

    return isinstance(value, torch.Tensor)


def is_thing(value: Any) -> bool:
    """Whether VALUE is neither a tensor nor a number nor a container of such; a list of texts is one thing."""
    if isinstance(value, list | tuple):
        return bool(value) and all(isinstance(one, str) or is_thing(one) for one in value)
    if isinstance(value, Mapping) or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return False
    return not isinstance(value, _PLAIN) and not is_tensor(value)


def structure_of(batch: Any, path: str = "batch") -> tuple[Any, list[tuple[str, Any]]]:
    """How BATCH is built, in plain JSON values, and its leaves with their paths, in order."""
    leaves: list[tuple[str, Any]] = []

    def walk(value: Any, where: str) -> Any:
        if is_thing(value):
            return leaf(value, where)
        if isinstance(value, Mapping):
            keys = list(value)
            if not all(isinstance(key, str | int) for key in keys):
                raise NotSplittable(f"{where} has keys that are neither texts nor whole numbers")
            return {"keys": keys, "items": [walk(value[key], f"{where}[{key!r}]") for key in keys]}
        if isinstance(value, list | tuple):
            return {"items": [walk(one, f"{where}[{at}]") for at, one in enumerate(value)]}
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value)]
            return {"fields": names, "items": [walk(getattr(value, name), f"{where}.{name}") for name in names]}
        return leaf(value, where)

    def leaf(value: Any, where: str) -> int:
        leaves.append((where, value))
        return len(leaves) - 1

    return walk(batch, path), leaves


def leaves_of(structure: Any, batch: Any, path: str = "batch") -> Iterator[Any]:
    """The values in BATCH, which must be built as STRUCTURE tells, in order."""
    if isinstance(structure, int):
        yield batch
        return
    items = structure["items"]
    if "keys" in structure:
        missing = [key for key in structure["keys"] if not isinstance(batch, Mapping) or key not in batch]
        if missing:
            raise BatchDoesNotFit(f"{path} has no {missing[0]!r}; the step was cut with a batch that has it")
        parts = [(batch[key], f"{path}[{key!r}]") for key in structure["keys"]]
    elif "fields" in structure:
        missing = [name for name in structure["fields"] if not hasattr(batch, name)]
        if missing:
            raise BatchDoesNotFit(f"{path} has no {missing[0]!r}; the step was cut with a batch that has it")
        parts = [(getattr(batch, name), f"{path}.{name}") for name in structure["fields"]]
    else:
        if not isinstance(batch, list | tuple) or len(batch) != len(items):
            got = f"{len(batch)} values" if isinstance(batch, list | tuple) else f"a {type(batch).__name__}"
            raise BatchDoesNotFit(f"{path} is {got}; the step was cut with {len(items)} values there")
        parts = [(one, f"{path}[{at}]") for at, one in enumerate(batch)]
    for item, (value, where) in zip(items, parts, strict=True):
        yield from leaves_of(item, value, where)


def rebuilt(structure: Any, like: Any, leaves: Sequence[Any]) -> Any:
    """A batch built LIKE another, with LEAVES in it."""
    if isinstance(structure, int):
        return leaves[structure]
    items = structure["items"]
    if "keys" in structure:
        made = {key: rebuilt(item, like[key], leaves) for key, item in zip(structure["keys"], items, strict=True)}
        return made if type(like) is dict else _other_mapping(like, made)
    if "fields" in structure:
        named = zip(structure["fields"], items, strict=True)
        return dataclasses.replace(like, **{name: rebuilt(item, getattr(like, name), leaves) for name, item in named})
    values = [rebuilt(item, one, leaves) for item, one in zip(items, like, strict=True)]
    return type(like)(*values) if hasattr(like, "_fields") else type(like)(values)


def _other_mapping(like: Any, made: dict[Any, Any]) -> Any:
    try:
        return type(like)(made)
    except (TypeError, ValueError):
        return made


def ways_to_call(step: Callable[..., Any], batch: Any) -> list[Callable[[Any], Any]]:
    """Functions of a batch that call STEP, the likeliest first.

    A step that takes one argument gets the batch whole; one that takes several gets its parts, by position or by name.
    """
    signature = inspect.signature(step.forward if hasattr(step, "forward") else step)
    parameters = signature.parameters.values()
    by_position = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    needed = [one for one in by_position if one.default is one.empty]
    whole, parts, named = (lambda one: step(one)), (lambda one: step(*one)), (lambda one: step(**one))
    ways = [whole] if _fits(signature, 1, {}) else []
    if isinstance(batch, list | tuple) and not is_thing(batch) and _fits(signature, len(batch), {}):
        ways = [parts, *ways] if len(needed) > 1 or not needed else [*ways, parts]
    if isinstance(batch, Mapping) and all(isinstance(key, str) for key in batch) and _fits(signature, 0, batch):
        ways = [named, *ways]
    if not ways:
        raise NotSplittable(
            f"the step takes {len(needed)} arguments {signature}, and the example is a {type(batch).__name__}: give a "
            "tuple, or a dict by argument"
        )
    return ways


def _fits(signature: inspect.Signature, count: int, named: Mapping[str, Any]) -> bool:
    try:
        signature.bind(*[None] * count, **named)
    except TypeError:
        return False
    return True


def batch_size(leaves: Sequence[tuple[str, Any]]) -> int:
    """Samples in a batch: the first size of its first tensor that has one, or the length of its first list."""
    for _, value in leaves:
        if is_tensor(value) and value.dim() > 0:
            return int(value.shape[0])
    return next((len(value) for _, value in leaves if isinstance(value, list | tuple)), 1)


def sliced(structure: Any, batch: Any, whole: int, samples: int) -> Any:
    """The first SAMPLES of BATCH, which has WHOLE of them."""

    def part(value: Any) -> Any:
        if is_tensor(value):
            return value[:samples].clone() if value.dim() > 0 and value.shape[0] == whole else value
        if isinstance(value, list | tuple) and len(value) == whole:
            return value[:samples]
        return value

    return rebuilt(structure, batch, [part(value) for value in leaves_of(structure, batch)])


def doubled(structure: Any, batch: Any) -> Any:
    """BATCH, which has one sample, with that sample twice."""

    def twice(value: Any) -> Any:
        if is_tensor(value) and value.dim() > 0 and value.shape[0] == 1:
            return value.repeat(2, *[1] * (value.dim() - 1))
        return value * 2 if isinstance(value, list | tuple) and len(value) == 1 else value

    return rebuilt(structure, batch, [twice(value) for value in leaves_of(structure, batch)])


def kind_of(value: Any) -> str:
    if is_tensor(value):
        return TENSOR
    return THING if is_thing(value) else CONSTANT
