"""Families of single operators. When one trains, its backward follows, from a random gradient.

`batch` is the first dimension of what goes in; of a matrix product, how many of them there are.
"""

from collections.abc import Callable, Mapping
from typing import Any

from wattsmith.record.family import Choice, Family, Span
from wattsmith.record.networks import learning
from wattsmith.record.program import Piece, Source
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Parameter, Workload


def operator(workload: Workload, run: Callable[..., Any], *inputs: Any, learn: int | None = None) -> Piece:
    """RUN on INPUTS; the first LEARN of them (all, if None) get gradients when it trains."""
    leaves = inputs[:learn] if workload.mode == "train" else ()
    for leaf in leaves:
        leaf.requires_grad_()
    return Piece(run=run, inputs=inputs, sample_shape=tuple(inputs[0].shape[1:]), leaves=leaves)


def picture(workload: Workload, source: Source, depth: int, size: int) -> Any:
    import torch

    form = torch.channels_last if workload.layout == "channels-last" else torch.contiguous_format
    return source.normal(workload.batch, depth, size, size).contiguous(memory_format=form)


def convolved(workload: Workload, source: Source) -> tuple[Any, Any, dict[str, int]]:
    """An image, filters for it, and how they move over it."""
    import torch

    p = workload.parameters
    depth, filters, kernel = int(p["depth"]), int(p["filters"]), int(p["filter_size"])
    groups = depth if p["groups"] == "depth" else int(p["groups"])
    if depth % groups or filters % groups:
        raise BadTerm(
            f"{workload.family}: depth and filters must be multiples of the {groups} groups, got {depth} and {filters}"
        )
    form = torch.channels_last if workload.layout == "channels-last" else torch.contiguous_format
    weight = source.normal(filters, depth // groups, kernel, kernel).contiguous(memory_format=form)
    moves = {"stride": int(p["stride"]), "padding": kernel // 2, "groups": groups}
    return picture(workload, source, depth, int(p["image"])), weight, moves


def convolution(workload: Workload, source: Source) -> Piece:
    from torch.nn.functional import conv2d

    image, weight, moves = convolved(workload, source)
    return operator(workload, lambda x, w: conv2d(x, w, **moves), image, weight)


def convolution_gradient(of_input: bool) -> Callable[[Workload, Source], Piece]:
    """One of the two directions in which a convolution's gradient flows back, by itself."""

    def make(workload: Workload, source: Source) -> Piece:
        import torch

        image, weight, moves = convolved(workload, source)
        size = (image.shape[-1] + 2 * moves["padding"] - weight.shape[-1]) // moves["stride"] + 1
        gradient = picture(workload, source, weight.shape[0], size)
        stride, padding = [moves["stride"]] * 2, [moves["padding"]] * 2

        def run(gradient: Any, image: Any, weight: Any) -> Any:
            wanted = [of_input, not of_input, False]
            both = torch.ops.aten.convolution_backward(
                gradient, image, weight, None, stride, padding, [1, 1], False, [0, 0], moves["groups"], wanted
            )
            return both[0 if of_input else 1]

        return operator(workload, run, gradient, image, weight)

    return make


def matrix_product(workload: Workload, source: Source) -> Piece:
    import torch

    m, n, k = (int(workload.parameters[name]) for name in ("m", "n", "k"))
    if workload.batch == 1:
        return operator(workload, torch.mm, source.normal(m, k), source.normal(k, n))
    many = workload.batch
    return operator(workload, torch.bmm, source.normal(many, m, k), source.normal(many, k, n))


def fused_attention(workload: Workload, source: Source) -> Piece:
    from torch.nn.functional import scaled_dot_product_attention

    p = workload.parameters
    shape = (workload.batch, int(p["heads"]), int(p["sequence"]), int(p["head_width"]))
    causal = bool(p["causal"])
    return operator(
        workload,
        lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal),
        *(source.normal(*shape) for _ in range(3)),
    )


def layer_norm(workload: Workload, source: Source) -> Piece:
    from torch.nn import functional

    length, width = int(workload.parameters["length"]), int(workload.parameters["width"])
    return operator(
        workload,
        lambda x, w, b: functional.layer_norm(x, (width,), w, b),
        source.normal(workload.batch, length, width),
        source.normal(width),
        source.normal(width),
    )


def batch_norm(workload: Workload, source: Source) -> Piece:
    from torch.nn import functional

    depth = int(workload.parameters["depth"])
    trains = workload.mode == "train"
    return operator(
        workload,
        lambda x, w, b, mean, var: functional.batch_norm(x, mean, var, w, b, training=trains),
        picture(workload, source, depth, int(workload.parameters["image"])),
        source.normal(depth),
        source.normal(depth),
        source.normal(depth),
        source.normal(depth).abs() + 0.5,
        learn=3,
    )


def softmax(workload: Workload, source: Source) -> Piece:
    x = source.normal(workload.batch, int(workload.parameters["length"]), int(workload.parameters["width"]))
    return operator(workload, lambda x: x.softmax(-1), x)


def pooling(workload: Workload, source: Source) -> Piece:
    from torch.nn import functional

    p = workload.parameters
    pool: Callable[..., Any] = functional.max_pool2d if p["takes"] == "max" else functional.avg_pool2d
    size, stride = int(p["filter_size"]), int(p["stride"])
    image = picture(workload, source, int(p["depth"]), int(p["image"]))
    return operator(workload, lambda x: pool(x, size, stride, size // 2), image)


def elementwise(workload: Workload, source: Source) -> Piece:
    from torch.nn.functional import gelu

    work: dict[str, tuple[int, Callable[..., Any]]] = {
        "relu": (1, lambda x: x.relu()),
        "gelu": (1, gelu),
        "sigmoid": (1, lambda x: x.sigmoid()),
        "scale": (1, lambda x: x * 1.5),
        "add": (2, lambda x, y: x + y),
        "multiply": (2, lambda x, y: x * y),
        "gated": (3, lambda x, y, z: x.sigmoid() * y + z),  # three operators, one after the other
    }
    arity, does = work[str(workload.parameters["does"])]
    shape = workload.batch, int(workload.parameters["elements"])
    return operator(workload, does, *(source.normal(*shape) for _ in range(arity)))


def embedding(workload: Workload, source: Source) -> Piece:
    from torch.nn import functional

    p = workload.parameters
    rows = int(p["rows"])
    chosen = source.integers(rows, workload.batch, int(p["lookups"]))
    table = source.normal(rows, int(p["width"]))
    return operator(workload, lambda table, chosen: functional.embedding(chosen, table), table, chosen, learn=1)


def copying(workload: Workload, source: Source) -> Piece:
    rows, columns = int(workload.parameters["rows"]), int(workload.parameters["columns"])
    x = source.normal(workload.batch, rows, columns)
    if workload.parameters["transposed"]:
        return operator(workload, lambda x: x.transpose(1, 2).contiguous(), x)
    return operator(workload, lambda x: x.clone(), x)


def reduction(workload: Workload, source: Source) -> Piece:
    p = workload.parameters
    work: dict[str, Callable[..., Any]] = {
        "sum": lambda x: x.sum(-1),
        "mean": lambda x: x.mean(-1),
        "max": lambda x: x.amax(-1),
        "sum-columns": lambda x: x.sum((0, 1)),
    }
    return operator(workload, work[str(p["does"])], source.normal(workload.batch, int(p["length"]), int(p["width"])))


def update(workload: Workload, source: Source) -> Piece:
    return learning([source.normal(int(workload.parameters["elements"]), requires_grad=True)], source)


def launching(workload: Workload, source: Source) -> Piece:
    """Operators on one element each: nothing but what a launch costs."""
    launches = int(workload.parameters["launches"])

    def run(x: Any) -> Any:
        for _ in range(launches):
            x.neg_()
        return x

    return operator(workload, run, source.normal(1))


def shared_evenly(parameters: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
    """Depth and filters brought to the next multiple of the groups."""
    depth, filters = int(parameters["depth"]), int(parameters["filters"])
    if parameters["groups"] == "depth":
        return {**parameters, "filters": depth}
    groups = int(parameters["groups"])
    return {**parameters, "depth": -(-depth // groups) * groups, "filters": -(-filters // groups) * groups}


NOT_TF32 = ("fp32", "bf16", "fp16")
ONE = Span(low=1, high=1, default=1)
IMAGE = Span(low=1, high=2048, default=28, usual=(4, 256))
DEPTH = Span(low=1, high=8192, default=16, usual=(3, 2048))
LENGTH = Span(low=1, high=1_048_576, default=64, usual=(16, 16_384))
WIDTH = Span(low=1, high=262_144, default=64, usual=(16, 16_384))
ELEMENTS = Span(low=1, high=2**36, default=4096, usual=(2**12, 2**31))
BOTH_LAYOUTS = ("contiguous", "channels-last")
CONVOLUTION = {
    "image": IMAGE,
    "depth": DEPTH,
    "filters": DEPTH,
    "filter_size": Choice(values=(3, 1, 5, 7)),
    "stride": Choice(values=(1, 2)),
    "groups": Choice(values=(1, 4, 32, "depth")),
}


def family(name: str, says: str, make: Callable[[Workload, Source], Piece], **more: Any) -> Family:
    return Family(name=name, kind="operator", says=says, make=make, **more)


def convolution_family(name: str, says: str, make: Callable[[Workload, Source], Piece], **more: Any) -> Family:
    return family(name, says, make, parameters=CONVOLUTION, layouts=BOTH_LAYOUTS, fit=shared_evenly, **more)


OPERATORS = (
    convolution_family("conv", "convolution; when it trains, with both gradients", convolution, share=1.5),
    convolution_family(
        "conv-grad-input", "gradient of a convolution's input, alone", convolution_gradient(True), modes=("infer",)
    ),
    convolution_family(
        "conv-grad-weight", "gradient of a convolution's filters, alone", convolution_gradient(False), modes=("infer",)
    ),
    family(
        "matmul",
        "m × k by k × n; several at once where batch is above 1",
        matrix_product,
        parameters={name: Span(low=1, high=131_072, default=64, usual=(16, 16_384)) for name in ("m", "n", "k")},
        share=2.0,
    ),
    family(
        "attention",
        "fused attention",
        fused_attention,
        parameters={
            "sequence": Span(low=1, high=131_072, default=64, usual=(16, 16_384)),
            "heads": Span(low=1, high=256, default=4, usual=(1, 64)),
            "head_width": Choice(values=(64, 32, 80, 96, 128, 256)),
            "causal": Choice(values=(False, True)),
        },
        share=1.5,
    ),
    family("layer-norm", "layer norm", layer_norm, parameters={"length": LENGTH, "width": WIDTH}, precisions=NOT_TF32),
    family(
        "batch-norm",
        "batch norm over images; with the batch's statistics when it trains",
        batch_norm,
        parameters={"image": IMAGE, "depth": DEPTH},
        precisions=NOT_TF32,
        layouts=BOTH_LAYOUTS,
        batch=Span(low=2, high=2**20, default=8, usual=(2, 512)),
    ),
    family("softmax", "softmax", softmax, parameters={"length": LENGTH, "width": WIDTH}, precisions=NOT_TF32),
    family(
        "pool",
        "pooling",
        pooling,
        parameters={
            "image": Span(low=4, high=2048, default=28, usual=(8, 256)),
            "depth": DEPTH,
            "filter_size": Choice(values=(2, 3, 5)),
            "stride": Choice(values=(2, 1, 3)),
            "takes": Choice(values=("max", "mean")),
        },
        precisions=NOT_TF32,
        layouts=BOTH_LAYOUTS,
    ),
    family(
        "elementwise",
        "one operator on every element, or three",
        elementwise,
        parameters={
            "elements": ELEMENTS,
            "does": Choice(values=("relu", "gelu", "sigmoid", "scale", "add", "multiply", "gated")),
        },
        precisions=NOT_TF32,
    ),
    family(
        "embedding",
        "rows gathered from a table; when it trains, scattered back",
        embedding,
        parameters={
            "rows": Span(low=2, high=100_000_000, default=1000, usual=(256, 10_000_000)),
            "width": Span(low=1, high=16_384, default=32, usual=(8, 2048)),
            "lookups": Span(low=1, high=131_072, default=16, usual=(1, 512)),
        },
        precisions=NOT_TF32,
    ),
    family(
        "copy",
        "copy on the device, straight or transposed",
        copying,
        parameters={"rows": WIDTH, "columns": WIDTH, "transposed": Choice(values=(False, True))},
        modes=("infer",),
        precisions=NOT_TF32,
        share=0.7,
    ),
    family(
        "reduce",
        "sum, mean or largest",
        reduction,
        parameters={
            "length": LENGTH,
            "width": WIDTH,
            "does": Choice(values=("sum", "mean", "max", "sum-columns")),
        },
        precisions=NOT_TF32,
        share=0.7,
    ),
    family(
        "optimizer-update",
        "the optimizer's step over one tensor",
        update,
        parameters={"elements": ELEMENTS},
        modes=("train",),
        precisions=("fp32", "bf16"),
        batch=ONE,
        updates=True,
        compiles=False,
        share=0.5,
    ),
    family(
        "launch",
        "operators on one element each: what a launch costs",
        launching,
        parameters={"launches": Span(low=1, high=10_000, default=10, usual=(1, 1000))},
        modes=("infer",),
        precisions=NOT_TF32,
        batch=ONE,
        compiles=False,
        share=0.2,
    ),
)
