"""What can be wrong with a model or its inputs, said so that its author finds the place."""

import linecache
import re
import sysconfig
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from wattsmith.terms.errors import BadInput


class ModelNotLoaded(BadInput):
    """The source cannot be read, or its model cannot be built. Correct the file or the name."""


class InputsDoNotFit(BadInput):
    """The model does not take inputs of these shapes. Give others."""


class NotTraceable(BadInput):
    """The model needs more of a tensor than its shape. Change it, or take the way around that the message names."""

    def __init__(self, message: str, operator: str | None = None) -> None:
        super().__init__(message)
        self.operator = operator


WAY_AROUND = (
    "Move it out of the step, or let the step run once on this machine's CPU with random values: --with-values, from "
    "Python with_values=True"
)
# How PyTorch says that shapes are not enough, and what it was asked for.
_NEEDS_VALUES = (
    (re.compile(r"Tensor\.item\(\) cannot be called on meta"), ".item()"),
    (re.compile(r"meta function for torch\.(\w+)\(\) raises unimplemented"), None),
    (re.compile(r"aten::(\w+)(?:\.\w+)?: attempted to run this operator with Meta"), None),
    (re.compile(r"Could not run '\w+::(\w+)(?:\.\w+)?' with arguments from the 'Meta'"), None),
    (re.compile(r"cannot (repeat_interleave) a meta tensor"), None),
    (re.compile(r"Cannot copy out of meta tensor"), ".cpu(), .tolist() or the like"),
    (re.compile(r"can't convert meta device type tensor to numpy"), ".numpy()"),
)
_TWO_DEVICES = re.compile(
    r"on device cpu is not on the expected device meta|Expected all tensors to be on the same dev"
)


def operator_without_values(failed: BaseException) -> str | None:
    """What FAILED wanted the values of a tensor for; None: it failed for another reason."""
    for pattern, name in _NEEDS_VALUES:
        if found := pattern.search(str(failed)):
            return name or found[1]
    return None


def is_mixed(failed: BaseException) -> bool:
    """Whether FAILED says that tensors on two devices met."""
    return bool(_TWO_DEVICES.search(str(failed)))


def explained(failed: BaseException, module: Any, given: str) -> BadInput:
    """What went wrong in a step of MODULE with the inputs that GIVEN tells."""
    at = f" at {place}" if (place := place_of(failed)) else ""
    told = first_line(failed)
    if operator := operator_without_values(failed):
        return NotTraceable(
            f"the model asks for the values of a tensor, and a trace has shapes alone: {operator}{at}. {WAY_AROUND}.",
            operator,
        )
    if is_mixed(failed):
        return NotTraceable(
            f"the model joins one of its tensors with one on the CPU{at}: {told}. Register it with register_buffer, or "
            "make it with device=x.device; on a GPU the step would fail too."
        )
    if isinstance(failed, AttributeError | ImportError | NameError):
        return ModelNotLoaded(f"the model fails in its step{at}: {type(failed).__name__}: {told}")
    layer = f" {handed}." if (handed := failing_layer(failed, module)) else ""
    return InputsDoNotFit(f"the model does not take {given}:{layer} {told}{at}. Give other sizes with --input.")


def first_line(failed: BaseException) -> str:
    return str(failed).strip().partition("\n")[0].rstrip(".")[:300] or type(failed).__name__


def frames_of(failed: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(failed.__traceback__))


def is_ours(failed: BaseException) -> bool:
    """Whether FAILED was raised in a room of ours, so that no model is to blame."""
    frames = frames_of(failed)
    return bool(frames) and frames[-1][0].f_code.co_filename.startswith(_OURS)


def place_of(failed: BaseException) -> str | None:
    """File, line and text of the last line that ran in the user's own code, or else in a library of models."""
    if isinstance(failed, SyntaxError) and failed.filename:
        return f"{failed.filename}, line {failed.lineno}: {(failed.text or '').strip()}"
    return _last_place(frames_of(failed))


def calling_place() -> str | None:
    """The same for the line that runs now, inside a step."""
    inner: list[tuple[FrameType, int]] = []
    for frame, line in traceback.walk_stack(None):
        if frame.f_code.co_filename == _STEPS:
            break
        inner.append((frame, line))
    return _last_place(inner[::-1])


def _last_place(frames: list[tuple[FrameType, int]]) -> str | None:
    places = [(frame.f_code.co_filename, line) for frame, line in reversed(frames)]
    outside = [(path, line) for path, line in places if not _is_of_the_machine(path)]
    chosen = next((one for one in outside if "site-packages" not in one[0]), next(iter(outside), None))
    if chosen is None:
        return None
    text = linecache.getline(*chosen).strip()
    return f"{chosen[0]}, line {chosen[1]}" + (f": `{text}`" if text else "")


_OURS = str(Path(__file__).parents[2])
_STEPS = str(Path(__file__).with_name("steps.py"))
_STANDARD = tuple({sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")})


def _is_of_the_machine(path: str) -> bool:
    """Whether PATH is Python's, PyTorch's or ours, where no model is written."""
    if "site-packages" in path:
        return "/site-packages/torch/" in path
    return path.startswith(("<", _OURS, *_STANDARD))


def failing_layer(failed: BaseException, module: Any) -> str | None:
    """The innermost layer of MODULE that FAILED went through: what it was handed, and what it wants."""
    import torch

    names = {id(one): name for name, one in module.named_modules() if name}
    for frame, _ in reversed(frames_of(failed)):
        layer = frame.f_locals.get("self")
        if isinstance(layer, torch.nn.Module) and id(layer) in names and frame.f_code.co_name == "forward":
            handed = " and ".join(_tensors_given(frame)) or "no tensor"
            wants = f" and wants {wanted}" if (wanted := wanted_by(layer)) else ""
            return f"layer {names[id(layer)]} ({type(layer).__name__}) is handed {handed}{wants}"
    return None


def _tensors_given(frame: FrameType) -> Iterator[str]:
    import torch

    code = frame.f_code
    for name in code.co_varnames[1 : code.co_argcount]:
        if isinstance(value := frame.f_locals.get(name), torch.Tensor):
            yield told_shape(value)


def wanted_by(layer: Any) -> str | None:
    """What a layer of torch's own wants as input; None: not known."""
    import torch.nn as nn
    from torch.nn.modules.batchnorm import _BatchNorm
    from torch.nn.modules.conv import _ConvNd

    if isinstance(layer, nn.Linear):
        return f"{layer.in_features} features in the last dimension"
    if isinstance(layer, _ConvNd):
        return f"batch × {layer.in_channels} channels × {len(layer.kernel_size)} more dimensions"
    if isinstance(layer, _BatchNorm):
        return f"{layer.num_features} channels in the second dimension"
    if isinstance(layer, nn.LayerNorm):
        return f"{'×'.join(map(str, layer.normalized_shape))} in the last dimensions"
    if isinstance(layer, nn.Embedding):
        return "whole numbers, int64 or int32"
    return None


def told_shape(tensor: Any) -> str:
    """A tensor as its author would write it: "8×3×224×224 float32"."""
    sizes = "×".join(map(str, tensor.shape)) or "one number of"
    return f"{sizes} {str(tensor.dtype).removeprefix('torch.')}"
