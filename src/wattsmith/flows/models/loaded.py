"""A model that was loaded, whatever it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from wattsmith.flows.models.inputs import Inputs, rebatched


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A module that can take a step, and what to call it with."""

    module: Any  # an nn.Module
    inputs: Inputs
    kind: str  # "python", "transformers", "exported" or "onnx"
    batch: int
    device: str = "meta"  # where its tensors are
    train_only: Mapping[str, Any] = field(default_factory=dict)  # more inputs when it trains: labels
    infer_only: Mapping[str, Any] = field(default_factory=dict)  # more inputs when it infers
    without_rule: Mapping[str, int] = field(default_factory=dict)  # operators that are counted by their tensors alone
    notes: tuple[str, ...] = ()  # what was assumed, and what could not be done as asked

    def inputs_for(self, mode: str) -> Inputs:
        return self.inputs.with_more(self.train_only if mode == "train" else self.infer_only)


def with_batch(loaded: LoadedModel, batch: int) -> LoadedModel:
    """The same model with BATCH samples a step."""
    named = dict(loaded.inputs.named)
    every = {"args": loaded.inputs.args, "named": named, "train": loaded.train_only, "infer": loaded.infer_only}
    resized = rebatched(every, batch)
    inputs = Inputs(args=resized["args"], named=resized["named"])
    return replace(loaded, inputs=inputs, batch=batch, train_only=resized["train"], infer_only=resized["infer"])
