"""One point of the record: run a program, time its steps, and say what they consumed."""

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

from wattsmith.record.live import Watched, if_unchanged, watch, watch_cpu
from wattsmith.terms.energy import Window
from wattsmith.terms.machine import GaugeReading
from wattsmith.terms.run import Condition, Consumption, OperatorCall, StepTimes

CHUNK_S = 0.2  # steps are queued so long before the device is waited for
GROUP_S = 0.001  # shorter steps are timed several at a time, so that the clock costs nothing
AHEAD = 4  # groups that are queued while the device works; enough to keep it busy
LONG_STEP_S = 0.2  # a longer step is run no more often than it must be
MOST_INPUT_BYTES = 2**30
INPUT_TIMES = 3
CONFIDENCE = 1.96


class Program(Protocol):
    """A workload, ready to run."""

    def step(self) -> None: ...

    def close(self) -> None: ...


class Windows(Protocol):
    """Where energy is measured."""

    def begin(self, name: str) -> Any: ...

    def end(self, window: Any) -> Any: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done for one point."""

    steps: int = 20  # at least so many after the first
    error_ratio: float = 0.02  # and until half the 95 % interval of the mean is below this share of it
    window_s: float = 2.0  # and for at least so long, for the meter's sake
    point_s: float = 6.0  # but no longer than this
    watched_steps: int = 1  # steps that are watched, to see how long the device was busy; 0: none


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What one point gave."""

    times: StepTimes
    consumption: Consumption
    condition: Condition
    calls: tuple[OperatorCall, ...]  # empty: not watched
    window: Window


def bench(
    program: Program,
    *,
    device: str,
    domains: Sequence[str],
    windows: Windows,
    effort: Effort,
    look: Callable[[], GaugeReading | None] = lambda: None,
    count: Callable[[], Mapping[str, float]] = dict,
    storage_bytes: int | None = None,
    by_call: bool = True,
    inputs: Sequence[Any] = (),
) -> Measured:
    """Run PROGRAM on DEVICE ("cpu", "cuda:0") and measure it. DOMAINS name the meters whose energy it is.

    LOOK tells how the device is now, COUNT how busy its parts were since it was last asked, by field of Condition.
    BY_CALL: say how long the device was busy with each call; not for compiled steps. INPUTS: one batch, to be timed on
    its way to the device, apart from the steps.
    """
    stopwatch = CudaStopwatch(device) if device.startswith("cuda") else CpuStopwatch()
    first_s, _ = stopwatch.time_once(program.step)
    stopwatch.reset_peak_memory()
    step_s, host_s = _rough_times_s(program, stopwatch)
    group = max(1, math.ceil(GROUP_S / step_s))
    count()
    window = windows.begin("point")
    took_s, seen = _run_steps(program, stopwatch, group, effort, look)
    windows.end(window)
    activity = count()
    peak_tensor_bytes, peak_held_bytes = stopwatch.peak_memory_bytes()
    input_s = stopwatch.input_s(inputs) if inputs else None
    watched = Watched(busy_s=None)
    if effort.watched_steps:
        watched = stopwatch.watch(program.step, effort.watched_steps, by_call)
    result: Window = window.result()
    steps = group * len(took_s)
    mean_s = math.fsum(took_s) / len(took_s)
    return Measured(
        times=StepTimes(
            steps=steps,
            mean_s=mean_s,
            median_s=statistics.median(took_s),
            spread_s=statistics.stdev(took_s) if len(took_s) > 1 else 0.0,
            error_ratio=error_ratio(took_s),
            first_s=first_s,
            busy_s=watched.busy_s,
            host_s=host_s,
            input_s=input_s,
        ),
        consumption=_consumption(result, domains, steps, peak_tensor_bytes, peak_held_bytes, storage_bytes),
        condition=_condition(seen, activity),
        calls=watched.calls,
        window=result,
    )


def error_ratio(took_s: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean, as a share of it; infinite for fewer than two values."""
    if len(took_s) < 2:
        return math.inf
    return CONFIDENCE * statistics.stdev(took_s) / math.sqrt(len(took_s)) / statistics.fmean(took_s)


def _rough_times_s(program: Program, stopwatch: "Stopwatch") -> tuple[float, float | None]:
    """About how long a step takes, now that the first is over, and how long until the host has queued it."""
    took = [stopwatch.time_once(program.step)]
    if took[0][0] <= LONG_STEP_S:
        took += [stopwatch.time_once(program.step) for _ in range(3)]
    queued_s = [host_s for _, host_s in took if host_s is not None]
    return min(step_s for step_s, _ in took), statistics.median(queued_s) if queued_s else None


def _run_steps(
    program: Program, stopwatch: "Stopwatch", group: int, effort: Effort, look: Callable[[], GaugeReading | None]
) -> tuple[list[float], GaugeReading | None]:
    """Seconds per step of each group of steps, and how the device was in their midst."""
    took_s: list[float] = []
    seen: GaugeReading | None = None
    begin_s = time.monotonic()
    while True:
        took_s += [group_s / group for group_s in stopwatch.time_groups(program.step, group, CHUNK_S)]
        elapsed_s = time.monotonic() - begin_s
        if seen is None and elapsed_s >= effort.window_s / 2:
            seen = look()
        enough = len(took_s) > 1 and len(took_s) * group >= effort.steps and elapsed_s >= effort.window_s
        if len(took_s) > 1 and elapsed_s >= effort.point_s:
            return took_s, seen or look()
        if enough and error_ratio(took_s) <= effort.error_ratio:
            return took_s, seen or look()


def _consumption(
    window: Window,
    domains: Sequence[str],
    steps: int,
    peak_tensor_bytes: int | None,
    peak_held_bytes: int | None,
    storage_bytes: int | None,
) -> Consumption:
    figures = [d for d in window.domains if d.domain in domains]
    known = bool(figures) and all(d.energy_j is not None and d.complete for d in figures)
    energy_j = _sum(d.energy_j for d in figures) if known else None
    error_j = _sum(d.error_j for d in figures) if known else None
    return Consumption(
        window_s=window.duration_s,
        step_energy_j=None if energy_j is None else energy_j / steps,
        step_energy_error_j=None if error_j is None else error_j / steps,
        power_w=None if energy_j is None else energy_j / window.duration_s,
        energy_source=figures[0].source if known else None,
        peak_tensor_bytes=peak_tensor_bytes,
        peak_held_bytes=peak_held_bytes,
        storage_bytes=storage_bytes,
        simulated=any(d.simulated for d in figures),
    )


def _sum(values: Any) -> float:
    return math.fsum(value for value in values if value is not None)


def _condition(seen: GaugeReading | None, activity: Mapping[str, Any]) -> Condition:
    if seen is None:
        return Condition(**activity)
    return Condition(
        **activity,
        busy_ratio=seen.busy_ratio,
        clock_hz=seen.clock_hz,
        memory_clock_hz=seen.memory_clock_hz,
        temperature_c=seen.temperature_c,
        power_limit_w=seen.power_limit_w,
        throttled_by=seen.throttled_by,
    )


class Stopwatch(Protocol):
    """Times steps on one kind of device."""

    def time_once(self, step: Callable[[], None]) -> tuple[float, float | None]:
        """Seconds of one step by itself, and until the host had queued it; None: it queues nothing."""

    def time_groups(self, step: Callable[[], None], group: int, chunk_s: float) -> list[float]:
        """Seconds of each group of GROUP steps, for about CHUNK_S."""

    def reset_peak_memory(self) -> None: ...

    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        """Largest sum of live tensors, and largest sum that the allocator held; None: not told."""

    def input_s(self, inputs: Sequence[Any]) -> float | None:
        """How long a batch is on its way from the host to the device; None: it is there already."""

    def watch(self, step: Callable[[], None], steps: int, by_call: bool) -> Watched:
        """How long the device was busy, and with which calls where BY_CALL says so."""


class CpuStopwatch:
    """The step is over when it returns."""

    def time_once(self, step: Callable[[], None]) -> tuple[float, float | None]:
        begin_s = time.perf_counter()
        step()
        return time.perf_counter() - begin_s, None

    def time_groups(self, step: Callable[[], None], group: int, chunk_s: float) -> list[float]:
        took_s: list[float] = []
        end_s = time.perf_counter() + chunk_s
        while not took_s or time.perf_counter() < end_s:
            begin_s = time.perf_counter()
            for _ in range(group):
                step()
            took_s.append(time.perf_counter() - begin_s)
        return took_s

    def reset_peak_memory(self) -> None:
        pass  # PyTorch does not count on the CPU

    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        return None, None

    def input_s(self, inputs: Sequence[Any]) -> float | None:  # noqa: ARG002
        return None

    def watch(self, step: Callable[[], None], steps: int, by_call: bool) -> Watched:
        return watch_cpu(step, steps) if by_call else Watched(busy_s=None)


class CudaStopwatch:
    """Steps are queued; events on the device's own clock stand between the groups."""

    def __init__(self, device: str) -> None:
        import torch

        self._cuda = torch.cuda
        self._device = torch.device(device)

    def time_once(self, step: Callable[[], None]) -> tuple[float, float | None]:
        self._cuda.synchronize(self._device)
        begin_s = time.perf_counter()
        step()
        queued_s = time.perf_counter()
        self._cuda.synchronize(self._device)
        return time.perf_counter() - begin_s, queued_s - begin_s

    def time_groups(self, step: Callable[[], None], group: int, chunk_s: float) -> list[float]:
        marks = [self._mark()]
        end_s = time.perf_counter() + chunk_s
        while len(marks) < 2 or time.perf_counter() < end_s:
            for _ in range(group):
                step()
            marks.append(self._mark())
            if len(marks) > AHEAD:
                marks[-AHEAD].synchronize()  # stay a little ahead of the device, and no more
        marks[-1].synchronize()
        return [a.elapsed_time(b) / 1e3 for a, b in pairwise(marks)]

    def _mark(self) -> Any:
        event = self._cuda.Event(enable_timing=True)
        event.record()
        return event

    def reset_peak_memory(self) -> None:
        self._cuda.reset_peak_memory_stats(self._device)

    def peak_memory_bytes(self) -> tuple[int | None, int | None]:
        return self._cuda.max_memory_allocated(self._device), self._cuda.max_memory_reserved(self._device)

    def input_s(self, inputs: Sequence[Any]) -> float | None:
        if sum(one.numel() * one.element_size() for one in inputs) > MOST_INPUT_BYTES:
            return None  # pinning so much of the host's memory takes longer than it tells
        there = [one.detach().cpu().pin_memory() for one in inputs]

        def send() -> None:
            for one in there:
                one.to(self._device, non_blocking=True)

        return min(self.time_once(send)[0] for _ in range(INPUT_TIMES))

    def watch(self, step: Callable[[], None], steps: int, by_call: bool) -> Watched:
        plain = watch(step, str(self._device), steps, by_call=False)
        return if_unchanged(plain, watch(step, str(self._device), steps)) if by_call else plain
