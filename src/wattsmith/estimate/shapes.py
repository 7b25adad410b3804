"""What decides how long one call of an operator takes: its sizes as logarithms, and what it is, as words.

A call is described by `Features`: numbers that may be compared by distance, and words that are the same or not.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wattsmith.terms.run import OperatorCall

SIZES = 7  # numbers per call; those that an operator does not have are 0


@dataclass(frozen=True, slots=True)
class Features:
    """One call, as the model sees it."""

    model: str  # calls of one model are compared with each other
    sizes: tuple[float, ...]  # logarithms to base 2
    words: tuple[str, ...]  # operator, arithmetic, order in memory, whether sizes are multiples of eight
    flops: float  # of one call
    moved_bytes: float
    serial: float  # elements that must be gone through one after the other, however many units there are
    arithmetic: str  # "fp32", "tf32", "bf16", "fp16", or another type's name


Sized = tuple[str, list[float], float]  # model, sizes, serial


def features_of(call: OperatorCall, *, tf32: bool, trains: bool = True) -> Features:
    """The features of CALL. TF32: whether single precision may use the matrix units here. TRAINS: the step does."""
    model, sizes, serial = _SIZES.get(call.kind, _light)(call)
    arithmetic = arithmetic_of(call, tf32)
    padded = (*(math.log2(max(one, 1)) for one in sizes), *(0.0 for _ in range(SIZES - len(sizes))))
    return Features(
        model=model if trains or model != "batch-norm" else "norm",  # with statistics given, it is a scaling
        sizes=padded[:SIZES],
        words=(operator_of(call), arithmetic, order_of(call), evenness_of(call)),
        flops=call.flops / call.calls,
        moved_bytes=call.moved_bytes / call.calls,
        serial=float(serial),
        arithmetic=arithmetic,
    )


def order_of(call: OperatorCall) -> str:
    """How the tensors lie in memory that decide: of a product its two factors, else the first two."""
    order = str(call.options.get("order", "cc"))
    return order[-2:] if call.kind == "matmul" else order[:2]


def evenness_of(call: OperatorCall) -> str:
    """Whether the sizes that kernels step through are multiples of eight: others get slower kernels."""
    if call.kind == "matmul":
        sizes = [one for shape in call.shapes for one in shape[-2:] if len(shape) >= 2]
    elif call.kind in ("conv", "grouped-conv"):
        weights = call.shapes[2:3] if call.operator == "convolution_backward" else call.shapes[1:2]
        sizes = [one for weight in weights for one in weight[:2]]
    else:
        return ""
    return "even" if all(one % 8 == 0 for one in sizes) else "odd"


NARROW = {"bfloat16": "bf16", "float16": "fp16"}
PRODUCTS = ("conv", "grouped-conv", "matmul")


def arithmetic_of(call: OperatorCall, tf32: bool) -> str:
    if call.dtype == "float32":
        return "tf32" if tf32 and call.kind in PRODUCTS else "fp32"
    return NARROW.get(call.dtype, call.dtype)


def operator_of(call: OperatorCall) -> str:
    """The operator's name, with the variants of one and the same thing under one name."""
    if call.kind == "attention":
        return "attention-back" if call.operator.endswith("backward") else "attention"
    name = call.operator.rstrip("_")
    if call.kind in ("conv", "grouped-conv"):
        return f"{name} {call.options.get('wanted', '')}"[:24]
    if name in ("addmm", "mm", "linear"):
        return "mm"
    if name in ("bmm", "baddbmm"):
        return "bmm"
    if name in ("_to_copy", "copy"):
        return f"cast {call.options.get('to', '')}"
    return name


def _product(values: Sequence[int]) -> int:
    return math.prod(values) if values else 1


def _numbers(text: object) -> list[int]:
    return [int(one) for one in str(text).split(",") if one.strip().lstrip("-").isdigit()]


def _matmul(call: OperatorCall) -> Sized:
    factors = [shape for shape in call.shapes if len(shape) >= 2][-2:]
    if len(factors) < 2:
        return _light(call)
    left, right = factors
    many = _product(left[:-2])
    m, k, n = left[-2], left[-1], right[-1]
    return "matmul", [m, n, k, many, tiles(m * many, n)], k


def tiles(m: float, n: float) -> float:
    """How many pieces of 128 × 128 the result has: work that may go on side by side."""
    return math.ceil(m / 128) * math.ceil(n / 128)


def _conv(call: OperatorCall) -> Sized:
    backward = call.operator == "convolution_backward"
    if len(call.shapes) < 2 + backward:
        return _light(call)
    image, weight = (call.shapes[1], call.shapes[2]) if backward else (call.shapes[0], call.shapes[1])
    groups = int(call.options.get("groups", 1))
    stride = _product(_numbers(call.options.get("stride", "1")))
    places = image[0] * _product(image[2:]) / max(stride, 1)
    area = _product(weight[2:])
    model = "conv" if groups == 1 else "depthwise" if weight[1] == 1 else "grouped"
    serial = places if backward else weight[1] * area
    return model, [places, weight[1], weight[0], area, stride, image[0], groups], serial


def _attention(call: OperatorCall) -> Sized:
    wide = [shape for shape in call.shapes if len(shape) == 4]
    if len(wide) < 2:
        return _light(call)
    out = wide[0] if call.operator.endswith("backward") and len(wide) > 2 else None  # as its gradient, which is first
    query, key = (wide[0], wide[1]) if out is None else (wide[1], wide[2])
    others = wide[3:] if out is None else [shape for shape in wide[4:] if shape != out]
    masked = 2 if any(shape[2:] == (query[2], key[2]) for shape in others) else 1
    causal = 2 if call.options.get("causal") else 1
    return "attention", [query[0] * query[1], query[2], key[2], query[3], causal, masked], key[2]


def _norm(call: OperatorCall) -> Sized:
    first = call.shapes[0]
    whole = _product(first)
    if "batch_norm" in call.operator and len(first) >= 2:
        return "batch-norm", [whole, first[1], _product(first[2:])], whole / max(first[1], 1)
    width = max((_product(shape) for shape in call.shapes[1:] if len(shape) == 1), default=first[-1] if first else 1)
    return "norm", [whole, width], width


def _along(call: OperatorCall) -> Sized:
    """Operators that go along one dimension: reductions, softmax."""
    first = call.shapes[0] if call.shapes else ()
    whole = _product(first)
    dims = [dim for dim in _numbers(call.options.get("dim", "")) if -len(first) <= dim < len(first)]
    along = _product([first[dim] for dim in dims]) if dims else whole
    inner = _product(first[max(dim % len(first) for dim in dims) + 1 :]) if dims else 1
    return call.kind, [whole, along, inner], along


def _pool(call: OperatorCall) -> Sized:
    whole = max((_product(shape) for shape in call.shapes), default=1)
    return "pool", [whole, _product(_numbers(call.options.get("kernel", "1")))], 1


def _update(call: OperatorCall) -> Sized:
    if len(call.shapes) == 1 and len(call.shapes[0]) == 2:
        tensors, elements = call.shapes[0]
        return "update", [call.moved_bytes / call.calls, tensors, elements / max(tensors, 1)], 1
    return "update", [call.moved_bytes / call.calls, len(call.shapes), max(map(_product, call.shapes), default=1)], 1


def _light(call: OperatorCall) -> Sized:
    """Operators whose time is that of moving bytes."""
    each = sorted((_product(shape) for shape in call.shapes), reverse=True)
    model = call.kind if call.kind in ("copy", "embedding", "elementwise") else "elementwise"
    return model, [call.moved_bytes / call.calls, each[0] if each else 1, each[1] if len(each) > 1 else 1], 1


_SIZES: dict[str, Callable[[OperatorCall], Sized]] = {
    "matmul": _matmul,
    "conv": _conv,
    "grouped-conv": _conv,
    "attention": _attention,
    "norm": _norm,
    "reduce": _along,
    "softmax": _along,
    "pool": _pool,
    "update": _update,
}
