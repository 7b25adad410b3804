"""Networks that are served: real ones on a GPU, small ones of the same kind where there is none."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """What is served, and which batches a copy of it is fine-tuned with beside."""

    name: str
    build: Callable[[], Any]
    inputs: Sequence[str]
    fine_tuned: tuple[int, int]  # batch of a large step and of a small one


def resnet50() -> Any:
    import torchvision

    return torchvision.models.resnet50(weights=None)


def bert_base() -> Any:
    import transformers

    config = transformers.BertConfig(num_labels=2)
    return transformers.BertForSequenceClassification(config)


def small_cnn() -> Any:
    from torch import nn

    def block(into: int, out: int) -> list[Any]:
        return [nn.Conv2d(into, out, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(out), nn.ReLU()]

    return nn.Sequential(
        *block(3, 32), *block(32, 64), *block(64, 128), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, 100)
    )


def small_bert() -> Any:
    import transformers

    config = transformers.BertConfig(
        hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512, vocab_size=2000
    )
    return transformers.BertForSequenceClassification(config)


ON_GPU = (
    Network(name="resnet50", build=resnet50, inputs=("3x224x224",), fine_tuned=(128, 32)),
    Network(name="bert-base", build=bert_base, inputs=("input_ids=384:int64",), fine_tuned=(32, 8)),
)
ON_CPU = (
    Network(name="small-cnn", build=small_cnn, inputs=("3x96x96",), fine_tuned=(8, 2)),
    Network(name="small-bert", build=small_bert, inputs=("input_ids=64:int64",), fine_tuned=(8, 2)),
)
