"""What tensors on "meta" do not show by themselves: autocast, fused attention, fused recurrent layers.

Tensors on "meta" have shapes and no values, so a step on them costs nothing. But autocast leaves them alone, attention
is taken apart into matrix products, and a recurrent layer into thousands of small operators. A GPU does none of that.
These modes stand in for it, before autograd sees the call, so that backward and memory come out right by themselves.
"""

from collections.abc import Callable, Mapping, Sequence
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

GATES = {"lstm": 4, "gru": 3, "rnn_tanh": 1, "rnn_relu": 1}  # of recurrent layers, as torch calls them
CELLS = frozenset(f"{name}_cell" for name in GATES)  # one step of one layer

SawRecurrent = Callable[[int, int], None]  # layers, and launches that no operator shows


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
        def __init__(self, saw_recurrent: SawRecurrent) -> None:
            super().__init__()
            self.saw_recurrent = saw_recurrent

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
            if name in GATES and called is getattr(torch, name):
                if _on_meta(args) and _is_plain(name, args):
                    return fused_recurrent(self.saw_recurrent, name, *args)
                self.saw_recurrent(_layers_in(args), 0)
            elif name in CELLS:
                self.saw_recurrent(1, 0)
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


def fused_kernels(saw_recurrent: SawRecurrent) -> Any:
    """Attention and recurrent layers on meta as one kernel each. SAW_RECURRENT is told of the latter."""
    return _modes()[1](saw_recurrent)


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


def _is_padded(args: tuple[Any, ...]) -> bool:
    """Whether the batch is padded: input, state, weights, bias flag, layers, …; a packed one has its sizes second."""
    return len(args) == 9 and isinstance(args[3], bool)


def _layers_in(args: tuple[Any, ...]) -> int:
    """How many recurrent layers a call has, each way counted."""
    layers, _, _, bidirectional = args[4:8] if _is_padded(args) else args[5:9]
    return int(layers) * (2 if bidirectional else 1)


def _is_plain(name: str, args: tuple[Any, ...]) -> bool:
    """Whether cuDNN's plain kernel fits: a padded batch, no projection."""
    return _is_padded(args) and not (name == "lstm" and args[1][0].shape != args[1][1].shape)


def fused_recurrent(
    saw_recurrent: SawRecurrent,
    name: str,
    sequence: Any,
    state: Any,
    weights: Sequence[Any],
    biased: bool,
    layers: int,
    _dropout: float,
    _training: bool,
    bidirectional: bool,
    batch_first: bool,
) -> Any:
    """A recurrent layer in all its time steps at once: the same products, and gates kept for backward as cuDNN does."""
    import torch

    ways, parts = (2 if bidirectional else 1), (4 if biased else 2)
    steps, batch = (sequence.shape[1], sequence.shape[0]) if batch_first else sequence.shape[:2]
    saw_recurrent(ways * layers, ways * layers * steps)
    flow = sequence.reshape(steps * batch, -1)
    for layer in range(layers):
        outputs = []
        for way in range(ways):
            from_input, from_state, *biases = weights[parts * (ways * layer + way) :][:parts]
            width = from_state.shape[1]
            given = _product(flow, from_input, biases[:1])
            # Any tensor of the state's shape has the cost of the state one step before.
            before = given[:, :width]
            kept = _product(before, from_state, biases[1:])
            outputs.append(_CELL[name](given, kept, before, width))
        flow = outputs[0] if ways == 1 else torch.cat(outputs, 1)
    shape = (batch, steps, -1) if batch_first else (steps, batch, -1)
    last = tuple(one.clone() for one in state) if name == "lstm" else (state.clone(),)
    return flow.reshape(shape), *last


def _product(rows: Any, weight: Any, bias: Sequence[Any]) -> Any:
    import torch

    return torch.addmm(bias[0], rows, weight.t()) if bias else rows.mm(weight.t())


def _lstm_cell(given: Any, kept: Any, before: Any, width: int) -> Any:
    gates = given + kept
    opened = gates[:, : 3 * width].sigmoid()
    cell = opened[:, :width] * before + opened[:, width : 2 * width] * gates[:, 3 * width :].tanh()
    return opened[:, 2 * width :] * cell.tanh()


def _gru_cell(given: Any, kept: Any, before: Any, width: int) -> Any:
    opened = (given[:, : 2 * width] + kept[:, : 2 * width]).sigmoid()
    fresh = (given[:, 2 * width :] + opened[:, :width] * kept[:, 2 * width :]).tanh()
    return fresh + opened[:, width:] * (before - fresh)


_CELL: Mapping[str, Callable[[Any, Any, Any, int], Any]] = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": lambda given, kept, *_: (given + kept).tanh(),
    "rnn_relu": lambda given, kept, *_: (given + kept).relu(),
}
