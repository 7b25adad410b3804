"""A step is watched, traced, cut where that is cheapest, and the halves are compared with the whole."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from wattsmith.split.assembling import assembled
from wattsmith.split.byhand import (
    Replay,
    ToTheBoundary,
    graph_to_boundary,
    refuse_state_before_boundary,
    traced_to_boundary,
    training_by_hand,
)
from wattsmith.split.checking import compared, gradients, same, shortly
from wattsmith.split.cutting import CutGraphs, cut_graphs
from wattsmith.split.exporting import Exporter, exported
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
from wattsmith.split.keeping import Kept, accumulating, age, alike, copied, told
from wattsmith.split.marks import Recorder, watched_by
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Choice, Prices, cheapest_cut
from wattsmith.split.problems import WAYS_OUT, FrozenRandomness, NotSplittable, first_line, place_of
from wattsmith.split.randomness import traced_twice
from wattsmith.split.roles import FIXED, Roles, roles_of
from wattsmith.split.running import Seen, seen_in_run
from wattsmith.split.state import (
    Held,
    held_by,
    kept_randomness,
    own_generators_put_back,
    places_put_back,
    seed_everything,
    values_put_back,
)
from wattsmith.split.symbolic import symbolic
from wattsmith.split.telling import cut_told
from wattsmith.split.traced import Traced
from wattsmith.terms.cut import Crossing, Cut
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.feed import DataHalf

SIZES = ("batch", "all", "none")
_SEED = 40_961  # of the runs that are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """A step in two halves. `data` goes to workers, `train` stays with the weights; called, it does both here."""

    data: DataHalf
    train: Any  # an nn.Module: train(*crossing) gives what the step gives
    cut: Cut

    def __call__(self, batch: Any, seed: int) -> Any:
        return self.train(*self.data(batch, seed))

    @property
    def crossing(self) -> tuple[Crossing, ...]:
        return self.cut.crossing

    def report(self) -> Cut:
        """What runs where, what crosses, and why."""
        return self.cut


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
    outputs: dict[int, list[Any]]  # by number of samples: what the step gave, with all generators at _SEED
    grads: dict[str, Any]  # of all that is trained, after backward with all samples; empty: there was none
    keeps: Keeps = field(default_factory=lambda: Keeps())


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
) -> Split:
    """Cut STEP in two. EXAMPLE: a batch as the loader gives it, on the CPU.

    UPDATE: what the training loop does after backward, such as the optimiser and an average of weights; it is run once
    and undone, to see what it changes. FROZEN: weights that are not trained may go to the data side. STRICT: what
    differs between kinds of CPUs stays with the trainer, where that is possible. SIZES that may change from batch to
    batch: "batch" (and the lengths of texts), "all" or "none". CHECK: compare the halves with the step on the example.
    """
    _need_torch()
    _check_arguments(step, example, sizes)
    held = held_by(step, update)
    with own_generators_put_back(held):
        watched = _watch(step, example, update, held)
        _refuse_opaque_weights(watched)
        try:
            _refuse_what_it_keeps([*watched.keeps.names, *(f"{one} (an iterator)" for one in held.iterators)])
            return _cut(watched, *_traced(watched, sizes), frozen, strict, prices, check)
        except NotSplittable as refused:
            if not watched.recorders[watched.batch].boundaries or isinstance(refused, FrozenRandomness):
                raise
            # Where the user marked the cut, training need not be traced.
            _refuse_what_it_keeps(watched.keeps.early)
            by_hand = _traced_by_hand(watched, sizes, refused)
            return _cut(watched, *by_hand, frozen, strict, prices, check)


def _cut(
    watched: "Watched",
    traced: Traced,
    tracer_notes: list[str],
    exporter: Exporter | None,
    frozen: bool,
    strict: bool,
    prices: Prices | None,
    check: bool,
) -> Split:
    _refuse_what_a_trace_would_freeze(watched, by_hand=exporter is not None)
    roles = roles_of(traced, watched.changed, frozen)
    inputs = [value for value, leaf in zip(watched.values, watched.leaves, strict=True) if leaf.kind != "constant"]
    with kept_randomness():
        seed_everything(_SEED)
        seen = seen_in_run(traced, roles, inputs)
    if exporter is not None:
        chosen, graphs, replay = _cut_by_hand(watched, traced, roles, seen, exporter)
    else:
        chosen = cheapest_cut(traced, roles, seen, prices or _usual_prices(watched.held), strict)
        graphs, replay = cut_graphs(traced, roles, chosen.data, seen), None
    data, train, packed = assembled(traced, roles, graphs, seen, watched, replay)
    cut = cut_told(traced, roles, chosen, graphs, seen, watched, data, packed, tracer_notes)
    made = Split(data=data, train=train, cut=cut)
    return compared(made, traced, roles, chosen.data, watched, _SEED) if check else made


def _refuse_opaque_weights(watched: "Watched") -> None:
    """Workers get copies of what opaque steps reach, which would stay as they are."""
    changing = {id(one): name for name, one in watched.held.tensors().items() if name in watched.changed}
    for step, reached in watched.held.opaque.items():
        for name, one in reached.tensors().items():
            if one.requires_grad or id(one) in changing:
                raise NotSplittable(
                    f"the opaque step {step.__name__} uses {name}, which changes while it is trained. Weights stay "
                    "with training: use them outside of the opaque step."
                )


def _refuse_what_it_keeps(names: list[str]) -> None:
    if names:
        raise NotSplittable(
            f"from call to call the step puts other things in the place of {told(names)}, which a trace would freeze "
            "as they are now. Keep what lasts in a tensor and write into it (self.mean.copy_(…), self.calls.add_(1)); "
            "or put wattsmith.boundary(...) around all that crosses before it, and training stays your own code."
        )


def _refuse_what_a_trace_would_freeze(watched: "Watched", *, by_hand: bool) -> None:
    if watched.keeps.differs is None or (by_hand and watched.keeps.sends_alike):
        return
    raise NotSplittable(
        f"called again with the same batch, seed and weights, the step gives something else: {watched.keeps.differs}. "
        "A trace would freeze what makes the difference, such as a clock or a thing that is not followed. Do that "
        "outside of the step; or put wattsmith.boundary(...) around all that crosses before it, and training stays "
        "your own code."
    )


def _cut_by_hand(
    watched: "Watched", traced: Traced, roles: Roles, seen: dict[Any, Seen], exporter: Exporter
) -> tuple[Choice, CutGraphs, Callable[..., Any]]:
    refuse_state_before_boundary(traced, roles)
    graph, crossing = graph_to_boundary(traced, roles, seen)
    replay = training_by_hand(Replay(watched, traced, exporter, [seen[node] for node in crossing]))
    data = frozenset(one for one in traced.nodes() if roles.kinds[one] != FIXED)
    graphs = CutGraphs(data=graph, training=None, attributes=(), crossing=crossing)
    return Choice(data=data, cost_s=0.0), graphs, replay


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise ExtraNeeded("a step is cut with PyTorch: pip install 'wattsmith[split]'") from missing


def _check_arguments(step: Any, example: Any, sizes: str) -> None:
    if isinstance(step, type) or not callable(step):
        what = f"the class {step.__name__}" if isinstance(step, type) else f"a {type(step).__name__}"
        raise NotSplittable(f"a step is a function or an nn.Module that takes a batch, got {what}")
    if sizes not in SIZES:
        raise BadInput(f"sizes must be one of {', '.join(SIZES)}, got {sizes!r}")
    if example is None:
        raise NotSplittable("an example batch is needed, as the loader gives it")


def _usual_prices(held: Held) -> Prices:
    import torch

    on_device = any(one.device.type != "cpu" for one in held.parameters().values())
    return GPU_TRAINER if on_device or torch.cuda.is_available() else CPU_TRAINER


def _watch(step: Callable[..., Any], example: Any, update: Callable[[], Any] | None, held: Held) -> Watched:
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
    leaves = [_leaf(path, value) for path, value in found]
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


def _leaf(path: str, value: Any) -> Leaf:
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
            seed_everything(_SEED)
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
        seed_everything(_SEED)
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


def _traced(watched: Watched, sizes: str) -> tuple[Traced, list[str], Exporter | None]:
    """The step's graph, notes, and, where only what comes before its boundary could be traced, who followed that."""
    common = (watched.call, watched.example, watched.structure, watched.leaves, watched.values, watched.held)

    def by_export() -> Traced:
        return exported(*common, _exporter(watched), watched.batch, sizes)

    def by_fx() -> Traced:
        return symbolic(*common)

    try:
        return traced_twice(by_export, watched.held), [], None
    except NotSplittable:
        raise
    except Exception as refused:  # noqa: BLE001 - torch.export raises anything; what it says is told below
        if (ours := _ours_in(refused)) is not None:
            raise ours from None
        first = refused
    try:
        return traced_twice(by_fx, watched.held), [f"torch.export said: {_reason(first)}"], None
    except Exception as second:  # noqa: BLE001 - the same of torch.fx
        raise _untraceable(first, second, watched.held) from first


def _traced_by_hand(watched: Watched, sizes: str, why: BaseException) -> tuple[Traced, list[str], Exporter]:
    exporter = _exporter(watched, ToTheBoundary)
    assert isinstance(exporter, ToTheBoundary)
    try:
        traced = traced_twice(lambda: traced_to_boundary(watched, exporter, sizes), watched.held)
    except NotSplittable:
        raise
    except Exception as refused:  # noqa: BLE001 - torch.export raises anything
        at = f" at {place}" if (place := place_of(refused)) else ""
        raise NotSplittable(
            f"what comes before the boundary cannot be traced{at}: {_reason(refused)}. {WAYS_OUT}."
        ) from why
    return traced, [], exporter


def _exporter(watched: Watched, kind: type[Exporter] = Exporter) -> Exporter:
    few = min(watched.recorders, key=lambda samples: abs(samples - 2))
    whole = watched.recorders[watched.batch]
    return kind(whole.calls, watched.recorders[few].calls, (watched.batch, few))


def _ours_in(failed: BaseException | None) -> NotSplittable | None:
    while failed is not None:
        if isinstance(failed, NotSplittable):
            return failed
        failed = failed.__cause__ or failed.__context__
    return None


def _untraceable(first: BaseException, second: BaseException, held: Held) -> NotSplittable:
    from torch.jit import ScriptModule

    for name, module in held.modules.items():
        if isinstance(module, ScriptModule):
            return NotSplittable(
                f"{name or 'the step'} was compiled by torch.jit and cannot be traced. Give the module that it was "
                "made of; or put wattsmith.boundary(...) around all that crosses before it."
            )
    at, fx = (f" at {place}" if (place := place_of(one)) else "" for one in (first, second))
    fx = "" if fx == at else fx
    return NotSplittable(
        f"the step cannot be traced{at}. torch.export: {_reason(first)}; torch.fx{fx}: {_reason(second)}. {WAYS_OUT}."
    )


def _reason(failed: BaseException) -> str:
    text = str(failed)
    if type(failed).__name__ == "UnsupportedOperatorException":
        return (
            f"the operator {first_line(failed)} does not tell the shape of what it gives (torch.library.register_fake)"
        )
    if isinstance(failed, FrozenRandomness):
        return "it would freeze what is drawn at random"
    if "__format__" in text:
        return "it makes a text of a value; print what the step returns, outside of it"
    if "data-dependent" in text or "symbolically traced variables cannot be used as inputs to control flow" in text:
        return "it decides by the value of a tensor (torch.cond and torch.where can be traced)"
    if "backward" in text or "require grad" in text:
        return f"{first_line(failed)} (return the loss, and call backward outside of the step)"
    return first_line(failed)
