"""A user's model, from whatever the user has, made into a step that can be traced without running it.

    loaded = load_model("net.py:build", inputs=["3x224x224"], batch=64)
    ready = step_of(loaded, mode="train", optimizer="sgd", precision="bf16")
    trace_step(ready.step, parameters=ready.parameters, inputs=ready.inputs, resident=ready.resident, …)

A source is `file.py:name` or `package.module:name`, a Hugging Face `config.json` or the folder it is in, an exported
program (`.pt2`), an ONNX file (`.onnx`), or from Python an nn.Module, its class, or a function that builds one.
"""

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

from wattsmith.flows.models.exported import load_exported
from wattsmith.flows.models.hugging_face import config_file, is_of_transformers, load_config, prepared
from wattsmith.flows.models.inputs import (
    Inputs,
    Wanted,
    batch_of,
    inputs_of_examples,
    inputs_of_shapes,
    wanted_inputs,
)
from wattsmith.flows.models.loaded import LoadedModel, with_batch
from wattsmith.flows.models.onnx_source import load_onnx
from wattsmith.flows.models.problems import InputsDoNotFit, ModelNotLoaded, NotTraceable
from wattsmith.flows.models.python_source import built, named_thing
from wattsmith.flows.models.steps import Traceable, step_of
from wattsmith.terms.errors import ExtraNeeded

__all__ = [
    "InputsDoNotFit",
    "LoadedModel",
    "ModelNotLoaded",
    "NotTraceable",
    "Traceable",
    "load_model",
    "step_of",
    "with_batch",
]


def load_model(source: Any, *, inputs: Any = None, batch: int | None = None, device: str = "meta") -> LoadedModel:
    """The model that SOURCE leads to, with example inputs; nothing of it is run yet.

    INPUTS: sizes as texts ("3x224x224", "128:int64", "mask=128:bool"), or tensors as the model takes them: one, a
    tuple, or a dict by argument; None: as the source says or the model usually takes. BATCH: how many samples in a
    step; None: as many as the inputs have, else 1. DEVICE "cpu": with real tensors, for what a trace cannot follow.
    """
    _need_torch()
    wanted = wanted_inputs(inputs, batch, device)
    if not isinstance(source, str | Path):
        return _from_python(source, getattr(source, "__name__", type(source).__name__), None, wanted)
    text, path = str(source), Path(source).expanduser()
    if path.suffix == ".onnx":
        return load_onnx(_existing(path), wanted)
    if path.suffix == ".pt2":
        return _from_export(_existing(path), wanted)
    if (config := config_file(path)) is not None:
        module, notes = load_config(_existing(config), device)
        return _ready(module, "transformers", wanted, notes)
    if ":" not in text:
        raise _not_a_source(text, path)
    thing, folder = named_thing(text)
    return _from_python(thing, text, folder, wanted)


def _need_torch() -> None:
    try:
        import torch  # noqa: F401
    except ImportError as missing:
        raise ExtraNeeded("a model needs PyTorch: pip install 'wattsmith[torch]'") from missing


def _existing(path: Path) -> Path:
    if not path.is_file():
        raise ModelNotLoaded(f"there is no file {path}")
    return path


def _not_a_source(text: str, path: Path) -> ModelNotLoaded:
    if path.suffix == ".py":
        return ModelNotLoaded(f"which model in {text}? Write {text}:NAME, of a class, a function or an instance")
    if path.is_dir():
        return ModelNotLoaded(f"there is no config.json in the folder {text}")
    if path.suffix in (".pt", ".pth", ".bin", ".safetensors", ".ckpt"):
        return ModelNotLoaded(f"{text} holds weights, not the model that they are of; give that as file.py:NAME")
    return ModelNotLoaded(
        f"{text!r} leads to no model: write file.py:NAME or package.module:NAME, or give a config.json, an .onnx or a "
        ".pt2 file"
    )


def _from_python(thing: Any, label: str, folder: Path | None, wanted: Wanted) -> LoadedModel:
    module, examples, notes = built(thing, label, wanted.device, folder)
    return _ready(module, "python", wanted, notes, examples)


def _from_export(path: Path, wanted: Wanted) -> LoadedModel:
    module, args, named = load_exported(path, wanted.device)
    if not wanted.given:
        inputs = Inputs(args=args, named=named)
        wanted = replace(wanted, examples=inputs)
    note = f"{path.name} is taken as it was exported; train() and eval() do not change it"
    return _ready(module, "exported", wanted, [note])


def _ready(module: Any, kind: str, wanted: Wanted, notes: list[str], examples: Any = None) -> LoadedModel:
    """MODULE with the inputs that are WANTED, or else with EXAMPLES of its own, or else with its usual ones."""
    examples = wanted.examples if wanted.given else examples
    if examples is not None:
        inputs = inputs_of_examples(examples, wanted.batch, wanted.device)
        batch = batch_of(inputs.tensors())
        return LoadedModel(
            module=module, inputs=inputs, kind=kind, batch=batch, device=wanted.device, notes=tuple(notes)
        )
    batch = wanted.batch or 1
    if wanted.batch is None:
        notes = [*notes, "1 sample in a step; --batch says otherwise"]
    if is_of_transformers(module):
        ready = prepared(module, wanted.shapes, batch, wanted.device)
        return LoadedModel(
            module=module,
            inputs=ready.inputs,
            kind=kind,
            batch=batch,
            device=wanted.device,
            train_only=ready.train_only,
            infer_only=ready.infer_only,
            notes=(*notes, *ready.notes),
        )
    if not wanted.shapes:
        raise InputsDoNotFit(
            f"what does {type(module).__name__} take? forward{inspect.signature(module.forward)}: give the sizes of "
            "one sample for each input, as in --input 3x224x224 or --input 128:int64"
        )
    inputs = inputs_of_shapes(wanted.shapes, batch, wanted.device)
    return LoadedModel(module=module, inputs=inputs, kind=kind, batch=batch, device=wanted.device, notes=tuple(notes))
