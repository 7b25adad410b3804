"""The two halves of a cut step: one that is sent to workers as a file, one that shares the user's weights."""

import ast
import hashlib
import io
import json
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from wattsmith.split.contexts import all_left
from wattsmith.split.graphfile import unpacked_graph
from wattsmith.split.handing import CONSTANT, TENSOR, is_tensor, leaves_of
from wattsmith.split.keeping import Place, is_it_still, same_tensor
from wattsmith.split.problems import BatchDoesNotFit, HalfNotRead, StateChanged, first_line
from wattsmith.split.traced import functions_of_sizes
from wattsmith.terms.errors import NotWritten

KIND, VERSION = "wattsmith data half", 2
_HEAD, _SUM_BYTES = b"wattsmith data half\n", 32
_SAMPLE = 256  # numbers of a tensor that are looked at in every step, where it does not say itself that it changed


def load(path: str | PathLike[str]) -> "SavedHalf":
    """The data half in the file at PATH. Where it carries opaque steps, their code is loaded: know who wrote it."""
    try:
        written = Path(path).read_bytes()
    except OSError as missing:
        raise HalfNotRead(f"the data half {path} cannot be read: {missing}") from missing
    return loads(written)


def loads(written: bytes) -> "SavedHalf":
    """The data half that is WRITTEN as in a file."""
    parts = opened(written)
    facts = json.loads(parts["facts"])
    if facts.get("kind") != KIND or facts.get("version") != VERSION:
        raise HalfNotRead(f"this is a {facts.get('kind')!r} of version {facts.get('version')}, not {KIND} {VERSION}")
    return SavedHalf(written, facts, parts["tensors"], parts["pickled"])


def sealed(parts: dict[str, Any]) -> bytes:
    """PARTS as they stand in a file: a line that says what it is, and a sum by which damage is found."""
    import torch

    file = io.BytesIO()
    torch.save(parts, file)
    return b"".join((_HEAD, hashlib.sha256(file.getvalue()).digest(), file.getvalue()))


def opened(written: bytes) -> dict[str, Any]:
    """The parts that were sealed. Raises HalfNotRead for anything else, and for what is not as it was written."""
    import torch

    if not written.startswith(_HEAD):
        raise HalfNotRead("this is no data half: write one with `made.data.save(FILE)` or `wattsmith split … --save`")
    body = written[len(_HEAD) + _SUM_BYTES :]
    if hashlib.sha256(body).digest() != written[len(_HEAD) : len(_HEAD) + _SUM_BYTES]:
        raise HalfNotRead("this data half is damaged or not whole; copy it again, or write it anew")
    try:
        return dict(torch.load(io.BytesIO(body), weights_only=True))
    except Exception as broken:
        raise HalfNotRead(f"this data half cannot be read by this PyTorch: {first_line(broken)}") from broken


class SavedHalf:
    """The data half: `half(batch, seed)` gives the tensors that cross. It can be pickled and saved."""

    def __init__(self, written: bytes, facts: dict[str, Any], tensors: dict[str, Any], pickled: list[bytes]) -> None:
        self._written, self._facts = written, facts
        self._run = unpacked_graph(facts["nodes"], tensors, pickled)
        self._guards = [_Condition(text, facts["leaves"]) for text in facts["guards"]]

    def __call__(self, batch: Any, seed: int) -> tuple[Any, ...]:
        return self.and_generator(batch, seed)[0]

    def and_generator(self, batch: Any, seed: int) -> tuple[tuple[Any, ...], Any]:
        """What crosses, and the state of torch's generator after the last number that was drawn."""
        import torch

        values = self.checked(batch)
        inputs = [values[at] for at in self._facts["inputs"]]
        inputs = [
            one.clone() if at in self._facts["written"] else one
            for at, one in zip(self._facts["inputs"], inputs, strict=True)
        ]
        seeded = _Seeded(seed, everything=self._facts["opaque"])
        with torch.no_grad(), seeded, _fractions_of(self._facts["fractions"]), all_left():
            return tuple(self._run(*inputs)), torch.get_rng_state()

    def checked(self, batch: Any) -> list[Any]:
        """The values in BATCH. Raises BatchDoesNotFit if it is not like the one that the step was cut with."""
        values = list(leaves_of(self._facts["structure"], batch))
        sizes: dict[str, int] = {}
        for at, (leaf, value) in enumerate(zip(self._facts["leaves"], values, strict=True)):
            if leaf["kind"] == TENSOR:
                _check_tensor(leaf, value)
                sizes |= {f"size_{at}_{dim}": int(size) for dim, size in enumerate(value.shape)}
            elif leaf["kind"] == CONSTANT:
                _check_constant(leaf, value)
            elif hasattr(value, "__len__"):
                sizes[f"size_{at}_0"] = len(value)
        for guard in self._guards:
            guard.check(sizes)
        return values

    @property
    def names(self) -> tuple[str, ...]:
        """Of the tensors that cross, in order."""
        return tuple(self._facts["crossing"])

    @property
    def needs(self) -> tuple[str, ...]:
        """Packages that must be there beside PyTorch."""
        return tuple(self._facts["needs"])

    @property
    def unlike(self) -> tuple[str, ...]:
        """Nodes whose last bits differ between kinds of CPUs or numbers of threads."""
        return tuple(self._facts["unlike"])

    def save(self, path: str | PathLike[str]) -> None:
        try:
            Path(path).write_bytes(self._written)
        except OSError as refused:
            raise NotWritten(f"the data half {path} cannot be written: {refused}") from refused

    def __reduce__(self) -> tuple[Callable[[bytes], "SavedHalf"], tuple[bytes]]:
        return loads, (self._written,)


def _check_tensor(leaf: dict[str, Any], value: Any) -> None:
    import torch

    if not isinstance(value, torch.Tensor):
        raise BatchDoesNotFit(f"{leaf['path']} is a {type(value).__name__}; the step was cut with a tensor there")
    got, dtype = tuple(value.shape), str(value.dtype).removeprefix("torch.")
    fits = leaf["sizes"] is None or (
        len(got) == len(leaf["sizes"])
        and all(want in (None, have) for want, have in zip(leaf["sizes"], got, strict=True))
    )
    if not fits or dtype != leaf["dtype"]:
        wanted = "×".join("any" if one is None else str(one) for one in leaf["sizes"] or ()) or "one number of"
        raise BatchDoesNotFit(
            f"{leaf['path']} is {'×'.join(map(str, got)) or 'one number of'} {dtype}; the step was cut for {wanted} "
            f"{leaf['dtype']}. Cut it with such a batch, or with sizes='all' if sizes change from batch to batch."
        )


def _check_constant(leaf: dict[str, Any], value: Any) -> None:
    if repr(value) != leaf["constant"]:
        raise BatchDoesNotFit(
            f"{leaf['path']} is {value!r}, and was {leaf['constant']} when the step was cut, which is frozen into it. "
            "Give what changes as a tensor."
        )


class _Condition:
    """What a trace took for granted of the sizes of a batch."""

    def __init__(self, text: str, leaves: Sequence[dict[str, Any]]) -> None:
        tree = ast.parse(text, mode="eval")
        self._names = sorted({one.id for one in ast.walk(tree) if isinstance(one, ast.Name)})
        self._functions = {name: one for name, one in functions_of_sizes().items() if name in self._names}
        if not all(isinstance(one, _HARMLESS) or _is_of_math(one) for one in ast.walk(tree)):
            raise HalfNotRead(f"the condition {text!r} is more than arithmetic")
        self._code = compile(tree, "<condition>", "eval")
        self._told = text
        for name in self._names:
            if name.startswith("size_"):
                _, leaf, dim = name.split("_")
                self._told = self._told.replace(name, f"{leaves[int(leaf)]['path']}.shape[{dim}]")

    def check(self, sizes: dict[str, int]) -> None:
        if not eval(self._code, {"__builtins__": {}}, {**self._functions, **sizes}):
            got = ", ".join(f"{sizes[name]}" for name in self._names if name in sizes)
            raise BatchDoesNotFit(
                f"the step was traced for batches where {self._told}, and got {got}: it goes another way for others. "
                "Drop the last, smaller batch (drop_last=True), or write the step so that sizes do not decide."
            )


_HARMLESS = (
    *(ast.Expression, ast.Compare, ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Constant, ast.Name, ast.Load, ast.Call),
    *(ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.IfExp, ast.Tuple),
)


def _is_of_math(part: ast.AST) -> bool:
    """Whether PART is a function of math, or one such as torch.sym_float."""
    if not isinstance(part, ast.Attribute) or not isinstance(part.value, ast.Name):
        return False
    return part.value.id == "math" or (part.value.id == "torch" and part.attr.startswith("sym_"))


@contextmanager
def _fractions_of(kind: str) -> Iterator[None]:
    """Inside, new tensors of fractions are of that KIND, such as "float32", as they were where the step was cut."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(getattr(torch, kind))
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class _Seeded:
    """Inside, random numbers come from one seed; afterwards every generator is as it was."""

    def __init__(self, seed: int, everything: bool) -> None:
        self._seed, self._everything = seed, everything

    def __enter__(self) -> None:
        import torch

        self._torch = torch.get_rng_state()
        torch.default_generator.manual_seed(self._seed)
        if self._everything:
            self._python = random.getstate()
            random.seed(self._seed)
            numpy = sys.modules.get("numpy.random")
            self._numpy = None if numpy is None else (numpy, numpy.get_state())
            if numpy is not None:
                numpy.seed(self._seed % 2**32)

    def __exit__(self, *_: object) -> None:
        import torch

        torch.set_rng_state(self._torch)
        if self._everything:
            random.setstate(self._python)
            if self._numpy is not None:
                self._numpy[0].set_state(self._numpy[1])


@dataclass(slots=True)
class Copied:
    """A tensor of the user's that the data half has a copy of, as it was then."""

    name: str
    value: Callable[[], Any]
    was: Any
    version: int

    def check(self) -> None:
        now = self.value()
        every = 1 if now._version != self.version else max(1, now.numel() // _SAMPLE)
        one, other = now.detach().reshape(-1)[::every].cpu(), self.was.reshape(-1)[::every]
        if now.shape != self.was.shape or not same_tensor(one, other):
            raise StateChanged(
                f"{self.name} has changed since the step was cut, and the data half works with what it was. If the "
                "training loop changes it, give wattsmith.split that part as update=..., so that one real step can be "
                "watched; otherwise cut again."
            )
        self.version = now._version


@dataclass(frozen=True, slots=True)
class Setting:
    """What a trace froze as it was, in one place: numbers, texts, and which tensors are there."""

    place: Place
    values: dict[Any, Any]

    def check(self) -> None:
        now = self.place.holder if isinstance(self.place.holder, dict) else self.place.entries()
        for key, was in self.values.items():
            if not is_it_still(was, got := now.get(key)):
                self._refuse(key, was, got)

    def _refuse(self, key: Any, was: Any, got: Any) -> None:
        name = self.place.named(key)
        if key == "training":
            raise StateChanged(
                f"{self.place.name or 'the step'} was in {'training' if was else 'eval'} mode when the step was cut, "
                "and is not now. Set it back, or cut again; evaluate with the step itself."
            )
        if is_tensor(was) or hasattr(was, "parameters"):
            kind = "tensor" if is_tensor(was) else "module"
            raise StateChanged(
                f"{name} is another {kind} than when the step was cut, and the cut step works with that one. Write "
                "into the one that was there (copy_, load_state_dict), or cut again."
            )
        raise StateChanged(
            f"{name} was {was!r} when the step was cut, which is frozen into it, and is {got!r} now. Keep what changes "
            "in a tensor that the step reads, and write into it; or cut again."
        )


class _Lazy:
    """Defines the training half once PyTorch is needed."""

    @cached_property
    def kind(self) -> Any:
        import torch

        class TrainingHalf(torch.nn.Module):  # type: ignore[misc]
            """What the step does after the cut: `half(*crossing)` gives what the step gives.

            Parameters and buffers are those of the user's modules, under the same names.
            """

            def __init__(self, root: Any, run: Any, attributes: list[Callable[[], Any]], finish: Any, watch: Any):
                super().__init__()
                mine: dict[str, Any] = self.__dict__
                if root is not None:
                    for part in ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set"):
                        mine[part] = vars(root)[part]
                    mine["training"] = root.training
                mine.update(_run=run, _attributes=attributes, _finish=finish, _copied=watch[0], _settings=watch[1])

            def forward(self, *crossing: Any) -> Any:
                for one in self._copied:
                    one.check()
                for setting in self._settings:
                    setting.check()
                with all_left():
                    return self._finish(self._run(*crossing, *(find() for find in self._attributes)))

        return TrainingHalf


_LAZY = _Lazy()


def training_half(
    root: Any, run: Any, attributes: list[Callable[[], Any]], finish: Any, copied: list[Copied], settings: list[Setting]
) -> Any:
    """An nn.Module. ROOT: whose parameters and buffers it has. FINISH: puts outputs together as the step does."""
    return _LAZY.kind(root, run, attributes, finish, (copied, settings))
