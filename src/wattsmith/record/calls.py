"""Calls of operators, told apart by what decides their cost: the same from a trace on "meta" and from a live step."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from wattsmith.record.counting import Traits, label
from wattsmith.terms.run import OperatorCall, OperatorCount
from wattsmith.terms.work import Parameter

# Devices have their own operators for one and the same thing.
SAME = {
    **dict.fromkeys(("cudnn_batch_norm", "_native_batch_norm_legit", "_batch_norm_with_update"), "native_batch_norm"),
    **dict.fromkeys(("cudnn_batch_norm_backward", "batch_norm_backward"), "native_batch_norm_backward"),
}
# Where in an operator's arguments stands what else decides its cost.
OPTIONS: dict[str, dict[str, int]] = {
    "convolution": {"stride": 3, "dilation": 5, "transposed": 6, "groups": 8},
    "convolution_backward": {"stride": 4, "dilation": 6, "transposed": 7, "groups": 9, "wanted": 10},
    "_softmax": {"dim": 1},
    "_log_softmax": {"dim": 1},
    "cat": {"dim": 1},
    "sum": {"dim": 1},
    "mean": {"dim": 1},
    "max_pool2d_with_indices": {"kernel": 1, "stride": 2},
    "avg_pool2d": {"kernel": 1, "stride": 2},
}
MANY = 8  # tensors; more of them are told as one of as many elements


@dataclass(frozen=True, slots=True)
class CallKey:
    """What tells one call from another."""

    operator: str
    kind: str
    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    options: tuple[tuple[str, Parameter], ...]


@dataclass(slots=True)
class Tally:
    """What has been seen of one kind of call."""

    calls: int = 0
    flops: float = 0.0
    moved_bytes: float = 0.0
    busy_s: float = 0.0


@dataclass(slots=True)
class Calls:
    """All calls of a step."""

    tallies: dict[CallKey, Tally] = field(default_factory=lambda: defaultdict(Tally))

    def add(self, key: CallKey, flops: float, moved_bytes: float) -> None:
        tally = self.tallies[key]
        tally.calls += 1
        tally.flops += flops
        tally.moved_bytes += moved_bytes

    def keys(self) -> list[CallKey]:
        """All that were seen, the most moving first."""
        return sorted(self.tallies, key=lambda key: -self.tallies[key].moved_bytes)

    def of_one_step(self, steps: int, timed: bool) -> tuple[OperatorCall, ...]:
        """What was seen in STEPS steps, for one of them, in the order of `keys`. TIMED: with the kernels' time."""
        return tuple(
            OperatorCall(
                operator=key.operator,
                kind=key.kind,
                dtype=key.dtype,
                shapes=key.shapes,
                options=dict(key.options),
                calls=-(-tally.calls // steps),
                flops=tally.flops / steps,
                moved_bytes=tally.moved_bytes / steps,
                busy_s=tally.busy_s / steps if timed else None,
            )
            for key, tally in ((key, self.tallies[key]) for key in self.keys())
        )

    def by_kind(self) -> dict[str, OperatorCount]:
        sums: dict[str, Tally] = defaultdict(Tally)
        for key, tally in self.tallies.items():
            one = sums[key.kind]
            one.calls += tally.calls
            one.flops += tally.flops
            one.moved_bytes += tally.moved_bytes
        return {
            kind: OperatorCount(calls=one.calls, flops=one.flops, moved_bytes=one.moved_bytes)
            for kind, one in sorted(sums.items())
        }


def key_of(traits: Traits, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Any]) -> CallKey:
    """What tells this call from others. INPUTS: the tensors among its arguments."""
    name = SAME.get(traits.name, traits.name)
    fractional = next((one for one in inputs if one.is_floating_point()), inputs[0] if inputs else None)
    return CallKey(
        operator=name,
        kind=label(traits, args),
        dtype="" if fractional is None else str(fractional.dtype).removeprefix("torch."),
        shapes=shapes_of(inputs),
        options=tuple(options_of(traits, name, args, kwargs, inputs)),
    )


def shapes_of(inputs: list[Any]) -> tuple[tuple[int, ...], ...]:
    if len(inputs) > MANY:
        return ((len(inputs), sum(one.numel() for one in inputs)),)
    return tuple(tuple(one.shape) for one in inputs)


def options_of(
    traits: Traits, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], inputs: list[Any]
) -> list[tuple[str, Parameter]]:
    found: list[tuple[str, Parameter]] = [
        (option, plain(args[at])) for option, at in OPTIONS.get(name, {}).items() if at < len(args)
    ]
    at = traits.causal_at
    if at is not None:
        found.append(("causal", bool(args[at] if at < len(args) else kwargs.get("is_causal", False))))
    if name in ("_to_copy", "copy_"):
        found.append(("to", str(kwargs.get("dtype") or inputs[0].dtype).removeprefix("torch.")))
    strides = "".join(order_of(one) for one in inputs[:3])
    if strides.strip("c"):
        found.append(("order", strides))
    return found


def plain(value: Any) -> Parameter:
    if isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return ",".join(str(int(one)) for one in value)
    return str(value)


def order_of(tensor: Any) -> str:
    """How the tensor lies in memory: (c)ontiguous, channels-(l)ast, (t)ransposed, e(x)panded, or in (s)teps."""
    if tensor.is_contiguous():
        return "c"
    strides = tensor.stride()
    if 0 in strides:
        return "x"
    if tensor.dim() == 4 and tensor.stride(1) == 1 and strides[3] >= tensor.shape[1]:
        return "l"
    if tensor.dim() >= 2 and strides[-2] == 1:
        return "t"
    return "s" if 1 in strides else "g"
