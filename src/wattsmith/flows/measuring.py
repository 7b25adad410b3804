"""Measure a stretch of code: windows over whatever meters this machine has."""

import atexit
import functools
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, Protocol, TypeVar

from wattsmith.measure.discover import find_meters
from wattsmith.measure.replay import replay_windows
from wattsmith.measure.session import OpenWindow, Session
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.clock import RealClock, find_wall_ahead_s
from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadInput
from wattsmith.terms.ports import Gauge

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Sync = Callable[[], None] | bool | None

KEPT_BY_A_DECORATOR = 1000  # how many windows of past calls a measured function keeps

_sessions: dict[str, Session] = {}
_starting = threading.Lock()


def open_session(
    meters: str = "auto",
    *,
    poll_hz: float | None = None,
    use_counter: bool = True,
    timeline: Timeline | None = None,
    gauges: tuple[Gauge, ...] = (),
) -> Session:
    """A session of your own over METERS ("auto", "gpu", "cpu", "gpu,modelled:10W-65W", …). Close it when done."""
    if poll_hz is not None and poll_hz <= 0:
        raise BadInput(f"poll_hz must be positive, got {poll_hz}")
    clock = RealClock()
    found = find_meters(meters, clock, poll_hz=poll_hz, use_counter=use_counter)
    wall_ahead_s = find_wall_ahead_s(clock)
    if timeline is not None:
        timeline.start([meter.card for meter in found.meters], found.missing, wall_ahead_s)
    return Session(
        found.meters,
        gauges=[*found.gauges, *gauges],
        missing=found.missing,
        clock=clock,
        wall_ahead_s=wall_ahead_s,
        listeners=[timeline.on_fed] if timeline else [],
        gauge_listeners=[timeline.on_gauge] if timeline else [],
        span_listeners=[timeline.on_span] if timeline else [],
    )


def session_for(meters: str = "auto") -> Session:
    """The session that this process shares for METERS; started when first asked for."""
    name = str(meters)  # what is no text is refused on opening
    session = _sessions.get(name)
    if session is None:
        with _starting:
            session = _sessions.get(name)
            if session is None:
                session = _sessions[name] = open_session(meters)
    return session


def _forget_sessions() -> None:
    """A forked child has neither the reader thread nor the driver's state: it starts afresh when it measures."""
    global _starting
    _sessions.clear()
    _starting = threading.Lock()  # the old one may have been held at the moment of the fork


def _close_sessions() -> None:
    while _sessions:
        _sessions.popitem()[1].close()


os.register_at_fork(after_in_child=_forget_sessions)
atexit.register(_close_sessions)


class measure:  # noqa: N801 - reads as a verb: `with measure("epoch"):`
    """A window around code: `with measure("epoch") as window:` or `@measure("epoch")` on a function.

    METERS as in `open_session`. With SYNC=True, PyTorch's device work is waited for at every edge; SYNC may also
    be a function that waits for whatever runs. A decorated function keeps its latest windows in `.windows`.
    """

    def __init__(self, name: str, *, meters: str = "auto", sync: Sync = None) -> None:
        self._name = _named(name)
        self._meters = meters
        self._sync = _sync_function(sync)
        self._window: OpenWindow | None = None

    def __enter__(self) -> OpenWindow:
        self._window = session_for(self._meters).begin(self._name, sync=self._sync)
        return self._window

    def __exit__(self, *_: object) -> None:
        if self._window is not None:
            self._window.end()

    def __call__(self, function: Callable[P, R]) -> "Measured[P, R]":
        windows: deque[OpenWindow] = deque(maxlen=KEPT_BY_A_DECORATOR)

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            with session_for(self._meters).measure(self._name, sync=self._sync) as window:
                windows.append(window)
                return function(*args, **kwargs)

        measured.windows = windows  # type: ignore[attr-defined]
        return measured  # type: ignore[return-value]


class Measured(Protocol[P, R_co]):
    """A measured function."""

    windows: deque[OpenWindow]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


def begin(name: str, *, meters: str = "auto", sync: Sync = None) -> OpenWindow:
    """Begin a window; end it with `window.end()` or `end(name)`."""
    return session_for(meters).begin(_named(name), sync=_sync_function(sync))


def end(name: str, *, meters: str = "auto") -> OpenWindow:
    """End the window that was begun last under NAME."""
    return session_for(meters).end(_named(name))


def replay(path: str | Path) -> list[Window]:
    """The windows of a recorded timeline, worked out again from its readings."""
    return replay_windows(Path(path))


def _named(name: str) -> str:
    if not isinstance(name, str):
        raise BadInput(f'a window has a name, such as measure("epoch"), got {name!r}')
    return name


def _sync_function(sync: Sync) -> Callable[[], None] | None:
    if not (sync is None or isinstance(sync, bool) or callable(sync)):
        raise BadInput(f"sync is True, or a function that waits for the device's work, got {sync!r}")
    return wait_for_torch if sync is True else sync or None


def wait_for_torch() -> None:
    """Wait for the work that PyTorch has queued on its devices; nothing to wait for while it is not imported."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return
    for index in range(torch.cuda.device_count()):
        if torch._C._cuda_hasPrimaryContext(index):  # synchronising any other would take memory on it
            torch.cuda.synchronize(index)
