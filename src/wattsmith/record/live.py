"""A few steps watched live: how long the device was busy, and in which calls of which operators.

The recorder that counts on "meta" tensors watches the real step. On a GPU it marks each call by number; the profiler
tells when each kernel was put in the queue, and the mark that was open then names the call. Kernels take as long as
ever, though the host is slowed down. On the CPU a call is over when it returns, and is timed as it is.
"""

import math
import time
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from wattsmith.record.calls import CallKey
from wattsmith.record.structure import Ledger, enter, recorder_class
from wattsmith.terms.run import OperatorCall

MARK = "wattsmith call "
DRIVER = ("cuda", "cuLaunch", "cuMem")  # how calls of the driver begin that put something in the queue
ATTRIBUTED = 0.95  # share of the kernels' time that must be known by call; else nothing is said of calls
ALIKE = 1.25  # factor by which kernels may take longer or shorter when their calls are recorded


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """What was seen, for one step."""

    busy_s: float | None  # None: no kernel ran
    calls: tuple[OperatorCall, ...] = ()


def watch(step: Callable[[], object], device: str, steps: int, *, by_call: bool = True) -> Watched:
    """Run STEPS steps on a GPU under the profiler. BY_CALL is not for compiled steps: a recorder would undo them."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    torch.cuda.synchronize(device)
    ledger = Ledger(device="cuda")
    marker = _marker_class()(ledger)
    watched = [ProfilerActivity.CPU, ProfilerActivity.CUDA] if by_call else [ProfilerActivity.CUDA]
    with profile(activities=watched, acc_events=True) as profiled:  # else 2.11 warns that it forgets cycles
        for _ in range(steps):
            if by_call:
                with marker:
                    step()
            else:
                step()
        torch.cuda.synchronize(device)
    seen = _sorted_out(profiled.profiler.kineto_results.events())
    if not seen.kernels:
        return Watched(busy_s=None)
    busy_s = union_length([(begin_ns, begin_ns + took_ns) for begin_ns, took_ns, _ in seen.kernels]) / 1e9 / steps
    known = by_call and attribute(seen, marker.keys, ledger)
    return Watched(busy_s=busy_s, calls=ledger.calls.of_one_step(steps, timed=True) if known else ())


def if_unchanged(plain: Watched, by_call: Watched) -> Watched:
    """The step as it ran unrecorded, with the calls of the recorded one if that took the device as long.

    Recorded, PyTorch takes some layers apart that it otherwise runs as one: an LSTM that infers becomes a thousand
    small calls. What they took says nothing of the step.
    """
    if not plain.busy_s or not by_call.busy_s:
        return plain
    alike = abs(math.log(by_call.busy_s / plain.busy_s)) < math.log(ALIKE)
    return replace(plain, calls=by_call.calls if alike else ())


@dataclass(frozen=True, slots=True)
class Seen:
    """What the profiler saw, as far as it matters here."""

    kernels: list[tuple[int, int, int]]  # begin, nanoseconds, number
    queued_at: dict[int, int]  # by number: when the driver was asked for that kernel
    marks: list[tuple[int, int, int]]  # begin, end, number of the call; one after the other


def _sorted_out(events: Sequence[Any]) -> Seen:
    from torch.autograd import DeviceType

    kernels, queued_at, marks = [], {}, []
    for one in events:
        name = one.name()
        if one.device_type() == DeviceType.CUDA:
            if not name.startswith(MARK):
                kernels.append((one.start_ns(), one.duration_ns(), one.correlation_id()))
        elif name.startswith(MARK):
            marks.append((one.start_ns(), one.end_ns(), int(name.removeprefix(MARK))))
        elif name.startswith(DRIVER):
            queued_at[one.correlation_id()] = one.start_ns()
    return Seen(kernels, queued_at, sorted(marks))


def attribute(seen: Seen, keys: Sequence[CallKey | None], ledger: Ledger) -> bool:
    """Add the time of the kernels to the calls that queued them. Whether enough of it could be."""
    starts = [begin for begin, _, _ in seen.marks]
    known_ns = 0
    spans: dict[int, list[tuple[int, int]]] = defaultdict(
        list
    )  # by call: of kernels side by side each moment counts once
    for begin_ns, took_ns, number in seen.kernels:
        at = seen.queued_at.get(number)
        place = -1 if at is None else bisect_right(starts, at) - 1
        if at is None or place < 0 or at > seen.marks[place][1]:
            continue
        call = seen.marks[place][2]
        if keys[call] is not None:
            known_ns += took_ns
            spans[call].append((begin_ns, begin_ns + took_ns))
    for call, some in spans.items():
        key = keys[call]
        assert key is not None
        ledger.calls.tallies[key].busy_s += union_length(some) / 1e9
    return known_ns >= ATTRIBUTED * sum(took_ns for _, took_ns, _ in seen.kernels)


def watch_cpu(step: Callable[[], object], steps: int) -> Watched:
    """Run STEPS steps on the CPU, and time each call."""
    ledger = Ledger(device="cpu")
    with _timer_class()(ledger):
        for _ in range(steps):
            step()
    return Watched(busy_s=None, calls=ledger.calls.of_one_step(steps, timed=True))


@cache
def _timer_class() -> type:
    class Timer(recorder_class()):  # type: ignore[misc]
        """Counts as the recorder does, and times each call."""

        def call(self, operator: Any, traits: Any, args: Any, kwargs: Any) -> Any:
            begin_s = time.perf_counter()
            given = operator(*args, **kwargs)
            took_s = time.perf_counter() - begin_s
            key = enter(self.ledger, traits, args, kwargs, given)
            if key is not None:
                self.ledger.calls.tallies[key].busy_s += took_s
            return given

    return Timer


@cache
def _marker_class() -> type:
    from torch.profiler import record_function

    class Marker(recorder_class()):  # type: ignore[misc]
        """Counts as the recorder does, and marks each call with its number."""

        def __init__(self, ledger: Ledger) -> None:
            super().__init__(ledger)
            self.keys: list[CallKey | None] = []

        def call(self, operator: Any, traits: Any, args: Any, kwargs: Any) -> Any:
            with record_function(f"{MARK}{len(self.keys)}"):
                given = operator(*args, **kwargs)
            self.keys.append(enter(self.ledger, traits, args, kwargs, given))
            return given

    return Marker


def union_length(spans: Sequence[tuple[int, int]]) -> int:
    """How much of a line SPANS cover together."""
    covered, reached = 0, -math.inf
    for begin, end in sorted(spans):
        if end > reached:
            covered += int(end - max(begin, reached))
            reached = end
    return covered
