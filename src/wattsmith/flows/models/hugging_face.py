"""Models from a Hugging Face `config.json`: the architecture without its weights, and inputs such as it takes."""

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattsmith.flows.models.inputs import Inputs, InputShape, made, tensor_of
from wattsmith.flows.models.problems import ModelNotLoaded, first_line
from wattsmith.flows.models.python_source import built
from wattsmith.terms.errors import ExtraNeeded

MOST_TOKENS = 512  # of a sample, where nobody says; fewer where the model has fewer positions
PIXELS = 224  # along one side, where neither the user nor the configuration says
SAMPLES = 16_000  # of sound: one second
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_USUAL = ("input_ids", "pixel_values", "input_values", "input_features")
_WHOLE = {"input_ids", "decoder_input_ids", "labels"}
# By the end of an architecture's name: the shape of its labels, behind the batch. "tokens": one for each.
_LABELS = {
    **dict.fromkeys(("ForCausalLM", "LMHeadModel", "ForMaskedLM", "ForTokenClassification"), "tokens"),
    **dict.fromkeys(("ForConditionalGeneration", "ForSeq2SeqLM", "DoubleHeadsModel"), "tokens"),
    **dict.fromkeys(("ForSequenceClassification", "ForImageClassification", "ForAudioClassification"), "one"),
    **dict.fromkeys(("ForMultipleChoice", "ForVideoClassification"), "one"),
    "ForSemanticSegmentation": "pixels",
    "ForQuestionAnswering": "span",
}


@dataclass(slots=True)
class Prepared:
    """What a model of transformers is called with."""

    inputs: Inputs
    train_only: dict[str, Any] = field(default_factory=dict)
    infer_only: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def config_file(path: Path) -> Path | None:
    """The configuration that PATH is, or holds; None: it is something else."""
    if path.is_dir() and (path / "config.json").is_file():
        return path / "config.json"
    return path if path.suffix == ".json" else None


def load_config(path: Path, device: str) -> tuple[Any, list[str]]:
    """The model that the configuration at PATH describes, with no weights worth the name, and notes."""
    transformers = _transformers()
    told = _read(path)
    config = _config_of(transformers, told, path)
    names = told.get("architectures") or []
    if names:
        kind = getattr(transformers, names[0], None)
        if kind is None:
            hint = "it comes with code of its own (auto_map), which is not run; " if "auto_map" in told else ""
            raise ModelNotLoaded(
                f"{path}: transformers {transformers.__version__} has no architecture {names[0]!r}; {hint}"
                "install a version that has it, or give the model as file.py:NAME"
            )
        module, _, notes = built(lambda: kind(config), names[0], device)
        return module, notes
    module, _, notes = built(lambda: transformers.AutoModel.from_config(config), f"a model of {path}", device)
    return module, [f"{path} names no architecture: taken as {type(module).__name__}, which has no head", *notes]


def _transformers() -> Any:
    try:
        import transformers
    except ImportError as missing:
        raise ExtraNeeded("a config.json needs Hugging Face transformers: pip install transformers") from missing
    return transformers


def _read(path: Path) -> dict[str, Any]:
    try:
        told = json.loads(path.read_text())
    except (OSError, ValueError) as broken:
        raise ModelNotLoaded(f"{path} cannot be read as JSON: {first_line(broken)}") from broken
    if not isinstance(told, dict) or not (told.get("architectures") or told.get("model_type")):
        raise ModelNotLoaded(
            f"{path} has neither `architectures` nor `model_type`, so it does not say which model it is. Take the "
            'config.json beside the weights on the hub, or add "architectures": ["BertForMaskedLM"] or the like.'
        )
    return told


def _config_of(transformers: Any, told: dict[str, Any], path: Path) -> Any:
    fields = {name: value for name, value in told.items() if name != "model_type"}
    try:
        if "model_type" in told:
            return transformers.AutoConfig.for_model(told["model_type"], **fields)
        kind = getattr(transformers, told["architectures"][0], None)
        if kind is None:
            raise ModelNotLoaded(f"{path}: transformers has no architecture {told['architectures'][0]!r}")
        return kind.config_class.from_dict(told)
    except (AttributeError, KeyError, TypeError, ValueError) as refused:
        raise ModelNotLoaded(f"{path} is refused by transformers: {first_line(refused)}") from refused


def is_of_transformers(module: Any) -> bool:
    return hasattr(module, "config") and hasattr(module, "main_input_name")


def prepared(module: Any, shapes: Sequence[InputShape], batch: int, device: str) -> Prepared:
    """Inputs of MODULE: SHAPES as far as they go, the rest by its configuration."""
    for name in ("decoder_start_token_id", "pad_token_id"):
        # Without them some models refuse batches or labels; which token it is changes no shape.
        if getattr(module.config, name, None) is None:
            setattr(module.config, name, 0)
    for one in module.modules():
        if hasattr(one, "warn_if_padding_and_no_attention_mask"):
            one.warn_if_padding_and_no_attention_mask = lambda *_: None  # it reads tokens, only to warn
    main = module.main_input_name
    named = {one.name or main: made(one, batch, device, _dtype_of(one.name or main)) for one in shapes}
    arguments = inspect.signature(module.forward).parameters
    takes = set(arguments)
    ready = Prepared(inputs=Inputs())
    needed = [name for name, one in arguments.items() if one.default is one.empty and name in _USUAL]
    for name in dict.fromkeys((main, *needed)):
        if name not in named:
            named[name], note = _usual(name, module.config, batch, device)
            ready.notes.append(note)
    if type(module).__name__ in ("CLIPModel", "SiglipModel", "AltCLIPModel") and "pixel_values" not in named:
        named["pixel_values"], note = _usual("pixel_values", module.config.vision_config, batch, device)
        ready.notes.append(note)
        ready.train_only["return_loss"] = True
    if type(module).__name__.endswith("ForMultipleChoice") and named[main].dim() == 2:
        named[main] = tensor_of((batch, 2, named[main].shape[1]), "int64", device)
        ready.notes.append("2 choices a sample")
    answers = _answers(module, named, batch, device)
    if "labels" in takes or "start_positions" in takes:
        ready.train_only |= {name: one for name, one in answers.items() if name in takes and name not in named}
    if module.config.is_encoder_decoder and "decoder_input_ids" in takes and "decoder_input_ids" not in named:
        heard = tensor_of((batch, _answer_length(module.config, named)), "int64", device)
        ready.infer_only["decoder_input_ids"] = heard
        if not ready.train_only:
            ready.train_only["decoder_input_ids"] = heard
    ready.inputs = Inputs(named=named)
    return ready


def _dtype_of(name: str) -> str:
    return "int64" if name in _WHOLE or name.endswith(("_ids", "_mask")) else "float32"


def _usual(main: str, config: Any, batch: int, device: str) -> tuple[Any, str]:
    """A batch of the main input, and a note that says what was assumed."""
    if main == "pixel_values":
        frames = getattr(config, "num_frames", None)
        size = getattr(config, "image_size", None) or PIXELS
        height, width = size if isinstance(size, Sequence) else (size, size)
        channels = getattr(config, "num_channels", 3)
        sizes = (*([frames] if frames else []), channels, height, width)
        what = "films" if frames else "images"
        return tensor_of((batch, *sizes), "float32", device), f"{what} of {_written(sizes)}; --input says otherwise"
    if main == "input_features":
        bins = getattr(config, "num_mel_bins", 80)
        length = 2 * getattr(config, "max_source_positions", 1500)
        return tensor_of((batch, bins, length), "float32", device), f"sound of {bins}x{length} features"
    if main == "input_values" and hasattr(config, "num_mel_bins"):
        sizes = (getattr(config, "max_length", 1024), config.num_mel_bins)
        return tensor_of((batch, *sizes), "float32", device), f"sound of {_written(sizes)} features"
    if main == "input_values":
        return tensor_of((batch, SAMPLES), "float32", device), f"sound of {SAMPLES} samples; --input says otherwise"
    tokens = min(MOST_TOKENS, _positions(config) or MOST_TOKENS)
    return tensor_of((batch, tokens), "int64", device), f"texts of {tokens} tokens; --input says otherwise"


def _written(sizes: Sequence[int]) -> str:
    return "x".join(map(str, sizes))


def _positions(config: Any) -> int | None:
    text = config.get_text_config() if hasattr(config, "get_text_config") else config
    found = (getattr(text, name, None) for name in _POSITIONS)
    return next((int(one) for one in found if isinstance(one, int) and one > 0), None)


def _answer_length(config: Any, named: Mapping[str, Any]) -> int:
    """How many tokens an encoder-decoder gives for an input: as many as come in, or as it can."""
    if "input_ids" in named:
        return int(named["input_ids"].shape[-1])
    return min(128, getattr(config, "max_target_positions", 128))


def _answers(module: Any, named: Mapping[str, Any], batch: int, device: str) -> dict[str, Any]:
    """What a model of this name learns from; nothing where it has no head."""
    name = type(module).__name__
    what = next((what for end, what in _LABELS.items() if name.endswith(end)), None)
    if what == "span":
        return {end: tensor_of((batch,), "int64", device) for end in ("start_positions", "end_positions")}
    if what == "pixels":
        return {"labels": tensor_of((batch, *named["pixel_values"].shape[-2:]), "int64", device)}
    if what == "one":
        return {"labels": tensor_of((batch,), "int64", device)}
    if what == "tokens":
        length = named["input_ids"].shape[-1] if "input_ids" in named else _answer_length(module.config, named)
        return {"labels": tensor_of((batch, length), "int64", device)}
    if name.endswith("ForPreTraining") and "input_ids" in named:
        both = {"labels": tensor_of(named["input_ids"].shape, "int64", device)}
        return both | {"next_sentence_label": tensor_of((batch,), "int64", device)}
    return {}
