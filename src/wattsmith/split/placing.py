"""Which steps of a graph go to the data side, and why: for graphs that are not PyTorch's, by names alone."""

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from wattsmith.split.mincut import ENDLESS, Network
from wattsmith.split.pricing import PER_SECOND, UNLIKE_S, Prices, moving_s
from wattsmith.split.problems import NotSplittable
from wattsmith.terms.cut import BOTH, DATA, TRAINING, Place

_DATA, _TRAINING = ("the data side",), ("training",)  # no names, which a graph may have too


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One node of a graph; the values that it takes and gives have names."""

    name: Any
    takes: Sequence[Any]
    gives: Sequence[Any]
    weight: float | None  # how many times as long it takes a core as its bytes alone; None: it makes nothing new
    stays: bool = False  # with training
    shunned: bool = False  # on the data side, if that can be


def needed(
    nodes: Iterable[Any],
    wanted: Iterable[Any],
    given: Collection[Any],
    *,
    takes: Callable[[Any], Iterable[Any]] = attrgetter("takes"),
    gives: Callable[[Any], Iterable[Any]] = attrgetter("gives"),
) -> list[Any]:
    """Those of NODES, in order, that are needed for the values WANTED once those GIVEN are there."""
    found, names = [], {*wanted} - {*given}
    for node in reversed(list(nodes)):
        if not names.isdisjoint(gives(node)):
            found.append(node)
            names |= {*takes(node)} - {*given}
    return found[::-1]


def cheapest_side(
    steps: Sequence[Step],
    inputs: Iterable[Any],
    outputs: Iterable[Any],
    sizes: Mapping[Any, int | None],
    prices: Prices,
) -> tuple[frozenset[Any], list[Any]]:
    """Names of the steps that go to the data side, and those of the values that cross, both in the order of STEPS.

    INPUTS: what is there on the data side. SIZES: bytes of values; what has none cannot cross.
    """
    net, inputs = Network(), list(inputs)
    users: dict[Hashable, list[Hashable]] = {name: [_TRAINING] for name in outputs}
    for step in steps:
        for name in step.takes:
            users.setdefault(name, []).append(step.name)
    makers = {name: step.name for step in steps for name in step.gives}
    for name in (*inputs, *makers):
        size = sizes.get(name)
        price = ENDLESS if size is None else max(1, round(prices.crossing_s(size) * PER_SECOND))
        net.edge(makers.get(name, _DATA), ("sent", name), price)
        for user in users.get(name, ()):
            net.edge(("sent", name), user, ENDLESS)  # what training takes and data made must be sent, once
    for step in steps:
        for name in step.takes:
            if name in makers:
                net.edge(step.name, makers[name], ENDLESS)  # data is never made from training
        trainer_s, worker_s = _work_s(step, sizes, prices)
        worker_s = worker_s * prices.worker_ratio + (UNLIKE_S if step.shunned else 0)
        net.edge(_DATA, step.name, round(trainer_s * PER_SECOND))
        net.edge(step.name, _TRAINING, ENDLESS if step.stays else round(worker_s * PER_SECOND))
    cost, side = net.cut(_DATA, _TRAINING)
    if cost >= ENDLESS:
        raise NotSplittable(
            "it cannot be cut: training takes an input that is no tensor of numbers, or whose sizes nobody knows before"
        )
    data = frozenset(step.name for step in steps if step.name in side)
    made = [*inputs, *(name for step in steps if step.name in data for name in step.gives)]
    return data, [name for name in made if any(user not in data for user in users.get(name, ()))]


def _work_s(step: Step, sizes: Mapping[Any, int | None], prices: Prices) -> tuple[float, float]:
    """Seconds of STEP on the trainer, and on a worker; by a rule, so that a graph is cut alike each time."""
    if step.weight is None:
        return prices.trainer_call_s, 1e-6
    return moving_s(sum(sizes.get(name) or 0 for name in (*step.takes, *step.gives)), step.weight, prices)


def placed(
    name: str,
    operator: str,
    takes: Sequence[str],
    depends: str | None,
    *,
    fixed: bool,
    on_data: bool,
    before: int | None,
    after: int | None,
) -> Place:
    """A step as it is told. DEPENDS: on what that stays with training; BEFORE, AFTER: bytes that it takes and gives."""
    if fixed:
        why = "a constant, made on both sides"
    elif depends is not None:
        why = f"depends on {depends}"
    elif on_data:
        why = "depends on no state"
    elif after is None:
        why = "what it gives cannot be sent: it is no tensor of numbers, or of a size that is not known"
    elif before is not None and after > before:
        why = f"cheaper with training: it makes {after} bytes of {before}"
    else:
        why = "cheaper with training, where what it takes or gives is needed anyway"
    return Place(
        name=name,
        operator=operator,
        side=BOTH if fixed else DATA if on_data else TRAINING,
        why=why,
        could_move=not fixed and depends is None,
        takes=tuple(takes),
        output_bytes=after,
        line=None,
    )


def placed_input(name: str, size_bytes: int | None, *, is_state: bool = False) -> Place:
    return Place(
        name=name,
        operator="state" if is_state else "batch",
        side=TRAINING if is_state else DATA,
        why="given as state" if is_state else "the batch",
        could_move=False,
        takes=(),
        output_bytes=size_bytes,
        line=None,
    )
