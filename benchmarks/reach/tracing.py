"""What a step of each real network does, found without weights and without running it."""

import inspect
import logging
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from reach.networks import Network
from wattsmith.record.structure import optimizer_state, trace_step
from wattsmith.terms.run import Structure

PRECISIONS = ("fp32", "bf16")


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """A network as somebody runs it."""

    network: str
    group: str
    precision: str
    mode: str  # "train" or "infer"
    does: str  # "train", "infer", "decode"
    batch: int
    size: int  # pixels, tokens or samples along one side
    structure: Structure
    published_as: str | None = None

    @property
    def name(self) -> str:
        return f"{self.network}, {self.does}, batch {self.batch}, {self.precision}"


@dataclass(frozen=True, slots=True, kw_only=True)
class NotTraced:
    """A network, or one way of running it, that could not be traced."""

    name: str
    reason: str


def uses_of(network: Network, batches: int | None = None) -> Iterator[Use | NotTraced]:
    """Every usual way of running the network, at the first BATCHES of its batches; None: at all."""
    if network.not_traced:
        yield NotTraced(name=network.name, reason=network.not_traced)
        return
    for does in ("train", "infer", "decode"):
        wanted: Sequence[int] = getattr(network, does)[:batches]
        for precision in PRECISIONS if wanted else ():
            try:
                with quietly():
                    yield from [used(network, does, precision, batch) for batch in wanted]
            except (AttributeError, ImportError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as failed:
                told = str(failed).strip().partition("\n")[0]
                yield NotTraced(
                    name=f"{network.name}, {does}, {precision}", reason=f"{type(failed).__name__}: {told[:160]}"
                )


@contextmanager
def quietly() -> Iterator[None]:
    """Without advice on kernels and losses, which means nothing here."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def used(network: Network, does: str, precision: str, batch: int) -> Use:
    trains = does == "train"
    structure = (trained if trains else inferred)(network, does, precision, batch)
    return Use(
        network=network.name,
        group="decoder, next token" if does == "decode" else network.group,
        precision=precision,
        mode="train" if trains else "infer",
        does=does,
        batch=batch,
        size=network.size,
        structure=structure,
        published_as=network.published_as,
    )


def made(network: Network) -> tuple[Any, Any]:
    """The network on meta, and its configuration."""
    import torch
    import transformers

    config = getattr(transformers, network.config)(**network.options)
    with torch.device("meta"):
        return getattr(transformers, network.model)(config), config


def trained(network: Network, _does: str, precision: str, batch: int) -> Structure:
    """Forward, backward and update. bf16: under autocast, with weights in fp32, as the record's networks train."""
    import torch

    module, config = made(network)
    module.train()
    learning = list(module.parameters())
    optimizer: Any = (
        torch.optim.SGD(learning, lr=1e-3, momentum=0.9, foreach=True)
        if network.optimizer == "sgd"
        else torch.optim.AdamW(learning, lr=1e-3, foreach=True)
    )
    given = network.inputs(network, config, batch, True)

    def step() -> None:
        module(**given).loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    state = optimizer_state(SimpleNamespace(optimizer=optimizer, learning=learning))
    return trace_step(
        step, parameters=learning, inputs=tensors(given), resident=state, precision=precision, steps=1
    )  # fmt: skip


def inferred(network: Network, does: str, precision: str, batch: int) -> Structure:
    """Forward alone, or one more token with a cache. bf16: all of it, as the record's networks infer."""
    import torch

    module, config = made(network)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    module.to(dtype).eval()
    given = network.inputs(network, config, batch, False)
    given = {
        name: one.to(dtype) if isinstance(one, torch.Tensor) and one.is_floating_point() else one
        for name, one in given.items()
    }
    cached: list[Any] = []
    if does == "decode":
        given["past_key_values"], cached = filled_cache(config, batch, network.size, dtype)
        given["input_ids"] = given["input_ids"][:, :1]
    if "logits_to_keep" in inspect.signature(module.forward).parameters:
        given["logits_to_keep"] = 1  # whoever generates wants the last token's alone

    def step() -> None:
        with torch.inference_mode():
            module(**given)

    return trace_step(step, parameters=list(module.parameters()), inputs=tensors(given), resident=cached, steps=1)


def filled_cache(config: Any, batch: int, length: int, dtype: Any) -> tuple[Any, list[Any]]:
    """A cache of LENGTH tokens, and the tensors in it."""
    import torch
    from transformers import DynamicCache

    heads = config.num_attention_heads
    kept = getattr(config, "num_key_value_heads", None) or heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    cache = DynamicCache()
    held = []
    for layer in range(config.num_hidden_layers):
        pair = [torch.empty(batch, kept, length, width, dtype=dtype, device="meta") for _ in range(2)]
        held += cache.update(*pair, layer)
    return cache, held


def tensors(given: dict[str, Any]) -> list[Any]:
    import torch

    return [one for one in given.values() if isinstance(one, torch.Tensor)]
