"""Real networks that no record holds, with a training step for each: from torchvision and transformers, random weights.

Steps are as a plain script takes them: PyTorch's own switches (fp32 convolutions may use TF32, products may not),
autocast for bf16, SGD with momentum for convolutional networks and AdamW for the others, one kernel for many tensors.
"""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

CLASSES = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    name: str
    make: Callable[[], Any]
    inputs: Callable[[int, str], tuple[Any, ...]]  # of a batch, on a device
    loss: Callable[[Any, tuple[Any, ...]], Any]  # of the module and the inputs
    batches: tuple[int, int, int]
    optimizer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A network with its batch on a device, ready to take training steps."""

    module: Any
    inputs: tuple[Any, ...]
    optimizer: Any
    loss: Callable[[Any, tuple[Any, ...]], Any]
    precision: str
    device: str

    def step(self) -> None:
        import torch

        casts = self.precision == "bf16" and self.device != "meta"  # on meta, who traces does it by rule
        with torch.autocast("cuda", dtype=torch.bfloat16) if casts else nullcontext():
            loss = self.loss(self.module, self.inputs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)

    def close(self) -> None:
        pass


def ready(network: Network, batch: int, precision: str, device: str) -> Step:
    import torch

    torch.manual_seed(0)
    try:
        with torch.device(device):
            module = network.make()
    except NotImplementedError:  # some compute with values while they are built, which "meta" has not
        module = network.make().to(device)
    module.train()
    return Step(
        module=module,
        inputs=network.inputs(batch, device),
        optimizer=optimizer_of(network.optimizer, module),
        loss=network.loss,
        precision=precision,
        device=device,
    )


def optimizer_of(name: str, module: Any) -> Any:
    import torch

    if name == "sgd":
        return torch.optim.SGD(module.parameters(), lr=1e-5, momentum=0.9, foreach=True)
    return torch.optim.AdamW(module.parameters(), lr=1e-6, foreach=True)


def images(size: int) -> Callable[[int, str], tuple[Any, ...]]:
    import torch

    return lambda batch, device: (
        torch.randn(batch, 3, size, size, device=device),
        torch.randint(0, CLASSES, (batch,), device=device),
    )


def tokens(length: int, words: int) -> Callable[[int, str], tuple[Any, ...]]:
    import torch

    return lambda batch, device: (torch.randint(0, words, (batch, length), device=device),)


def class_loss(module: Any, inputs: tuple[Any, ...]) -> Any:
    from torch.nn.functional import cross_entropy

    return cross_entropy(module(inputs[0]), inputs[1])


def language_loss(module: Any, inputs: tuple[Any, ...]) -> Any:
    return module(input_ids=inputs[0], labels=inputs[0]).loss


def vision(name: str, batches: tuple[int, int, int], optimizer: str = "sgd", size: int = 224) -> Network:
    def make() -> Any:
        from torchvision import models

        return models.get_model(name, weights=None)

    return Network(name=name, make=make, inputs=images(size), loss=class_loss, batches=batches, optimizer=optimizer)


def language(name: str, made_of: Callable[[], Any], length: int, words: int, batches: tuple[int, int, int]) -> Network:
    return Network(
        name=name,
        make=made_of,
        inputs=tokens(length, words),
        loss=language_loss,
        batches=batches,
        optimizer="adamw",
    )


def bert() -> Any:
    from transformers import BertConfig, BertForMaskedLM

    return BertForMaskedLM(BertConfig())


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(use_cache=False))


def t5() -> Any:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(d_model=512, d_kv=64, d_ff=2048, num_layers=6, num_heads=8, decoder_start_token_id=0, use_cache=False)
    )


def llama() -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            hidden_size=1024,
            intermediate_size=2816,
            num_hidden_layers=12,
            num_attention_heads=16,
            num_key_value_heads=4,
            vocab_size=32000,
            use_cache=False,
        )
    )


def networks() -> tuple[Network, ...]:
    return (
        vision("resnet18", (16, 64, 256)),
        vision("resnet50", (16, 64, 192)),
        vision("vgg16", (8, 32, 96)),
        vision("densenet121", (16, 48, 128)),
        vision("mobilenet_v3_large", (32, 128, 384)),
        vision("efficientnet_b0", (16, 64, 192)),
        vision("resnext50_32x4d", (16, 64, 160)),
        vision("regnet_y_3_2gf", (16, 64, 192)),
        vision("convnext_tiny", (16, 48, 128), "adamw"),
        vision("vit_b_16", (16, 48, 128), "adamw"),
        vision("swin_t", (16, 48, 128), "adamw"),
        language("bert-base", bert, 128, 30522, (8, 32, 128)),
        language("gpt2", gpt2, 512, 50257, (4, 12, 32)),
        language("t5-small", t5, 128, 32128, (8, 32, 128)),
        language("llama-220m", llama, 512, 32000, (4, 12, 32)),
    )
