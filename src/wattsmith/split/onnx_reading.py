"""ONNX models as they are cut: read, refused where they are not whole, with types and sizes of all values."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

from wattsmith.split.problems import BatchDoesNotFit, NotSplittable, first_line
from wattsmith.terms.errors import BadInput, ExtraNeeded

OLDEST_OPSET = 7  # since when operators broadcast as they do now; ONNX Runtime runs nothing older
_LARGEST_BYTES = 2**31 - 2**20  # what a file without others beside it can hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Value:
    """Type and sizes of one value of a graph."""

    shape: tuple[int, ...]
    dtype: str
    size_bytes: int | None  # None: texts, which have no size that is known before


def is_onnx(thing: Any) -> bool:
    """Whether THING is a file's name that ends in .onnx, or a model that onnx has read."""
    return (isinstance(thing, str | PathLike) and str(thing).endswith(".onnx")) or type(thing).__name__ == "ModelProto"


def read_model(source: Any) -> Any:
    """The model in the file SOURCE, or SOURCE itself, without functions of its own. It is not changed."""
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx.inliner import inline_local_functions
    except ImportError as missing:
        raise ExtraNeeded("an ONNX model needs the `onnx` extra: pip install 'wattsmith[onnx]'") from missing
    model, name = source, "the model"
    if isinstance(source, str | PathLike):
        name = str(source)
        try:
            model = onnx.load(name, load_external_data=False)
        except (DecodeError, OSError, ValueError, RuntimeError) as broken:
            raise BadInput(
                f"{name} cannot be read as ONNX ({first_line(broken)}): it is damaged or another thing; export it again"
            ) from broken
        _load_weights(model, Path(source))
    elif any(one.data_location == onnx.TensorProto.EXTERNAL for one in model.graph.initializer):
        raise BadInput("weights of the model are in other files and were not read; give the name of the .onnx file")
    if not model.graph.node:
        raise BadInput(f"{name} holds no graph: it is damaged or something else; export it again")
    if sum(len(one.raw_data) for one in model.graph.initializer) > _LARGEST_BYTES:
        raise NotSplittable(f"{name} has more than 2 GB of weights, which a half cannot hold; cut the Python step")
    opset = max((one.version for one in model.opset_import if one.domain in ("", "ai.onnx")), default=OLDEST_OPSET)
    if opset < OLDEST_OPSET:
        raise NotSplittable(f"{name} is of opset {opset}, and {OLDEST_OPSET} is the oldest that runs; export it anew")
    try:
        onnx.checker.check_model(model)
        return inline_local_functions(model) if model.functions else model
    except (onnx.checker.ValidationError, RuntimeError, UnicodeDecodeError) as broken:
        said = " ".join(str(broken).split()).partition(" ==> ")[0][:300]
        raise BadInput(f"{name} is no ONNX model that can run: {said}; export it again") from broken


def _load_weights(model: Any, path: Path) -> None:
    import onnx

    try:
        onnx.load_external_data_for_model(model, str(path.absolute().parent))
    except (OSError, ValueError, RuntimeError, onnx.checker.ValidationError) as missing:
        raise BadInput(
            f"weights of {path} are in another file, which is not there or not whole ({first_line(missing)}); put it "
            "beside the .onnx file, as the exporter wrote it"
        ) from missing


def inputs_of(model: Any) -> list[Any]:
    """What MODEL is called with. Inputs with a value in the file are constants."""
    held = {one.name for one in model.graph.initializer}
    return [one for one in model.graph.input if one.name not in held]


def subgraphs(node: Any) -> Iterator[Any]:
    """Branches and bodies of NODE."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def reads(node: Any) -> list[str]:
    """Names of all values that NODE takes, in its branches and bodies too."""
    found = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {one.name for one in (*graph.input, *graph.initializer)} | {n for one in graph.node for n in one.output}
        taken = [name for one in graph.node for name in reads(one)] + [one.name for one in graph.output]
        found += [name for name in taken if name not in own]
    return list(dict.fromkeys(found))


def sizes_of(told: Any) -> list[int | str]:
    """Sizes of a value as the file tells them: numbers, or names of those left open."""
    return [
        one.dim_value if one.HasField("dim_value") else one.dim_param or "?" for one in told.type.tensor_type.shape.dim
    ]


def made_example(model: Any, shapes: Mapping[str, Sequence[int]], batch: int) -> dict[str, Any]:
    """A batch for MODEL with any numbers in it. SHAPES: of one sample, by name, where the file leaves them open."""
    import numpy as np

    takes = inputs_of(model)
    if unknown := shapes.keys() - {one.name for one in takes}:
        raise BatchDoesNotFit(
            f"the model has no input {sorted(unknown)[0]!r}; there are {', '.join(one.name for one in takes)}"
        )
    chance, made = np.random.default_rng(0), {}
    for one in takes:
        told = sizes_of(one)
        if told and one.name in shapes:
            told[1:] = shapes[one.name]
        sizes = [batch if at == 0 and isinstance(size, str) else size for at, size in enumerate(told)]
        if any(isinstance(size, str) for size in sizes):
            written = "x".join("128" if isinstance(size, str) else str(size) for size in sizes[1:])
            raise BatchDoesNotFit(
                f"input {one.name} is {'×'.join(map(str, told))}, with sizes left open: give a batch, or the sizes of "
                f"one sample, as in --input {one.name}={written}"
            )
        dtype, shape = np.dtype(_dtype(one.type.tensor_type.elem_type)), tuple(map(int, sizes))
        whole = dtype.kind in "ib"  # such as places in a table, of which only 0 is surely there
        made[one.name] = np.zeros(shape, dtype) if whole else chance.integers(0, 256, shape).astype(dtype)
    return made


def as_feeds(names: Sequence[str], batch: Any) -> dict[str, Any]:
    """BATCH, a dict by name, values in order or one alone, as arrays by NAMES."""
    import numpy as np

    if not isinstance(batch, Mapping):
        values = batch if isinstance(batch, list | tuple) else (batch,)
        batch = dict(zip(names, values, strict=False)) if len(values) <= len(names) else {}
    if missing := [name for name in names if name not in batch]:
        raise BatchDoesNotFit(f"the model takes {', '.join(names)}, and the batch has no {missing[0]}")
    return {name: np.asarray(batch[name]) for name in names}


def _dtype(element: int) -> Any:
    import onnx

    try:
        return onnx.helper.tensor_dtype_to_np_dtype(element)
    except KeyError as unknown:
        raise BadInput(f"the model has numbers of type {element}, which this onnx does not know") from unknown


def values_of(model: Any, feeds: Mapping[str, Any]) -> dict[str, Value]:
    """Types and sizes of all tensors for the batch FEEDS, as far as they are known before it runs."""
    import onnx

    bound = onnx.ModelProto()
    bound.CopyFrom(model)
    for one in inputs_of(bound):
        tensor, got = one.type.tensor_type, feeds[one.name]
        sizes = sizes_of(one)
        fits = len(sizes) == got.ndim and all(
            isinstance(a, str) or a == b for a, b in zip(sizes, got.shape, strict=True)
        )
        if one.type.HasField("tensor_type") and (not fits or _dtype(tensor.elem_type) != got.dtype):
            raise BatchDoesNotFit(
                f"{one.name} is {'×'.join(map(str, got.shape)) or 'one number of'} {got.dtype}; the model takes "
                f"{'×'.join(map(str, sizes)) or 'one number of'} {_dtype(tensor.elem_type)}"
            )
        for dimension, size in zip(tensor.shape.dim, got.shape, strict=True):
            dimension.dim_value = size
    try:
        found = onnx.shape_inference.infer_shapes(bound, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, RuntimeError) as wrong:
        raise NotSplittable(f"sizes of the batch do not go with the model: {first_line(wrong)}") from wrong
    values = {one.name: _value(one.data_type, one.dims) for one in found.initializer}
    for one in (*found.input, *found.value_info, *found.output):
        sizes = sizes_of(one)
        if one.type.tensor_type.HasField("shape") and not any(isinstance(size, str) for size in sizes):
            values[one.name] = _value(one.type.tensor_type.elem_type, sizes)
    return values


def _value(element: int, sizes: Sequence[Any]) -> Value:
    dtype, count = _dtype(element), 1
    for size in sizes:
        count *= size
    return Value(shape=tuple(sizes), dtype=str(dtype), size_bytes=None if dtype.hasobject else count * dtype.itemsize)
