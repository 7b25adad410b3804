"""A training step or an ONNX model cut in two: from Python, and from a file that is named on the command line."""

import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, overload

from wattsmith.flows.models.inputs import inputs_of_shapes, parse_input, tensors_in
from wattsmith.flows.models.python_source import folder_on_path, named_thing
from wattsmith.report.split_plot import plot_cut
from wattsmith.split.halves import load as load_half
from wattsmith.split.jaxprs import split_jax
from wattsmith.split.marks import boundary, opaque
from wattsmith.split.onnx_reading import inputs_of, is_onnx, read_model
from wattsmith.split.onnx_whole import split_onnx
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Prices
from wattsmith.split.problems import NotSplittable, first_line, place_of
from wattsmith.split.whole import Split
from wattsmith.split.whole import split as split_step
from wattsmith.terms.cut import Cut
from wattsmith.terms.errors import BadInput, ExtraNeeded

__all__ = ["Cut", "Prices", "Split", "boundary", "load_half", "opaque", "split", "split_file", "split_jax"]

TRAINERS = {"cpu": CPU_TRAINER, "gpu": GPU_TRAINER}
_BATCH = 8  # samples in an example that is made of sizes


@overload
def split(
    step: Callable[..., Any],
    example: Any,
    *,
    update: Callable[[], Any] | None = None,
    frozen: bool = False,
    strict: bool = False,
    prices: Prices | None = None,
    sizes: str = "batch",
    check: bool = True,
) -> Split: ...


@overload
def split(
    step: Any,
    example: Any = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    state: Collection[str] = (),
    constants: Collection[str] = (),
    strict: bool = False,
    prices: Prices | None = None,
    check: bool = True,
) -> Split: ...


def split(step: Any, example: Any = None, **options: Any) -> Split:
    """Cut STEP in two: a function or an nn.Module with an example batch, or an ONNX model or the name of its file.

    Options of the first are told at `wattsmith.split.whole.split`, of the second at
    `wattsmith.split.onnx_whole.split_onnx`.
    """
    return (split_onnx if is_onnx(step) else split_step)(step, example, **options)


def split_file(
    source: str,
    *,
    inputs: Sequence[str] = (),
    batch: int | None = None,
    example: str | None = None,
    trainer: str | None = None,
    plot: Path | None = None,
    save: Path | None = None,
    save_training: Path | None = None,
    **options: Any,
) -> Cut:
    """Cut the step that SOURCE names: FILE.py:NAME, package.module:NAME or FILE.onnx.

    INPUTS: sizes of one sample, such as 3x224x224:uint8. EXAMPLE: what in the same file gives a batch; usually
    `example`. TRAINER: "cpu" or "gpu". PLOT and SAVE: files for a picture and for the data half; SAVE_TRAINING: for the
    other half of an ONNX model. Options are those of `split`.
    """
    if trainer is not None and trainer not in TRAINERS:
        raise BadInput(f"--trainer must be cpu or gpu, got {trainer!r}")
    if batch is not None and batch < 1:
        raise BadInput(f"--batch must be at least 1, got {batch}")
    prices = None if trainer is None else TRAINERS[trainer]
    if is_onnx(source):
        made = _split_onnx_file(source, inputs, example, prices=prices, batch=batch, **options)
    else:
        _refuse(
            source, state=options.pop("state", ()), constant=options.pop("constants", ()), save_training=save_training
        )
        step, given = _loaded(source, inputs, batch, example)
        made = split(step, given, prices=prices, **options)
    if save is not None:
        made.data.save(save)
    if save_training is not None:
        made.train.save(save_training)
    if plot is not None:
        plot_cut(made.report(), plot)
    return made.report()


def _split_onnx_file(
    source: str,
    inputs: Sequence[str],
    example: str | None,
    *,
    frozen: bool = False,
    sizes: str = "batch",
    **options: Any,
) -> Split:
    _refuse(source, example=example, frozen=frozen, sizes=sizes != "batch")
    model, told = read_model(source), [parse_input(one) for one in inputs]
    names = [one.name for one in inputs_of(model)]
    if len(told) > len(names):
        raise BadInput(f"{len(told)} inputs are given, and {source} takes {len(names)}: {', '.join(names)}")
    if any(one.dtype for one in told):
        raise BadInput(f"{source} tells the types of its inputs itself: leave them away from --input")
    return split_onnx(model, shapes={one.name or names[at]: one.sizes for at, one in enumerate(told)}, **options)


def _refuse(source: str, **options: Any) -> None:
    """Raises BadInput for those of OPTIONS that are given: they make no sense for SOURCE."""
    if given := [name for name, value in options.items() if value]:
        what = "a Python step" if is_onnx(source) else "an ONNX file"
        raise BadInput(f"--{given[0].replace('_', '-')} is for {what}, not for {source}")


def _loaded(source: str, inputs: Sequence[str], batch: int | None, example: str | None) -> tuple[Any, Any]:
    """The step that SOURCE names, and a batch for it."""
    try:
        import torch
    except ImportError as missing:
        raise ExtraNeeded("a step is cut with PyTorch: pip install 'wattsmith[torch]'") from missing
    if ":" not in source:
        raise BadInput(f"which step in {source}? Write {source}:NAME, of a function, an nn.Module or a class of one")
    thing, folder = named_thing(source)
    beside = None
    with folder_on_path(folder):
        if isinstance(thing, type) or (inspect.isfunction(thing) and _takes_nothing(thing)):
            thing = _called(thing, source)
            if isinstance(thing, tuple) and len(thing) == 2:
                thing, beside = thing
        if not callable(thing):
            raise BadInput(f"{source} is a {type(thing).__name__}; a step is a function of a batch, or an nn.Module")
        if inputs:
            return thing, _of_sizes(inputs, batch)
        if example is None and beside is not None:
            return thing, beside
        given = _example(source, example)
        if given is None:
            given = getattr(thing, "example_input_array", None) if isinstance(thing, torch.nn.Module) else None
    if given is None:
        place = source.rpartition(":")[0]
        raise BadInput(
            f"what does {source} take? Write a function `example` that gives a batch into {place}, name another with "
            "--example, or give sizes of one sample, as in --input 3x224x224:uint8 --input label=:int64"
        )
    if batch is not None:
        raise BadInput("--batch goes with --input; the example of the file has its own number of samples")
    return thing, given


def _takes_nothing(function: Callable[..., Any]) -> bool:
    return not inspect.signature(function).parameters


def _called(thing: Callable[[], Any], what: str) -> Any:
    try:
        return thing()
    except Exception as failed:
        at = f" at {place}" if (place := place_of(failed)) else ""
        raise NotSplittable(f"{what} fails{at}: {type(failed).__name__}: {first_line(failed)}") from failed


def _example(source: str, name: str | None) -> Any:
    """What NAME, or else `example`, in the file of SOURCE gives; None: there is none."""
    place = source.rpartition(":")[0]
    module = sys.modules.get(f"wattsmith_model_{Path(place).stem}") or sys.modules.get(place)
    found = getattr(module, name or "example", None)
    if found is None:
        if name is not None:
            raise BadInput(f"{place} has no {name!r} that gives a batch")
        return None
    is_batch = any(True for _ in tensors_in(found))
    return found if is_batch or not callable(found) else _called(found, f"{place}:{name or 'example'}")


def _of_sizes(inputs: Sequence[str], batch: int | None) -> Any:
    """A batch of such samples: one tensor, a tuple, or a dict by name."""
    made = inputs_of_shapes([parse_input(one) for one in inputs], batch or _BATCH, "cpu")
    if made.named and made.args:
        raise BadInput("name all of --input, or none")
    if made.named:
        return dict(made.named)
    return made.args[0] if len(made.args) == 1 else made.args
