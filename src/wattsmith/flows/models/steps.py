"""A step of a loaded model: forward, loss, backward and update, or forward alone; ready to be traced."""

import inspect
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.models.inputs import Inputs, tensors_in
from wattsmith.flows.models.loaded import LoadedModel
from wattsmith.flows.models.losses import Loss, loss_for
from wattsmith.flows.models.ordinary import ordinary_answers
from wattsmith.flows.models.problems import explained, is_mixed, is_ours, operator_without_values
from wattsmith.flows.models.python_source import moved_copy
from wattsmith.record.program import LOSS_SCALE, dtype_of
from wattsmith.terms.errors import BadInput

OPTIMIZERS = ("sgd", "adam", "adamw")
_CHOICES = {
    "mode": ("train", "infer"),
    "precision": ("fp32", "tf32", "bf16", "fp16"),
    "layout": ("contiguous", "channels-last"),
    "optimizer": (*OPTIMIZERS, None),
}
MOST_PASSES = 10_000  # over which a step gathers gradients
OwnStep = Callable[..., object]  # takes model, optimizer and inputs; or nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Traceable:
    """A step, and what a trace of it should know."""

    step: Callable[[], object]
    parameters: tuple[Any, ...]
    inputs: tuple[Any, ...]  # the tensors of one batch
    resident: tuple[Any, ...]  # buffers and the optimizer's state
    precision: str  # what autocast has still to do: "fp32" where the model itself is in its precision
    steps: int = 1  # that a trace must take until all that stays is there
    device: str = "meta"
    notes: tuple[str, ...] = ()


def step_of(
    loaded: LoadedModel,
    *,
    mode: str = "train",
    optimizer: str | None = "sgd",
    precision: str = "fp32",
    layout: str = "contiguous",
    accumulation: int = 1,
    own: OwnStep | None = None,
) -> Traceable:
    """A step of LOADED. The forward pass is tried once, so that what does not fit is told here.

    A model that trains in bf16 or fp16 keeps its weights in fp32 and runs under autocast; one that infers is in that
    precision altogether. OPTIMIZER None updates nothing. OWN: the user's own step, called as own(model, optimizer,
    inputs) with inputs as a tuple or a dict, or as own(); it does all that a step does, zero_grad too.
    """
    given = {"mode": mode, "precision": precision, "layout": layout, "optimizer": optimizer}
    _check(loaded, given, accumulation)
    module, inputs = _as_asked(loaded, mode, precision, layout)
    parameters = tuple(module.parameters())
    learning = [one for one in parameters if one.requires_grad]
    if mode == "infer":
        optimizer = None
    elif not learning:
        raise BadInput("the model has no parameter that learns; estimate it with mode 'infer'")
    updater = optimizer_over(learning, optimizer)
    notes = list(loaded.notes)
    state: tuple[Any, ...] = ()
    if own is not None:
        step = _own_step(own, module, updater, inputs, loaded)
    else:
        output, around, noted = _tried(loaded, module, inputs, mode)
        notes += noted
        if mode == "infer":
            step = _infer_step(module, inputs, around)
        else:
            loss = loss_for(output, module, inputs, loaded.device)
            notes.append(loss.told)
            scale = (LOSS_SCALE if precision == "fp16" else 1.0) / accumulation
            step = _train_step(module, inputs, loss, updater, scale, accumulation, around)
        state = state_of(updater, learning)
    if precision in ("bf16", "fp16") and mode == "infer":
        notes.append(f"weights and inputs are in {precision} altogether; there is no autocast")
    return Traceable(
        step=_with_mode(_explaining(step, module, inputs), loaded, module, mode),
        parameters=parameters,
        inputs=inputs.tensors(),
        resident=(*module.buffers(), *state),
        precision="fp32" if mode == "infer" and precision in ("bf16", "fp16") else precision,
        steps=1 if own is None else 2,
        device=loaded.device,
        notes=tuple(notes),
    )


def _check(loaded: LoadedModel, given: dict[str, str | None], accumulation: int) -> None:
    for name, value in given.items():
        if value not in _CHOICES[name]:
            allowed = ", ".join("none" if one is None else one for one in _CHOICES[name])
            raise BadInput(f"there is no {name} {value!r}; there are {allowed}")
    if not 1 <= accumulation <= MOST_PASSES:
        raise BadInput(
            f"gradients accumulate over 1 to {MOST_PASSES} passes, each of which is traced; got {accumulation}"
        )
    if loaded.kind == "onnx" and given["mode"] == "train":
        raise BadInput("an ONNX file holds the forward pass alone: use mode 'infer', or give the Python model")


def _as_asked(loaded: LoadedModel, mode: str, precision: str, layout: str) -> tuple[Any, Inputs]:
    """The module and its inputs in the precision and layout asked for; LOADED itself stays as it is."""
    import torch

    inputs = loaded.inputs_for(mode)
    lowered = dtype_of(precision) if mode == "infer" and precision in ("bf16", "fp16") else None
    ordered = torch.channels_last if layout == "channels-last" else None
    if lowered is None and ordered is None:
        return loaded.module, inputs
    from torch.utils._pytree import tree_map

    def turned(one: Any) -> Any:
        if not isinstance(one, torch.Tensor) or not one.is_floating_point():
            return one
        image = ordered is not None and one.dim() == 4
        return one.to(dtype=lowered or one.dtype, memory_format=ordered if image else torch.preserve_format)

    module = moved_copy(loaded.module, loaded.device, dtype=lowered, memory_format=ordered)
    return module, Inputs(args=tree_map(turned, inputs.args), named=tree_map(turned, dict(inputs.named)))


def optimizer_over(learning: list[Any], name: str | None) -> Any:
    """The optimizer called NAME, with one kernel for many tensors as on a GPU; None where nothing is updated."""
    import torch

    if name is None:
        return None
    if name == "sgd":
        return torch.optim.SGD(learning, lr=1e-3, momentum=0.9, foreach=True)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[name]
    return kind(learning, lr=1e-3, foreach=True)


def state_of(optimizer: Any, learning: list[Any]) -> tuple[Any, ...]:
    """What the optimizer keeps between steps, made as its first step would make it."""
    import torch

    if optimizer is None:
        return ()
    for one in learning:
        one.grad = torch.zeros_like(one)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return tuple(one for one in tensors_in([list(state.values()) for state in optimizer.state.values()]) if one.dim())


@dataclass(slots=True)
class _Around:
    """What a forward pass needs around it."""

    default_device: str | None = None  # where tensors go for which the model names no device; None: where it says
    answers: Any = None  # a mode that answers questions about values; None: none are asked

    @contextmanager
    def entered(self) -> Iterator[None]:
        import torch

        with ExitStack() as stack:
            if self.default_device is not None:
                stack.enter_context(torch.device(self.default_device))
            if self.answers is not None:
                stack.enter_context(self.answers)
            yield

    def can_help(self, failed: BaseException) -> bool:
        """Put around what a pass that FAILED lacked; False: it is all there."""
        if is_mixed(failed) and self.default_device is None:
            # A model that was only ever run on the CPU need not say where its new tensors go.
            self.default_device = "meta"
            return True
        if operator_without_values(failed) == ".item()" and self.answers is None:
            self.answers = ordinary_answers()
            return True
        return False

    def notes(self) -> Iterator[str]:
        if self.default_device is not None:
            yield "the model makes tensors on the default device: taken to be the one it runs on"
        for place, answer in self.answers.places.items() if self.answers else ():
            yield f"the model asks for values at {place}: taken as {'yes' if answer else 'no'}, as for ordinary data"


def _tried(loaded: LoadedModel, module: Any, inputs: Inputs, mode: str) -> tuple[Any, _Around, list[str]]:
    """The output of one forward pass, what it needs around it, and notes."""
    import torch

    _set_mode(loaded, module, mode)
    around = _Around()
    with warnings.catch_warnings(record=True) as warned, torch.no_grad():
        warnings.simplefilter("always")
        while True:
            try:
                with around.entered():
                    output = module(*inputs.args, **inputs.named)
                break
            except BadInput:
                raise  # it explains itself
            except Exception as failed:  # a model may raise anything, also what it defines itself
                if loaded.device != "meta" or not around.can_help(failed):
                    raise explained(failed, module, inputs.told()) from failed
    notes = list(around.notes())
    if any("Disabling autocast" in str(one.message) for one in warned):
        notes.append("the model's own autocast has no effect in a trace; give --precision instead")
    return output, around, notes


def _infer_step(module: Any, inputs: Inputs, around: _Around) -> Callable[[], object]:
    import torch

    def step() -> object:
        with torch.inference_mode(), around.entered():
            return module(*inputs.args, **inputs.named)

    return step


def _train_step(
    module: Any, inputs: Inputs, loss: Loss, optimizer: Any, scale: float, accumulation: int, around: _Around
) -> Callable[[], object]:
    def step() -> object:
        for _ in range(accumulation):
            with around.entered():
                found = loss.of(module(*inputs.args, **inputs.named))
                (found if scale == 1.0 else found * scale).backward()
        if optimizer is not None:
            optimizer.step()
        module.zero_grad(set_to_none=True)
        return found.detach()

    return step


def _own_step(own: OwnStep, module: Any, optimizer: Any, inputs: Inputs, loaded: LoadedModel) -> Callable[[], object]:
    """The user's step, with one kernel for many tensors in whatever optimizer it uses, as on a GPU."""
    from torch.optim.optimizer import register_optimizer_step_pre_hook

    takes = _arguments_taken(own)
    if takes == 0 and any(one.device.type != loaded.device for one in _tensors_held(own)):
        raise BadInput(
            "the step uses tensors that are not on meta, and running it would change them: write it as "
            "step(model, optimizer, inputs), or build what it uses under `with torch.device('meta')`"
        )
    batch = dict(inputs.named) if inputs.named else inputs.args

    def with_foreach(optimizer: Any, _args: Any, _kwargs: Any) -> None:
        for group in optimizer.param_groups:
            if group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def step() -> object:
        hook = register_optimizer_step_pre_hook(with_foreach)
        try:
            return own(module, optimizer, batch) if takes else own()
        finally:
            hook.remove()

    return step


def _arguments_taken(own: OwnStep) -> int:
    signature = inspect.signature(own)
    for count in (3, 0):
        try:
            signature.bind(*range(count))
        except TypeError:
            continue
        return count
    raise BadInput(f"a step takes model, optimizer and inputs, or nothing; yours takes {signature}")


def _tensors_held(own: OwnStep) -> Iterator[Any]:
    """The parameters of the modules that a function without arguments refers to."""
    import torch

    held = inspect.getclosurevars(inspect.unwrap(own)) if inspect.isfunction(own) else None
    for one in [] if held is None else [*held.nonlocals.values(), *held.globals.values()]:
        if isinstance(one, torch.nn.Module):
            yield from one.parameters()


def _explaining(step: Callable[[], object], module: Any, inputs: Inputs) -> Callable[[], object]:
    def explaining() -> object:
        try:
            return step()
        except BadInput:
            raise
        except Exception as failed:  # a model may raise anything, also what it defines itself
            if is_ours(failed):
                raise
            raise explained(failed, module, inputs.told()) from failed

    return explaining


def _with_mode(step: Callable[[], object], loaded: LoadedModel, module: Any, mode: str) -> Callable[[], object]:
    def in_mode() -> object:
        _set_mode(loaded, module, mode)  # another step of the same module may have set it otherwise
        return step()

    return in_mode


def _set_mode(loaded: LoadedModel, module: Any, mode: str) -> None:
    if loaded.kind != "exported":  # which is as it was exported, and refuses to change
        module.train(mode == "train")
