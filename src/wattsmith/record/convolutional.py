"""Families of convolutional networks."""

from collections.abc import Callable, Mapping
from typing import Any

from wattsmith.record.family import Choice, Family, Span
from wattsmith.record.program import Piece, Source
from wattsmith.record.wiring import classified, wired
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Parameter, Workload


def images(workload: Workload, source: Source) -> Any:
    size = int(workload.parameters["image"])
    return source.normal(workload.batch, int(workload.parameters.get("channels", 3)), size, size)


def plain(workload: Workload, source: Source) -> Piece:
    """The network of the original grids.

    A base that costs little, one convolutional and one fully-connected layer to customise, and layers to add before
    each: trainable parameters are linear in `filters`, in `nodes`, and in the numbers of layers added.
    """
    from torch import nn

    p = {name: int(value) for name, value in workload.parameters.items()}
    kernel, stride = p["filter_size"], p["stride"]

    def convolution(depth: int, filters: int) -> list[Any]:
        return [nn.Conv2d(depth, filters, kernel, stride, kernel // 2), nn.ReLU()]

    def dense(before: int, nodes: int) -> list[Any]:
        return [nn.Linear(before, nodes), nn.ReLU()]

    layers = convolution(p["channels"], p["base_filters"])
    for _ in range(p["conv_layers"]):
        layers += convolution(p["base_filters"], p["base_filters"])
    layers += convolution(p["base_filters"], p["filters"])
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    layers += dense(p["filters"], p["base_nodes"])
    for _ in range(p["dense_layers"]):
        layers += dense(p["base_nodes"], p["base_nodes"])
    layers += dense(p["base_nodes"], p["nodes"])
    layers.append(nn.Linear(p["nodes"], p["classes"]))
    return classified(nn.Sequential(*layers), source, workload, (images(workload, source),))


def normed(
    depth: int, filters: int, kernel: int = 3, stride: int = 1, groups: int = 1, active: bool = True
) -> list[Any]:
    """Convolution, batch norm and, when active, ReLU."""
    from torch import nn

    convolution = nn.Conv2d(depth, filters, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(filters), *([nn.ReLU(inplace=True)] if active else [])]


def skipping(body: list[Any], depth: int, filters: int, stride: int) -> Any:
    """BODY beside a short cut, added and cut off below zero."""
    from torch import nn

    same = depth == filters and stride == 1
    short = nn.Identity() if same else nn.Sequential(*normed(depth, filters, 1, stride, active=False))
    return wired(lambda m, x: (m.body(x) + m.short(x)).relu_(), body=nn.Sequential(*body), short=short)


def residual_block(depth: int, width: int, stride: int, _p: dict[str, int]) -> tuple[Any, int]:
    body = [*normed(depth, width, 3, stride), *normed(width, width, active=False)]
    return skipping(body, depth, width, stride), width


def bottleneck_block(depth: int, width: int, stride: int, p: dict[str, int]) -> tuple[Any, int]:
    out = 4 * width
    middle = normed(width, width, 3, stride, p.get("groups", 1))
    body = [*normed(depth, width, 1), *middle, *normed(width, out, 1, active=False)]
    return skipping(body, depth, out, stride), out


def grouped_block(depth: int, width: int, stride: int, p: dict[str, int]) -> tuple[Any, int]:
    if width % p["groups"]:
        raise BadTerm(f"grouped: width must be a multiple of groups, got {width} and {p['groups']}")
    return bottleneck_block(depth, width, stride, p)


def depthwise_block(depth: int, width: int, stride: int, p: dict[str, int]) -> tuple[Any, int]:
    from torch import nn

    inner = depth * p["expansion"]
    body = nn.Sequential(
        *normed(depth, inner, 1),
        *normed(inner, inner, p["filter_size"], stride, groups=inner),
        *normed(inner, width, 1, active=False),
    )
    if depth == width and stride == 1:
        return wired(lambda m, x: x + m.body(x), body=body), width
    return body, width


def staged(block: Callable[..., tuple[Any, int]]) -> Callable[[Workload, Source], Piece]:
    """A maker of networks in stages: each after the first halves the image and doubles the width."""

    def make(workload: Workload, source: Source) -> Piece:
        from torch import nn

        p = {name: int(value) for name, value in workload.parameters.items()}
        depth = p["width"]
        layers = normed(3, depth, 7, 2) if p["image"] >= 128 else normed(3, depth)
        if p["image"] >= 128:
            layers.append(nn.MaxPool2d(3, 2, 1))
        for stage in range(p["stages"]):
            for place in range(p["blocks"]):
                stride = 2 if stage and not place else 1
                layer, depth = block(depth, p["width"] * 2**stage, stride, p)
                layers.append(layer)
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(depth, p["classes"])]
        return classified(nn.Sequential(*layers), source, workload, (images(workload, source),))

    return make


BOTH_LAYOUTS = ("contiguous", "channels-last")
CLASSES = Span(low=2, high=100_000, default=10, usual=(10, 1000))
IMAGE_BATCH = Span(low=1, high=8192, default=8, usual=(1, 2048))


def shared_evenly(parameters: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
    """The width brought to the next multiple of the groups, where there are groups."""
    groups, width = int(parameters.get("groups", 1)), int(parameters["width"])
    return {**parameters, "width": -(-width // groups) * groups}


def staged_family(name: str, says: str, block: Callable[..., tuple[Any, int]], **more: Span | Choice) -> Family:
    return Family(
        name=name,
        kind="network",
        says=says,
        parameters={
            "image": Span(low=8, high=1024, default=32, usual=(16, 256)),
            "width": Span(low=4, high=1024, default=16, usual=(8, 160)),
            "blocks": Span(low=1, high=32, default=2, usual=(1, 6)),
            "stages": Span(low=1, high=5, default=3, logarithmic=False),
            "classes": CLASSES,
            **more,
        },
        make=staged(block),
        fit=shared_evenly,
        batch=IMAGE_BATCH,
        layouts=BOTH_LAYOUTS,
    )


CONVOLUTIONAL = (
    Family(
        name="cnn",
        share=1.5,
        kind="network",
        says="plain convolutional network, the one of the original grids",
        parameters={
            "image": Span(low=8, high=1024, default=32, usual=(16, 256)),
            "channels": Span(low=1, high=16, default=3, usual=(1, 4)),
            "filter_size": Choice(values=(3, 1, 5, 7)),
            "stride": Choice(values=(1, 2, 3, 4)),
            "conv_layers": Span(low=0, high=32, default=1, usual=(0, 12), logarithmic=False),
            "base_filters": Span(low=1, high=2048, default=8, usual=(8, 512)),
            "filters": Span(low=1, high=4096, default=8, usual=(8, 1024)),
            "dense_layers": Span(low=0, high=32, default=1, usual=(0, 12), logarithmic=False),
            "base_nodes": Span(low=1, high=16384, default=8, usual=(8, 4096)),
            "nodes": Span(low=1, high=16384, default=8, usual=(8, 4096)),
            "classes": CLASSES,
        },
        make=plain,
        batch=IMAGE_BATCH,
        layouts=BOTH_LAYOUTS,
    ),
    staged_family("residual", "residual network of two-layer blocks", residual_block),
    staged_family("bottleneck", "residual network of three-layer blocks", bottleneck_block),
    staged_family(
        "grouped",
        "three-layer blocks whose middle convolution is in groups",
        grouped_block,
        groups=Choice(values=(4, 2, 8, 16, 32)),
    ),
    staged_family(
        "depthwise",
        "blocks whose middle convolution sees one channel each",
        depthwise_block,
        expansion=Choice(values=(4, 1, 2, 6)),
        filter_size=Choice(values=(3, 5, 7)),
    ),
)
