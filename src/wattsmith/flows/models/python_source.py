"""Models out of Python: a name in a file or a module, a class, a function, an instance."""

import copy
import difflib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from wattsmith.flows.models.problems import ModelNotLoaded, first_line, operator_without_values, place_of


def named_thing(source: str) -> tuple[Any, Path | None]:
    """What stands under `file.py:name` or `package.module:name`, and the folder of the file."""
    place, _, name = source.rpartition(":")
    path = Path(place).expanduser()
    if place.endswith(".py") or "/" in place:
        if not path.is_file():
            raise ModelNotLoaded(f"there is no file {place}; the source was {source!r}")
        with folder_on_path(path.parent):
            return attribute_of(imported_file(path), name, place), path.parent
    with folder_on_path(Path.cwd()):
        return attribute_of(imported_module(place), name, place), None


@contextmanager
def folder_on_path(folder: Path | None) -> Iterator[None]:
    """FOLDER first where modules are looked for, as when Python runs a file in it."""
    before = list(sys.path)
    if folder is not None:
        sys.path.insert(0, str(folder.resolve()))
    try:
        yield
    finally:
        sys.path[:] = before


def imported_file(path: Path) -> ModuleType:
    name = f"wattsmith_model_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ModelNotLoaded(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickling look their module up there
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as failed:
        sys.modules.pop(name, None)
        raise _not_imported(str(path), failed) from failed
    return module


def imported_module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as failed:
        if isinstance(failed, ModuleNotFoundError) and failed.name and name.startswith(failed.name):
            raise ModelNotLoaded(
                f"there is no module {failed.name}: start where it can be imported, or write path/to/file.py:NAME"
            ) from failed
        raise _not_imported(name, failed) from failed


def _not_imported(what: str, failed: BaseException) -> ModelNotLoaded:
    at = f" at {place}" if (place := place_of(failed)) else ""
    return ModelNotLoaded(f"{what} fails to import{at}: {type(failed).__name__}: {first_line(failed)}")


def attribute_of(module: ModuleType, name: str, place: str) -> Any:
    if hasattr(module, name):
        return getattr(module, name)
    there = sorted(models_in(module))
    close = difflib.get_close_matches(name, there, 1)
    guess = f"did you mean {place}:{close[0]}? " if close else ""
    listed = f"there are {', '.join(there)}" if there else "it has no model and no function"
    raise ModelNotLoaded(f"{place} has no {name!r}; {guess}{listed}")


def models_in(module: ModuleType) -> Iterator[str]:
    """Names in MODULE that may give a model: classes and functions of its own, and instances."""
    import torch

    for name, thing in vars(module).items():
        own = getattr(thing, "__module__", None) == module.__name__
        is_class = isinstance(thing, type) and issubclass(thing, torch.nn.Module)
        if not name.startswith("_") and (
            isinstance(thing, torch.nn.Module) or (own and (is_class or inspect.isfunction(thing)))
        ):
            yield name


def built(thing: Any, label: str, device: str, folder: Path | None = None) -> tuple[Any, Any, list[str]]:
    """The module that THING is or makes on DEVICE, the example inputs that it makes beside (or None), and notes."""
    import torch

    if isinstance(thing, torch.nn.Module):
        return moved_copy(thing, device), getattr(thing, "example_input_array", None), []
    if not callable(thing):
        raise ModelNotLoaded(
            f"{label} is a {type(thing).__name__}; name an nn.Module, a class of one, or a function that returns one"
        )
    _check_no_arguments(thing, label)
    with folder_on_path(folder):
        made, notes = _made_on(thing, label, device)
    module, examples = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not isinstance(module, torch.nn.Module):
        raise ModelNotLoaded(
            f"{label} returns a {type(made).__name__}; it should return an nn.Module, or one and its example inputs"
        )
    if examples is None:
        examples = getattr(module, "example_input_array", None)
    return module.to(device), examples, notes


def _check_no_arguments(thing: Callable[..., Any], label: str) -> None:
    signature = inspect.signature(thing)
    try:
        signature.bind()
    except TypeError as refused:
        raise ModelNotLoaded(
            f"{label}{signature} cannot be called without arguments ({refused}); write a function that calls it with "
            "yours, and name that"
        ) from refused


def _made_on(thing: Callable[[], Any], label: str, device: str) -> tuple[Any, list[str]]:
    """What THING makes, on meta where that goes."""
    import torch

    if device == "meta":
        try:
            with torch.device("meta"):
                return thing(), []
        except Exception as failed:  # noqa: BLE001 - a user's code raises anything; the CPU decides whether it is wrong
            asked = operator_without_values(failed) or f"{type(failed).__name__}: {first_line(failed)}"
            at = f", at {place}" if (place := place_of(failed)) else ""
            why = f"{label} cannot be built on meta tensors ({asked}{at}): built on the CPU, and moved"
    try:
        made = thing()
    except Exception as failed:
        at = f" at {place}" if (place := place_of(failed)) else ""
        raise ModelNotLoaded(f"{label} fails{at}: {type(failed).__name__}: {first_line(failed)}") from failed
    return made, [why] if device == "meta" else []


def moved_copy(module: Any, device: str, dtype: Any = None, memory_format: Any = None) -> Any:
    """A copy of MODULE on DEVICE; its own tensors are left as they are. On "meta" the copy takes no memory.

    DTYPE: of the tensors with fractions. MEMORY_FORMAT: of those with four dimensions.
    """
    import torch

    def moved(one: Any) -> Any:
        kind = dtype if dtype is not None and one.is_floating_point() else one.dtype
        layout = memory_format if memory_format is not None and one.dim() == 4 else torch.preserve_format
        if device == "meta":
            return torch.empty_like(one, device="meta", dtype=kind, memory_format=layout)
        return one.detach().to(device=device, dtype=kind, memory_format=layout, copy=True)

    replaced: dict[int, Any] = {}
    for one in module.parameters():
        replaced[id(one)] = torch.nn.Parameter(moved(one), requires_grad=one.requires_grad)
    for one in module.buffers():
        replaced[id(one)] = moved(one)
    try:
        return copy.deepcopy(module, replaced)
    except (TypeError, RuntimeError, copy.Error) as refused:
        raise ModelNotLoaded(
            f"{type(module).__name__} cannot be copied ({first_line(refused)}); give a function that builds it instead"
        ) from refused
