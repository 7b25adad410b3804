"""A step traced by torch.export, and made flat: blocks without gradients or with autocast are taken apart."""

import io
import logging
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from typing import Any

from wattsmith.split.flattening import Flattener
from wattsmith.split.handing import THING, Leaf, Unseen, rebuilt
from wattsmith.split.lengths import open_lengths
from wattsmith.split.marks import OpaqueOutputs, OpaqueStep, flat_arguments, watched_by
from wattsmith.split.operators import split_operators
from wattsmith.split.problems import NotSplittable, calling_place
from wattsmith.split.state import Held, is_a_weight_of_somebody, original_of
from wattsmith.split.traced import CONSTANT, OBJECT, ONE_IS_SPECIAL, STATE, Attribute, Traced


class Exporter:
    """Follows one trace: stands in for opaque steps, and keeps what their nodes will call."""

    def __init__(self, first: Sequence[OpaqueOutputs], second: Sequence[OpaqueOutputs], sizes: tuple[int, int]) -> None:
        """FIRST and SECOND: what opaque steps gave in runs with SIZES samples."""
        self.calls = list(zip(first, second, strict=False))
        if len(first) != len(second):
            raise NotSplittable("the step calls other opaque steps with fewer samples; call the same ones each time")
        self.sizes = sizes
        self.made: list[tuple[OpaqueStep, list[tuple[str, Any]], Any]] = []
        self.batch_hint: int | None = None  # which hint stands for the number of samples
        self._known_hints: dict[Any, int] = {}
        self.conditions: dict[str, list[str]] = {}  # by the name of a size: what the trace takes for granted of it
        self.hints: list[int] = []  # one more input per size that opaque steps make: what it is worth
        self.plans = [self._plan(one, other) for one, other in self.calls]
        self.given: list[Any] = []  # the hints, as they are traced
        self.gradient_at: str | None = None  # the line that called torch.autograd.grad

    def _plan(self, one: OpaqueOutputs, other: OpaqueOutputs) -> list[list[tuple[str, int]]]:
        """For each tensor and dimension: ("fixed", size) or ("hint", which hint)."""
        whole, part = self.sizes
        plan = []
        for shape, small in zip(one.shapes, other.shapes, strict=True):
            dims: list[tuple[str, int]] = []
            for at, size in enumerate(shape):
                scales = len(small) == len(shape) and size == whole and small[at] == part
                varies = one.step.ragged or len(small) != len(shape) or small[at] != size
                if (at == 0 and scales) or (varies and size > 1):
                    few = small[at] if len(small) == len(shape) else -1
                    dims.append(("hint", self._hint(size, few, is_batch=at == 0 and scales)))
                else:
                    dims.append(("fixed", size))
            plan.append(dims)
        return plan

    def _hint(self, size: int, few: int, is_batch: bool) -> int:
        """The hint of a size that was SIZE with all samples and FEW with few; dimensions of one length share one."""
        key = "batch" if is_batch else (size, few)
        if key not in self._known_hints:
            self._known_hints[key] = len(self.hints)
            self.hints.append(size)
        if is_batch:
            self.batch_hint = self._known_hints[key]
        return self._known_hints[key]

    def opaque(self, step: OpaqueStep, args: tuple[Any, ...], named: dict[str, Any]) -> Any:
        import torch
        from torch.utils._pytree import tree_unflatten

        which = len(self.made)
        if which >= len(self.calls) or self.calls[which][0].step is not step:
            raise NotSplittable(f"the opaque step {step.__name__} is called only while tracing; call it in each step")
        leaves, form = flat_arguments(args, named)
        values: list[Any] = []
        numbers: list[Any] = []
        layout: list[tuple[str, Any]] = []
        for one in leaves:
            if isinstance(one, torch.Tensor | Unseen):
                layout.append(("value", len(values)))
                values.append(one._handle if isinstance(one, Unseen) else one)
            elif isinstance(one, torch.SymInt | torch.SymFloat | torch.SymBool):
                layout.append(("number", len(numbers)))
                numbers.append(one)
            elif isinstance(one, torch.nn.Module):
                raise NotSplittable(f"the opaque step {step.__name__} is handed a module; weights stay with training")
            else:
                layout.append(("constant", one))
        self.made.append((step, layout, form))
        outputs = split_operators().opaque(values, self.given, numbers, which)
        return tree_unflatten(outputs, self.calls[which][0].form)

    def boundary(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        from torch import Tensor
        from torch.utils._pytree import tree_map_only

        return tree_map_only(Tensor, split_operators().boundary, values)  # type: ignore[no-any-return]

    def shapes_of(self, which: int, hints: Sequence[Any]) -> list[tuple[tuple[Any, ...], Any]]:
        """Sizes and type of each tensor that opaque call WHICH gives; HINTS as they are traced."""
        dtypes = self.calls[which][0].dtypes
        sizes = [
            tuple(at if kind == "fixed" else hints[at].shape[0] for kind, at in dims) for dims in self.plans[which]
        ]
        return list(zip(sizes, dtypes, strict=True))

    def fixed(self, which: int) -> list[list[int | str | None]]:
        """For each tensor of opaque call WHICH its sizes: a number, None for the batch, a name for equal ones."""

        def told(kind: str, at: int) -> int | str | None:
            if kind == "fixed":
                return at
            return None if at == self.batch_hint else f"size {at}"

        return [[told(kind, at) for kind, at in dims] for dims in self.plans[which]]


def exported(
    call: Callable[[Any], Any],
    like: Any,
    structure: Any,
    leaves: Sequence[Leaf],
    values: Sequence[Any],
    held: Held,
    exporter: Exporter,
    batch: int,
    open_sizes: str,
) -> Traced:
    """The graph of CALL with a batch LIKE this, of which VALUES are the leaves. Raises whatever torch.export does."""
    import torch
    from torch.export import Dim
    from torch.utils._pytree import tree_flatten

    named = {f"m{at}": module for at, module in enumerate(held.modules.values())}
    outputs: list[tuple[str, Any]] = []
    forms: list[Any] = []
    inputs = [at for at, leaf in enumerate(leaves) if leaf.kind != CONSTANT]

    class Whole(torch.nn.Module):  # type: ignore[misc]
        def forward(self, *given: Any) -> Any:
            exporter.given = list(given[len(inputs) :])
            filled = list(values)
            for at, one in zip(inputs, given, strict=False):
                filled[at] = Unseen(leaves[at].path, one) if leaves[at].kind == THING else one
            flat, form = tree_flatten(call(rebuilt(structure, like, filled)))
            _refuse_things(flat)
            forms[:], outputs[:] = [form], []
            dynamic = torch.Tensor | torch.SymInt | torch.SymFloat | torch.SymBool
            kept = [one for one in flat if isinstance(one, dynamic)]
            places = iter(range(len(kept)))
            outputs.extend(("node", next(places)) if isinstance(one, dynamic) else ("constant", one) for one in flat)
            return tuple(kept)

    whole = Whole()
    for name, module in named.items():
        whole.add_module(name, module)
    given = [_handle(values[at], leaves[at]) for at in inputs]
    given += [torch.zeros(size, dtype=torch.uint8) for size in exporter.hints]
    dims = [_open(one, batch, open_sizes) for one in given[: len(inputs)]]
    dims += [{0: Dim.AUTO} for _ in exporter.hints]

    def program_with(lines: Any) -> Any:
        watching = (
            watched_by(exporter),
            split_operators().followed_by(exporter),
            _silence(),
            _distributions_unchecked(),
            open_lengths(held.spaces),
            lines,
        )
        with warnings.catch_warnings(), ExitStack() as stack:
            warnings.simplefilter("ignore")
            for one in watching:
                stack.enter_context(one)
            exporter.made.clear()
            return torch.export.export(whole, tuple(given), dynamic_shapes={"given": tuple(dims)}, strict=False)

    try:
        program = program_with(_lines(exporter))
    except NotSplittable:
        raise
    except Exception:  # noqa: BLE001 - torch.cond, for one, cannot be traced while lines are watched
        try:
            program = program_with(nullcontext())
        except Exception as failed:
            if exporter.gradient_at is None:
                raise
            raise RuntimeError(f"the step asks for gradients itself at {exporter.gradient_at}") from failed
    batch_at = next((at for at, one in enumerate(given[: len(inputs)]) if one.dim() and one.shape[0] == batch), None)
    traced = _flat(program, named, held, exporter, [leaves[at].kind for at in inputs], batch_at)
    traced.outputs, traced.output_form = list(outputs), forms[0]
    return traced


def _refuse_things(outputs: Sequence[Any]) -> None:
    """Texts and objects of the batch are for opaque steps: only tensors cross, so nobody could give them back."""
    for one in outputs:
        if isinstance(one, Unseen):
            raise NotSplittable(
                f"the step gives {one._path} back, which is no tensor and does not cross. Leave it out of what the "
                "step returns; or let an @wattsmith.opaque function make a tensor of it, such as its number in a list."
            )


@contextmanager
def _lines(exporter: Exporter) -> Iterator[None]:
    """Inside, every node that is traced gets the line of the user's code that made it."""
    import torch
    from torch.fx.traceback import annotate, preserve_node_meta
    from torch.overrides import TorchFunctionMode

    class Lines(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), named: Any = None) -> Any:
            del types
            if function is torch.autograd.grad:
                exporter.gradient_at = calling_place()
            if function == torch.Tensor.data.__get__:
                function = torch.Tensor.detach  # the same memory; torch.export loses what is behind .data
            with annotate({"line": calling_place()}):
                return function(*args, **(named or {}))

    with preserve_node_meta(), Lines():
        yield


@contextmanager
def _distributions_unchecked() -> Iterator[None]:
    """Inside, torch.distributions does not look at the values it is given; it did when the step was run for real."""
    from torch.distributions import Distribution

    before = Distribution._validate_args
    Distribution.set_default_validate_args(False)
    try:
        yield
    finally:
        Distribution.set_default_validate_args(before)


@contextmanager
def _silence() -> Iterator[None]:
    """Inside, nothing is printed or logged: what torch.export says of a failure is told by whoever catches it."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    nowhere = io.StringIO()
    try:
        with redirect_stdout(nowhere), redirect_stderr(nowhere):
            yield
    finally:
        logging.disable(before)


def _handle(value: Any, leaf: Leaf) -> Any:
    import torch

    if leaf.kind != THING:
        return value
    return torch.zeros(len(value) if isinstance(value, list | tuple) else 1, dtype=torch.uint8)


def _open(value: Any, batch: int, open_sizes: str) -> dict[int, Any]:
    """Which sizes of VALUE may change: the batch, and the lengths of whole numbers, which are texts or masks."""
    from torch import bool as boolean
    from torch import int32, int64
    from torch.export import Dim

    if open_sizes == "none" or value.dim() == 0:
        return {}
    every = range(value.dim()) if open_sizes == "all" else range(1)
    opened = {at: Dim.AUTO for at in every if at > 0 or value.shape[0] == batch}
    if open_sizes == "batch" and value.dtype in (int32, int64, boolean) and value.dim() == 2:
        opened[1] = Dim.AUTO
    return opened


def _flat(
    program: Any, named: dict[str, Any], held: Held, exporter: Exporter, kinds: Sequence[str], batch_at: int | None
) -> Traced:
    from torch.export.graph_signature import InputKind

    attributes: dict[str, Attribute] = {}
    users: list[str] = []
    roots = dict(zip(named, held.modules, strict=True))
    for spec in program.graph_signature.input_specs:
        at = spec.arg.name
        if spec.kind == InputKind.USER_INPUT:
            users.append(at)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            attributes[at] = _state(spec.target, named, roots)
        elif spec.kind == InputKind.CONSTANT_TENSOR:
            attributes[at] = _constant(program.constants[spec.target], spec.target, named, roots, held)
        else:
            attributes[at] = Attribute(kind=OBJECT, value=program.constants.get(spec.target), name=spec.target)
    guards = list(_conditions(program, exporter, len(kinds), batch_at))
    flattener = Flattener(attributes, users, kinds, exporter)
    graph = flattener.flattened(program.graph_module)
    sizes = [
        tuple(one if isinstance(one, int) else None for one in node.meta["val"].shape)
        for node in program.graph.nodes
        if node.op == "placeholder" and node.name in users[: len(kinds)]
    ]
    return Traced(
        tracer="torch.export",
        graph=graph,
        attributes=flattener.attributes,
        output_form=None,
        outputs=[],
        sizes=sizes,
        guards=guards + _equal_sizes(program, users[: len(kinds)]),
    )


def _state(target: str, named: dict[str, Any], roots: dict[str, str]) -> Attribute:
    root, _, path = target.partition(".")
    owner = operator.attrgetter(path.rpartition(".")[0])(named[root]) if "." in path else named[root]
    value = getattr(owner, path.rpartition(".")[2])
    return Attribute(kind=STATE, value=value, name=f"{roots[root]}.{path}".lstrip("."), owner=owner)


def _constant(value: Any, target: str, named: dict[str, Any], roots: dict[str, str], held: Held) -> Attribute:
    """A tensor that is neither parameter nor buffer; called as the module or the function calls it that has it."""
    root, _, path = target.partition(".")
    if root in named and path:
        owner = operator.attrgetter(path.rpartition(".")[0])(named[root]) if "." in path else named[root]
        if getattr(owner, path.rpartition(".")[2], None) is value:
            return Attribute(kind=CONSTANT, value=value, name=f"{roots[root]}.{path}".lstrip("."), owner=owner)
    found = original_of(value, held)
    if found is not None:
        return Attribute(kind=CONSTANT, value=found[1], name=found[0])
    if is_a_weight_of_somebody(value):
        raise NotSplittable(
            f"the step uses a weight of {'×'.join(map(str, value.shape)) or 'one number'}, reached in a way that "
            "is not followed. Make it an nn.Module that has its model as an attribute, or a function that names it."
        )
    return Attribute(kind=CONSTANT, value=value, name=target)


def _conditions(program: Any, exporter: Exporter, inputs: int, batch_at: int | None) -> Iterator[str]:
    """Conditions on sizes that the trace took for granted, in sizes of the batch alone.

    BATCH_AT: which input has as many parts as there are samples. What an opaque step makes is not known before it runs.
    """
    for guard in program._guards_code:
        for at in range(len(exporter.hints)):
            hint = f"L['given'][{inputs + at}]"
            if hint not in guard:
                continue
            if at == exporter.batch_hint and batch_at is not None:
                guard = guard.replace(hint, f"L['given'][{batch_at}]")
            elif ONE_IS_SPECIAL.search(guard):
                break
            elif "L[" not in (alone := guard.replace(f"{hint}.size()[0]", "it")):
                exporter.conditions.setdefault(f"size {at}", []).append(alone)  # checked when the opaque step has run
                break
            else:
                raise NotSplittable(
                    f"the step goes another way by a size that an opaque step makes ({guard.replace(hint, 'it')}). Let "
                    "the opaque step give tensors of one size, or write the step so that sizes do not decide."
                )
        else:
            yield guard


def _equal_sizes(program: Any, users: Sequence[str]) -> list[str]:
    """Conditions that torch.export leaves to the signature: sizes that are one and the same must be equal."""
    first: dict[str, str] = {}
    conditions = []
    order = {name: at for at, name in enumerate(users)}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in order:
            for dim, size in enumerate(node.meta["val"].shape):
                if not isinstance(size, int):
                    source = f"L['given'][{order[node.name]}].size()[{dim}]"
                    known = first.setdefault(str(size), source)
                    if known != source:
                        conditions.append(f"{source} == {known}")
    return conditions
