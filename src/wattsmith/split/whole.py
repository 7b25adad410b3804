"""A step is watched, traced, cut where that is cheapest, and the halves are compared with the whole."""

from collections.abc import Callable
from dataclasses import dataclass
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
from wattsmith.split.checking import compared
from wattsmith.split.cutting import CutGraphs, cut_graphs
from wattsmith.split.exporting import Exporter, exported
from wattsmith.split.keeping import told
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
    seed_everything,
)
from wattsmith.split.symbolic import symbolic
from wattsmith.split.telling import cut_told
from wattsmith.split.traced import Traced
from wattsmith.split.watching import SEED, Watched, watch
from wattsmith.terms.cut import Crossing, Cut
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.feed import DataHalf

SIZES = ("batch", "all", "none")


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
        watched = watch(step, example, update, held)
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
    watched: Watched,
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
        seed_everything(SEED)
        seen = seen_in_run(traced, roles, inputs)
    if exporter is not None:
        chosen, graphs, replay = _cut_by_hand(watched, traced, roles, seen, exporter)
    else:
        chosen = cheapest_cut(traced, roles, seen, prices or _usual_prices(watched.held), strict)
        graphs, replay = cut_graphs(traced, roles, chosen.data, seen), None
    data, train, packed = assembled(traced, roles, graphs, seen, watched, replay)
    cut = cut_told(traced, roles, chosen, graphs, seen, watched, data, packed, tracer_notes)
    made = Split(data=data, train=train, cut=cut)
    return compared(made, traced, roles, chosen.data, watched, SEED) if check else made


def _refuse_opaque_weights(watched: Watched) -> None:
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


def _refuse_what_a_trace_would_freeze(watched: Watched, *, by_hand: bool) -> None:
    if watched.keeps.differs is None or (by_hand and watched.keeps.sends_alike):
        return
    raise NotSplittable(
        f"called again with the same batch, seed and weights, the step gives something else: {watched.keeps.differs}. "
        "A trace would freeze what makes the difference, such as a clock or a thing that is not followed. Do that "
        "outside of the step; or put wattsmith.boundary(...) around all that crosses before it, and training stays "
        "your own code."
    )


def _cut_by_hand(
    watched: Watched, traced: Traced, roles: Roles, seen: dict[Any, Seen], exporter: Exporter
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
