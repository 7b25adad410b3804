"""Models from ONNX files, for inference: read without their weights, as far as those are in files of their own."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from wattsmith.flows.models.inputs import Inputs, InputShape, Wanted, batch_of, inputs_of_examples, tensor_of
from wattsmith.flows.models.loaded import LoadedModel
from wattsmith.flows.models.problems import InputsDoNotFit, ModelNotLoaded, first_line
from wattsmith.terms.errors import BadInput, ExtraNeeded

# As torch calls the types that ONNX numbers; what packs two numbers in a byte is taken as bytes.
_TYPES = dict(
    enumerate(
        (
            *("float32", "uint8", "int8", "uint16", "int16", "int32", "int64", "uint8", "bool", "float16", "float64"),
            *("uint32", "uint64", "complex64", "complex128", "bfloat16"),
            *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "uint8", "int8"),
        ),
        1,
    )
)
_STANDARD = ("", "ai.onnx", "com.microsoft")
_SHOWN = 5  # kinds of operators without a rule that a note names


def load_onnx(path: Path, wanted: Wanted) -> LoadedModel:
    """The model in the file at PATH, and inputs such as it takes."""
    if wanted.device != "meta":
        raise BadInput("an ONNX file is traced on meta tensors alone; run it with its own runtime to measure it")
    model = _read(path)
    inputs, notes = _inputs_of(model.graph, wanted)
    reader = _Reader(path, {one.domain: one.version for one in model.opset_import})
    missing = Counter(_without_rule(model.graph))
    inferred = _inferred(model, inputs) if missing else {}
    module = reader.module(model.graph, inferred)
    if missing:
        names = ", ".join(f"{count} × {name}" for name, count in missing.most_common(_SHOWN))
        more = f" and {len(missing) - _SHOWN} more kinds" if len(missing) > _SHOWN else ""
        notes.append(f"operators without a rule are counted by the bytes they move alone: {names}{more}")
    return LoadedModel(
        module=module,
        inputs=inputs,
        kind="onnx",
        batch=batch_of(inputs.tensors()),
        without_rule=dict(missing),
        notes=tuple(notes),
    )


def _read(path: Path) -> Any:
    try:
        import onnx
        from google.protobuf.message import DecodeError
        from onnx.inliner import inline_local_functions
    except ImportError as missing:
        raise ExtraNeeded("an ONNX file needs the `onnx` extra: pip install 'wattsmith[onnx]'") from missing
    try:
        model = onnx.load(str(path), load_external_data=False)
    except (DecodeError, OSError, ValueError, RuntimeError) as broken:
        raise ModelNotLoaded(
            f"{path} cannot be read as ONNX ({first_line(broken)}): it is damaged or something else. Export it again."
        ) from broken
    if not model.graph.node:
        raise ModelNotLoaded(f"{path} holds no graph: it is damaged or something else. Export it again.")
    return inline_local_functions(model) if model.functions else model


def _inputs_of(graph: Any, wanted: Wanted) -> tuple[Inputs, list[str]]:
    """What to call the graph with, and notes."""
    held = {one.name for one in graph.initializer}
    takes = [one for one in graph.input if one.name not in held]
    if wanted.examples is not None:
        return inputs_of_examples(wanted.examples, wanted.batch, "meta"), []
    by_name = {one.name: one for one in wanted.shapes if one.name is not None}
    in_order = iter([one for one in wanted.shapes if one.name is None])
    if unknown := by_name.keys() - {one.name for one in takes}:
        raise InputsDoNotFit(
            f"the file has no input {sorted(unknown)[0]!r}; there are {', '.join(one.name for one in takes)}"
        )
    notes: list[str] = []
    args = tuple(_example(one, by_name.get(one.name) or next(in_order, None), wanted.batch, notes) for one in takes)
    if next(in_order, None) is not None:
        raise InputsDoNotFit(f"{len(wanted.shapes)} inputs are given, and the file takes {len(takes)}")
    return Inputs(args=args), notes


def _example(told: Any, shape: InputShape | None, batch: int | None, notes: list[str]) -> Any:
    """A batch of the input that the file tells of."""
    kind = told.type.tensor_type
    sizes: list[int | str] = [one.dim_value or one.dim_param or "?" for one in kind.shape.dim]
    dtype = _TYPES.get(kind.elem_type, "float32")
    if not sizes:
        return tensor_of((), dtype, "meta")
    first = sizes[0]
    if batch is None:
        batch = first if isinstance(first, int) else 1
    elif isinstance(first, int) and first != batch:
        note = f"the file has a batch of {first} written in; {batch} is tried instead"
        notes += [note] if note not in notes else []
    if shape is not None:
        if len(shape.sizes) != len(sizes) - 1:
            raise InputsDoNotFit(
                f"input {told.name} of the file is {'×'.join(map(str, sizes))}, so one sample has {len(sizes) - 1} "
                f"sizes; {len(shape.sizes)} are given"
            )
        return tensor_of((batch, *shape.sizes), shape.dtype or dtype, "meta")
    rest = [one for one in sizes[1:] if isinstance(one, int)]
    if len(rest) != len(sizes) - 1:
        raise InputsDoNotFit(
            f"input {told.name} of the file is {'×'.join(map(str, sizes))}, with sizes left open: give them, as in "
            f"--input {told.name}={'x'.join(str(one) if isinstance(one, int) else '128' for one in sizes[1:])}"
        )
    return tensor_of((batch, *rest), dtype, "meta")


def _without_rule(graph: Any) -> Iterator[str]:
    import wattsmith.flows.models.onnx_graph  # noqa: F401 - fills the table
    from wattsmith.flows.models.onnx_node import RULES

    for node in graph.node:
        if node.op_type not in RULES and node.op_type not in ("Constant", "If", "Unique", "Compress"):
            yield node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}::{node.op_type}"
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _without_rule(attribute.g)


def _inferred(model: Any, inputs: Inputs) -> dict[str, tuple[tuple[int, ...], Any]]:
    """Shapes and types of what nodes give, as far as ONNX itself can tell them."""
    import onnx
    import torch

    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    for one in bare.graph.initializer:
        if len(one.raw_data) > 1024:
            one.ClearField("raw_data")  # shapes do not need it, and copying it takes long
            one.data_location = onnx.TensorProto.EXTERNAL
    held = {one.name for one in bare.graph.initializer}
    takes = [one for one in bare.graph.input if one.name not in held]
    for told, example in zip(takes, inputs.args, strict=False):
        for dimension, size in zip(told.type.tensor_type.shape.dim, example.shape, strict=False):
            dimension.dim_value = size
    try:
        found = onnx.shape_inference.infer_shapes(bare, data_prop=True).graph
    except (onnx.shape_inference.InferenceError, ValueError, RuntimeError):
        return {}
    shapes = {}
    for told in (*found.value_info, *found.output):
        kind = told.type.tensor_type
        sizes = [one.dim_value if one.HasField("dim_value") else None for one in kind.shape.dim]
        if kind.HasField("shape") and None not in sizes:
            dtype = getattr(torch, _TYPES.get(kind.elem_type, "float32"))
            shapes[told.name] = tuple(int(size or 0) for size in sizes), dtype
    return shapes


class _Reader:
    """Turns what the file at PATH holds into a module. VERSIONS: of the sets of operators, by domain."""

    def __init__(self, path: Path, versions: Mapping[str, int]) -> None:
        self.path = path
        self.version = versions.get("", versions.get("ai.onnx", 0))

    def module(self, graph: Any, inferred: Mapping[str, Any]) -> Any:
        from wattsmith.flows.models.onnx_graph import OnnxModule

        weights: dict[str, Any] = {}
        constants: dict[str, Any] = {}
        nodes = []
        for one in graph.initializer:
            constant = self.constant(one)
            (weights if constant.on_device.is_floating_point() else constants)[one.name] = constant
        for one in graph.node:
            options = {attribute.name: self.option(attribute) for attribute in one.attribute}
            if one.op_type == "Constant":
                constants[one.output[0]] = _constant_of(options)
            else:
                nodes.append(self.node(one, options))
        held = {one.name for one in graph.initializer}
        takes = [one.name for one in graph.input if one.name not in held]
        return OnnxModule(nodes, takes, [one.name for one in graph.output], weights, constants, inferred)

    def node(self, told: Any, options: dict[str, Any]) -> Any:
        from wattsmith.flows.models.onnx_node import Node

        known = told.domain in _STANDARD
        return Node(
            told.op_type if known else f"{told.domain.replace('.', '_')}_{told.op_type}",
            tuple(told.input),
            tuple(told.output),
            told.name,
            options,
            self.version,
        )

    def option(self, attribute: Any) -> Any:
        import onnx
        import torch

        value = onnx.helper.get_attribute_value(attribute)
        if isinstance(value, bytes):
            return value.decode(errors="replace")
        if isinstance(value, onnx.GraphProto):
            return self.module(value, {})
        if isinstance(value, onnx.TensorProto):
            return self.constant(value).known
        if attribute.name == "to":
            return getattr(torch, _TYPES.get(value, "float32"))
        return list(value) if isinstance(value, list | tuple) or hasattr(value, "append") else value

    def constant(self, told: Any) -> Any:
        import torch

        from wattsmith.flows.models.onnx_graph import Constant
        from wattsmith.flows.models.onnx_node import SMALL

        dtype = getattr(torch, _TYPES.get(told.data_type, "float32"))
        on_device = torch.empty(tuple(told.dims), dtype=dtype, device="meta")
        known = self.values_of(told, dtype) if on_device.numel() <= SMALL else None
        return Constant(on_device, known)

    def values_of(self, told: Any, dtype: Any) -> Any:
        """The tensor by value; None where the file with its values is not there."""
        import onnx
        import torch
        from onnx.external_data_helper import load_external_data_for_tensor, uses_external_data

        try:
            if uses_external_data(told):
                load_external_data_for_tensor(told, str(self.path.parent))
            values = onnx.numpy_helper.to_array(told)
        except (OSError, ValueError, TypeError, onnx.checker.ValidationError):
            return None
        if str(values.dtype) not in ("bool", "float16", "float32", "float64") and values.dtype.kind not in "iu":
            values = values.astype("float32")
        return torch.from_numpy(values.copy()).to(dtype).reshape(tuple(told.dims))


def _constant_of(options: dict[str, Any]) -> Any:
    import torch

    from wattsmith.flows.models.onnx_graph import Constant

    (value,) = options.values()
    known = value if isinstance(value, torch.Tensor) else torch.tensor(value)
    return Constant(torch.empty_like(known, device="meta"), known)
