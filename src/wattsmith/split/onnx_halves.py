"""Halves of an ONNX model as they are used: run by ONNX Runtime where it is installed, else by onnx itself."""

from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from wattsmith.split.onnx_reading import as_feeds
from wattsmith.terms.errors import ExtraNeeded, NotWritten

RUNTIMES = ("onnxruntime", "onnx")


def usual_runtime() -> str:
    """What ONNX models are run by here. The reference evaluator of onnx is slow and always there."""
    from importlib.util import find_spec

    return next(one for one in RUNTIMES if one == "onnx" or find_spec(one) is not None)


class OnnxModel:
    """A model that runs: RUNTIME is one of RUNTIMES. It is pickled as the bytes of its file."""

    def __init__(self, written: bytes, runtime: str, threads: int = 0, *, plain: bool = False) -> None:
        """For ONNX Runtime: THREADS, 0 for one on each core; PLAIN: it joins no operators."""
        self.written, self.runtime, self.threads, self.plain = written, runtime, threads, plain
        self._run: Callable[[Mapping[str, Any]], list[Any]] | None = None

    def run(self, feeds: Mapping[str, Any]) -> tuple[Any, ...]:
        """All outputs, for inputs by name."""
        if self._run is None:
            self._run = _started(self)
        return tuple(self._run(feeds))

    def save(self, path: str | PathLike[str]) -> None:
        try:
            Path(path).write_bytes(self.written)
        except OSError as refused:
            raise NotWritten(f"the half {path} cannot be written: {refused}") from refused

    def __reduce__(self) -> tuple[type["OnnxModel"], tuple[bytes, str, int]]:
        return OnnxModel, (self.written, self.runtime, self.threads)


class OnnxData:
    """The data half: `half(batch, seed)` gives the arrays that cross. It draws nothing, so the seed is not used."""

    def __init__(self, model: OnnxModel, takes: tuple[str, ...]) -> None:
        self.model, self.takes = model, takes
        self.save = model.save

    def __call__(self, batch: Any, seed: int) -> tuple[Any, ...]:  # noqa: ARG002 - as every data half is called
        return self.model.run(as_feeds(self.takes, batch))

    def __reduce__(self) -> tuple[type["OnnxData"], tuple[OnnxModel, tuple[str, ...]]]:
        return OnnxData, (self.model, self.takes)


class OnnxTraining:
    """The other half: `half(*crossing)` gives the model's outputs; what was named as state is given by name."""

    def __init__(self, model: OnnxModel, takes: tuple[str, ...], state: tuple[str, ...]) -> None:
        self.model, self.takes, self.state = model, takes, state
        self.save = model.save

    def __call__(self, *crossing: Any, **state: Any) -> tuple[Any, ...]:
        return self.model.run({**as_feeds(self.takes, crossing), **as_feeds(self.state, state)})


def _started(model: OnnxModel) -> Callable[[Mapping[str, Any]], list[Any]]:
    if model.runtime == "onnx":
        import onnx
        from onnx.reference import ReferenceEvaluator

        evaluator = ReferenceEvaluator(onnx.load_from_string(model.written))
        return lambda feeds: list(evaluator.run(None, dict(feeds)))
    try:
        import onnxruntime
    except ImportError as missing:
        raise ExtraNeeded("this half was cut for ONNX Runtime: pip install onnxruntime") from missing
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = model.threads
    if model.plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.written, options, providers=["CPUExecutionProvider"])
    return lambda feeds: list(session.run(None, dict(feeds)))
