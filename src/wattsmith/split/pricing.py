"""What a cut costs: bytes that cross, work on the trainer and on workers, and results that differ between machines."""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wattsmith.split.effects import is_opaque
from wattsmith.split.marks import crossing_here
from wattsmith.split.mincut import ENDLESS, Network
from wattsmith.split.problems import NotSplittable
from wattsmith.split.roles import FIXED, INPUT, TAINTED, Roles
from wattsmith.split.running import Seen
from wattsmith.split.traced import Traced
from wattsmith.terms.errors import BadTerm

PER_SECOND = 10**12  # costs are counted in picoseconds of the trainer
UNLIKE_S = 1_000.0  # for a result that depends on the machine, where that is to be avoided
# Measured alike on generic, AVX2 and AVX-512 code and with one or two threads, or mere movement of data.
_ALIKE = {
    *("add", "sub", "mul", "div", "neg", "abs", "sign", "clamp", "clamp_min", "clamp_max", "minimum", "maximum"),
    *("rsub", "floor", "ceil", "trunc", "round", "where", "eq", "ne", "lt", "le", "gt", "ge", "masked_fill"),
    *("logical_and", "logical_or", "logical_not", "bitwise_and", "bitwise_or", "bitwise_not", "isnan", "isinf"),
    *("rand", "rand_like", "randint", "randint_like", "randperm", "bernoulli", "uniform", "one_hot", "relu"),
    *("to", "_to_copy", "type_as", "float", "double", "copy", "clone", "contiguous", "detach", "alias", "fill", "zero"),
    *("view", "reshape", "permute", "transpose", "t", "flatten", "squeeze", "unsqueeze", "expand", "expand_as"),
    *("slice", "select", "narrow", "index", "index_select", "gather", "take", "chunk", "split", "split_with_sizes"),
    *("unbind", "flip", "roll", "cat", "stack", "repeat", "repeat_interleave", "pad", "constant_pad_nd", "tile"),
    *("reflection_pad2d", "replication_pad2d", "index_put", "scatter", "masked_select", "masked_scatter", "rot90"),
    *("zeros", "zeros_like", "ones", "ones_like", "full", "full_like", "empty", "empty_like", "arange", "new_zeros"),
    *("new_ones", "new_full", "new_empty", "eye", "tril", "triu", "max_pool2d", "max", "min", "amax", "amin", "argmax"),
    *("argmin", "sort", "argsort", "topk", "diagonal", "movedim", "unfold", "swapaxes", "broadcast_to", "getitem"),
    *("item", "sym_size", "lift_fresh_copy", "upsample_nearest2d", "dropout", "unflatten", "hflip", "boundary"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What the trainer pays. A worker's second costs a share of the trainer's: a core takes some watts of hundreds."""

    link_bytes_per_s: float = 6.5e9  # into the trainer's memory, through shared memory
    bus_bytes_per_s: float | None = None  # on to the trainer's device; None: it computes where the batch arrives
    trainer_bytes_per_s: float = 4e9  # how fast the trainer's device goes through the tensors of such operators
    trainer_call_s: float = 5e-6  # what one more operator costs the trainer
    worker_ratio: float = 0.01  # a worker's second against the trainer's: some 8 W of 700 W

    def __post_init__(self) -> None:
        for name in ("link_bytes_per_s", "trainer_bytes_per_s"):
            if getattr(self, name) <= 0:
                raise BadTerm(f"{name} must be positive, got {getattr(self, name)}")
        if self.bus_bytes_per_s is not None and self.bus_bytes_per_s <= 0:
            raise BadTerm(f"bus_bytes_per_s must be positive, got {self.bus_bytes_per_s}")
        if self.trainer_call_s < 0 or self.worker_ratio < 0:
            raise BadTerm("trainer_call_s and worker_ratio must not be negative")

    def crossing_s(self, size_bytes: int) -> float:
        bus_s = 0.0 if self.bus_bytes_per_s is None else size_bytes / self.bus_bytes_per_s
        return size_bytes / self.link_bytes_per_s + bus_s


CPU_TRAINER = Prices()
# A GPU goes through memory hundreds of times as fast as one core, but every byte takes the bus first.
GPU_TRAINER = Prices(bus_bytes_per_s=25e9, trainer_bytes_per_s=1e12)
WORKER_BYTES_PER_S = 4e9
_HEAVY = {  # how many times as long as its bytes alone would take, on one core
    "upsample": 10.0,
    "interpolate": 10.0,
    "grid_sampler": 20.0,
    "grid_sample": 20.0,
    "conv": 50.0,
    "linear": 50.0,
    "mm": 50.0,
    "matmul": 50.0,
    "fft": 20.0,
    "stft": 20.0,
    "sort": 20.0,
    "randn": 8.0,
    "normal": 8.0,
    "rand": 4.0,
    "exp": 4.0,
    "log": 4.0,
    "pow": 8.0,
    "sin": 8.0,
    "cos": 8.0,
}


def short_name(node: Any) -> str:
    """The operator of NODE without its library and variant: "add" of aten.add_.Tensor."""
    if node.op == "call_method":
        return str(node.target).rstrip("_")
    if node.op == "call_module":
        return str(node.target)
    target = node.target
    if is_opaque(node):
        return str(target.__name__)
    if target is crossing_here:
        return "boundary"
    if hasattr(target, "_schema"):
        return str(target._schema.name).partition("::")[2].rstrip("_")
    return str(getattr(target, "__name__", target)).rstrip("_")


def is_alike(node: Any, seen: Seen) -> bool:
    """Whether NODE gives the same bits on every kind of CPU and with any number of threads."""
    if not (seen.has_fractions or seen.takes_fractions) or is_opaque(node) or node.op in ("placeholder", "get_attr"):
        return True
    return short_name(node) in _ALIKE


def work_s(node: Any, seen: Seen, prices: Prices) -> tuple[float, float]:
    """Seconds of NODE on the trainer, and on a worker; by a rule, so that the same step is cut alike each time."""
    name = short_name(node)
    if name in ("sym_size", "getitem", "len", "getattr") or seen.moved_bytes == 0:
        return 0.0, 0.0
    if not seen.makes_new:
        return prices.trainer_call_s, 1e-6
    weight = max((factor for part, factor in _HEAVY.items() if name.startswith(("_" + part, part))), default=1.0)
    return moving_s(seen.moved_bytes, weight, prices)


def moving_s(moved_bytes: int, weight: float, prices: Prices) -> tuple[float, float]:
    """Seconds on the trainer, and on a worker, of what takes one core WEIGHT times as long as its bytes alone."""
    # A GPU does the arithmetic while it waits for memory; one core does not.
    on_trainer = weight if prices.bus_bytes_per_s is None else 1.0
    trainer_s = prices.trainer_call_s + on_trainer * moved_bytes / prices.trainer_bytes_per_s
    return trainer_s, 1e-6 + weight * moved_bytes / WORKER_BYTES_PER_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """Nodes of the data half; of the others, those that could have been there."""

    data: frozenset[Any]
    cost_s: float


def cheapest_cut(traced: Traced, roles: Roles, seen: dict[Any, Seen], prices: Prices, strict: bool) -> Choice:
    """Of all right ways to cut, the cheapest. STRICT: keep what differs between machines with the trainer."""
    net = Network()
    live = [node for node in traced.nodes() if roles.kinds[node] != FIXED]
    for node in live:
        _own_cost(net, node, roles, seen, prices, strict)
        users = [user for user in node.users if user.op == "output" or roles.kinds[user] != FIXED]
        if roles.kinds[node] != TAINTED and users:
            net.edge(node, ("sent", node), _sending(seen.get(node), prices))
            for user in users:
                # What is needed by training and was made from data must be sent; data is never made from training.
                end: Any = "training" if user.op == "output" else user
                net.edge(("sent", node), end, ENDLESS)
        for user in users:
            if user.op != "output":
                net.edge(user, node, ENDLESS)
    for group in roles.together:
        for one, other in pairwise(group):
            net.edge(one, other, ENDLESS)
            net.edge(other, one, ENDLESS)
    cost, data = net.cut("data", "training")
    if cost >= ENDLESS:
        raise NotSplittable(_contradiction(live, roles))
    return Choice(data=frozenset(one for one in live if one in data), cost_s=cost / PER_SECOND)


def _own_cost(net: Network, node: Any, roles: Roles, seen: dict[Any, Seen], prices: Prices, strict: bool) -> None:
    if node in roles.on_data:
        net.edge("data", node, ENDLESS)
    if node in roles.on_training:
        net.edge(node, "training", ENDLESS)
    if node in roles.on_data or node in roles.on_training or roles.kinds[node] == INPUT:
        return
    one = seen.get(node)
    if one is None:
        return
    trainer_s, worker_s = work_s(node, one, prices)
    worker_s *= prices.worker_ratio
    if strict and not is_alike(node, one):
        worker_s += UNLIKE_S
    net.edge("data", node, round(trainer_s * PER_SECOND))
    net.edge(node, "training", round(worker_s * PER_SECOND))


def _sending(one: Seen | None, prices: Prices) -> int:
    """What it costs to send a node's value; lists and things are not sent."""
    if one is None or one.output_bytes is None:
        return ENDLESS
    return max(1, round(prices.crossing_s(one.output_bytes) * PER_SECOND))


def _contradiction(live: list[Any], roles: Roles) -> str:
    stuck = next((one for one in live if one in roles.on_data and one not in roles.on_training), None)
    for one in live:
        if one in roles.on_data and roles.kinds[one] != INPUT:
            stuck = one
            break
    why = f": {stuck} {roles.on_data[stuck]}" if stuck is not None else ""
    return (
        "the step cannot be cut: something that must run on the data side takes part in writing a tensor that belongs "
        f"to training, or is neither a tensor nor a number and is needed there{why}"
    )
