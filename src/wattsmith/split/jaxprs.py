"""A JAX step in two: what depends on the batch alone, and what depends on the state. JAX is imported when needed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

from wattsmith.split.placing import Step, cheapest_side, needed, placed, placed_input
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Prices
from wattsmith.split.problems import NotSplittable, first_line
from wattsmith.terms.cut import Crossing, Cut
from wattsmith.terms.errors import ExtraNeeded, NotWritten

_INLINED = ("jit", "pjit", "closed_call")  # calls whose equations are cut one by one
_HEAVY = {"dot_general": 50.0, "conv_general_dilated": 50.0, "fft": 20.0, "sort": 20.0, "random_bits": 8.0}
_MOVES = {  # what is done with fractions without rounding
    *(
        "convert_element_type",
        "reshape",
        "squeeze",
        "expand_dims",
        "transpose",
        "broadcast_in_dim",
        "slice",
        "rev",
        "pad",
    ),
    *(
        "dynamic_slice",
        "gather",
        "concatenate",
        "select_n",
        "copy",
        "iota",
        "sort",
        "bitcast_convert_type",
        "max",
        "min",
    ),
    *("clamp", "neg", "abs", "sign", "floor", "ceil", "round", "eq", "ne", "lt", "le", "gt", "ge", "stop_gradient"),
}


class JaxHalf:
    """The data half: `half(batch, seed)` gives the arrays that cross. WRITTEN: by jax.export, for CPUs."""

    def __init__(self, written: bytes) -> None:
        self.written = written
        self._run: Callable[..., Any] | None = None

    def __call__(self, batch: Any, seed: int) -> tuple[Any, ...]:
        import jax.export
        import numpy as np

        if self._run is None:
            self._run = jax.jit(jax.export.deserialize(bytearray(self.written)).call)
        with jax.default_device(jax.devices("cpu")[0]):
            given = self._run(jax.tree.map(np.asarray, batch), np.uint32(seed % 2**32))
        return tuple(np.asarray(one) for one in given)

    def save(self, path: str | PathLike[str]) -> None:
        try:
            Path(path).write_bytes(self.written)
        except OSError as refused:
            raise NotWritten(f"the data half {path} cannot be written: {refused}") from refused

    def __reduce__(self) -> tuple[type["JaxHalf"], tuple[bytes]]:
        return JaxHalf, (self.written,)


@dataclass(frozen=True, slots=True, kw_only=True)
class JaxSplit:
    """A step in two halves: `train(state, *data(batch, seed))` gives what the step gives."""

    data: JaxHalf
    train: Callable[..., Any]  # can be compiled and differentiated as the step can
    cut: Cut

    def __call__(self, state: Any, batch: Any, seed: int) -> Any:
        return self.train(state, *self.data(batch, seed))

    def report(self) -> Cut:
        """What runs where, what crosses, and why."""
        return self.cut


@dataclass(frozen=True, slots=True, kw_only=True)
class _Graph:
    """The equations of a step, without calls of compiled functions."""

    jaxpr: Any
    constants: dict[Any, Any]  # by variable
    state: tuple[Any, ...]  # variables
    batch: tuple[Any, ...]  # and the seed
    form: Any  # in which the step gives its outputs
    steps: dict[int, Step]  # those that the outputs need, by the number of their equation
    fixed: frozenset[int]  # those of them that depend on constants alone
    kept: dict[int, str]  # those that stay with training, and what they depend on


def split_jax(step: Callable[..., Any], state: Any, batch: Any, *, prices: Prices | None = None) -> JaxSplit:
    """Cut STEP in two, which is called as step(state, batch, seed); all that changes while it learns is in STATE.

    STATE and BATCH: examples, of the sizes that will come. The seed is a number of uint32, for jax.random.key; each
    batch has its own.
    """
    try:
        import flatbuffers  # noqa: F401 - by which jax.export writes
        import jax.export
    except ImportError as missing:
        raise ExtraNeeded("a JAX step is cut with JAX: pip install jax flatbuffers") from missing
    import numpy as np

    batch = jax.tree.map(np.asarray, batch)
    try:
        graph = _traced(step, state, batch)
        wanted = jax.tree.leaves(jax.jit(step)(state, batch, np.uint32(7)))
    except (TypeError, ValueError, RuntimeError, IndexError, KeyError, AttributeError) as failed:
        raise NotSplittable(f"JAX cannot run the step: {type(failed).__name__}: {first_line(failed)}") from failed
    prices = prices or (CPU_TRAINER if jax.default_backend() == "cpu" else GPU_TRAINER)
    for exact in (False, True):
        made = _cut(graph, prices, batch, exact)
        got = jax.tree.leaves(jax.jit(made.train)(state, *made.data(batch, 7)))
        if all(np.asarray(a).tobytes() == np.asarray(b).tobytes() for a, b in zip(wanted, got, strict=True)):
            return made
        # XLA joined operators across the cut, and rounds otherwise without that: what rounds stays with training.
    note = "the last bits differ from those of the step: XLA joins operators across the cut"
    return replace(made, cut=replace(made.cut, notes=(note,)))


def _traced(step: Callable[..., Any], state: Any, batch: Any) -> _Graph:
    import jax
    import numpy as np

    arguments = (state, batch, np.uint32(7))
    closed, shapes = jax.make_jaxpr(step, return_shape=True)(*arguments)
    flat = jax.make_jaxpr(lambda *given: _inlined(closed, given))(*jax.tree.leaves(arguments))
    if flat.effects:
        raise NotSplittable("the step prints or calls back into Python (jax.debug, io_callback); do that outside of it")
    told = jax.tree_util.tree_leaves_with_path(state)
    held = dict(zip(flat.jaxpr.invars, (f"state{jax.tree_util.keystr(path)}" for path, _ in told), strict=False))
    every = [
        Step(name=at, takes=_variables(one.invars), gives=one.outvars, weight=_HEAVY.get(one.primitive.name, 1.0))
        for at, one in enumerate(flat.jaxpr.eqns)
    ]
    steps = needed(every, _variables(flat.jaxpr.outvars), ())
    constants = dict(zip(flat.jaxpr.constvars, flat.consts, strict=True))
    made, fixed, kept, because = {*constants}, set(), {}, dict(held)
    for one in steps:
        if made.issuperset(one.takes):
            fixed.add(one.name)
            made.update(one.gives)
        elif why := next((because[name] for name in one.takes if name in because), None):
            kept[one.name] = why
            because |= dict.fromkeys(one.gives, why)
    if not kept or len(kept) + len(fixed) == len(steps):
        lacks = "nothing in the step depends on its state" if not kept else "there is no data work to cut"
        raise NotSplittable(f"{lacks}: it is called as step(state, batch, seed), with all that is trained in the state")
    return _Graph(
        jaxpr=flat.jaxpr,
        constants=constants,
        state=tuple(held),
        batch=tuple(flat.jaxpr.invars[len(held) :]),
        form=jax.tree.structure(shapes),
        steps={one.name: one for one in steps},
        fixed=frozenset(fixed),
        kept=kept,
    )


def _inlined(closed: Any, given: Sequence[Any]) -> list[Any]:
    known = dict(zip((*closed.jaxpr.constvars, *closed.jaxpr.invars), (*closed.consts, *given), strict=True))
    return _evaluated(closed.jaxpr.eqns, known, closed.jaxpr.outvars)


def _evaluated(equations: Iterable[Any], known: dict[Any, Any], wanted: Iterable[Any]) -> list[Any]:
    """The values WANTED, after EQUATIONS; KNOWN: values by variable."""

    def value(one: Any) -> Any:
        return one.val if hasattr(one, "val") else known[one]  # a literal has its value with it

    for one in equations:
        taken = [value(name) for name in one.invars]
        if one.primitive.name in _INLINED:
            given = _inlined(one.params["jaxpr"], taken)
        else:
            bound = one.primitive.get_bind_params(one.params)
            functions, params = bound if isinstance(bound, tuple) else ((), bound)  # before JAX 0.10, and since
            given = one.primitive.bind(*functions, *taken, **params)
        known.update(zip(one.outvars, given if one.primitive.multiple_results else [given], strict=True))
    return [value(one) for one in wanted]


def _variables(atoms: Iterable[Any]) -> list[Any]:
    return [one for one in atoms if not hasattr(one, "val")]


def _rounds(equation: Any) -> bool:
    """Whether EQUATION does more with fractions than to move and compare them."""
    kinds = [one.aval.dtype.name for one in (*equation.invars, *equation.outvars)]
    return equation.primitive.name not in _MOVES and any("float" in kind or "complex" in kind for kind in kinds)


def _kind_of_key(aval: Any) -> Any:
    """How the random numbers of a key are made; None: it is no key."""
    import jax

    kinds: list[Any] = [None]
    if jax.dtypes.issubdtype(aval.dtype, jax.dtypes.prng_key):
        jax.eval_shape(lambda key: kinds.append(jax.random.key_impl(key)), aval)
    return kinds[-1]


def _cut(graph: _Graph, prices: Prices, batch: Any, exact: bool) -> JaxSplit:
    """EXACT: what rounds stays with training."""
    import jax.export
    import numpy as np

    equations, outputs = graph.jaxpr.eqns, _variables(graph.jaxpr.outvars)
    steps = [
        replace(one, stays=at in graph.kept, shunned=exact and _rounds(equations[at]))
        for at, one in graph.steps.items()
        if at not in graph.fixed
    ]
    every = [*graph.batch, *(name for one in steps for name in one.gives)]
    sizes = {one: one.aval.size * one.aval.dtype.itemsize for one in every}
    data, crossing = cheapest_side(steps, graph.batch, [one for one in outputs if one in sizes], sizes, prices)
    ours = [equations[one.name] for one in needed(graph.steps.values(), crossing, ())]
    rest = [equations[one.name] for one in needed(graph.steps.values(), outputs, crossing)]
    kinds = [_kind_of_key(one.aval) for one in crossing]

    def on_data(batch: Any, seed: Any) -> tuple[Any, ...]:
        known = dict(zip(graph.batch, jax.tree.leaves((batch, seed)), strict=True))
        given = _evaluated(ours, {**graph.constants, **known}, crossing)
        return tuple(jax.random.key_data(one) if kind else one for one, kind in zip(given, kinds, strict=True))

    def in_training(state: Any, *sent: Any) -> Any:
        given = [
            one if kind is None else jax.random.wrap_key_data(one, impl=kind)
            for one, kind in zip(sent, kinds, strict=True)
        ]
        known = dict(zip((*graph.state, *crossing), (*jax.tree.leaves(state), *given), strict=True))
        return jax.tree.unflatten(graph.form, _evaluated(rest, {**graph.constants, **known}, graph.jaxpr.outvars))

    try:
        half = JaxHalf(bytes(jax.export.export(jax.jit(on_data), platforms=["cpu"])(batch, np.uint32(7)).serialize()))
    except (ValueError, NotImplementedError) as refused:
        raise NotSplittable(f"the data half cannot be exported by JAX: {first_line(refused)}") from refused
    return JaxSplit(data=half, train=in_training, cut=_told(graph, data, crossing, sizes, batch))


def _told(graph: _Graph, data: Collection[Any], crossing: Sequence[Any], sizes: Mapping[Any, int], batch: Any) -> Cut:
    import jax

    paths = [f"batch{jax.tree_util.keystr(path)}" for path, _ in jax.tree_util.tree_leaves_with_path(batch)]
    names = dict(zip(graph.batch, (*paths, "seed"), strict=True))
    places = [placed_input(name, sizes[one]) for one, name in names.items()]
    for at, one in graph.steps.items():
        operator, taken = graph.jaxpr.eqns[at].primitive.name, [name for name in one.takes if name in sizes]
        places.append(
            placed(
                f"{operator}_{at}",
                operator,
                [names[name] for name in taken],
                graph.kept.get(at),
                fixed=at in graph.fixed,
                on_data=at in data,
                before=sum(sizes[name] for name in taken),
                after=sum(sizes.get(name, 0) for name in one.gives),
            )
        )
        names |= dict.fromkeys(one.gives, places[-1].name)
    return Cut(
        tracer="jax",
        batch=next((one.aval.shape[0] for one in graph.batch if one.aval.shape), 1),
        any_batch=False,
        raw_bytes=sum(sizes[one] for one in graph.batch),
        places=tuple(places),
        crossing=tuple(
            Crossing(name=names[one], shape=one.aval.shape, dtype=one.aval.dtype.name, size_bytes=sizes[one])
            for one in crossing
        ),
        unlike=tuple(names[graph.steps[at].gives[0]] for at in sorted(data) if _rounds(graph.jaxpr.eqns[at])),
        needs=("flatbuffers", "jax"),
        notes=(),
    )
