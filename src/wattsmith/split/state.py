"""What a step holds from one batch to the next: found, watched over one real step, and put back."""

import dis
import functools
import gc
import inspect
import io
import random
import sys
import types
from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from wattsmith.split.keeping import MODULE_INTERNALS, PLAIN, Kept, Place, same_tensor, slots_of
from wattsmith.split.marks import OpaqueStep
from wattsmith.split.problems import is_of_the_machine

_OF_GLOBALS = {"LOAD_GLOBAL", "LOAD_NAME", "STORE_GLOBAL", "DELETE_GLOBAL"}
_DEEP, _MANY = 12, 20_000  # how far and how wide a step's own objects are searched


@dataclass(slots=True)
class Held:
    """All that a step reaches and that lives longer than one call."""

    modules: dict[str, Any] = field(default_factory=dict)  # "" is the step itself, if it is an nn.Module
    loose: dict[str, Any] = field(default_factory=dict)  # tensors outside of modules' parameters and buffers
    optimizers: list[Any] = field(default_factory=list)
    generators: list[Any] = field(default_factory=list)
    spaces: list[dict[str, Any]] = field(default_factory=list)  # globals of the user's functions that were seen
    places: list[Place] = field(default_factory=list)  # where things are kept outside of modules
    names: set[str] = field(default_factory=set)  # all names and texts in the user's functions that were seen
    read_by_step: tuple[list[Place], frozenset[str]] = ([], frozenset())  # those of them that the step itself leads to
    opaque: dict[OpaqueStep, "Held"] = field(
        default_factory=dict
    )  # what its opaque steps reach, and workers get copies of
    iterators: list[str] = field(default_factory=list)  # names of those that go on from call to call
    own_generators: list[Any] = field(default_factory=list)  # of Python and NumPy, not the global ones

    def parameters(self) -> dict[str, Any]:
        return {
            _join(name, inner): one for name, module in self.modules.items() for inner, one in module.named_parameters()
        }

    def buffers(self) -> dict[str, Any]:
        return {
            _join(name, inner): one for name, module in self.modules.items() for inner, one in module.named_buffers()
        }

    def tensors(self) -> dict[str, Any]:
        return {**self.loose, **self.buffers(), **self.parameters()}

    def kept(self) -> Kept:
        """What is where, now; what torch.jit compiled has nothing of Python in it."""
        from torch.jit import ScriptModule

        modules = {name: one for name, one in self.every_module().items() if not isinstance(one, ScriptModule)}
        return Kept([*self.places, *(place for one in self.opaque.values() for place in one.places)], modules)

    def every_module(self) -> dict[str, Any]:
        return {
            _join(name, inner): one for name, module in self.modules.items() for inner, one in module.named_modules()
        }


def _join(first: str, second: str) -> str:
    return f"{first}.{second}" if first and second else first or second


def held_by(step: Callable[..., Any], *more: Callable[..., Any] | None) -> Held:
    """What STEP and MORE functions reach: through attributes, closures, defaults and the globals that they name."""
    held, seen = Held(), set[int]()
    _search(step, "", held, seen, 0)
    held.read_by_step = list(held.places), frozenset(held.names)
    held.iterators = [one for one in held.iterators if "." not in one or one.rpartition(".")[2] in held.names]
    for thing in more:
        if thing is not None:
            _search(thing, "", held, seen, 0)
    for one, reached in held.opaque.items():
        _search(one.function, "", reached, set(), 0)
    if len(held.modules) > 1:
        _drop_inner(held)
    return held


def _drop_inner(held: Held) -> None:
    """A module that is part of another one found is named by the other."""
    inner = {id(one) for outer in held.modules.values() for one in outer.modules() if one is not outer}
    for name in [name for name, module in held.modules.items() if id(module) in inner]:
        del held.modules[name]


def _search(thing: Any, name: str, held: Held, seen: set[int], depth: int) -> None:
    import torch

    if depth > _DEEP or len(seen) > _MANY or id(thing) in seen:
        return
    seen.add(id(thing))
    if isinstance(thing, OpaqueStep):
        held.opaque[thing] = Held()
    elif isinstance(thing, torch.nn.Module):
        held.modules[name if name not in held.modules else f"{name}_{len(held.modules)}"] = thing
        for inner, module in thing.named_modules():
            forward = getattr(type(module), "forward", None)
            if isinstance(forward, types.FunctionType) and not forward.__module__.startswith("torch."):
                held.spaces.append(forward.__globals__)
            for method in _methods(type(module), "forward"):
                _search(method, "", held, seen, depth + 1)
            rest = {key: value for key, value in vars(module).items() if key not in MODULE_INTERNALS}
            for key, value in {**rest, "": type(module)}.items():
                if _may_hold(value):
                    _search(value, _join(name, _join(inner, key)), held, seen, depth + 1)
    elif isinstance(thing, torch.Tensor):
        held.loose.setdefault(name, thing)
    elif isinstance(thing, torch.optim.Optimizer):
        held.optimizers.append(thing)
        groups = enumerate(thing.param_groups)
        held.places += [Place(f"{name}.param_groups.{at}", one, is_registered=True) for at, one in groups]
    elif isinstance(thing, torch.Generator):
        held.generators.append(thing)
    elif isinstance(thing, Iterator) and not isinstance(thing, io.IOBase):
        held.iterators.append(name)
    elif isinstance(thing, random.Random):
        held.own_generators.append(thing)
    elif type(thing).__module__.startswith("numpy.random"):
        held.own_generators.append(getattr(thing, "bit_generator", getattr(thing, "_bit_generator", thing)))
    else:
        if isinstance(thing, types.FunctionType):
            held.spaces.append(thing.__globals__)
            if not is_of_the_machine(thing.__code__.co_filename):
                held.names.update(_names_in(thing.__code__), _texts_in(thing.__code__))
        held.places.extend(_places_in(thing, name))
        for key, value in _inside(thing):
            _search(
                value, _join(name, key) if not isinstance(thing, types.FunctionType) else key, held, seen, depth + 1
            )


def _places_in(thing: Any, name: str) -> Iterator[Place]:
    """Where THING, which is no module, can keep something until the next call."""
    if isinstance(thing, types.FunctionType):
        if is_of_the_machine(thing.__code__.co_filename):
            return
        for variable, cell in zip(thing.__code__.co_freevars, thing.__closure__ or (), strict=False):
            yield Place(variable, cell)
        yield Place("", thing.__globals__, frozenset(_globals_in(thing.__code__)))
        for module in _modules_named_by(thing):
            yield Place(module.__name__, vars(module), frozenset(_names_in(thing.__code__)))
        yield Place(thing.__name__, vars(thing))
    elif isinstance(thing, type):
        yield Place(thing.__name__, thing)
    elif isinstance(thing, dict | list | deque | set) or _is_an_array(thing):
        yield Place(name, thing)
    elif _is_an_object_of_the_users(thing):
        yield Place(name, thing if slots_of(thing) else vars(thing))


def _is_an_array(thing: Any) -> bool:
    return type(thing).__module__ == "numpy" and type(thing).__name__ == "ndarray"


def _may_hold(value: Any) -> bool:
    return is_a_class_of_the_users(value) if isinstance(value, type) else not isinstance(value, PLAIN)


def _inside(thing: Any) -> Iterator[tuple[str, Any]]:
    """What THING leads to, with names."""
    if isinstance(thing, types.FunctionType):
        yield from _of_function(thing)
    elif isinstance(thing, types.MethodType):
        yield from (("", thing.__self__), ("", thing.__func__))
        yield from (("", one) for one in _methods(type(thing.__self__), thing.__func__.__name__))
    elif isinstance(thing, functools._lru_cache_wrapper):
        yield "", thing.__wrapped__
    elif isinstance(thing, functools.partial):
        yield from (("", thing.func), ("", list(thing.args)), ("", dict(thing.keywords)))
    elif isinstance(thing, dict):
        yield from ((str(key), value) for key, value in list(thing.items())[:_MANY] if _may_hold(value))
    elif isinstance(thing, list | tuple | set | frozenset | deque):
        yield from ((str(at), value) for at, value in enumerate(list(thing)[:_MANY]) if _may_hold(value))
    elif isinstance(thing, type):
        yield from ((key, one) for key, one in vars(thing).items() if not _is_of_a_class(key, one) and _may_hold(one))
    elif _is_an_object_of_the_users(thing):
        mine = {key: getattr(thing, key, None) for key in slots_of(thing)} or vars(thing)
        yield from ((key, value) for key, value in mine.items() if _may_hold(value))
        yield "", type(thing)
        yield from (("", one) for one in _methods(type(thing), "__call__"))


def _is_of_a_class(key: str, value: Any) -> bool:
    """Whether a class has VALUE as every class has such: a method, a name of its own."""
    return key.startswith("__") or isinstance(value, types.FunctionType | staticmethod | classmethod | property)


def _methods(kind: type, first: str) -> Iterator[types.FunctionType]:
    """The method of KIND with that name, and those that it names, and so on; the user's own alone."""
    waiting, known = [first], {first}
    while waiting:
        found = inspect.getattr_static(kind, waiting.pop(), None)
        found = found.fget if isinstance(found, property) else getattr(found, "__func__", found)
        if isinstance(found, types.FunctionType) and not is_of_the_machine(found.__code__.co_filename):
            yield found
            more = set(_names_in(found.__code__)) - known
            known |= more
            waiting += sorted(more)


def _is_an_object_of_the_users(thing: Any) -> bool:
    if isinstance(thing, type | types.ModuleType | types.FunctionType):
        return False
    if not hasattr(thing, "__dict__") and not slots_of(thing):
        return False
    return is_a_class_of_the_users(type(thing))


def is_a_class_of_the_users(kind: type) -> bool:
    path = getattr(sys.modules.get(kind.__module__), "__file__", None)
    standard = kind.__module__.partition(".")[0] in sys.stdlib_module_names
    return not standard if path is None else not is_of_the_machine(path)


def _modules_named_by(function: types.FunctionType) -> Iterator[types.ModuleType]:
    """Modules of the user's own that FUNCTION names."""
    for name in sorted(_globals_in(function.__code__)):
        value = function.__globals__.get(name)
        if isinstance(value, types.ModuleType) and not is_of_the_machine(getattr(value, "__file__", None) or "<built"):
            yield value


def _of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if hasattr(function, "__wrapped__"):
        yield "", function.__wrapped__
    if is_of_the_machine(function.__code__.co_filename):
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield name, cell.cell_contents
        except ValueError:  # a variable that is not set yet
            continue
    yield from enumerate_named(function.__defaults__ or (), "default")
    for name, value in (function.__kwdefaults__ or {}).items():
        yield name, value
    named = set(_names_in(function.__code__))
    for name in sorted(_globals_in(function.__code__) & function.__globals__.keys()):
        value = function.__globals__[name]
        if not isinstance(value, types.ModuleType) and _may_hold(value):
            yield name, value
    for module in _modules_named_by(function):
        yield from ((inner, vars(module)[inner]) for inner in sorted(named & vars(module).keys()))


def enumerate_named(values: tuple[Any, ...], name: str) -> Iterator[tuple[str, Any]]:
    yield from ((f"{name}{at}", value) for at, value in enumerate(values))


def _names_in(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names_in(constant)


def _globals_in(code: types.CodeType) -> set[str]:
    """Names in CODE of variables of its module, and not of attributes."""
    found = {str(one.argval) for one in dis.get_instructions(code) if one.opname in _OF_GLOBALS}
    return found.union(*(_globals_in(one) for one in code.co_consts if isinstance(one, types.CodeType)))


def _texts_in(code: types.CodeType) -> Iterator[str]:
    """Texts in CODE, such as the keys of a dict that it reads."""
    for constant in code.co_consts:
        if isinstance(constant, str):
            yield constant
        elif isinstance(constant, types.CodeType):
            yield from _texts_in(constant)


def original_of(value: Any, held: Held) -> tuple[str, Any] | None:
    """The tensor of HELD that VALUE is or shares its memory with, and its name; None: there is none.

    A tracer hands out weights that it meets in closures without their gradients, so that they look like constants.
    """
    for name, one in held.tensors().items():
        if one is value or (one.data_ptr() == value.data_ptr() != 0 and one.shape == value.shape):
            return name, one
    return None


def is_a_weight_of_somebody(value: Any) -> bool:
    """Whether VALUE shares its memory with a tensor that is trained, wherever that is."""
    import torch

    if value.data_ptr() == 0:
        return False
    return any(
        isinstance(one, torch.Tensor) and one.requires_grad and one.is_leaf and one.data_ptr() == value.data_ptr()
        for one in gc.get_objects()
        if issubclass(type(one), torch.Tensor) and type(one) in (torch.Tensor, torch.nn.Parameter)
    )


@contextmanager
def put_back(held: Held) -> Iterator[dict[str, str]]:
    """Whatever happens inside, afterwards everything that HELD reaches is as it was, and so is all randomness.

    Gives a dict that is filled at the end: the tensors that had changed inside, and how that was seen.
    """
    with places_put_back(held), values_put_back(held) as changed:
        yield changed


@contextmanager
def places_put_back(held: Held) -> Iterator[Kept]:
    """Afterwards everything that the step keeps is where it was. Gives what was there before."""
    before = held.kept()
    try:
        yield before
    finally:
        before.put_back()


@contextmanager
def own_generators_put_back(held: Held) -> Iterator[None]:
    """Afterwards the generators of Python and NumPy that the step holds itself are as they were."""
    before = [(one, one.getstate() if isinstance(one, random.Random) else one.state) for one in held.own_generators]
    try:
        yield
    finally:
        for one, state in before:
            if isinstance(one, random.Random):
                one.setstate(state)
            else:
                one.state = state


@contextmanager
def values_put_back(held: Held) -> Iterator[dict[str, str]]:
    """Afterwards tensors have the values and gradients they had, and optimizers and generators their states.

    Gives a dict that is filled at the end: the tensors that had changed inside, and how that was seen.
    """
    import torch

    tensors = {name: one for name, one in held.tensors().items() if one.device.type != "meta"}
    versions = {name: one._version for name, one in tensors.items()}
    values = {name: one.detach().clone() for name, one in tensors.items()}
    grads = {name: one.grad for name, one in tensors.items() if one.is_leaf}
    optimizers = [(one, _copied_state(one)) for one in held.optimizers]
    generators = [(one, one.get_state()) for one in held.generators]
    changed: dict[str, str] = {}
    for one in tensors.values():
        if one.is_leaf:
            one.grad = None
    try:
        with kept_randomness():
            yield changed
    finally:
        with torch.no_grad():
            for name, one in tensors.items():
                if one._version != versions[name] or not same_tensor(one, values[name]):
                    changed[name] = "changed by one real step"
                    if not same_tensor(one, values[name]):
                        one.data = values[name] if one.shape != values[name].shape else one.data
                        one.data.copy_(values[name])
        for name, grad in grads.items():
            tensors[name].grad = grad
        for optimizer, (state, groups) in optimizers:
            optimizer.state = state
            for group, settings in zip(optimizer.param_groups, groups, strict=True):
                group.update(settings)
        for generator, before in generators:
            generator.set_state(before)


def _copied_state(optimizer: Any) -> tuple[Any, list[dict[str, Any]]]:
    import torch

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    state = defaultdict(dict, {key: {k: copied(v) for k, v in one.items()} for key, one in optimizer.state.items()})
    return state, [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]


@contextmanager
def kept_randomness() -> Iterator[None]:
    """Afterwards the generators of Python, NumPy (where it is loaded) and PyTorch are as they were."""
    import torch

    python, cpu = random.getstate(), torch.get_rng_state()
    gpus = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None
    numpy = sys.modules.get("numpy.random")
    array = None if numpy is None else numpy.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if gpus is not None:
            torch.cuda.set_rng_state_all(gpus)
        if numpy is not None:
            numpy.set_state(array)


def seed_everything(seed: int) -> None:
    """Seed Python, NumPy (where it is loaded) and PyTorch's generator of the CPU."""
    import torch

    random.seed(seed)
    torch.default_generator.manual_seed(seed)
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed(seed % 2**32)
