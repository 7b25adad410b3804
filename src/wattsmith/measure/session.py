"""Windows over meters.

Beginning and ending a window takes a time stamp and nothing else. A background thread keeps the tapes of all
meters fresh and settles the edges of windows as soon as the tapes reach them; a figure is worked out when
somebody asks for it.
"""

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime

from wattsmith.measure.tape import Mark, energy_between
from wattsmith.measure.track import Listener, Track
from wattsmith.terms.clock import RealClock, find_wall_ahead_s
from wattsmith.terms.energy import REST, MeterCard, Phase, Window
from wattsmith.terms.errors import BadTerm, MeterLost, MeterMissed
from wattsmith.terms.machine import GaugeReading
from wattsmith.terms.ports import Clock, Gauge, Meter

PATIENCE_S = 0.5  # how long a figure waits for the last readings before it carries the last power on
LOOK_EVERY_S = 1.0  # how often gauges are looked at
TIDY_EVERY_S = 30.0
SEGMENTS_KEPT = 512  # phase segments that a window keeps one by one before it adds them up


Phases = dict[str, tuple[float, list[float]]]  # seconds, and joules of each meter, by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A window or one stretch of a phase in it, once it is over."""

    window: str
    window_begin_s: float
    phase: str | None  # None: the window itself
    begin_s: float
    end_s: float


class Edge:
    """One end of a window, settled once the tapes reach it."""

    marks: tuple[Mark, ...] | None = None
    since_s: float | None = None  # for the end of a window: when it began

    def __init__(self, time_s: float) -> None:
        self.time_s = time_s


class OpenWindow:
    """A window that was begun. Ask it for its `result()` once it has ended."""

    # On the class, not set one by one for each window: beginning one is meant to cost next to nothing.
    finish: Edge | None = None
    _stack: list[str] | None = None
    _current: tuple[str, Edge] | None = None
    _segments: deque[tuple[str, Edge, Edge]] | None = None
    _folded: Phases | None = None
    _result: Window | None = None

    def __init__(self, session: "Session", name: str, begin: Edge, sync: Callable[[], None] | None) -> None:
        self.name = name
        self.begin = begin
        self._session = session
        self._sync = sync

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """The enclosed code does NAME: "data", "compute", "communicate", "idle" or whatever you call it.

        A phase inside a phase takes its time out of the outer one.
        """
        if self._stack is None:
            self._stack, self._segments, self._folded = [], deque(), {}
        self._stack.append(name)
        self._switch(name)
        try:
            yield
        finally:
            self._stack.pop()
            self._switch(self._stack[-1] if self._stack else None)

    def _switch(self, name: str | None) -> None:
        if self._sync is not None:
            self._sync()
        edge = self._session._edge()
        assert self._segments is not None
        if self._current is not None:
            self._segments.append((*self._current, edge))
            if self._session._span_listeners:
                self._session._over(self, self._current[0], self._current[1], edge)
        self._current = None if name is None else (name, edge)
        if len(self._segments) >= SEGMENTS_KEPT:
            self._fold()

    def _fold(self) -> None:
        """Add up the segments whose edges are settled, so that a long training run keeps its memory."""
        assert self._segments is not None
        assert self._folded is not None
        while self._segments:
            name, begin, end = self._segments[0]
            if begin.marks is None or end.marks is None:
                return
            self._segments.popleft()
            add_phase(self._folded, name, end.time_s - begin.time_s, begin.marks, end.marks)

    def end(self) -> "OpenWindow":
        """End it now. Ending twice is refused."""
        return self._session.end(self)

    @property
    def duration_s(self) -> float:
        """Its length; so far, when it has not ended."""
        last_s = self._session.clock.now_s() if self.finish is None else self.finish.time_s
        return last_s - self.begin.time_s

    @property
    def energy_j(self) -> float | None:
        return self.result().energy_j

    def __str__(self) -> str:
        """Its result in a line, once it has ended."""
        return f"{self.name}: not ended yet" if self.finish is None else str(self.result())

    @property
    def settled(self) -> bool:
        """Whether its figure is there without waiting."""
        return self.finish is not None and self.begin.marks is not None and self.finish.marks is not None

    def result(self) -> Window:
        """What it cost. Waits some hundredths of a second where the last readings are not in yet."""
        if self._result is None:
            if self.finish is None:
                raise BadTerm(f"window {self.name!r} has not ended; end it, or ask for `so_far()`")
            self._session._settle_by(self.begin)
            self._session._settle_by(self.finish)
            self._result = self._figure(self.finish)
        return self._result

    def so_far(self) -> Window | None:
        """What it cost up to the latest readings, without waiting; None while there are none."""
        if self.finish is not None:
            return self.result()
        self._session._settle()
        edge = self._session._latest_edge(self.begin)
        return None if edge is None or self.begin.marks is None else self._figure(edge)

    def _figure(self, last: Edge) -> Window:
        assert self.begin.marks is not None
        assert last.marks is not None
        cards = self._session.cards
        domains = tuple(
            energy_between(card, begin, end)
            for card, begin, end in zip(cards, self.begin.marks, last.marks, strict=True)
        )
        window = Window(
            name=self.name,
            began_at=date_of(self.begin.time_s, self._session.wall_ahead_s),
            duration_s=last.time_s - self.begin.time_s,
            domains=domains,
            missing=self._session.missing,
        )
        if self._folded is None:
            return window
        self._fold()
        return with_phases(window, self._folded)


def add_phase(folded: Phases, name: str, duration_s: float, begin: Sequence[Mark], end: Sequence[Mark]) -> None:
    """Add one stretch of a phase to its sum."""
    passed_j = [b.energy_j - a.energy_j for a, b in zip(begin, end, strict=True)]
    before_s, before_j = folded.get(name, (0.0, [0.0] * len(passed_j)))
    folded[name] = (before_s + duration_s, [total + new for total, new in zip(before_j, passed_j, strict=True)])


def date_of(time_s: float, wall_ahead_s: float) -> str:
    """The date of a moment of the monotonic clock, which the wall clock is WALL_AHEAD_S ahead of."""
    return datetime.fromtimestamp(time_s + wall_ahead_s, UTC).isoformat()


def with_phases(window: Window, folded: Phases) -> Window:
    """WINDOW with its phases: duration and joules by domain of each, and what lies in none of them."""
    known = [(i, d.domain, d.energy_j) for i, d in enumerate(window.domains) if d.energy_j is not None]
    phases = [
        Phase(name=name, duration_s=duration_s, energy_j={domain: energies_j[i] for i, domain, _ in known})
        for name, (duration_s, energies_j) in folded.items()
    ]
    rest = Phase(
        name=REST,
        duration_s=max(0.0, window.duration_s - sum(p.duration_s for p in phases)),
        energy_j={
            domain: max(0.0, energy_j - sum(p.energy_j[domain] for p in phases)) for _, domain, energy_j in known
        },
    )
    return Window(
        name=window.name,
        began_at=window.began_at,
        duration_s=window.duration_s,
        domains=window.domains,
        phases=(*phases, rest),
        missing=window.missing,
    )


class Session:
    """Meters that are being read, and the windows over them."""

    def __init__(
        self,
        meters: Sequence[Meter],
        *,
        gauges: Sequence[Gauge] = (),
        missing: Mapping[str, str] | None = None,
        clock: Clock | None = None,
        wall_ahead_s: float | None = None,
        listeners: Sequence[Listener] = (),
        gauge_listeners: Sequence[Callable[[GaugeReading], None]] = (),
        span_listeners: Sequence[Callable[[Span], None]] = (),
        background: bool = True,
    ) -> None:
        """MISSING says which kinds of meter this machine lacks and why; windows carry it along.

        The wall clock is WALL_AHEAD_S ahead of CLOCK; found out when it is None.
        Without BACKGROUND nothing is read until somebody calls `read()` or asks for a figure.
        """
        self.clock = clock or RealClock()
        self.missing = dict(missing or {})
        self.gauge_readings: dict[str, GaugeReading] = {}
        self._gauges = list(gauges)
        self._gauge_listeners = gauge_listeners
        self._span_listeners = span_listeners
        self._now_s = self.clock.now_s
        self.wall_ahead_s = find_wall_ahead_s(self.clock) if wall_ahead_s is None else wall_ahead_s
        self._pending: deque[Edge] = deque()
        self._ended: deque[tuple[Span, Edge]] = deque()
        self._open: dict[int, OpenWindow] = {}
        self._settling = threading.Lock()
        self._stop = threading.Event()
        self._closed = False
        self._look_due_s = self._tidy_due_s = -math.inf
        self._tracks = [Track(meter, self.clock, listeners) for meter in meters]
        self.cards: tuple[MeterCard, ...] = tuple(track.card for track in self._tracks)
        self.read()
        groups = _by_thread(self._tracks) if background else []
        self._threads = [self._start(tracks, looks=i == 0) for i, tracks in enumerate(groups)]

    # ---- windows

    def begin(self, name: str, *, sync: Callable[[], None] | None = None) -> OpenWindow:
        """Begin a window. SYNC, if given, is called before every time stamp: it waits for the device's work."""
        if sync is not None:
            sync()
        window = OpenWindow(self, name, self._edge(), sync)
        self._open[id(window)] = window
        return window

    def end(self, window: OpenWindow | str) -> OpenWindow:
        """End WINDOW, or the one begun last under that name."""
        if isinstance(window, str):
            window = self._latest_open(window)
        if window._sync is not None:
            window._sync()
        if window.finish is not None:
            raise BadTerm(f"window {window.name!r} has ended already")
        if window._stack:
            raise BadTerm(f"window {window.name!r} cannot end inside its phase {window._stack[-1]!r}")
        window.finish = edge = Edge(self._now_s())
        edge.since_s = window.begin.time_s
        self._pending.append(edge)
        del self._open[id(window)]
        if self._span_listeners:
            self._over(window, None, window.begin, edge)
        return window

    def _over(self, window: OpenWindow, phase: str | None, begin: Edge, end: Edge) -> None:
        """Tell the listeners, once END is settled."""
        span = Span(
            window=window.name,
            window_begin_s=window.begin.time_s,
            phase=phase,
            begin_s=begin.time_s,
            end_s=end.time_s,
        )
        self._ended.append((span, end))

    @contextmanager
    def measure(self, name: str, *, sync: Callable[[], None] | None = None) -> Iterator[OpenWindow]:
        """A window around the enclosed code, also when it raises."""
        window = self.begin(name, sync=sync)
        try:
            yield window
        finally:
            window.end()

    def _latest_open(self, name: str) -> OpenWindow:
        for window in reversed(list(self._open.values())):
            if window.name == name:
                return window
        known = ", ".join(repr(window.name) for window in self._open.values()) or "none"
        raise BadTerm(f"no window {name!r} is open; open are: {known}")

    # ---- reading

    def read(self) -> None:
        """Read all meters and gauges that are due, and settle what can be."""
        now_s = self._now_s()
        for track in self._tracks:
            if track.due_s <= now_s:
                track.read()
        self._look(now_s)
        self._settle()

    def latest_power_w(self) -> dict[str, float]:
        """The newest power of each domain; one that is lost, or has given nothing yet, is left out."""
        latest_w = {t.card.domain: t.tape.latest_power_w for t in self._tracks if t.tape.lost is None}
        return {domain: power_w for domain, power_w in latest_w.items() if power_w is not None}

    def close(self) -> None:
        """Stop reading. Windows that have ended keep their figures; open ones end now."""
        if self._closed:
            return
        for window in list(self._open.values()):
            while window._stack:
                window._stack.pop()
                window._switch(window._stack[-1] if window._stack else None)
            window.end()
        if self._pending:
            self._settle_by(self._pending[-1])
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._settle()
        self._closed = True
        for track in self._tracks:
            track.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self, tracks: list[Track], *, looks: bool) -> threading.Thread:
        thread = threading.Thread(target=self._keep_reading, args=(tracks, looks), name="wattsmith-reader", daemon=True)
        thread.start()
        return thread

    def _keep_reading(self, tracks: list[Track], looks: bool) -> None:
        while not self._stop.is_set():
            now_s = self._now_s()
            for track in tracks:
                if track.due_s <= now_s:
                    track.read()
            if looks:
                self._look(now_s)
            self._settle()
            self._tidy(now_s)
            next_s = min((t.due_s for t in tracks if t.tape.lost is None), default=now_s + LOOK_EVERY_S)
            self._stop.wait(max(0.001, next_s - self._now_s()))

    def _look(self, now_s: float) -> None:
        if now_s < self._look_due_s:
            return
        self._look_due_s = now_s + LOOK_EVERY_S
        for gauge in list(self._gauges):
            try:
                reading = gauge.look()
            except MeterMissed:
                continue  # a gauge shows how the device is now; the next look will show it again
            except MeterLost:
                self._gauges.remove(gauge)
                continue
            self.take_gauge(reading)

    def look_at(self, domain: str) -> GaugeReading | None:
        """How a device is at this moment; None when it has no gauge, or that does not answer."""
        for gauge in self._gauges:
            if gauge.domain == domain:
                try:
                    return gauge.look()
                except (MeterMissed, MeterLost):
                    return None
        return None

    def take_gauge(self, reading: GaugeReading) -> None:
        """Keep and pass on a look at a gauge, also one that somebody else made."""
        self.gauge_readings[reading.domain] = reading
        for listener in self._gauge_listeners:
            listener(reading)

    def _tidy(self, now_s: float) -> None:
        if now_s < self._tidy_due_s:
            return
        self._tidy_due_s = now_s + TIDY_EVERY_S
        oldest_edge_s = self._pending[0].time_s if self._pending else now_s
        begins_s = [window.begin.time_s for window in list(self._open.values())]
        for track in self._tracks:
            track.forget_before(oldest_edge_s, min(begins_s, default=now_s))

    # ---- settling edges

    def _edge(self) -> Edge:
        edge = Edge(self._now_s())
        self._pending.append(edge)
        return edge

    def _reach_s(self) -> float:
        """The moment up to which all tapes that still run are known."""
        return min((t.tape.end_s for t in self._tracks if t.tape.lost is None), default=math.inf)

    def _settle(self, *, at_least_until_s: float = -math.inf) -> None:
        with self._settling:
            reach_s = max(self._reach_s(), at_least_until_s)
            while self._pending and self._pending[0].time_s <= reach_s:
                self._mark(self._pending.popleft())
            while self._ended and self._ended[0][1].marks is not None:
                span, _ = self._ended.popleft()
                for listener in self._span_listeners:
                    listener(span)

    def _mark(self, edge: Edge) -> None:
        edge.marks = tuple(track.mark(edge.time_s, edge.since_s) for track in self._tracks)

    def _settle_by(self, edge: Edge) -> None:
        """Read until the tapes reach EDGE; after a while carry on those that do not come."""
        give_up_s = self._now_s() + PATIENCE_S
        while edge.marks is None:
            for track in self._tracks:
                track.read(covering_s=edge.time_s)
            self._settle()
            if edge.marks is None and self._now_s() >= give_up_s:
                for track in self._tracks:
                    track.hold_until(edge.time_s)
                self._settle(at_least_until_s=edge.time_s)
            elif edge.marks is None:
                self.clock.sleep_s(0.005)

    def _latest_edge(self, begin: Edge) -> Edge | None:
        """An edge where the tapes end now; None when they do not reach past BEGIN."""
        reach_s = min(self._reach_s(), self._now_s())
        if reach_s <= begin.time_s:
            return None
        edge = Edge(reach_s)
        edge.since_s = begin.time_s
        self._mark(edge)
        return edge


def _by_thread(tracks: list[Track]) -> list[list[Track]]:
    """Meters of this machine share a thread; each one that answers over a network has its own."""
    near = [t for t in tracks if t.card.kind != "node"]
    return [near, *([t] for t in tracks if t.card.kind == "node")]
