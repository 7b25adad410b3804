"""Families of networks that are not convolutional."""

from collections.abc import Mapping
from typing import Any

from wattsmith.record.family import Choice, Family, Span
from wattsmith.record.program import Piece, Source
from wattsmith.record.wiring import classified, wired
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Parameter, Workload


def numbers(workload: Workload) -> dict[str, int]:
    return {name: int(value) for name, value in workload.parameters.items()}


def mlp(workload: Workload, source: Source) -> Piece:
    from torch import nn

    p = numbers(workload)
    layers: list[Any] = []
    before = p["features"]
    for _ in range(p["layers"]):
        layers += [nn.Linear(before, p["width"]), nn.ReLU()]
        before = p["width"]
    layers.append(nn.Linear(before, p["classes"]))
    return classified(nn.Sequential(*layers), source, workload, (source.normal(workload.batch, p["features"]),))


def attention(width: int, heads: int, causal: bool) -> Any:
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    def forward(m: Any, x: Any) -> Any:
        batch, length, _ = x.shape
        query, key, value = m.project(x).view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=causal)
        return m.gather(mixed.transpose(1, 2).reshape(batch, length, width))

    return wired(forward, project=nn.Linear(width, 3 * width), gather=nn.Linear(width, width))


def cached_attention(width: int, heads: int, keys: Any, values: Any) -> Any:
    """Attention of one new token, which is written at the end of the cache, over all that the cache holds."""
    from torch import nn
    from torch.nn.functional import scaled_dot_product_attention

    def forward(m: Any, x: Any) -> Any:
        batch = x.shape[0]
        query, key, value = m.project(x).view(batch, 1, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        keys[:, :, -1:].copy_(key)
        values[:, :, -1:].copy_(value)
        mixed = scaled_dot_product_attention(query, keys, values)
        return m.gather(mixed.transpose(1, 2).reshape(batch, 1, width))

    return wired(forward, project=nn.Linear(width, 3 * width), gather=nn.Linear(width, width))


def block(width: int, attend: Any) -> Any:
    """A transformer's block, norms first."""
    from torch import nn

    feed = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(m: Any, x: Any) -> Any:
        x = x + m.attend(m.first_norm(x))
        return x + m.feed(m.second_norm(x))

    return wired(forward, first_norm=nn.LayerNorm(width), attend=attend, second_norm=nn.LayerNorm(width), feed=feed)


def heads_of(workload: Workload) -> tuple[int, int]:
    """The width, and by how many heads it is shared."""
    p = numbers(workload)
    if p["width"] % p["heads"] or p["width"] // p["heads"] % 8 or p["width"] // p["heads"] > 256:
        raise BadTerm(
            f"{workload.family}: width over heads must be a multiple of 8 up to 256, as fused attention needs it; "
            f"got {p['width']} and {p['heads']}"
        )
    return p["width"], p["heads"]


def heads_that_fit(parameters: Mapping[str, Parameter]) -> Mapping[str, Parameter]:
    """Heads of 32 to 128, and the width a multiple of them: as real transformers have."""
    width = int(parameters["width"])
    known = sorted(int(one) for one in HEADS.values)
    most = max((one for one in known if width >= 32 * one), default=1)
    least = min((one for one in known if width <= 128 * one), default=known[-1])
    heads = max(least, min(int(parameters["heads"]), most))
    each = max(8, round(width / heads / 8) * 8)
    return {**parameters, "heads": heads, "width": min(each, 256) * heads}


def encoder(workload: Workload, source: Source) -> Piece:
    from torch import nn

    p = numbers(workload)
    width, heads = heads_of(workload)
    blocks = [block(width, attention(width, heads, causal=False)) for _ in range(p["layers"])]
    network = wired(
        lambda m, tokens: m.head(m.norm(m.blocks(m.tokens(tokens))).mean(1)),
        tokens=nn.Embedding(p["vocabulary"], width),
        blocks=nn.Sequential(*blocks),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, p["classes"]),
    )
    return classified(network, source, workload, (source.integers(p["vocabulary"], workload.batch, p["sequence"]),))


def decoder(workload: Workload, source: Source) -> Piece:
    """Training learns the next of every token; inference is the prefill, which asks for the next of the last only."""
    from torch import nn
    from torch.nn.functional import cross_entropy

    p = numbers(workload)
    width, heads = heads_of(workload)
    blocks = [block(width, attention(width, heads, causal=True)) for _ in range(p["layers"])]
    asked = slice(None) if workload.mode == "train" else slice(-1, None)
    network = wired(
        lambda m, tokens: m.head(m.norm(m.blocks(m.tokens(tokens))[:, asked])),
        tokens=nn.Embedding(p["vocabulary"], width),
        blocks=nn.Sequential(*blocks),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, p["vocabulary"], bias=False),
    )
    truths = source.integers(p["vocabulary"], workload.batch * p["sequence"]) if workload.mode == "train" else None
    return Piece(
        run=network,
        module=network,
        inputs=(source.integers(p["vocabulary"], workload.batch, p["sequence"]),),
        sample_shape=(p["sequence"],),
        loss=lambda output: cross_entropy(output.flatten(0, 1), truths),
        held=() if truths is None else (truths,),
    )


def decode(workload: Workload, source: Source) -> Piece:
    from torch import nn

    p = numbers(workload)
    width, heads = heads_of(workload)
    shape = (workload.batch, heads, p["cache"], width // heads)
    caches = [(source.normal(*shape), source.normal(*shape)) for _ in range(p["layers"])]
    blocks = [block(width, cached_attention(width, heads, keys, values)) for keys, values in caches]
    network = wired(
        lambda m, tokens: m.head(m.norm(m.blocks(m.tokens(tokens)))),
        tokens=nn.Embedding(p["vocabulary"], width),
        blocks=nn.Sequential(*blocks),
        norm=nn.LayerNorm(width),
        head=nn.Linear(width, p["vocabulary"], bias=False),
    )
    return Piece(
        run=network,
        module=network,
        inputs=(source.integers(p["vocabulary"], workload.batch, 1),),
        sample_shape=(1,),
        held=tuple(tensor for pair in caches for tensor in pair),
    )


def recommender(workload: Workload, source: Source) -> Piece:
    import torch
    from torch import nn

    p = numbers(workload)
    tables = [nn.Embedding(p["rows"], p["width"]) for _ in range(p["tables"])]
    layers: list[Any] = []
    before = p["tables"] * p["width"]
    for _ in range(p["layers"]):
        layers += [nn.Linear(before, p["nodes"]), nn.ReLU()]
        before = p["nodes"]
    network = wired(
        lambda m, rows: m.top(torch.cat([table(rows[:, i]).sum(1) for i, table in enumerate(m.tables)], 1)),
        tables=nn.ModuleList(tables),
        top=nn.Sequential(*layers, nn.Linear(before, p["classes"])),
    )
    return classified(
        network, source, workload, (source.integers(p["rows"], workload.batch, p["tables"], p["lookups"]),)
    )


def lstm(workload: Workload, source: Source) -> Piece:
    from torch import nn

    p = numbers(workload)
    network = wired(
        lambda m, x: m.head(m.recurrent(x)[0][:, -1]),
        recurrent=nn.LSTM(p["features"], p["width"], p["layers"], batch_first=True),
        head=nn.Linear(p["width"], p["classes"]),
    )
    return classified(network, source, workload, (source.normal(workload.batch, p["sequence"], p["features"]),))


def light_chain(workload: Workload, source: Source) -> Piece:
    """Norms and element-wise work alone: every operator waits for memory."""
    from torch import nn
    from torch.nn.functional import gelu

    p = numbers(workload)
    links = [
        wired(lambda m, x: x + gelu(m.norm(x)) * x.sigmoid(), norm=nn.LayerNorm(p["width"])) for _ in range(p["layers"])
    ]
    network = nn.Sequential(*links)
    return Piece(
        run=network,
        module=network,
        inputs=(source.normal(workload.batch, p["sequence"], p["width"]),),
        sample_shape=(p["sequence"], p["width"]),
        loss=lambda output: output.mean(),
    )


def optimizer_step(workload: Workload, source: Source) -> Piece:
    p = numbers(workload)
    return learning([source.normal(p["width"], p["width"], requires_grad=True) for _ in range(p["tensors"])], source)


def learning(tensors: list[Any], source: Source) -> Piece:
    """Tensors that hold random gradients already, so that a step is the optimizer's alone."""
    for tensor in tensors:
        tensor.grad = source.normal(*tensor.shape)
    gradients = tuple(tensor.grad for tensor in tensors)
    return Piece(run=lambda: None, learners=tuple(tensors), sample_shape=tuple(tensors[0].shape), held=gradients)


def host_loop(workload: Workload, source: Source) -> Piece:
    """Many operators that are each too small to keep a device busy: the host's pace decides."""
    from torch import nn

    p = numbers(workload)
    network = nn.Sequential(*[nn.Sequential(nn.Linear(p["width"], p["width"]), nn.Tanh()) for _ in range(p["layers"])])
    return Piece(
        run=network,
        module=network,
        inputs=(source.normal(workload.batch, p["width"]),),
        sample_shape=(p["width"],),
        loss=lambda output: output.mean(),
    )


CLASSES = Span(low=2, high=100_000, default=10, usual=(10, 1000))
LAYERS = Span(low=1, high=128, default=2, usual=(1, 24))
SEQUENCE = Span(low=1, high=131_072, default=32, usual=(16, 4096))
HEADS = Choice(values=(4, 1, 2, 8, 12, 16, 32, 64))
VOCABULARY = Span(low=2, high=262_144, default=256, usual=(256, 65_536))
WIDTH = Span(low=8, high=32_768, default=64, usual=(64, 4096))
BATCH = Span(low=1, high=65_536, default=8, usual=(1, 512))

NETWORKS = (
    Family(
        name="mlp",
        kind="network",
        says="multi-layer perceptron",
        parameters={
            "features": Span(low=1, high=65_536, default=64, usual=(16, 8192)),
            "width": WIDTH,
            "layers": LAYERS,
            "classes": CLASSES,
        },
        make=mlp,
        batch=BATCH,
    ),
    Family(
        name="transformer-encoder",
        kind="network",
        says="transformer encoder over tokens, sorted into classes",
        parameters={
            "sequence": SEQUENCE,
            "width": WIDTH,
            "heads": HEADS,
            "layers": LAYERS,
            "vocabulary": VOCABULARY,
            "classes": CLASSES,
        },
        make=encoder,
        fit=heads_that_fit,
        batch=BATCH,
    ),
    Family(
        name="transformer-decoder",
        kind="network",
        says="causal transformer: trains on every token, or prefills",
        parameters={
            "sequence": SEQUENCE,
            "width": WIDTH,
            "heads": HEADS,
            "layers": LAYERS,
            "vocabulary": VOCABULARY,
        },
        make=decoder,
        fit=heads_that_fit,
        batch=BATCH,
    ),
    Family(
        name="transformer-decode",
        kind="network",
        says="causal transformer that gives one token, with all before it in a cache",
        parameters={
            "cache": SEQUENCE,
            "width": WIDTH,
            "heads": HEADS,
            "layers": LAYERS,
            "vocabulary": VOCABULARY,
        },
        make=decode,
        fit=heads_that_fit,
        modes=("infer",),
        batch=BATCH,
    ),
    Family(
        name="embedding-mlp",
        kind="network",
        says="recommender: rows gathered from tables, then a multi-layer perceptron",
        parameters={
            "tables": Span(low=1, high=256, default=4, usual=(1, 32)),
            "rows": Span(low=2, high=50_000_000, default=1000, usual=(256, 1_000_000)),
            "width": Span(low=4, high=1024, default=16, usual=(8, 256)),
            "lookups": Span(low=1, high=512, default=4, usual=(1, 64)),
            "layers": LAYERS,
            "nodes": Span(low=8, high=16_384, default=64, usual=(32, 4096)),
            "classes": CLASSES,
        },
        make=recommender,
        batch=BATCH,
    ),
    Family(
        name="lstm",
        kind="network",
        says="recurrent network",
        parameters={
            "sequence": Span(low=1, high=4096, default=16, usual=(4, 512)),
            "features": Span(low=1, high=8192, default=32, usual=(8, 2048)),
            "width": Span(low=8, high=8192, default=64, usual=(16, 2048)),
            "layers": Span(low=1, high=16, default=2, usual=(1, 6)),
            "classes": CLASSES,
        },
        make=lstm,
        batch=BATCH,
        compiles=False,
    ),
    Family(
        name="light-chain",
        share=0.8,
        kind="network",
        says="norms and element-wise operators alone",
        parameters={"sequence": SEQUENCE, "width": WIDTH, "layers": LAYERS},
        make=light_chain,
        pure=True,
        precisions=("fp32", "bf16", "fp16"),
        batch=BATCH,
    ),
    Family(
        name="optimizer-step",
        share=0.6,
        kind="network",
        says="the optimizer's step over many square matrices, without a network",
        parameters={"tensors": Span(low=1, high=4096, default=8, usual=(1, 256)), "width": WIDTH},
        make=optimizer_step,
        modes=("train",),
        precisions=("fp32", "bf16"),
        batch=Span(low=1, high=1, default=1),
        compiles=False,
        updates=True,
    ),
    Family(
        name="host-loop",
        share=0.6,
        kind="network",
        says="many small layers, so that the host's pace decides",
        parameters={
            "layers": Span(low=1, high=4096, default=32, usual=(4, 400)),
            "width": Span(low=8, high=256, default=16, usual=(8, 128)),
        },
        make=host_loop,
        precisions=("fp32", "bf16", "fp16"),
        batch=Span(low=1, high=64, default=1, usual=(1, 16)),
    ),
)
