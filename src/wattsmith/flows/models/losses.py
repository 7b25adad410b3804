"""What a model is trained for when its user does not say: its own loss, or one that costs about as much."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from wattsmith.flows.models.inputs import Inputs, batch_of, tensor_of, tensors_in
from wattsmith.flows.models.problems import ModelNotLoaded, told_shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """One number from a model's output, and how it was chosen."""

    of: Callable[[Any], Any]
    told: str


def loss_for(output: Any, module: Any, inputs: Inputs, device: str) -> Loss:
    """A loss for what MODULE gives: its own, or cross-entropy of what look like scores, or a mean."""
    if _own_loss(output) is not None:
        return Loss(of=_own_loss, told="loss: the model's own")
    first = _first_floating(output)
    if first is None:
        raise ModelNotLoaded(
            f"a {type(output).__name__} without any tensor of fractions came out of the model, so there is nothing to "
            "train: let it give its loss, or estimate it with mode 'infer'"
        )
    if first.dim() == 0:
        return Loss(of=_first_floating, told="loss: the single number that the model gives")
    if first.dim() == 2 and first.shape[1] > 1 and first.shape[0] == batch_of(inputs.tensors()):
        return _cross_entropy(first, device, "of each sample")
    if first.dim() == 3 and first.shape[-1] in _vocabularies(module):
        return _cross_entropy(first, device, "of each token")
    return Loss(
        of=lambda output: _first_floating(output).float().mean(),
        told=f"loss: the mean of the first output, {told_shape(first)}; give a step of your own for another",
    )


def _cross_entropy(scores: Any, device: str, whose: str) -> Loss:
    import torch

    classes = scores.shape[-1]
    labels = tensor_of((scores.numel() // classes,), "int64", device)

    def of(output: Any) -> Any:
        return torch.nn.functional.cross_entropy(_first_floating(output).reshape(-1, classes), labels)

    return Loss(
        of=of, told=f"loss: cross-entropy over the {classes} scores {whose}; give a step of your own for another"
    )


def _vocabularies(module: Any) -> set[int]:
    import torch

    return {one.num_embeddings for one in module.modules() if isinstance(one, torch.nn.Embedding)}


def _own_loss(output: Any) -> Any:
    """The loss that OUTPUT names as such; None: it names none."""
    import torch

    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    return found if isinstance(found, torch.Tensor) and found.dim() == 0 else None


def _first_floating(output: Any) -> Any:
    if hasattr(output, "__dict__") and not isinstance(output, Mapping | list | tuple) and not hasattr(output, "dtype"):
        output = vars(output)
    return next((one for one in tensors_in(output) if one.is_floating_point()), None)
