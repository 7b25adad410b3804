"""Makes neusight.jsonl.gz: what the Transformers that NeuSight measured do in one step.

    cd benchmarks && python -m estimate_public.trace_transformers --data DIR --unpacked FILE

They ran in fp32 under PyTorch 2.1, attention as separate products, forward and backward without an update.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from estimate_public.structures import Point, collect
from wattsmith.record.structure import trace_step
from wattsmith.terms.run import Structure

NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert_large": ("Bert", {"hidden_size": 1024, "intermediate_size": 4096, "num_attention_heads": 16,
                            "num_hidden_layers": 24}),
    "gpt2_large": ("GPT2", {"n_embd": 1280, "n_head": 20, "n_layer": 36}),
    "gpt3_xl": ("GPT2", {"n_embd": 3072, "n_head": 24, "n_layer": 24, "n_positions": 2048}),
    "gpt3_27": ("GPT2", {"n_embd": 2560, "n_head": 32, "n_layer": 32, "n_positions": 2048}),
    "opt_13": ("OPT", {"hidden_size": 2048, "ffn_dim": 8192, "num_attention_heads": 32, "num_hidden_layers": 24}),
    # T5 in which every second feed-forward layer has four experts, see `with_experts`.
    "switchxl4": ("T5", {"d_model": 1024, "d_ff": 16384, "d_kv": 128, "num_heads": 32, "num_layers": 24,
                         "num_decoder_layers": 24}),
}  # fmt: skip
HEADS = {
    ("Bert", "train"): "BertForPreTraining",
    ("Bert", "inf"): "BertForSequenceClassification",
    **{("GPT2", mode): "GPT2LMHeadModel" for mode in ("train", "inf")},
    **{("OPT", mode): "OPTForCausalLM" for mode in ("train", "inf")},
    **{("T5", mode): "T5ForConditionalGeneration" for mode in ("train", "inf")},
}


def points(data_dir: Path) -> Iterator[Point]:
    with (data_dir / "neusight/summary/summary.csv").open() as lines:
        for row in csv.DictReader(lines):
            if row["model_name"] in NETWORKS and not row["option"]:
                yield Point(
                    network=row["model_name"], batch=int(row["batch"]), size=int(row["seqlen"]), mode=row["mode"]
                )


def trace(point: Point) -> Structure:
    import torch
    import transformers

    kind, options = NETWORKS[point.network]
    config = getattr(transformers, f"{kind}Config")(**options, use_cache=False)
    config._attn_implementation = "eager"
    with torch.device("meta"):
        model = getattr(transformers, HEADS[kind, point.mode])(config)
        tokens = torch.ones(point.batch, point.size, dtype=torch.long)
        if point.network == "switchxl4":
            with_experts(model, count=4, capacity=64)
    model.train(point.mode == "train")
    given = {"input_ids": tokens}
    if kind == "GPT2":
        given["attention_mask"] = torch.ones_like(tokens)  # without one it looks into positions, which are not there
    if kind == "T5":
        given["decoder_input_ids"] = tokens
    learning = list(model.parameters())

    def step() -> None:
        with torch.set_grad_enabled(point.mode == "train"):
            told = model(**given)
        if point.mode == "train":
            logits = told.prediction_logits if hasattr(told, "prediction_logits") else told.logits
            torch.nn.functional.cross_entropy(logits.view(-1, logits.shape[-1]), tokens.view(-1)).backward()
            model.zero_grad(set_to_none=True)

    return trace_step(step, parameters=learning, inputs=[tokens], steps=1)


def with_experts(model: Any, count: int, capacity: int) -> None:
    """Put COUNT experts in every second feed-forward layer. As measured, each works on CAPACITY tokens a sequence."""
    import copy

    import torch

    class Experts(torch.nn.Module):
        def __init__(self, one: Any) -> None:
            super().__init__()
            self.router = torch.nn.Linear(one.wi.in_features, count, bias=False)
            self.experts = torch.nn.ModuleList(copy.deepcopy(one) for _ in range(count))

        def forward(self, tokens: Any) -> Any:
            share = self.router(tokens).softmax(-1)[..., :1]
            routed = tokens.clone()
            for expert in self.experts:
                routed[:, :capacity] = expert(tokens[:, :capacity])
            return share * routed

    for stack in (model.encoder, model.decoder):
        for block in stack.block[1::2]:
            block.layer[-1].DenseReluDense = Experts(block.layer[-1].DenseReluDense)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    asked.add_argument("--data", type=Path, required=True)
    asked.add_argument("--unpacked", type=Path, required=True)
    given = asked.parse_args()
    collect(points(given.data), trace, given.unpacked, "neusight")


if __name__ == "__main__":
    main()
