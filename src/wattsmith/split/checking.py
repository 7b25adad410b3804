"""The halves against the whole step: the same numbers, bit for bit, for all samples of the example and for few."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from wattsmith.split.cutting import drawing_in_training
from wattsmith.split.giving import taken_apart
from wattsmith.split.handing import is_tensor, sliced
from wattsmith.split.keeping import same_tensor
from wattsmith.split.problems import BatchDoesNotFit, NotSplittable, first_line, place_of
from wattsmith.split.roles import DRAWN, OPAQUE, Roles
from wattsmith.split.state import put_back, seed_everything
from wattsmith.split.traced import OBJECT, Traced


def compared(made: Any, traced: Traced, roles: Roles, data: frozenset[Any], watched: Any, seed: int) -> Any:
    """MADE, with a note if it could not be compared. Raises NotSplittable if its numbers are not those of the step."""
    if why := _incomparable(traced, roles, data):
        cut = replace(made.cut, notes=(*made.cut.notes, f"not compared with the step itself: {why}"))
        return replace(made, cut=cut)
    for samples, wanted in watched.outputs.items():
        batch = sliced(watched.structure, watched.example, watched.batch, samples)
        try:
            got, learned = _outputs(made, batch, watched.held, seed, samples == watched.batch)
        except BatchDoesNotFit:
            continue  # a size that the halves refuse cannot go wrong
        for at, (one, other) in enumerate(zip(wanted, got, strict=True)):
            if not same(one, other):
                raise NotSplittable(
                    f"output {at} of the cut step is not that of the step itself, with {samples} of {watched.batch} "
                    f"samples: {shortly(other)} instead of {shortly(one)}. A step that seeds generators itself "
                    "(torch.manual_seed, fork_rng) cannot be cut: on the data side each batch has its seed. If it does "
                    "not, this is a fault of the cut; check=False goes on all the same."
                )
        if samples == watched.batch:
            _compare_gradients(watched.grads, learned)
    return made


def _compare_gradients(wanted: dict[str, Any], got: dict[str, Any]) -> None:
    for name in {*wanted, *got}:
        one, other = wanted.get(name), got.get(name)
        if (one is None) != (other is None) or (one is not None and not same(one, other)):
            raise NotSplittable(
                f"the gradient of {name} is not the same in the cut step as in the step itself. Hooks on tensors and "
                "autograd functions of your own are lost in a trace: put wattsmith.boundary(...) around all that "
                "crosses, and training stays your own code"
            )


def gradients(given: Any, held: Any) -> dict[str, Any]:
    """Gradients of all that HELD has, from the first single number in GIVEN that depends on it; {}: there is none."""
    import torch
    from torch.utils._pytree import tree_leaves

    loss = [one for one in tree_leaves(given) if is_tensor(one) and one.requires_grad and one.numel() == 1]
    if not loss:
        return {}
    torch.autograd.backward(loss[0])
    return {
        name: None if one.grad is None else one.grad.detach().clone()
        for name, one in held.tensors().items()
        if one.is_leaf and one.requires_grad
    }


def _incomparable(traced: Traced, roles: Roles, data: frozenset[Any]) -> str | None:
    if any(one.kind == OBJECT and "enerator" in _kind_name(one.value) for one in traced.attributes.values()):
        return "the step draws from a generator of its own"
    order = {node: at for at, node in enumerate(traced.nodes())}
    training = [order[one] for one in drawing_in_training(traced, roles, data)]
    drawn = [at for node, at in order.items() if node in data and roles.kinds[node] in (DRAWN, OPAQUE)]
    if training and drawn and min(training) < max(drawn):
        return "it draws for training before it draws for the data, from one generator"
    return None


def _kind_name(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.80}" if value is not None else "Generator"


def _outputs(made: Any, batch: Any, held: Any, seed: int, learns: bool) -> tuple[list[Any], dict[str, Any]]:
    import torch
    from torch.utils._pytree import tree_leaves

    with put_back(held):
        seed_everything(seed)
        crossing, generator = made.data.and_generator(batch, seed)
        # The whole step goes on with the generator where the data work left it.
        torch.set_rng_state(generator)
        given = taken_apart(_trained(made, crossing))
        outputs = [one.detach().clone() if is_tensor(one) else one for one in tree_leaves(given)]
        return outputs, gradients(given, held) if learns else {}


def _trained(made: Any, crossing: Sequence[Any]) -> Any:
    try:
        return made.train(*crossing)
    except NotSplittable:
        raise
    except Exception as failed:
        at = f" at {place}" if (place := place_of(failed)) else ""
        raise NotSplittable(f"the training half fails with the example{at}: {first_line(failed)}") from failed


def same(one: Any, other: Any) -> bool:
    """Whether two outputs of a step are the same, bit for bit; numbers that are none are alike."""
    if not is_tensor(one) or not is_tensor(other):
        return bool(one == other) or (one != one and other != other)
    return same_tensor(one, other)


def shortly(value: Any) -> str:
    """VALUE for a message."""
    if is_tensor(value):
        return f"{'×'.join(map(str, value.shape))} {value.dtype}" if value.numel() > 1 else repr(value.item())
    return repr(value)[:60]
