"""A cut as facts: what runs where and why, what crosses, what a worker needs."""

from typing import Any

from wattsmith.split.assembling import SIZES
from wattsmith.split.cutting import CutGraphs, drawing_in_training
from wattsmith.split.graphfile import Packed
from wattsmith.split.handing import sliced
from wattsmith.split.keeping import told
from wattsmith.split.pricing import Choice, short_name
from wattsmith.split.problems import BatchDoesNotFit
from wattsmith.split.roles import FIXED, OPAQUE, Roles
from wattsmith.split.running import Seen
from wattsmith.split.traced import Traced
from wattsmith.terms.cut import BOTH, DATA, TRAINING, Crossing, Cut, Place


def cut_told(
    traced: Traced,
    roles: Roles,
    chosen: Choice,
    graphs: CutGraphs,
    seen: dict[Any, Seen],
    watched: Any,
    data: Any,
    packed: Packed,
    notes: list[str],
) -> Cut:
    crossing = tuple(
        Crossing(name=node.name, shape=_sent_shape(one), dtype=one.dtype, size_bytes=one.output_bytes or 0)
        for node in graphs.crossing
        for one in (seen[node],)
    )
    if graphs.training is None:
        sizes = sum(max(1, len(seen[node].shape)) for node in traced.nodes() if node.op == "placeholder")
        crossing = (*crossing, Crossing(name=SIZES, shape=(sizes,), dtype="int64", size_bytes=8 * sizes))
        notes = [*notes, "the training half is the step's own code, which is not traced"]
    live = [node for node in traced.nodes() if node.op != "get_attr"]
    places = tuple(_place(node, roles, chosen, seen) for node in live)
    inputs = [seen[node].output_bytes or 0 for node in live if node.op == "placeholder"]
    refused = _refused_size(data, watched)
    if refused:
        notes = [*notes, f"not every number of samples may come: {refused}"]
    if drawn := drawing_in_training(traced, roles, chosen.data):
        notes = [*notes, f"{len(drawn)} operators of the training half draw from the trainer's generator"]
    if watched.keeps.overwritten and graphs.training is not None:
        names = told(list(watched.keeps.overwritten))
        notes = [*notes, f"what the step puts into {names} is not put there by the training half"]
    if any(roles.kinds[node] == OPAQUE for node in live):
        notes = [*notes, "opaque steps travel with the data half, and need what they import on the worker"]
    return Cut(
        tracer=traced.tracer,
        batch=watched.batch,
        any_batch=not refused,
        raw_bytes=sum(inputs),
        places=places,
        crossing=crossing,
        unlike=data.unlike,
        needs=tuple(sorted(packed.needs)),
        notes=(*traced.notes, *notes),
    )


def _sent_shape(one: Seen) -> tuple[int, ...]:
    return tuple(one.shape[at] for at in one.order) if one.order else one.shape


def _refused_size(data: Any, watched: Any) -> str | None:
    """Why a smaller batch is refused; None: batches of any size may come."""
    for samples in {1, 2, watched.batch - 1}:
        if 0 < samples < watched.batch:
            try:
                data.checked(sliced(watched.structure, watched.example, watched.batch, samples))
            except BatchDoesNotFit as refused:
                return str(refused)
    return None


def _place(node: Any, roles: Roles, chosen: Choice, seen: dict[Any, Seen]) -> Place:
    kind = roles.kinds[node]
    on_data = node in chosen.data
    side = BOTH if kind == FIXED else DATA if on_data else TRAINING
    one = seen.get(node)
    return Place(
        name=node.name,
        operator="batch" if node.op == "placeholder" else short_name(node),
        side=side,
        why=_why(node, kind, on_data, roles, seen),
        could_move=side != BOTH and node not in roles.on_data and node not in roles.on_training,
        takes=tuple(one.name for one in node.all_input_nodes if one.op != "get_attr"),
        output_bytes=None if one is None else one.output_bytes,
        line=node.meta.get("line"),
    )


def _why(node: Any, kind: str, on_data: bool, roles: Roles, seen: dict[Any, Seen]) -> str:
    if kind == FIXED:
        return "a constant, made on both sides"
    if node in roles.on_data:
        return roles.on_data[node]
    if node in roles.on_training:
        return roles.on_training[node]
    if on_data:
        return "depends on no state"
    group = next((many for many in roles.together if node in many and len(many) > 1), None)
    pinned = [one for one in group or () if one in roles.on_training]
    if pinned:
        return f"writes into the same tensor as {pinned[0].name}"
    before = sum({one: seen[one].output_bytes or 0 for one in node.all_input_nodes if one in seen}.values())
    after = seen[node].output_bytes or 0 if node in seen else 0
    return (
        f"cheaper with training: it makes {after} bytes of {before}"
        if after > before
        else ("cheaper with training, where what it takes or gives is needed anyway")
    )
