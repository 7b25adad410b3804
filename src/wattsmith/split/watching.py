"""A step run for real, to see what it gives and what it keeps; everything is put back."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from wattsmith.split.checking import gradients, same, shortly
from wattsmith.split.giving import giving_parts, refuse_objects
from wattsmith.split.handing import (
    THING,
    Leaf,
    batch_size,
    doubled,
    is_tensor,
    kind_of,
    sliced,
    structure_of,
    ways_to_call,
)
from wattsmith.split.keeping import Kept, accumulating, age, alike, copied
from wattsmith.split.marks import Recorder, watched_by
from wattsmith.split.problems import NotSplittable, first_line, place_of
from wattsmith.split.state import Held, places_put_back, seed_everything, values_put_back

SEED = 40_961  # of the runs that are compared


@dataclass(slots=True)
class Keeps:
    """What a step keeps from call to call in other ways than by writing into tensors."""

    names: list[str] = field(default_factory=list)  # of what each call changes further
    early: list[str] = field(default_factory=list)  # those of them that are changed before the boundary
    differs: str | None = None  # which output is not the same in a second call; None: all are
    sends_alike: bool = True  # whether what crosses at the boundary is the same in a second call
    overwritten: dict[str, Any] = field(default_factory=dict)  # what the step puts somewhere, and never goes on from


@dataclass(slots=True)
class Watched:
    """A step and what was seen of it in real runs."""

    call: Callable[[Any], Any]
    example: Any
    structure: Any
    leaves: list[Leaf]
    values: list[Any]
    batch: int
    held: Held
    changed: dict[str, str]
    recorders: dict[int, Recorder]  # by number of samples
    outputs: dict[int, list[Any]]  # by number of samples: what the step gave, with all generators at SEED
    grads: dict[str, Any]  # of all that is trained, after backward with all samples; empty: there was none
    keeps: Keeps = field(default_factory=lambda: Keeps())


def watch(step: Callable[..., Any], example: Any, update: Callable[[], Any] | None, held: Held) -> Watched:
    """Run the step for real, with all samples and with few, and put everything back."""
    _refuse_lazy(held)
    structure, found = structure_of(example)
    if batch_size(found) == 1 and any(is_tensor(value) and value.dim() > 0 for _, value in found):
        # A size of one cannot stay open in a trace.
        example = doubled(structure, example)
        structure, found = structure_of(example)
    for path, value in found:
        if is_tensor(value) and value.device.type != "cpu":
            raise NotSplittable(
                f"{path} is on {value.device}. Give the batch as the loader makes it, on the CPU, and move it to the "
                "device inside the step."
            )
    if not any(kind_of(value) != "constant" for _, value in found):
        raise NotSplittable("the example holds neither a tensor nor anything else that changes from batch to batch")
    leaves = [leaf_of(path, value) for path, value in found]
    ways = [giving_parts(way) for way in ways_to_call(step, example)]
    watched = Watched(
        call=ways[0],
        example=example,
        structure=structure,
        leaves=leaves,
        values=[value for _, value in found],
        batch=batch_size(found),
        held=held,
        changed={},
        recorders={},
        outputs={},
        grads={},
    )
    if watched.batch == 0:
        raise NotSplittable("the example batch holds no samples")
    _run_first_way(watched, ways, update)
    for samples in {2, 1, max(1, watched.batch - 1)} - {watched.batch}:
        if samples < watched.batch:
            _run(watched, samples, None)
    return watched


def _run_first_way(watched: Watched, ways: list[Callable[[Any], Any]], update: Callable[[], Any] | None) -> None:
    """Run the step with the example in the first of WAYS that goes; if none does, raise what the first said."""
    said: NotSplittable | None = None
    for way in ways:
        watched.call = way
        try:
            return _run(watched, watched.batch, update)
        except NotSplittable as refused:
            said = said or refused
    assert said is not None
    raise said


def leaf_of(path: str, value: Any) -> Leaf:
    kind = kind_of(value)
    if kind == "tensor":
        dtype = str(value.dtype).removeprefix("torch.")
        return Leaf(kind=kind, path=path, shape=tuple(value.shape), dtype=dtype)
    return Leaf(kind=kind, path=path, constant=repr(value) if kind != THING else None)


def _run(watched: Watched, samples: int, update: Callable[[], Any] | None) -> None:
    """One real step with that many SAMPLES, and backward, UPDATE and a second step when all of them are there."""
    from torch.utils._pytree import tree_leaves

    whole = samples == watched.batch
    with places_put_back(watched.held) as before:
        recorder = Recorder(lambda: watched.keeps.early.extend(before.moved()) if whole else None)
        with values_put_back(watched.held) as changed:
            seed_everything(SEED)
            try:
                with watched_by(recorder):
                    given = watched.call(_some(watched, samples))
                _refuse_training_inside(watched.held)
                refuse_objects(given)
                outputs = [one.detach().clone() if is_tensor(one) else one for one in tree_leaves(given)]
            except Exception as failed:
                if not whole:
                    return
                if isinstance(failed, NotSplittable):
                    raise
                at = f" at {place}" if (place := place_of(failed)) else ""
                raise NotSplittable(
                    f"the step fails with the example{at}: {type(failed).__name__}: {first_line(failed)}"
                ) from failed
            watched.recorders[samples], watched.outputs[samples] = recorder, outputs
            if whole:
                moved = {name: copied(one) for name, one in before.moved().items()}
                watched.grads = _learned(given, watched.held)
                if update is not None:
                    _run_update(update)
        if whole:
            watched.changed = dict(changed)
            _call_again(watched, before, moved)


def _some(watched: Watched, samples: int) -> Any:
    return sliced(watched.structure, watched.example, watched.batch, samples)


def _call_again(watched: Watched, before: Kept, moved: dict[str, Any]) -> None:
    """See by a second call what the step keeps. MOVED: what the first one put in the place of others."""
    keeps = watched.keeps
    keeps.differs = _difference(watched)
    again = before.moved()
    keeps.names = accumulating(moved, {name: copied(again[name]) for name in moved if name in again})
    if keeps.differs is None and not keeps.names and age({name: again[name] for name in moved if name in again}):
        # What a long list changes, after many calls.
        keeps.differs = _difference(watched)
        keeps.names = [] if keeps.differs is None else list(moved)
    if keeps.differs is not None and not keeps.names:
        keeps.names = list(again)  # put there by the first call, or by update
    keeps.early = [name for name in keeps.names if name in keeps.early]
    keeps.overwritten = moved


def _difference(watched: Watched) -> str | None:
    """Which output of another step is not that of the first; None: all are the same."""
    from torch.utils._pytree import tree_leaves

    first, outputs = watched.recorders[watched.batch], watched.outputs[watched.batch]
    recorder = Recorder()
    with values_put_back(watched.held):
        seed_everything(SEED)
        try:
            with watched_by(recorder):
                given = tree_leaves(watched.call(_some(watched, watched.batch)))
        except Exception as failed:  # noqa: BLE001 - whatever it is, the first step did not fail
            return f"it fails ({first_line(failed)})"
        finally:
            watched.keeps.sends_alike &= alike(first.sent, recorder.sent)
        for at, (one, other) in enumerate(zip_longest(outputs, given)):
            if not same(one, other):
                return f"output {at} is {shortly(one)}, then {shortly(other)}"
    return None


def _learned(given: Any, held: Held) -> dict[str, Any]:
    try:
        return gradients(given, held)
    except RuntimeError as failed:
        raise NotSplittable(f"backward fails after the step with the example: {first_line(failed)}") from failed


def _refuse_lazy(held: Held) -> None:
    from torch.nn.parameter import is_lazy

    lazy = [name for name, one in held.tensors().items() if is_lazy(one)]
    if lazy:
        raise NotSplittable(
            f"{lazy[0]} of a lazy module has no size yet. Call the step once with a batch before it is cut, and give "
            "the optimiser its weights after that."
        )


def _refuse_training_inside(held: Held) -> None:
    learned = [name for name, one in held.tensors().items() if one.is_leaf and one.grad is not None]
    if learned:
        raise NotSplittable(
            f"the step calls backward itself (it made a gradient of {learned[0]}), which is not traced. Return the "
            "loss, and call backward and the optimiser outside of the step."
        )


def _run_update(update: Callable[[], Any]) -> None:
    try:
        update()
    except Exception as failed:
        at = f" at {place}" if (place := place_of(failed)) else ""
        raise NotSplittable(f"update fails{at}: {type(failed).__name__}: {first_line(failed)}") from failed
