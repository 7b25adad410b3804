"""What the operators of ONNX that move, shape and reduce do, in PyTorch. Loaded late, by `onnx_graph`."""

import math
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from wattsmith.flows.models.onnx_node import SMALL, Node, rule


@rule("Shape")
def shape(node: Node, x: Any) -> Any:
    return torch.tensor(tuple(x.shape)[node.get("start", 0) : node.get("end")], dtype=torch.int64)


@rule("Size")
def size(_node: Node, x: Any) -> Any:
    return torch.tensor(x.numel())


@rule("Cast")
def cast(node: Node, x: Any) -> Any:
    return x.to(node.get("to"))


@rule("CastLike")
def cast_like(_node: Node, x: Any, like: Any) -> Any:
    return x.to(like.dtype)


@rule("Reshape")
def reshaped(node: Node, x: Any, sizes: Any) -> Any:
    wanted = sizes.tolist()
    if not node.get("allowzero", 0):
        wanted = [x.shape[at] if one == 0 else one for at, one in enumerate(wanted)]
    return x.reshape(wanted)


@rule("Flatten")
def flattened(node: Node, x: Any) -> Any:
    axis = node.get("axis", 1)
    axis = axis + x.dim() if axis < 0 else axis
    return x.reshape(math.prod(x.shape[:axis]), -1)


@rule("Transpose")
def transposed(node: Node, x: Any) -> Any:
    return x.permute(node.get("perm", list(range(x.dim()))[::-1]))


@rule("Squeeze")
def squeezed(node: Node, x: Any, axes: Any = None) -> Any:
    axes = _axes(node, axes)
    return x.squeeze() if axes is None else x.squeeze(axes)


@rule("Unsqueeze")
def unsqueezed(node: Node, x: Any, axes: Any = None) -> Any:
    wanted = _axes(node, axes) or []
    rank = x.dim() + len(wanted)
    for axis in sorted(one % rank for one in wanted):
        x = x.unsqueeze(axis)
    return x


def _axes(node: Node, axes: Any) -> list[int] | None:
    found: list[int] | None = node.get("axes") if axes is None else axes.flatten().tolist()
    return found


@rule("Concat")
def concatenated(node: Node, *inputs: Any) -> Any:
    return torch.cat(inputs, node.get("axis"))


@rule("Split")
def split(node: Node, x: Any, sizes: Any = None) -> Any:
    axis = node.get("axis", 0)
    wanted = node.get("split") if sizes is None else sizes.tolist()
    return x.split(wanted or -(-x.shape[axis] // len(node.outputs)), axis)


@rule("Slice")
def sliced(node: Node, x: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    begins = node.get("starts") if starts is None else starts.tolist()
    stops = node.get("ends") if ends is None else ends.tolist()
    where = _axes(node, axes) or list(range(len(begins)))
    strides = [1] * len(begins) if steps is None else steps.tolist()
    for axis, begin, stop, stride in zip(where, begins, stops, strides, strict=True):
        length = x.shape[axis]
        if stride < 0:
            chosen = list(range(*slice(begin, stop if stop >= -length else None, stride).indices(length)))
            x = x.flip(axis) if len(chosen) == length else x.index_select(axis, torch.tensor(chosen).to(x.device))
        else:
            chosen_from, chosen_to, _ = slice(begin, stop, stride).indices(length)
            x = x[(slice(None),) * (axis % x.dim()) + (slice(chosen_from, max(chosen_to, chosen_from), stride),)]
    return x


@rule("Gather")
def gathered(node: Node, x: Any, places: Any) -> Any:
    axis = node.get("axis", 0) % x.dim()
    if places.dim() == 0 and places.device.type == "cpu":
        return x.select(axis, int(places))
    if places.dim() == 0:
        return x.index_select(axis, places.reshape(1)).squeeze(axis)
    if x.dim() == 2 and axis == 0 and x.is_floating_point():
        return F.embedding(places, x)
    return x[(slice(None),) * axis + (places,)]


@rule("GatherElements")
def gathered_elements(node: Node, x: Any, places: Any) -> Any:
    return torch.gather(x, node.get("axis", 0), places)


@rule("GatherND")
def gathered_many(node: Node, x: Any, places: Any) -> Any:
    fixed = node.get("batch_dims", 0)
    # Whole batches ahead of the places change which elements are read, not how many.
    return x[(slice(None),) * fixed + tuple(places[(0,) * fixed].unbind(-1))] if fixed else x[tuple(places.unbind(-1))]


@rule("ScatterElements")
def scattered(node: Node, x: Any, places: Any, updates: Any) -> Any:
    return torch.scatter(x, node.get("axis", 0), places, updates)


@rule("ScatterND")
def scattered_many(_node: Node, x: Any, places: Any, updates: Any) -> Any:
    return torch.index_put(x, tuple(places.unbind(-1)), updates)


@rule("Expand")
def expanded(_node: Node, x: Any, sizes: Any) -> Any:
    return x.expand(torch.broadcast_shapes(x.shape, sizes.tolist()))


@rule("Tile")
def tiled(_node: Node, x: Any, repeats: Any) -> Any:
    return x.repeat(repeats.tolist())


@rule("Pad")
def padded_by(node: Node, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    given = node.get("pads") if pads is None else pads.tolist()
    where = [axis % x.dim() for axis in (_axes(node, axes) or range(x.dim()))]
    sides = [0] * 2 * x.dim()
    for at, axis in enumerate(where):
        sides[2 * (x.dim() - 1 - axis)] = given[at]
        sides[2 * (x.dim() - 1 - axis) + 1] = given[at + len(where)]
    while len(sides) > 2 and sides[-2:] == [0, 0]:
        sides = sides[:-2]
    mode = {"edge": "replicate", "wrap": "circular"}.get(node.get("mode", "constant"), node.get("mode", "constant"))
    if mode == "constant":
        return F.pad(x, sides, value=float(value) if value is not None else node.get("value", 0.0))
    return F.pad(x, sides, mode=mode)


@rule("ConstantOfShape")
def constant_of_shape(node: Node, sizes: Any) -> Any:
    value = node.get("value", torch.zeros(1))
    wanted = sizes.tolist()
    device = "cpu" if math.prod(wanted) <= SMALL else "meta"
    return torch.full(wanted, value.item(), dtype=value.dtype, device=device)


@rule("Range")
def ranged(_node: Node, start: Any, limit: Any, delta: Any) -> Any:
    return torch.arange(start.item(), limit.item(), delta.item(), dtype=start.dtype)


@rule("Trilu")
def triangle(node: Node, x: Any, offset: Any = None) -> Any:
    function = torch.triu if node.get("upper", 1) else torch.tril
    return function(x, 0 if offset is None else int(offset))


@rule("OneHot")
def one_hot(node: Node, places: Any, depth: Any, values: Any) -> Any:
    classes = torch.arange(int(depth), device=places.device)
    axis = node.get("axis", -1)
    return (places.unsqueeze(-1) == classes).to(values.dtype).movedim(-1, axis)


@rule("DepthToSpace")
def to_space(node: Node, x: Any) -> Any:
    return F.pixel_shuffle(x, node.get("blocksize"))


@rule("SpaceToDepth")
def to_depth(node: Node, x: Any) -> Any:
    return F.pixel_unshuffle(x, node.get("blocksize"))


@rule("Resize", "Upsample")
def resized(node: Node, x: Any, *how: Any) -> Any:
    scales, sizes = (how[0], None) if node.operator == "Upsample" or len(how) == 1 else (how[1], (*how, None)[2])
    axes = node.get("axes", range(x.dim()))
    if sizes is not None and sizes.numel():
        wanted = dict(zip(axes, sizes.tolist(), strict=True))
    else:
        factors = node.get("scales") if scales is None else scales.tolist()
        wanted = {axis: int(x.shape[axis] * factor) for axis, factor in zip(axes, factors, strict=True)}
    places = [wanted.get(axis, x.shape[axis]) for axis in range(2, x.dim())]
    mode = node.get("mode", "nearest")
    names = {"linear": ("linear", "bilinear", "trilinear")[len(places) - 1], "cubic": "bicubic"}
    return F.interpolate(x, size=places, mode=names.get(mode, mode))


# Reductions.


@rule("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd")
@rule("ReduceL1", "ReduceL2", "ReduceSumSquare", "ReduceLogSum", "ReduceLogSumExp")
def reduced(node: Node, x: Any, axes: Any = None) -> Any:
    wanted = _axes(node, axes)
    if not wanted:
        if node.get("noop_with_empty_axes", 0):
            return x
        wanted = list(range(x.dim()))
    keep = bool(node.get("keepdims", 1))
    how = node.operator.removeprefix("Reduce")
    if how == "Prod":
        for axis in sorted((one % x.dim() for one in wanted), reverse=True):
            x = x.prod(axis, keepdim=keep)
        return x
    if how in ("L1", "L2"):
        return torch.linalg.vector_norm(x, 1 if how == "L1" else 2, wanted, keep)
    if how == "SumSquare":
        return (x * x).sum(wanted, keep)
    if how == "LogSum":
        return x.sum(wanted, keep).log()
    names = {"Mean": torch.mean, "Sum": torch.sum, "Max": torch.amax, "Min": torch.amin, "LogSumExp": torch.logsumexp}
    return names[how](x, wanted, keep)


@rule("ArgMax", "ArgMin")
def placed_at(node: Node, x: Any) -> Any:
    function = torch.argmax if node.operator == "ArgMax" else torch.argmin
    return function(x, node.get("axis", 0), bool(node.get("keepdims", 1)))


@rule("TopK")
def largest(node: Node, x: Any, count: Any = None) -> Any:
    wanted = node.get("k") if count is None else int(count)
    return x.topk(wanted, node.get("axis", -1), bool(node.get("largest", 1)), bool(node.get("sorted", 1)))


@rule("CumSum")
def summed_along(_node: Node, x: Any, axis: Any) -> Any:
    return x.cumsum(int(axis))


@rule("Compress")
def compressed(node: Node, x: Any, kept: Any) -> Any:
    places = kept.nonzero().flatten().to(x.device)
    axis = node.get("axis")
    return x.flatten()[places] if axis is None else x.index_select(axis, places)


@rule("NonZero")
def where_not_zero(_node: Node, x: Any) -> Any:
    return x.nonzero().t()
