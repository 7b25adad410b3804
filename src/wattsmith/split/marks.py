"""What a user writes into a step: `@opaque` on Python that is not to be traced, `boundary(x)` where to cut."""

import functools
import importlib
import inspect
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

from wattsmith.split.problems import NotSplittable
from wattsmith.split.traced import functions_of_sizes


class Watch(Protocol):
    """Whoever runs a step and wants to know what it marks."""

    def opaque(self, step: "OpaqueStep", args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        """An opaque step is called; what it gives."""

    def boundary(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        """The step marks VALUES; what it goes on with."""


_WATCH: ContextVar[Watch | None] = ContextVar("watch", default=None)

_BY_NAME: ContextVar[bool] = ContextVar("by_name", default=False)


@contextmanager
def watched_by(watch: Watch | None) -> Iterator[None]:
    token = _WATCH.set(watch)
    try:
        yield
    finally:
        _WATCH.reset(token)


class OpaqueStep:
    """A Python function that a cut keeps whole, on the data side. Called, it does what the function does.

    Arrays that it returns become tensors.
    """

    def __init__(self, function: Callable[..., Any], ragged: bool = False) -> None:
        self.function, self.ragged = function, ragged
        functools.update_wrapper(self, function)

    def __call__(self, *args: Any, **named: Any) -> Any:
        tracer = _tracer_of((args, named))
        if tracer is not None:
            return tracer.create_proxy("call_function", self, args, named)
        watch = _WATCH.get()
        return self.run(*args, **named) if watch is None else watch.opaque(self, args, named)

    def run(self, *args: Any, **named: Any) -> Any:
        from torch.utils._pytree import tree_map

        return tree_map(self._as_tensor, self.function(*args, **named))

    def _as_tensor(self, value: Any) -> Any:
        import torch

        if isinstance(value, torch.Tensor):
            return value
        if type(value).__module__ == "numpy":
            return torch.as_tensor(value)
        raise NotSplittable(
            f"the opaque step {self.__name__} returns a {type(value).__name__}; it must return tensors, arrays, or "
            "lists, tuples and dicts of them"
        )

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)

    def __reduce__(self) -> Any:
        # The function's name leads to this object, so that by its name it would not be found.
        if _BY_NAME.get() and _is_found(self):
            return _found, (self.__module__, self.__qualname__)
        return OpaqueStep, (self.function, self.ragged)

    __name__: str
    __qualname__: str


def opaque(function: Callable[..., Any] | None = None, *, ragged: bool = False) -> Any:
    """Keep FUNCTION whole when a step is cut: it is not traced, and runs on the data side.

    For decoding, tokenising and other Python that takes apart what is no tensor. It returns tensors. RAGGED: their
    sizes, beside the batch, change from batch to batch.
    """
    if function is None:
        return functools.partial(opaque, ragged=ragged)
    if not callable(function) or inspect.isclass(function):
        raise NotSplittable(f"@wattsmith.opaque marks a function, got {function!r}")
    return OpaqueStep(function, ragged)


def boundary(*values: Any) -> Any:
    """VALUES as they are. Where a step is cut, what they depend on runs on the data side, what follows with training.

    One value gives that value, several give a tuple.
    """
    tracer = _tracer_of(values)
    if tracer is not None:
        marked = tuple(tracer.create_proxy("call_function", crossing_here, (one,), {}) for one in values)
    else:
        watch = _WATCH.get()
        marked = values if watch is None else watch.boundary(values)
    return marked[0] if len(values) == 1 else marked


def crossing_here(value: Any) -> Any:
    """VALUE. Stands in a graph of torch.fx where the user marked the boundary."""
    return value


def _tracer_of(values: Any) -> Any:
    """The tracer of the first proxy of torch.fx in VALUES; None: there is none."""
    if isinstance(values, dict):
        values = tuple(values.values())
    if isinstance(values, list | tuple):
        return next((found for one in values if (found := _tracer_of(one)) is not None), None)
    kind = type(values)
    return values.tracer if kind.__name__ == "Proxy" and kind.__module__.startswith("torch.fx") else None


@contextmanager
def pickled_by_name() -> Iterator[None]:
    """Inside, opaque steps are pickled as the names of their modules and functions, and not whole."""
    token = _BY_NAME.set(True)
    try:
        yield
    finally:
        _BY_NAME.reset(token)


def _is_found(step: OpaqueStep) -> bool:
    try:
        return _found(step.__module__, step.__qualname__) is step
    except (ImportError, AttributeError):
        return False


def _found(module: str, name: str) -> Any:
    thing: Any = importlib.import_module(module)
    for part in name.split("."):
        thing = getattr(thing, part)
    return thing


@dataclass(frozen=True, slots=True, kw_only=True)
class OpaqueOutputs:
    """What one call of an opaque step gave in a real run."""

    step: OpaqueStep
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[Any, ...]
    form: Any  # how the tensors are put together


class Recorder:
    """Runs opaque steps as they are and remembers the shapes of what they give, call by call."""

    def __init__(self, at_boundary: Callable[[], Any] | None = None) -> None:
        """AT_BOUNDARY: called when the step comes to its first boundary."""
        self._at_boundary = at_boundary
        self.calls: list[OpaqueOutputs] = []
        self.boundaries = 0
        self.sent: list[Any] = []  # what crosses at the first boundary

    def opaque(self, step: OpaqueStep, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        from torch.utils._pytree import tree_flatten

        given = step.run(*args, **named)
        tensors, form = tree_flatten(given)
        shapes, dtypes = tuple(tuple(one.shape) for one in tensors), tuple(one.dtype for one in tensors)
        self.calls.append(OpaqueOutputs(step=step, shapes=shapes, dtypes=dtypes, form=form))
        return given

    def boundary(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        from torch import Tensor
        from torch.utils._pytree import tree_leaves

        if not self.boundaries:
            if self._at_boundary is not None:
                self._at_boundary()
            self.sent = [one.detach().clone() if isinstance(one, Tensor) else one for one in tree_leaves(values)]
        self.boundaries += 1
        return values


def flat_arguments(args: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], Any]:
    """All that an opaque step is called with, in order, and how it was put together."""
    leaves: list[Any] = []

    def form_of(value: Any) -> Any:
        if type(value) in (list, tuple):
            return type(value)(form_of(one) for one in value)
        if type(value) is dict:
            return {key: form_of(one) for key, one in value.items()}
        leaves.append(value)
        return len(leaves) - 1

    return leaves, form_of((args, named))


def put_together(form: Any, leaves: list[Any]) -> Any:
    """LEAVES in the FORM that flat_arguments told."""
    if isinstance(form, int):
        return leaves[form]
    if isinstance(form, dict):
        return {key: put_together(one, leaves) for key, one in form.items()}
    return type(form)(put_together(one, leaves) for one in form)


class OpaqueCall:
    """One call of an opaque step in a data half: values of the graph go in, a list of tensors comes out."""

    def __init__(
        self, step: OpaqueStep, layout: list[tuple[str, Any]], form: Any, fixed: list[Any], conditions: Any
    ) -> None:
        """LAYOUT: for each argument "value", "number" and which one, or "constant" and what it is worth.

        FIXED: for each tensor that comes out, its sizes: a number, None for any, a name for those that must be equal.
        CONDITIONS: by such a name, what must hold for `it`.
        """
        self.step, self.layout, self.form, self.fixed = step, layout, form, fixed
        self.conditions = {name: list(texts) for name, texts in conditions.items()}
        self.__name__ = self.__qualname__ = f"opaque {step.__name__}"

    def __call__(self, values: list[Any], numbers: list[Any]) -> list[Any]:
        from torch.utils._pytree import tree_leaves

        given = {"value": values, "number": numbers}
        leaves = [what if kind == "constant" else given[kind][what] for kind, what in self.layout]
        args, named = put_together(self.form, leaves)
        tensors = tree_leaves(self.step.run(*args, **named))
        known: dict[str, int] = {}
        for tensor, sizes in zip(tensors, self.fixed, strict=True):
            self._check(tuple(tensor.shape), sizes, known)
        for name, size in known.items():
            for text in self.conditions.get(name, ()):
                self._check_condition(text, size)
        return list(tensors)

    def _check_condition(self, text: str, size: int) -> None:
        if not eval(text, {"__builtins__": {}, **functions_of_sizes()}, {"it": size}):
            raise NotSplittable(
                f"the opaque step {self.step.__name__} gave a tensor with a size of {size}, and the trace holds for "
                f"{text.replace('it', 'sizes', 1)}: it goes another way for others. Let it give tensors of such sizes."
            )

    def _check(self, shape: tuple[int, ...], sizes: list[int | str | None], known: dict[str, int]) -> None:
        """KNOWN: sizes by name that were seen so far, and must be the same again."""

        def fits(want: int | str | None, got: int) -> bool:
            return want is None or got == (known.setdefault(want, got) if isinstance(want, str) else want)

        if len(shape) != len(sizes) or not all(fits(want, got) for want, got in zip(sizes, shape, strict=True)):
            wanted = "×".join("any" if one is None else str(known.get(str(one), one)) for one in sizes)
            raise NotSplittable(
                f"the opaque step {self.step.__name__} gave a tensor of {'×'.join(map(str, shape))} where the step was "
                f"cut with {wanted}. If its sizes change from batch to batch, mark it @wattsmith.opaque(ragged=True)."
            )
