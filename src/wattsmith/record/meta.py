"""What tensors on "meta" do not show by themselves: autocast, fused attention, fused recurrent layers.

Tensors on "meta" have shapes and no values, so a step on them costs nothing. But autocast leaves them alone, attention
is taken apart into matrix products, and a recurrent layer into thousands of small operators. A GPU does none of that.
These modes stand in for it, before autograd sees the call, so that backward and memory come out right by themselves.
"""

from collections.abc import Callable, Mapping
from functools import cache
from types import FunctionType
from typing import Any


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# CUDA's lists, as in PyTorch's documentation of autocast; `cross_entropy` is made of two parts, see there.
LOWERED = _words(
    "matmul __matmul__ __rmatmul__ mm bmm addmm addmv addr mv baddbmm addbmm linear conv1d conv2d conv3d "
    "conv_transpose1d conv_transpose2d conv_transpose3d _convolution convolution chain_matmul multi_dot einsum "
    "scaled_dot_product_attention lstm gru rnn_tanh rnn_relu lstm_cell gru_cell "
    "rnn_tanh_cell rnn_relu_cell prelu"
)
RAISED = _words(
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan pow __pow__ __rpow__ softplus "
    "layer_norm group_norm norm nuclear_norm cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss "
    "hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss "
    "multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss "
    "binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp prod softmax log_softmax "
    "cumprod cumsum sum softmin"
)

COMPOSED = frozenset({"multi_head_attention_forward"})  # Python functions with operators of these lists inside


@cache
def opened(function: Any) -> Any:
    """A copy of one of torch's Python functions that does not ask modes first, so that they see what is inside."""
    unasked = dict.fromkeys(("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic"), _no)
    copied = FunctionType(function.__code__, {**function.__globals__, **unasked}, argdefs=function.__defaults__)
    copied.__kwdefaults__ = function.__kwdefaults__
    return copied


def _no(*_: Any) -> bool:
    return False


@cache
def _modes() -> tuple[type, type]:
    """The two classes; made at first use, because they inherit from torch's."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._pytree import tree_map

    class Autocast(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, dtype: Any) -> None:
            super().__init__()
            self.dtype = dtype
            self.weights: dict[int, Any] = {}  # autocast casts a weight once, and keeps it until it ends

        def __exit__(self, *problem: Any) -> None:
            self.weights.clear()
            super().__exit__(*problem)

        def __torch_function__(
            self, called: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(called, "__name__", "")
            if name == "backward" and called is torch.Tensor.backward:
                self.weights.clear()
                with self:  # what is computed again in backward is under autocast too
                    return _backward(*args, **kwargs)
            if name in COMPOSED:
                with self:
                    return opened(called)(*args, **kwargs)
            if name == "cross_entropy" and args[0].dtype == self.dtype:
                return narrow_cross_entropy(*args, **kwargs)
            if name in LOWERED:
                args, kwargs = tree_map(self._lower, (args, dict(kwargs)))
            elif name in RAISED:
                args, kwargs = tree_map(_raise, (args, dict(kwargs)))
            return called(*args, **kwargs)

        def _lower(self, one: Any) -> Any:
            if not isinstance(one, torch.Tensor) or one.dtype != torch.float32 or one.device.type != "meta":
                return one
            if not (one.is_leaf and one.requires_grad):
                return one.to(self.dtype)
            if id(one) not in self.weights:
                self.weights[id(one)] = one.to(self.dtype)
            return self.weights[id(one)]

    def _raise(one: Any) -> Any:
        narrow = (torch.bfloat16, torch.float16)
        return one.float() if isinstance(one, torch.Tensor) and one.dtype in narrow else one

    def _backward(loss: Any, gradient: Any = None, retain_graph: Any = None, create_graph: bool = False, **more: Any):  # type: ignore[no-untyped-def]
        return torch.autograd.backward(loss, gradient, retain_graph, create_graph, **more)

    class Fused(TorchFunctionMode):  # type: ignore[misc]
        def __init__(self, add_launches: Callable[[int], None]) -> None:
            super().__init__()
            self.add_launches = add_launches

        def __torch_function__(
            self, called: Any, _types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            name = getattr(called, "__name__", "")
            if name == "backward" and called is torch.Tensor.backward:
                with self:
                    return _backward(*args, **kwargs)
            if name in COMPOSED:
                with self:
                    return opened(called)(*args, **kwargs)
            if name == "scaled_dot_product_attention" and _on_meta(args) and _has_fused_kernel(args, kwargs):
                return fused_attention(*args, **kwargs)
            if name == "dropout" and _on_meta(args):
                return fused_dropout(called, *args, **kwargs)
            if name == "lstm" and _on_meta(args) and _is_plain_lstm(args):
                return fused_lstm(self.add_launches, *args)
            return called(*args, **kwargs)

    def _has_fused_kernel(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bool:
        """Not where the mask learns, nor where heads share keys in fp32: those are taken apart on a GPU as well."""
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        shares = kwargs.get("enable_gqa", False) and args[1].shape[-3] != args[0].shape[-3]
        in_fp32 = args[0].dtype == torch.float32 or mask is not None
        return not (mask is not None and mask.requires_grad) and not (shares and in_fp32)

    def _on_meta(args: tuple[Any, ...]) -> bool:
        return bool(args) and isinstance(args[0], torch.Tensor) and args[0].device.type == "meta"

    return Autocast, Fused


def narrow_cross_entropy(scores: Any, truth: Any, weight: Any = None, *more: Any, **options: Any) -> Any:
    """It asks for log_softmax in the type that it is given, and autocast leaves it at that; then it goes on in fp32."""
    from torch.nn import functional

    by = dict(zip(("size_average", "ignore_index", "reduce", "reduction", "label_smoothing"), more, strict=False))
    by |= options
    likely = functional.log_softmax(scores, 1, dtype=scores.dtype).float()
    wanted = {name: by[name] for name in ("ignore_index", "reduction") if name in by}
    return functional.nll_loss(likely, truth, weight, **wanted)


def autocast_rules(dtype: Any) -> Any:
    """Autocast to DTYPE for tensors on meta, by CUDA's lists."""
    return _modes()[0](dtype)


def fused_kernels(add_launches: Callable[[int], None]) -> Any:
    """Attention and LSTM on meta as one kernel each. ADD_LAUNCHES is told of launches that no operator shows."""
    return _modes()[1](add_launches)


def fused_attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,  # noqa: ARG001 - the kernel sees it by the shapes
) -> Any:
    """Attention as a GPU's fused kernel: nothing of size length × length is kept."""
    import torch

    aten = torch.ops.aten
    if query.dim() == 3:
        query, key, value = query[:, None], key[:, None], value[:, None]
        return fused_attention(query, key, value, attn_mask, dropout_p, is_causal, scale)[:, 0]
    if attn_mask is None and query.dtype in (torch.bfloat16, torch.float16):
        return aten._scaled_dot_product_flash_attention(query, key, value, dropout_p, is_causal, scale=scale)[0]
    if attn_mask is not None:
        shape = (*query.shape[:-1], key.shape[-2])
        attn_mask = attn_mask.to(query.dtype).expand(shape)
    backward = query.requires_grad or key.requires_grad or value.requires_grad
    return aten._scaled_dot_product_efficient_attention(
        query, key, value, attn_mask, backward, dropout_p, is_causal, scale=scale
    )[0]


def fused_dropout(called: Any, tensor: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
    """Dropout as a GPU's fused kernel, which keeps one byte per element."""
    import torch

    if not training or inplace or not 0 < p < 1:
        return called(tensor, p, training, inplace)
    return torch.ops.aten.native_dropout(tensor, p, True)[0]


def _is_plain_lstm(args: tuple[Any, ...]) -> bool:
    """Whether these are the arguments for a padded batch without projection: input, state, weights, bias flag, …"""
    import torch

    if len(args) != 9 or isinstance(args[1], torch.Tensor):
        return False
    weights, biased = args[2], args[3]
    state, cell = args[1]
    return bool(biased) and len(weights) == 4 * state.shape[0] and state.shape == cell.shape


def fused_lstm(
    add_launches: Callable[[int], None],
    sequence: Any,
    state: tuple[Any, Any],
    weights: list[Any],
    _biased: bool,
    layers: int,
    _dropout: float,
    _training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """An LSTM in all its time steps at once: the same products, and gates kept for backward as cuDNN keeps them."""
    import torch

    ways = 2 if bidirectional else 1
    steps, batch = (sequence.shape[1], sequence.shape[0]) if batch_first else sequence.shape[:2]
    add_launches(ways * layers * steps)
    flow = sequence.reshape(steps * batch, -1)
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            from_input, from_state, bias, other_bias = weights[4 * (ways * layer + way) :][:4]
            width = from_state.shape[1]
            gates = torch.addmm(bias, flow, from_input.t())
            # Any tensor of the state's shape has the cost of the state one step before.
            before = gates[:, :width]
            gates = gates + torch.addmm(other_bias, before, from_state.t())
            outputs.append(_cell(gates, before, width))
        flow = outputs[0] if ways == 1 else torch.cat(outputs, 1)
    shape = (batch, steps, -1) if batch_first else (steps, batch, -1)
    return flow.reshape(shape), state[0].clone(), state[1].clone()


def _cell(gates: Any, before: Any, width: int) -> Any:
    opened = gates[:, : 3 * width].sigmoid()
    cell = opened[:, :width] * before + opened[:, width : 2 * width] * gates[:, 3 * width :].tanh()
    return opened[:, 2 * width :] * cell.tanh()
