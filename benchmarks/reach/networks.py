"""Common networks as their authors published them: shapes alone, from configurations of Hugging Face transformers."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

Inputs = Callable[["Network", Any, int, bool], dict[str, Any]]  # network, configuration, batch, whether it trains


@dataclass(frozen=True, slots=True, kw_only=True)
class Network:
    """One network, and the batches that it is usually run at."""

    name: str
    group: str
    model: str  # class in transformers; its configuration's class is the same word with "Config"
    config: str
    options: Mapping[str, Any] = field(default_factory=dict)
    inputs: Inputs
    size: int  # pixels, tokens or samples along one side
    train: tuple[int, ...] = ()
    infer: tuple[int, ...] = ()
    decode: tuple[int, ...] = ()  # one more token, with `size` tokens in the cache
    optimizer: str = "adamw"
    published_as: str | None = None  # its name in timm's tables
    not_traced: str | None = None  # why it is listed and left out


def whole_numbers(*shape: int) -> Any:
    import torch

    return torch.empty(shape, dtype=torch.long, device="meta")


def reals(*shape: int) -> Any:
    import torch

    return torch.empty(shape, device="meta")


def image(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    pixels = {"pixel_values": reals(batch, 3, network.size, network.size)}
    return pixels | ({"labels": whole_numbers(batch)} if trains else {})


def text(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    words = {"input_ids": whole_numbers(batch, network.size)}
    return words | ({"labels": whole_numbers(batch)} if trains else {})


def tokens(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    words = {"input_ids": whole_numbers(batch, network.size)}
    return words | ({"labels": whole_numbers(batch, network.size)} if trains else {"use_cache": True})


def two_texts(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    answer = "labels" if trains else "decoder_input_ids"
    return {"input_ids": whole_numbers(batch, network.size), answer: whole_numbers(batch, network.size // 4)}


def speech(network: Network, config: Any, batch: int, trains: bool) -> dict[str, Any]:
    answer = "labels" if trains else "decoder_input_ids"
    heard = reals(batch, config.num_mel_bins, network.size)
    return {"input_features": heard, answer: whole_numbers(batch, 128)}


def sound(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    heard = {"input_values": reals(batch, network.size)}
    return heard | ({"labels": whole_numbers(batch, 128)} if trains else {})


def image_with_text(network: Network, _config: Any, batch: int, trains: bool) -> dict[str, Any]:
    pixels = reals(batch, 3, network.size, network.size)
    return {"input_ids": whole_numbers(batch, 77), "pixel_values": pixels, "return_loss": trains}


def cnn(name: str, word: str, published_as: str | None = None, size: int = 224, **options: Any) -> Network:
    return Network(
        name=name,
        group="convolutional",
        model=f"{word}ForImageClassification",
        config=f"{word}Config",
        options={"num_labels": 1000, **options},
        inputs=image,
        size=size,
        train=(32, 256),
        infer=(1, 32, 256),
        optimizer="sgd",
        published_as=published_as,
    )


def mobile(name: str, word: str, published_as: str, size: int = 224, **options: Any) -> Network:
    base = cnn(name, word, published_as, size, **options)
    return _changed(base, group="mobile convolutional")


def vision(name: str, word: str, published_as: str | None = None, **options: Any) -> Network:
    base = cnn(name, word, published_as, 224, **options)
    return _changed(base, group="vision transformer", optimizer="adamw")


def encoder(name: str, word: str, size: int = 128, **options: Any) -> Network:
    return Network(
        name=name,
        group="text encoder",
        model=f"{word}ForSequenceClassification",
        config=f"{word}Config",
        options={"problem_type": "single_label_classification", **options},
        inputs=text,
        size=size,
        train=(16, 64),
        infer=(1, 32, 128),
    )


def decoder(name: str, word: str, train: tuple[int, ...] = (1, 8), size: int = 1024, **options: Any) -> Network:
    model = "GPT2LMHeadModel" if word == "GPT2" else f"{word}ForCausalLM"
    return Network(
        name=name,
        group="decoder",
        model=model,
        config=f"{word}Config",
        options=options,
        inputs=tokens,
        size=size,
        train=train,
        infer=(1, 8),
        decode=(1, 32),
    )


def translator(name: str, word: str, **options: Any) -> Network:
    return Network(
        name=name,
        group="encoder-decoder, speech, two towers",
        model=f"{word}ForConditionalGeneration",
        config=f"{word}Config",
        options=options,
        inputs=two_texts,
        size=512,
        train=(8, 32),
        infer=(1, 16),
    )


def listener(name: str, **options: Any) -> Network:
    base = translator(name, "Whisper", **options)
    return _changed(base, inputs=speech, size=3000)


def _changed(network: Network, **others: Any) -> Network:
    return dataclasses.replace(network, **others)


def _sized(width: int, layers: int, heads: int, inner: int, **others: Any) -> dict[str, Any]:
    """A transformer's shape in the words that most configurations use."""
    shape = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": heads}
    return {**shape, "intermediate_size": inner, **others}


def _gpt2(width: int, layers: int, heads: int) -> dict[str, Any]:
    return {"n_embd": width, "n_layer": layers, "n_head": heads}


def _t5(width: int, layers: int, heads: int, inner: int) -> dict[str, Any]:
    shape = {"d_model": width, "num_layers": layers, "num_heads": heads, "d_ff": inner}
    return {**shape, "decoder_start_token_id": 0}


def _whisper(width: int, layers: int, heads: int) -> dict[str, Any]:
    both = {f"{part}_{what}": value for part in ("encoder", "decoder") for what, value in (
        ("layers", layers), ("attention_heads", heads), ("ffn_dim", 4 * width))}  # fmt: skip
    return {"d_model": width, **both}


_WIDE = [256, 512, 1024, 2048]

NETWORKS = (
    cnn("ResNet-18", "ResNet", "resnet18", depths=[2, 2, 2, 2], hidden_sizes=[64, 128, 256, 512], layer_type="basic"),
    cnn("ResNet-50", "ResNet", "resnet50", depths=[3, 4, 6, 3], hidden_sizes=_WIDE),
    cnn("ResNet-152", "ResNet", "resnet152", depths=[3, 8, 36, 3], hidden_sizes=_WIDE),
    cnn("RegNetY-4GF", "RegNet", "regnety_040"),
    cnn("ConvNeXt-T", "ConvNext", "convnext_tiny"),
    cnn("ConvNeXt-B", "ConvNext", "convnext_base", depths=[3, 3, 27, 3], hidden_sizes=[128, 256, 512, 1024]),
    mobile("MobileNetV1", "MobileNetV1", "mobilenetv1_100"),
    mobile("MobileNetV2", "MobileNetV2", "mobilenetv2_100"),
    mobile(
        "EfficientNet-B0", "EfficientNet", "efficientnet_b0", width_coefficient=1.0, depth_coefficient=1.0,
        hidden_dim=1280,
    ),
    mobile(
        "EfficientNet-B4", "EfficientNet", "efficientnet_b4", 380, width_coefficient=1.4, depth_coefficient=1.8,
        hidden_dim=1792,
    ),
    vision("DeiT-S/16", "ViT", "deit_small_patch16_224", **_sized(384, 12, 6, 1536)),
    vision("ViT-B/16", "ViT", "vit_base_patch16_224"),
    vision("ViT-L/16", "ViT", "vit_large_patch16_224", **_sized(1024, 24, 16, 4096)),
    vision("Swin-T", "Swin", "swin_tiny_patch4_window7_224"),
    vision(
        "Swin-B", "Swin", "swin_base_patch4_window7_224", embed_dim=128, depths=[2, 2, 18, 2], num_heads=[4, 8, 16, 32]
    ),
    encoder("ELECTRA small", "Electra"),
    encoder("DistilBERT", "DistilBert"),
    encoder("BERT base", "Bert"),
    encoder("BERT large", "Bert", 384, **_sized(1024, 24, 16, 4096)),
    encoder("RoBERTa base", "Roberta", vocab_size=50265, max_position_embeddings=514),
    encoder("ALBERT base", "Albert", **_sized(768, 12, 12, 3072)),
    encoder("DeBERTa-v3 base", "DebertaV2", vocab_size=128100, **_sized(768, 12, 12, 3072), relative_attention=True,
            pos_att_type=["p2c", "c2p"], position_buckets=256),
    decoder("GPT-2 small", "GPT2"),
    decoder("GPT-2 medium", "GPT2", **_gpt2(1024, 24, 16)),
    decoder("GPT-2 large", "GPT2", **_gpt2(1280, 36, 20)),
    decoder("GPT-2 XL", "GPT2", (1, 4), **_gpt2(1600, 48, 25)),
    decoder("OPT 125M", "OPT", size=2048),
    decoder("OPT 1.3B", "OPT", (1, 4), 2048, hidden_size=2048, num_hidden_layers=24, num_attention_heads=32,
            ffn_dim=8192),
    decoder("Pythia 410M", "GPTNeoX", vocab_size=50304, **_sized(1024, 24, 16, 4096)),
    decoder("Qwen2.5 0.5B", "Qwen2", (1, 4), 2048, vocab_size=151936, tie_word_embeddings=True,
            **_sized(896, 24, 14, 4864, num_key_value_heads=2)),
    decoder("Llama 3.2 1B", "Llama", (1, 4), 2048, vocab_size=128256, tie_word_embeddings=True,
            **_sized(2048, 16, 32, 8192, num_key_value_heads=8)),
    decoder("Llama 3.2 3B", "Llama", (1,), 2048, vocab_size=128256, tie_word_embeddings=True,
            **_sized(3072, 28, 24, 8192, num_key_value_heads=8, head_dim=128)),
    decoder("Mistral 7B", "Mistral", (), 2048, sliding_window=None,
            **_sized(4096, 32, 32, 14336, num_key_value_heads=8)),
    decoder("Qwen2.5 7B", "Qwen2", (), 2048, vocab_size=152064, **_sized(3584, 28, 28, 18944, num_key_value_heads=4)),
    decoder("Llama 3.1 8B", "Llama", (1,), 2048, vocab_size=128256,
            **_sized(4096, 32, 32, 14336, num_key_value_heads=8)),
    translator("T5 small", "T5", **_t5(512, 6, 8, 2048)),
    translator("T5 base", "T5", **_t5(768, 12, 12, 3072)),
    translator("T5 large", "T5", **_t5(1024, 24, 16, 4096)),
    translator("BART base", "Bart", d_model=768, encoder_layers=6, decoder_layers=6, encoder_attention_heads=12,
               decoder_attention_heads=12, encoder_ffn_dim=3072, decoder_ffn_dim=3072),
    listener("Whisper tiny", **_whisper(384, 4, 6)),
    listener("Whisper small", **_whisper(768, 12, 12)),
    Network(name="wav2vec 2.0 base", group="encoder-decoder, speech, two towers", model="Wav2Vec2ForCTC",
            config="Wav2Vec2Config", inputs=sound, size=160_000, train=(8,), infer=(1, 16)),
    Network(name="CLIP ViT-B/32", group="encoder-decoder, speech, two towers", model="CLIPModel", config="CLIPConfig",
            inputs=image_with_text, size=224, train=(64, 256), infer=(1, 64)),
    _changed(
        decoder("OLMoE 7B", "Olmoe"), not_traced="which experts work is decided by values, and a trace has none"
    ),
    _changed(
        decoder("Mamba 130M", "Mamba"),
        not_traced="its scan is one kernel on a GPU, but comes apart into thousands of operators without that kernel",
    ),
)  # fmt: skip

QUICK = ("ResNet-18", "DistilBERT", "GPT-2 small")
