"""The networks of the demo: a ResNet-50 to train, and a small one to serve."""

from torch import Tensor, nn
from torch.nn import functional


class Bottleneck(nn.Module):  # type: ignore[misc]
    """Narrow, convolve, widen, beside a short cut."""

    def __init__(self, depth: int, narrow: int, stride: int) -> None:
        super().__init__()
        wide = 4 * narrow
        self.body = nn.Sequential(
            *_normed(depth, narrow, 1), nn.ReLU(inplace=True),
            *_normed(narrow, narrow, 3, stride), nn.ReLU(inplace=True),
            *_normed(narrow, wide, 1),
        )  # fmt: skip
        same = depth == wide and stride == 1
        self.short = nn.Identity() if same else nn.Sequential(*_normed(depth, wide, 1, stride))

    def forward(self, images: Tensor) -> Tensor:
        return functional.relu_(self.body(images) + self.short(images))


def _normed(depth: int, filters: int, size: int, stride: int = 1) -> tuple[nn.Module, nn.Module]:
    return nn.Conv2d(depth, filters, size, stride, size // 2, bias=False), nn.BatchNorm2d(filters)


def resnet50(classes: int = 1000) -> nn.Module:
    """ResNet-50 as it was published: 25.6 million parameters, 4.1 billion multiplications for an image of 224 × 224."""
    layers: list[nn.Module] = [*_normed(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    depth = 64
    for narrow, blocks, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for place in range(blocks):
            layers.append(Bottleneck(depth, narrow, 1 if place else stride))
            depth = 4 * narrow
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(depth, classes))


def small_network(layers: int = 24, width: int = 16) -> nn.Module:
    """Many thin layers, as small models for edge devices have: batches cost less than their samples one by one."""
    body: list[nn.Module] = [nn.Conv2d(3, width, 3, 2, 1)]
    for _ in range(layers):
        body += [nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))
