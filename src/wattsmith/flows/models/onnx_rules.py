"""What the operators of ONNX that compute do, in PyTorch. Loaded late, by `onnx_graph`."""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812

from wattsmith.flows.models.onnx_node import Node, plain, rule

# Named alike but for capitals.
_ALIKE = (
    *("Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Ceil", "Cos", "Cosh", "Erf", "Exp", "Floor", "Log"),
    *("Add", "Sub", "Mul", "Pow", "MatMul", "Neg", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign", "Sin", "Sinh"),
    *("Sqrt", "Tan", "Tanh", "IsNaN", "IsInf", "Where"),
)
for _name in _ALIKE:
    plain(_name, getattr(torch, _name.lower()))
_OTHERWISE = {
    "And": "logical_and",
    "BitwiseAnd": "bitwise_and",
    "BitwiseNot": "bitwise_not",
    "BitwiseOr": "bitwise_or",
    "BitwiseXor": "bitwise_xor",
    "Equal": "eq",
    "Greater": "gt",
    "GreaterOrEqual": "ge",
    "Less": "lt",
    "LessOrEqual": "le",
    "Not": "logical_not",
    "Or": "logical_or",
    "Xor": "logical_xor",
}
for _name, _function in _OTHERWISE.items():
    plain(_name, getattr(torch, _function))
for _name in ("Softplus", "Softsign", "Mish", "HardSwish"):
    plain(_name, getattr(F, _name.lower()))


@rule("Div")
def divided(_node: Node, x: Any, y: Any) -> Any:
    fractional = x.is_floating_point() or y.is_floating_point()
    return torch.div(x, y, rounding_mode=None if fractional else "trunc")


@rule("Mod")
def remainder(node: Node, x: Any, y: Any) -> Any:
    return torch.fmod(x, y) if node.get("fmod", 0) else torch.remainder(x, y)


@rule("Min", "Max", "Sum", "Mean")
def folded(node: Node, *inputs: Any) -> Any:
    joined = {"Min": torch.minimum, "Max": torch.maximum}.get(node.operator, torch.add)
    result = inputs[0]
    for one in inputs[1:]:
        result = joined(result, one)
    return result / len(inputs) if node.operator == "Mean" else result


@rule("LeakyRelu", "Elu", "Celu", "ThresholdedRelu")
def sloped(node: Node, x: Any) -> Any:
    usual = {"LeakyRelu": 0.01}.get(node.operator, 1.0)
    alpha = node.get("alpha", usual)
    if node.operator == "ThresholdedRelu":
        return F.threshold(x, alpha, 0.0)
    return {"LeakyRelu": F.leaky_relu, "Elu": F.elu, "Celu": F.celu}[node.operator](x, alpha)


@rule("Selu")
def selu(_node: Node, x: Any) -> Any:
    return F.selu(x)


@rule("HardSigmoid")
def hard_sigmoid(_node: Node, x: Any) -> Any:
    return F.hardsigmoid(x)


@rule("PRelu")
def prelu(_node: Node, x: Any, slope: Any) -> Any:
    return F.prelu(x, slope.flatten()) if slope.numel() in (1, x.shape[1]) else torch.where(x > 0, x, slope * x)


@rule("Gelu", "FastGelu", "QuickGelu", "BiasGelu")
def gelu(node: Node, x: Any, bias: Any = None) -> Any:
    return F.gelu(x if bias is None else x + bias, approximate=node.get("approximate", "none"))


@rule("Swish")
def swish(_node: Node, x: Any) -> Any:
    return F.silu(x)


@rule("Softmax", "LogSoftmax")
def softmax(node: Node, x: Any) -> Any:
    function = F.softmax if node.operator == "Softmax" else F.log_softmax
    if node.version >= 13:
        return function(x, node.get("axis", -1))
    flat = x.flatten(node.get("axis", 1))  # older sets take all dimensions from there on as one
    return function(flat, -1).reshape(x.shape)


@rule("Clip")
def clipped(node: Node, x: Any, low: Any = None, high: Any = None) -> Any:
    low, high = node.get("min", low), node.get("max", high)
    if low is None and high is None:
        return x
    return torch.clamp(x, *(_scalar(one) for one in (low, high)))


def _scalar(one: Any) -> Any:
    return one.item() if isinstance(one, torch.Tensor) and one.device.type == "cpu" else one


# Products and convolutions.


@rule("Gemm")
def gemm(node: Node, a: Any, b: Any, c: Any = None) -> Any:
    a = a.t() if node.get("transA", 0) else a
    b = b.t() if node.get("transB", 0) else b
    alpha, beta = node.get("alpha", 1.0), node.get("beta", 1.0)
    if c is None:
        return torch.mm(a, b) if alpha == 1.0 else torch.mm(a, b) * alpha
    return torch.addmm(c, a, b, beta=beta, alpha=alpha)


@rule("FusedMatMul")
def fused_matmul(node: Node, a: Any, b: Any) -> Any:
    a = a.transpose(-1, -2) if node.get("transA", 0) else a
    return torch.matmul(a, b.transpose(-1, -2) if node.get("transB", 0) else b) * node.get("alpha", 1.0)


@rule("Einsum")
def einsum(node: Node, *inputs: Any) -> Any:
    return torch.einsum(node.get("equation"), *inputs)


@rule("Conv")
def conv(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    ways = weight.dim() - 2
    stride, dilation = node.get("strides", [1] * ways), node.get("dilations", [1] * ways)
    x, padding = padded(node, x, weight.shape[2:], stride, dilation)
    function = (F.conv1d, F.conv2d, F.conv3d)[ways - 1]
    return function(x, weight, bias, stride, padding, dilation, node.get("group", 1))


@rule("ConvTranspose")
def conv_transposed(node: Node, x: Any, weight: Any, bias: Any = None) -> Any:
    ways = weight.dim() - 2
    stride, dilation = node.get("strides", [1] * ways), node.get("dilations", [1] * ways)
    pads = node.get("pads", [0] * 2 * ways)
    more = list(node.get("output_padding", [0] * ways))
    wanted = node.get("output_shape")
    if wanted is None and node.get("auto_pad", "NOTSET").startswith("SAME"):
        wanted = [size * step for size, step in zip(x.shape[2:], stride, strict=True)]
    if wanted is not None:
        whole = [
            (x.shape[2 + way] - 1) * stride[way] + (weight.shape[2 + way] - 1) * dilation[way] + 1 + more[way]
            for way in range(ways)
        ]
        cut = [one - size for one, size in zip(whole, wanted[-ways:], strict=True)]
        more = [extra + max(0, -one) for extra, one in zip(more, cut, strict=True)]
        pads = [max(0, one) // 2 for one in cut] + [max(0, one) - max(0, one) // 2 for one in cut]
    common = [min(sides) for sides in zip(pads[:ways], pads[ways:], strict=True)]
    function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[ways - 1]
    y = function(x, weight, bias, stride, common, more, node.get("group", 1), dilation)
    for way in range(ways):  # where the two sides differ, the larger is cut afterwards
        begin, end = pads[way] - common[way], pads[ways + way] - common[way]
        y = y.narrow(2 + way, begin, y.shape[2 + way] - begin - end)
    return y


def padded(
    node: Node,
    x: Any,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    fill: float | None = None,
) -> tuple[Any, list[int]]:
    """X, padded where the operator itself cannot, and the padding that is left to it.

    FILL: what padding holds, for pools, which pad by half a kernel at most; None: for convolutions.
    """
    ways = len(kernel)
    pads = list(node.get("pads", [0] * 2 * ways))
    automatic = node.get("auto_pad", "NOTSET")
    if automatic.startswith("SAME"):
        for way in range(ways):
            size = x.shape[2 + way]
            reach = (kernel[way] - 1) * dilation[way] + 1
            total = max(0, (math.ceil(size / stride[way]) - 1) * stride[way] + reach - size)
            small, large = total // 2, total - total // 2
            pads[way], pads[ways + way] = (small, large) if automatic == "SAME_UPPER" else (large, small)
    begins, ends = pads[:ways], pads[ways:]
    if begins == ends and (fill is None or all(2 * pad <= size for pad, size in zip(begins, kernel, strict=True))):
        return x, begins
    sides = [side for begin, end in zip(reversed(begins), reversed(ends), strict=True) for side in (begin, end)]
    return F.pad(x, sides, value=fill or 0.0), [0] * ways


@rule("MaxPool", "AveragePool")
def pool(node: Node, x: Any) -> Any:
    kernel = node.get("kernel_shape")
    ways, is_max = len(kernel), node.operator == "MaxPool"
    stride, dilation = node.get("strides", [1] * ways), node.get("dilations", [1] * ways)
    x, padding = padded(node, x, kernel, stride, dilation, -math.inf if is_max else 0.0)
    ceil = bool(node.get("ceil_mode", 0))
    if is_max or any(one > 1 for one in dilation):  # PyTorch has no dilated mean; a maximum reads and writes the same
        largest: Any = (F.max_pool1d, F.max_pool2d, F.max_pool3d)[ways - 1]
        return largest(x, kernel, stride, padding, dilation, ceil, return_indices=len(node.outputs) > 1)
    function = (F.avg_pool1d, F.avg_pool2d, F.avg_pool3d)[ways - 1]
    return function(x, kernel, stride, padding, ceil, bool(node.get("count_include_pad", 0)))


@rule("GlobalAveragePool", "GlobalMaxPool")
def global_pool(node: Node, x: Any) -> Any:
    places = list(range(2, x.dim()))
    return x.mean(places, keepdim=True) if node.operator == "GlobalAveragePool" else x.amax(places, keepdim=True)


# Norms.


@rule("BatchNormalization")
def batch_norm(node: Node, x: Any, scale: Any, bias: Any, mean: Any, variance: Any) -> Any:
    trains, epsilon = bool(node.get("training_mode", 0)), node.get("epsilon", 1e-5)
    return F.batch_norm(x, mean, variance, scale, bias, trains, eps=epsilon), mean, variance


@rule("InstanceNormalization")
def instance_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    return F.instance_norm(x, weight=scale, bias=bias, eps=node.get("epsilon", 1e-5))


@rule("LayerNormalization")
def layer_norm(node: Node, x: Any, scale: Any, bias: Any = None) -> Any:
    normal = x.shape[node.get("axis", -1) :]
    return torch.native_layer_norm(x, normal, scale, bias, node.get("epsilon", 1e-5))


@rule("RMSNormalization", "SimplifiedLayerNormalization")
def rms_norm(node: Node, x: Any, scale: Any) -> Any:
    return F.rms_norm(x, x.shape[node.get("axis", -1) :], scale, node.get("epsilon", 1e-5))


@rule("GroupNormalization")
def group_norm(node: Node, x: Any, scale: Any, bias: Any) -> Any:
    groups = node.get("num_groups")
    if scale.numel() != x.shape[1]:  # the first version has one for each group
        scale, bias = (one.repeat_interleave(x.shape[1] // groups) for one in (scale, bias))
    return F.group_norm(x, groups, scale, bias, node.get("epsilon", 1e-5))


@rule("LRN")
def local_norm(node: Node, x: Any) -> Any:
    return F.local_response_norm(
        x, node.get("size"), node.get("alpha", 1e-4), node.get("beta", 0.75), node.get("bias", 1.0)
    )


@rule("LpNormalization")
def lp_norm(node: Node, x: Any) -> Any:
    return F.normalize(x, node.get("p", 2), node.get("axis", -1))


@rule("Dropout", "Identity")
def unchanged(node: Node, x: Any, *_: Any) -> Any:
    return (x, torch.ones_like(x, dtype=torch.bool)) if len(node.outputs) > 1 else x


# Attention and recurrent layers.


@rule("Attention")
def attention(node: Node, query: Any, key: Any, value: Any, mask: Any = None, *past: Any) -> Any:
    flat = query.dim() == 3
    if flat:
        heads, kept = node.get("q_num_heads"), node.get("kv_num_heads")
        query, key, value = (
            one.unflatten(-1, (count, -1)).transpose(1, 2)
            for one, count in ((query, heads), (key, kept), (value, kept))
        )
    if len(past) >= 2 and past[0] is not None:
        key, value = torch.cat([past[0], key], 2), torch.cat([past[1], value], 2)
    shared = key.shape[1] != query.shape[1]
    causal = bool(node.get("is_causal", 0)) and mask is None  # with both, the mask costs as much as the two
    if mask is not None and mask.dim() == 1:
        mask = mask[None]
    if mask is not None and mask.shape[-1] < key.shape[2]:
        mask = F.pad(mask, (0, key.shape[2] - mask.shape[-1]), value=False if mask.dtype == torch.bool else -math.inf)
    mixed = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=node.get("scale"), enable_gqa=shared
    )
    return (mixed.transpose(1, 2).flatten(2) if flat else mixed), key, value


@rule("LSTM", "GRU", "RNN")
def recurrent(node: Node, x: Any, w: Any, r: Any, bias: Any = None, _lengths: Any = None, *state: Any) -> Any:
    ways, wide = w.shape[0], r.shape[-1]
    batch_first = bool(node.get("layout", 0))
    if batch_first:
        x = x.transpose(0, 1)
    weights = []
    for way in range(ways):
        both = bias[way].chunk(2) if bias is not None else ()
        weights += [w[way], r[way], *both]
    start = [one if one is not None else x.new_zeros(ways, x.shape[1], wide) for one in (*state, None, None)[:2]]
    more = (weights, bias is not None, 1, 0.0, False, ways == 2, False)
    if node.operator == "LSTM":
        given = torch.lstm(x, (start[0], start[1]), *more)
    else:
        given = (torch.gru if node.operator == "GRU" else torch.rnn_tanh)(x, start[0], *more)
    steps = given[0].unflatten(-1, (ways, wide)).transpose(1, 2)
    if batch_first:
        return (steps.permute(2, 0, 1, 3), *(one.transpose(0, 1) for one in given[1:]))
    return (steps, *given[1:])
