"""A training step cut in two: from Python, and from a file that is named on the command line."""

import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from wattsmith.flows.models.inputs import inputs_of_shapes, parse_input, tensors_in
from wattsmith.flows.models.python_source import folder_on_path, named_thing
from wattsmith.report.split_plot import plot_cut
from wattsmith.split.halves import load as load_half
from wattsmith.split.marks import boundary, opaque
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Prices
from wattsmith.split.problems import NotSplittable, first_line, place_of
from wattsmith.split.whole import Split, split
from wattsmith.terms.cut import Cut
from wattsmith.terms.errors import BadInput, ExtraNeeded

__all__ = ["Cut", "Prices", "Split", "boundary", "load_half", "opaque", "split", "split_file"]

TRAINERS = {"cpu": CPU_TRAINER, "gpu": GPU_TRAINER}
_BATCH = 8  # samples in an example that is made of sizes


def split_file(
    source: str,
    *,
    inputs: Sequence[str] = (),
    batch: int | None = None,
    example: str | None = None,
    trainer: str | None = None,
    plot: Path | None = None,
    save: Path | None = None,
    **options: Any,
) -> Cut:
    """Cut the step that SOURCE names: FILE.py:NAME or package.module:NAME.

    INPUTS: sizes of one sample, such as 3x224x224:uint8. EXAMPLE: what in the same file gives a batch; usually
    `example`. TRAINER: "cpu" or "gpu". PLOT and SAVE: files for a picture and for the data half. Options are those of
    `split`.
    """
    if trainer is not None and trainer not in TRAINERS:
        raise BadInput(f"--trainer must be cpu or gpu, got {trainer!r}")
    if batch is not None and batch < 1:
        raise BadInput(f"--batch must be at least 1, got {batch}")
    prices = None if trainer is None else TRAINERS[trainer]
    step, given = _loaded(source, inputs, batch, example)
    made = split(step, given, prices=prices, **options)
    if save is not None:
        made.data.save(save)
    if plot is not None:
        plot_cut(made.report(), plot)
    return made.report()


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
