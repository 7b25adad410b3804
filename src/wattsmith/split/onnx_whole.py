"""An ONNX model in two: read, cut where that is cheapest, and the halves compared with the whole."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattsmith.split.onnx_cutting import Roles, cheapest_data, draws, is_alike, key_of, part_of, roles_of
from wattsmith.split.onnx_halves import OnnxData, OnnxModel, OnnxTraining, usual_runtime
from wattsmith.split.onnx_reading import (
    Value,
    as_feeds,
    inputs_of,
    made_example,
    read_model,
    reads,
    sizes_of,
    values_of,
)
from wattsmith.split.placing import placed, placed_input
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Prices
from wattsmith.split.problems import NotSplittable, first_line
from wattsmith.split.whole import Split
from wattsmith.terms.cut import Crossing, Cut, Place

SAMPLES = 8  # in an example that is made here


def split_onnx(
    model: Any,
    example: Any = None,
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    batch: int | None = None,
    state: Collection[str] = (),
    constants: Collection[str] = (),
    strict: bool = False,
    prices: Prices | None = None,
    check: bool = True,
) -> Split:
    """Cut MODEL, an .onnx file or what onnx.load gives, in two ONNX models.

    EXAMPLE: a batch as a dict by name, arrays in order, or one. Without it, one is made with BATCH samples, or 8, and
    SHAPES of one sample by input. STATE: names of inputs or constants that are trained besides weights of layers.
    CONSTANTS: names of what looks like weights and is not trained, such as a filter bank. STRICT and CHECK: as in
    `split`.
    """
    whole = read_model(model)
    names = [one.name for one in inputs_of(whole)]
    feeds = made_example(whole, shapes or {}, batch or SAMPLES) if example is None else as_feeds(names, example)
    values = values_of(whole, feeds)
    roles, runtime = roles_of(whole, values, state, constants), usual_runtime()
    values |= _seen(whole, roles, values, feeds, runtime)
    data, crossing = cheapest_data(whole, roles, values, prices or _usual_prices(), strict)
    made = Split(
        **_halves(whole, roles, crossing, values, runtime),
        cut=_told(whole, roles, data, crossing, values, feeds, runtime),
    )
    if check and (note := _compared(made, whole, feeds, roles, runtime, example is not None)):
        return replace(made, cut=replace(made.cut, notes=(*made.cut.notes, note)))
    return made


def _seen(
    whole: Any, roles: Roles, values: Mapping[str, Value], feeds: Mapping[str, Any], runtime: str
) -> dict[str, Value]:
    """Types and sizes of what could be data and depends on numbers, from a run with the batch FEEDS; {}: it fails."""
    import onnx

    movable = [node for node in roles.live if key_of(node) not in roles.kept]
    names = [name for node in movable for name in node.output if name and name not in values]
    if not names:
        return {}
    takes = [one for one in inputs_of(whole) if one.name not in roles.kept]
    part = part_of(whole, takes, [onnx.ValueInfoProto(name=name) for name in names])
    try:
        given = OnnxModel(part.SerializeToString(), runtime).run({one.name: feeds[one.name] for one in takes})
    except Exception:  # noqa: BLE001 - a runtime raises anything; then these values do not cross
        return {}
    return {
        name: Value(shape=one.shape, dtype=str(one.dtype), size_bytes=None if one.dtype.hasobject else one.nbytes)
        for name, one in zip(names, given, strict=True)
        if hasattr(one, "dtype")
    }


def _usual_prices() -> Prices:
    try:
        import torch
    except ImportError:
        return CPU_TRAINER
    return GPU_TRAINER if torch.cuda.is_available() else CPU_TRAINER


def _halves(whole: Any, roles: Roles, crossing: list[str], values: Mapping[str, Value], runtime: str) -> dict[str, Any]:
    takes = [one for one in inputs_of(whole) if one.name not in roles.kept]
    state = [one for one in inputs_of(whole) if one.name in roles.kept]
    sent = _sent(whole, crossing, values)
    data = part_of(whole, takes, sent)
    rest = part_of(whole, [*sent, *state], list(whole.graph.output))
    return {
        # Workers are many; each takes one core.
        "data": OnnxData(OnnxModel(data.SerializeToString(), runtime, 1), tuple(one.name for one in takes)),
        "train": OnnxTraining(
            OnnxModel(rest.SerializeToString(), runtime), tuple(crossing), tuple(one.name for one in state)
        ),
    }


def _sent(whole: Any, crossing: list[str], values: Mapping[str, Value]) -> list[Any]:
    """What crosses, as graphs tell it: with sizes that are left open where the file leaves them open."""
    import numpy as np
    import onnx

    found = onnx.shape_inference.infer_shapes(whole, data_prop=True).graph
    known = {one.name: one for one in (*found.value_info, *found.output, *found.input)}
    named = {size for one in inputs_of(whole) for size in sizes_of(one) if isinstance(size, str)}
    made = []
    for name in crossing:
        sizes: list[int | str | None] = [None] * len(values[name].shape)
        if name in known and known[name].type.tensor_type.HasField("shape"):
            sizes = [size if isinstance(size, int) or size in named else None for size in sizes_of(known[name])]
        element = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(values[name].dtype))
        made.append(onnx.helper.make_tensor_value_info(name, element, sizes))
    return made


def _told(
    whole: Any,
    roles: Roles,
    data: Collection[str],
    crossing: list[str],
    values: Mapping[str, Value],
    feeds: Mapping[str, Any],
    runtime: str,
) -> Cut:
    inputs = inputs_of(whole)
    shown = {key_of(node) for node in (*roles.live, *roles.fixed) if node.op_type != "Constant"}
    nodes = [node for node in whole.graph.node if key_of(node) in shown]
    first = [sizes[0] for one in inputs if one.name not in roles.kept and (sizes := sizes_of(one))]
    notes = [f"run by {'ONNX Runtime' if runtime != 'onnx' else 'onnx itself, which is slow: pip install onnxruntime'}"]
    makers = {one.name: one.name for one in inputs} | {name: _name(node) for node in nodes for name in node.output}
    return Cut(
        tracer="onnx",
        batch=next((feeds[one.name].shape[0] for one in inputs if feeds[one.name].ndim), 1),
        any_batch=all(isinstance(size, str) for size in first),
        raw_bytes=sum(feeds[one.name].nbytes for one in inputs if one.name not in roles.kept),
        places=(
            *(placed_input(one.name, _size([one.name], values), is_state=one.name in roles.kept) for one in inputs),
            *(_place(node, roles, data, values, makers) for node in nodes),
        ),
        crossing=tuple(
            Crossing(name=name, shape=one.shape, dtype=one.dtype, size_bytes=one.size_bytes or 0)
            for name in crossing
            for one in (values[name],)
        ),
        unlike=tuple(_name(node) for node in roles.live if key_of(node) in data and not is_alike(node, values)),
        needs=(runtime,),
        notes=tuple(notes),
    )


def _name(node: Any) -> str:
    return str(node.name or key_of(node))


def _size(names: Sequence[str], values: Mapping[str, Value]) -> int | None:
    """Bytes of all values of these NAMES; None: not known."""
    sizes = [values[name].size_bytes if name in values else None for name in names if name]
    return None if None in sizes else sum(size or 0 for size in sizes)


def _place(
    node: Any, roles: Roles, data: Collection[str], values: Mapping[str, Value], makers: Mapping[str, str]
) -> Place:
    key, taken = key_of(node), [name for name in reads(node) if name in makers]
    return placed(
        _name(node),
        node.op_type,
        [makers[name] for name in taken],
        roles.kept.get(key),
        fixed=any(one is node for one in roles.fixed),
        on_data=key in data,
        before=_size(taken, values),
        after=_size(node.output, values),
    )


def _compared(made: Any, whole: Any, feeds: Mapping[str, Any], roles: Roles, runtime: str, given: bool) -> str | None:
    """What is to be said of MADE beside the model itself; None: they give the same bits.

    GIVEN: whether the batch FEEDS is the user's own.
    """
    if any(draws(node) for node in roles.live):
        return "not compared with the model itself: it draws at random"
    if not given and runtime == "onnx":
        return "not compared with the model itself: give an example, or install onnxruntime, which is quick enough"
    written = [whole.SerializeToString(), made.data.model.written, made.train.model.written]
    try:
        wanted = OnnxModel(written[0], runtime).run(feeds)
    except Exception as failed:  # a runtime raises anything
        if given:
            raise NotSplittable(f"the model fails with the example: {first_line(failed)}") from failed
        return f"not compared with the model itself: it does not run on made-up numbers here ({first_line(failed)})"
    state = {name: feeds[name] for name in made.train.state}
    if same_bits(wanted, made.train(*made.data(feeds, 0), **state)):
        return None
    model, data, train = (OnnxModel(one, runtime, plain=True) for one in written)
    sent = data.run({name: feeds[name] for name in made.data.takes})
    if same_bits(model.run(feeds), train.run({**dict(zip(made.train.takes, sent, strict=True)), **state})):
        return "the last bits differ from the whole's: ONNX Runtime joins operators across the cut; not if told not to"
    raise NotSplittable("what the halves give is not what the model gives; check=False goes on all the same")


def same_bits(one: Any, other: Any) -> bool:
    """Whether two outputs are the same: arrays of any type, lists and dicts of such."""
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same_bits, one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same_bits(one[key], other[key]) for key in one)
    if hasattr(one, "dtype") and one.dtype != object:
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    return bool((one == other) if not hasattr(one, "dtype") else (one.tolist() == other.tolist()))
