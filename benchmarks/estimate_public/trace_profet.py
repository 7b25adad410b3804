"""Makes profet.jsonl.gz: what the fifteen Keras networks of PROFET do in one training step, built again in PyTorch.

    cd benchmarks && python -m estimate_public.trace_profet --data DIR --unpacked FILE

They ran in fp32 under TensorFlow 2.5 with plain SGD. Padding "same" is half of the kernel here, which gives the same
sizes. `AlexNet` is theirs: its first layer has stride one, so that it does ten times the work of the usual one.
"""

import argparse
import csv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch  # noqa: TID253 (a script full of modules)
from torch import nn  # noqa: TID253

from estimate_public.structures import Point, collect
from wattsmith.record.structure import trace_step
from wattsmith.terms.run import Structure

CLASSES = {32: 10, 64: 100, 128: 100, 224: 1000, 256: 1000}  # by pixels


def conv(outputs: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True, **more: Any) -> nn.Module:
    sides = (kernel, kernel) if isinstance(kernel, int) else kernel
    return nn.LazyConv2d(outputs, sides, stride, tuple(side // 2 for side in sides) if same else 0, **more)


def conv_norm(outputs: int, kernel: int | tuple[int, int], stride: int = 1, *, same: bool = True) -> nn.Module:
    return nn.Sequential(conv(outputs, kernel, stride, same=same, bias=False), nn.LazyBatchNorm2d(), nn.ReLU())


class Sum(nn.Module):
    """Branches that are added."""

    def __init__(self, *branches: nn.Module, scale: float | None = None, relu: bool = False) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)
        self.scale = scale
        self.relu = relu

    def forward(self, flow: Any) -> Any:
        first, second = (branch(flow) for branch in self.branches)
        total = first + (second if self.scale is None else second * self.scale)
        return total.relu() if self.relu else total


class Beside(nn.Module):
    """Branches that are put beside each other."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, flow: Any) -> Any:
        return torch.cat([branch(flow) for branch in self.branches], 1)


def dense(classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(classes)]


def lenet(classes: int) -> nn.Module:
    return nn.Sequential(
        conv(6, 5, same=False), nn.ReLU(), nn.MaxPool2d(2), conv(16, 5, same=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.LazyLinear(120), nn.ReLU(), nn.LazyLinear(84), nn.ReLU(), nn.LazyLinear(classes),
    )  # fmt: skip


def mnist(classes: int) -> nn.Module:
    return nn.Sequential(
        conv(32, 3, same=False), nn.ReLU(), nn.MaxPool2d(2), conv(64, 3, same=False), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Dropout(0.5), nn.LazyLinear(classes),
    )  # fmt: skip


def cifar(classes: int) -> nn.Module:
    layers: list[nn.Module] = []
    for width in (32, 64):
        layers += [conv(width, 3), nn.ReLU(), conv(width, 3, same=False), nn.ReLU(), nn.MaxPool2d(2), nn.Dropout(0.25)]
    return nn.Sequential(
        *layers, nn.Flatten(), nn.LazyLinear(512), nn.ReLU(), nn.Dropout(0.5), nn.LazyLinear(classes)
    )  # fmt: skip


def alexnet(classes: int) -> nn.Module:
    def layer(width: int, kernel: int, *, pool: bool = True, pad: int = 0) -> list[nn.Module]:
        first: list[nn.Module] = [nn.ZeroPad2d(pad)] if pad else []
        last: list[nn.Module] = [nn.MaxPool2d(2)] if pool else []
        return [*first, conv(width, kernel), nn.LazyBatchNorm2d(), nn.ReLU(), *last]

    def full(width: int) -> list[nn.Module]:
        return [nn.LazyLinear(width), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.5)]

    return nn.Sequential(
        *layer(96, 11), *layer(256, 5), *layer(512, 3, pad=1), *layer(1024, 3, pool=False, pad=1),
        *layer(1024, 3, pad=1), nn.Flatten(), *full(3072), *full(4096), nn.LazyLinear(classes), nn.LazyBatchNorm1d(),
    )  # fmt: skip


def vgg(repeats: Sequence[int]) -> Callable[[int], nn.Module]:
    def build(classes: int) -> nn.Module:
        layers: list[nn.Module] = []
        for width, repeat in zip((64, 128, 256, 512, 512), repeats, strict=True):
            layers += [one for _ in range(repeat) for one in (conv(width, 3), nn.ReLU())] + [nn.MaxPool2d(2)]
        return nn.Sequential(
            *layers, nn.Flatten(), nn.LazyLinear(4096), nn.ReLU(), nn.LazyLinear(4096), nn.ReLU(),
            nn.LazyLinear(classes),
        )  # fmt: skip

    return build


def resnet(repeats: Sequence[int], bottleneck: bool) -> Callable[[int], nn.Module]:
    """Norm and activation before each convolution, and no norm on the way past."""

    def active(width: int, kernel: int, stride: int = 1) -> list[nn.Module]:
        return [nn.LazyBatchNorm2d(), nn.ReLU(), conv(width, kernel, stride)]

    def block(width: int, stride: int, very_first: bool, widens: bool) -> nn.Module:
        kernel = 1 if bottleneck else 3
        inside = [conv(width, kernel, stride)] if very_first else active(width, kernel, stride)
        inside += active(width, 3)
        if bottleneck:
            inside += active(4 * width, 1)
        way_past = conv(4 * width if bottleneck else width, 1, stride) if widens else nn.Identity()
        return Sum(way_past, nn.Sequential(*inside))

    def build(classes: int) -> nn.Module:
        layers = [conv(64, 7, 2), nn.LazyBatchNorm2d(), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        for stage, repeat in enumerate(repeats):
            for at in range(repeat):
                stride = 2 if at == 0 and stage > 0 else 1
                layers += [block(64 * 2**stage, stride, stage == at == 0, at == 0 and (stage > 0 or bottleneck))]
        return nn.Sequential(*layers, nn.LazyBatchNorm2d(), nn.ReLU(), *dense(classes))

    return build


def resnet_small(classes: int) -> nn.Module:
    def block(width: int, stride: int) -> nn.Module:
        way_past: nn.Module = nn.Identity()
        if stride > 1:
            way_past = nn.Sequential(conv(width, 1, stride), nn.LazyBatchNorm2d())
        inside = nn.Sequential(
            conv(width, 1, stride), nn.LazyBatchNorm2d(), nn.ReLU(), conv(width, 1), nn.LazyBatchNorm2d()
        )
        return Sum(way_past, inside, relu=True)

    return nn.Sequential(
        conv(64, 7, 2), nn.ReLU(), nn.LazyBatchNorm2d(), nn.MaxPool2d(3, 2, 1), block(64, 2), block(64, 1),
        block(128, 2), block(128, 1), *dense(classes),
    )  # fmt: skip


def mobilenet(classes: int) -> nn.Module:
    def norm6(layer: nn.Module) -> list[nn.Module]:
        return [layer, nn.LazyBatchNorm2d(), nn.ReLU6()]

    layers = norm6(conv(32, 3, 2, bias=False))
    width = 32
    for factor, outputs, repeat, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for at in range(repeat):
            inner = factor * width
            inside = norm6(conv(inner, 1, bias=False)) if factor > 1 else []
            inside += norm6(conv(inner, 3, stride if at == 0 else 1, bias=False, groups=inner))
            inside += [conv(outputs, 1, bias=False), nn.LazyBatchNorm2d()]
            block = nn.Sequential(*inside)
            layers += [Sum(nn.Identity(), block)] if width == outputs else [block]
            width = outputs
    return nn.Sequential(*layers, *norm6(conv(1280, 1, bias=False)), *dense(classes))


def chain(*layers: tuple[Any, ...]) -> nn.Module:
    return nn.Sequential(*(conv_norm(*layer) for layer in layers))


def shrink(*layers: tuple[Any, ...]) -> nn.Module:
    """A chain whose last layer halves the picture, without padding."""
    *before, (width, kernel) = layers
    return nn.Sequential(*(conv_norm(*layer) for layer in before), conv_norm(width, kernel, 2, same=False))


def pooled(width: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, 1, 1), conv_norm(width, 1))


def inception_stem() -> list[nn.Module]:
    return [
        conv_norm(32, 3, 2, same=False), conv_norm(32, 3, same=False), conv_norm(64, 3), nn.MaxPool2d(3, 2),
        conv_norm(80, 1, same=False), conv_norm(192, 3, same=False), nn.MaxPool2d(3, 2),
    ]  # fmt: skip


def inception(classes: int) -> nn.Module:
    layers = inception_stem()
    layers += [
        Beside(chain((64, 1)), chain((48, 1), (64, 5)), chain((64, 1), (96, 3), (96, 3)), pooled(width))
        for width in (32, 64, 64)
    ]
    layers += [Beside(shrink((384, 3)), shrink((64, 1), (96, 3), (96, 3)), nn.MaxPool2d(3, 2))]
    tall, wide = (7, 1), (1, 7)
    layers += [
        Beside(
            chain((192, 1)), chain((inner, 1), (inner, wide), (192, tall)),
            chain((inner, 1), (inner, tall), (inner, wide), (inner, tall), (192, wide)), pooled(192),
        )
        for inner in (128, 160, 160, 192)
    ]  # fmt: skip
    layers += [
        Beside(shrink((192, 1), (320, 3)), shrink((192, 1), (192, wide), (192, tall), (192, 3)), nn.MaxPool2d(3, 2))
    ]

    def both(*before: tuple[Any, ...]) -> nn.Module:
        return nn.Sequential(chain(*before), Beside(conv_norm(384, (1, 3)), conv_norm(384, (3, 1))))

    layers += [Beside(chain((320, 1)), both((384, 1)), both((448, 1), (384, 3)), pooled(192)) for _ in range(2)]
    return nn.Sequential(*layers, *dense(classes))


def inception_resnet(classes: int) -> nn.Module:
    def block(width: int, *branches: nn.Module, relu: bool = True) -> nn.Module:
        return Sum(nn.Identity(), nn.Sequential(Beside(*branches), conv(width, 1)), scale=0.2, relu=relu)

    layers = inception_stem()
    layers += [Beside(chain((96, 1)), chain((48, 1), (64, 5)), chain((64, 1), (96, 3), (96, 3)), pooled(64))]
    for _ in range(10):
        layers += [block(320, chain((32, 1)), chain((32, 1), (32, 3)), chain((32, 1), (48, 3), (64, 3)))]
    layers += [Beside(shrink((384, 3)), shrink((256, 1), (256, 3), (384, 3)), nn.MaxPool2d(3, 2))]
    for _ in range(20):
        layers += [block(1088, chain((192, 1)), chain((128, 1), (160, (1, 7)), (192, (7, 1))))]
    layers += [
        Beside(
            shrink((256, 1), (384, 3)), shrink((256, 1), (288, 3)), shrink((256, 1), (288, 3), (320, 3)),
            nn.MaxPool2d(3, 2),
        )
    ]  # fmt: skip
    for at in range(10):
        layers += [block(2080, chain((192, 1)), chain((192, 1), (224, (1, 3)), (256, (3, 1))), relu=at < 9)]
    return nn.Sequential(*layers, conv_norm(1536, 1), *dense(classes))


NETWORKS: dict[str, Callable[[int], nn.Module]] = {
    "LeNet5": lenet,
    "MNIST_CNN": mnist,
    "CIFAR10_CNN": cifar,
    "AlexNet": alexnet,
    "VGG11": vgg((1, 1, 2, 2, 2)),
    "VGG13": vgg((2, 2, 2, 2, 2)),
    "VGG16": vgg((2, 2, 3, 3, 3)),
    "VGG19": vgg((2, 2, 4, 4, 4)),
    "ResNetSmall": resnet_small,
    "ResNet18": resnet((2, 2, 2, 2), bottleneck=False),
    "ResNet34": resnet((3, 4, 6, 3), bottleneck=False),
    "ResNet50": resnet((3, 4, 6, 3), bottleneck=True),
    "MobileNetV2": mobilenet,
    "InceptionV3": inception,
    "InceptionResNetV2": inception_resnet,
}


def points(data_dir: Path) -> Iterator[Point]:
    with (data_dir / "profet/profet_train_latency.csv").open() as lines:
        rows = {(row["model"], int(row["batchsize"]), int(row["dataset"].removesuffix("dataset")))
                for row in csv.DictReader(lines)}  # fmt: skip
    for network, batch, size in sorted(rows):
        yield Point(network=network, batch=batch, size=size)


def trace(point: Point) -> Structure:
    classes = CLASSES[point.size]
    with torch.device("meta"):
        model = NETWORKS[point.network](classes)
        pictures = torch.empty(point.batch, 3, point.size, point.size)
        labels = torch.empty(point.batch, dtype=torch.long)
        model(pictures)  # gives the lazy layers their shapes
    learning = list(model.parameters())
    optimizer = torch.optim.SGD(learning, lr=0.01, foreach=False)

    def step() -> None:
        nn.functional.cross_entropy(model(pictures), labels).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return trace_step(step, parameters=learning, inputs=[pictures, labels], steps=1)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--data", type=Path, required=True)
    asked.add_argument("--unpacked", type=Path, required=True)
    given = asked.parse_args()
    collect(points(given.data), trace, given.unpacked, "profet")


if __name__ == "__main__":
    main()
