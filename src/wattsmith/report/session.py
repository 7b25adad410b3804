"""A measured session in the order of MLPerf's workflow: ranging, then testing, with marks and clock checks.

Client and director are two parts here that talk in the words of the official protocol, inside of one process; each
keeps its own record of it. What they leave behind has the official layout, and says in its sources that it was ours.
"""

import hashlib
import re
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from wattsmith.report.formats.descriptor import write_descriptor
from wattsmith.report.session_load import Loaded
from wattsmith.report.tiers import LEAST_WINDOW_S, MeterKind
from wattsmith.terms.errors import BadInput, MeterUnavailable, NotWritten
from wattsmith.terms.ports import Clock

CLIENT, SERVER = "mlcommons/power client v3", "mlcommons/power server v3"
MODES = {"ranging": "ranging", "testing": "run_1"}  # phase, and the folder of its logs
CLOCK_LIMIT_S = 0.4  # between client and director, and between us and the daemon
SETTLE_S = 10.0
PERIOD_S = 1.0
AMPS_RATIO = 1.1  # of the largest current that ranging saw
LABEL = re.compile(r"[A-Za-z0-9_-]{0,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionPlan:
    """How a session goes."""

    least_duration_s: float = LEAST_WINDOW_S
    settle_s: float = SETTLE_S  # before sampling starts, and after the load before it stops
    period_s: float = PERIOD_S
    label: str = ""

    def __post_init__(self) -> None:
        if LABEL.fullmatch(self.label) is None:
            raise BadInput(f"a label has up to 40 letters, digits, - and _, not {self.label!r}")
        if not 0 <= self.settle_s <= 600:
            raise BadInput(f"settling takes from 0 s to 600 s, not {self.settle_s:g} s")
        if not 0.01 <= self.period_s <= 10:
            raise BadInput(f"samples come every 0.01 s to 10 s, not every {self.period_s:g} s")

    @property
    def shortened(self) -> tuple[str, ...]:
        """What was made shorter than the rules have it."""
        asked = {
            "the load": (self.least_duration_s, LEAST_WINDOW_S),
            "settling": (self.settle_s, SETTLE_S),
            "the period of samples": (self.period_s, PERIOD_S),
        }
        return tuple(
            f"{name} to {is_s:g} s from {rule_s:g} s" for name, (is_s, rule_s) in asked.items() if is_s < rule_s
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """What a power source gave in one phase: lines for spl.txt, and what it saw at most."""

    lines: tuple[str, ...]
    newest_s: float | None  # wall clock of the last sample, by the source's own clock
    most_volts: float | None = None  # None: it does not tell
    most_amps: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceCard:
    """What a power source is."""

    name: str
    kind: MeterKind
    simulated: bool
    listed: bool | None = None  # on the rules' list; None: there is no such list for it
    accuracy_ratio: float | None = None
    config: Mapping[str, Any] = field(default_factory=dict)  # for server.json


class PowerSource(Protocol):
    """Something that records power between two moments."""

    @property
    def card(self) -> SourceCard: ...

    def start(self, mark: str, volts: float | None, amps: float | None) -> None:
        """Begin under MARK, in these ranges; None leaves a range to the meter."""

    def stop(self, mark: str) -> Recorded: ...

    def finish(self) -> tuple[list[dict[str, Any]], list[str]]:
        """Put the ranges back and let go. What was said to the meter, and the lines of its log."""


@dataclass(slots=True)
class _Talk:
    """One side's record of the conversation."""

    messages: list[dict[str, Any]] = field(default_factory=list)
    phases: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)

    def note(self, who: str, text: str) -> None:
        now_s = time.time()
        moment = datetime.fromtimestamp(now_s, UTC)
        self.log.append(f"{who} {moment:%Y-%m-%d %H:%M:%S},{int(now_s * 1000) % 1000:03d} [INFO] {text}")

    def stamp(self, phase: str) -> None:
        self.phases.setdefault(phase, []).append((time.time(), time.monotonic()))


class Director:
    """Owns the power source, and answers the client's commands."""

    def __init__(self, source: PowerSource, plan: SessionPlan, clock: Clock) -> None:
        self.talk, self.uuid, self.session = _Talk(), str(uuid.uuid4()), ""
        self.client_uuid = ""
        self.recorded: dict[str, Recorded] = {}
        self._source, self._plan, self._clock = source, plan, clock

    def answer(self, command: str) -> str:
        asked_s = time.time()
        self.talk.note("director", f"Got command {command!r}")
        reply = self._reply(command)
        self.talk.note("director", f"Sending reply {reply!r}")
        self.talk.messages.append({"cmd": command, "cmd_time": asked_s, "reply": reply, "reply_time": time.time()})
        return reply

    def _reply(self, command: str) -> str:
        verb, *words = command.split(",")
        if command == CLIENT:
            return SERVER
        if command == "time":
            return repr(time.time())
        if verb == "new" and len(words) == 2:
            self.session, self.client_uuid = session_name(time.time(), words[0]), words[1]
            return f"OK {self.session},{self.uuid}"
        if verb == "session" and words[:1] == [self.session] and len(words) == 3 and words[2] in MODES:
            return self._phase(words[1], words[2])
        return "Error: unknown command"

    def _phase(self, what: str, mode: str) -> str:
        if what not in ("start", "stop"):
            return "Error: unknown command"
        self.talk.stamp(mode)
        mark = f"{self.session}_{mode}"
        if what == "start":
            before = self.recorded.get("ranging") if mode == "testing" else None
            volts = None if before is None else before.most_volts
            amps = None if before is None or before.most_amps is None else before.most_amps * AMPS_RATIO
            self._source.start(mark, volts, amps)
        else:
            self._clock.sleep_s(self._plan.settle_s)
            self.recorded[mode] = self._source.stop(mark)
            require_same_clock(self.recorded[mode].newest_s, time.time(), self._plan.period_s)
        self.talk.stamp(mode)
        return "OK"


def session_name(wall_s: float, label: str) -> str:
    """Date and time, and the label behind it."""
    moment = datetime.fromtimestamp(wall_s, UTC)
    return f"{moment:%Y-%m-%d_%H-%M-%S}" + (f"_{label}" if label else "")


def require_same_clock(newest_s: float | None, now_s: float, period_s: float) -> None:
    """Refuse a source whose last sample is not of now: its times could not be laid over those of the load."""
    if newest_s is None:
        return
    late_s = now_s - newest_s
    # The last sample may be nearly a period old, and reading a long log takes a while.
    if late_s < -CLOCK_LIMIT_S or late_s > CLOCK_LIMIT_S + 2 * period_s + 5.0:
        raise MeterUnavailable(
            f"the last sample of power is {late_s:.3f} s old by this machine's clock; the clocks differ. Set both by "
            "NTP and begin again: the session is void."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A session that is over."""

    name: str
    folder: Path  # that holds power, ranging and run_1
    source: SourceCard
    loads: Mapping[str, Loaded]  # by phase
    clock_apart_s: float  # largest difference that was seen between client and director


def run_session(
    source: PowerSource,
    load: Callable[[str, Path], Loaded],
    plan: SessionPlan,
    folder: Path,
    *,
    clock: Clock,
    sources: Mapping[str, Path],
    tell: Callable[[str], None] = lambda _: None,
    offset_s: Callable[[], float] | None = None,
) -> Session:
    """Both phases of a session, with LOAD (of a phase, into a folder) on the machine, written into FOLDER.

    SOURCES are the program files that drove it, by the name under which they are told. OFFSET_S tells how far a time
    server is from this clock, and is asked before each phase. A session that fails leaves its
    files in a folder called `….void` with the reason, and raises what stopped it.
    """
    if folder.exists():
        raise NotWritten(f"{folder} is there already; choose another place, so that no result is overwritten")
    part = _free(folder.with_name(folder.name + ".part"))
    try:
        part.mkdir(parents=True)
        for name in ("power", *MODES.values()):
            (part / name).mkdir()
    except OSError as refused:
        raise NotWritten(f"a session cannot be written to {folder}: {refused.strerror or refused}") from refused
    client = _Client(Director(source, plan, clock), tell, offset_s)
    try:
        session = client.run(load, plan, part)
        messages, log = source.finish()
        client.write(part, source.card, messages, log, sources)
        part.rename(folder)
    except BaseException as stopped:
        why = str(stopped) or type(stopped).__name__
        (part / "void.txt").write_text(f"This session is void: {why}\n", encoding="utf-8")
        part.rename(_free(folder.with_name(folder.name + ".void")))
        raise
    return Session(
        name=session.name,
        folder=folder,
        source=session.source,
        loads=session.loads,
        clock_apart_s=session.clock_apart_s,
    )


def _free(path: Path) -> Path:
    """PATH, or the first that is not taken of PATH with a number behind it."""
    names = (path, *(path.with_name(f"{path.name}.{number}") for number in range(2, 1000)))
    return next(name for name in names if not name.exists())


class _Client:
    """Drives the load, and tells the director when."""

    def __init__(
        self, director: Director, tell: Callable[[str], None], offset_s: Callable[[], float] | None = None
    ) -> None:
        self.talk, self.uuid = _Talk(), str(uuid.uuid4())
        self._director, self._tell, self._offset_s = director, tell, offset_s
        self._apart_s = 0.0

    def run(self, load: Callable[[str, Path], Loaded], plan: SessionPlan, folder: Path) -> Session:
        self._ask(CLIENT, SERVER)
        self._check_clock()
        self._ask(f"new,{plan.label},{self.uuid}", "OK ")
        name = self._director.session
        loads = {}
        for mode, place in MODES.items():
            self._tell(f"{mode}: settling the meter")
            self._check_offset()
            self._check_clock()
            self.talk.stamp(mode)
            self._ask(f"session,{name},start,{mode}", "OK")
            self.talk.stamp(mode)
            self._check_clock()
            self._tell(f"{mode}: load for at least {plan.least_duration_s:g} s")
            self.talk.note("client", f"Running the load in {mode}")
            loads[mode] = load(mode, folder / place)
            self._check_clock()
            self.talk.stamp(mode)
            self._ask(f"session,{name},stop,{mode}", "OK")
            self.talk.stamp(mode)
            self._check_clock()
            lines = self._director.recorded[mode].lines
            (folder / place / "spl.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        card = self._director._source.card
        return Session(name=name, folder=folder, source=card, loads=loads, clock_apart_s=self._apart_s)

    def _ask(self, command: str, expected: str) -> str:
        asked_s = time.time()
        self.talk.note("client", f"Sending command {command!r}")
        reply = self._director.answer(command)
        self.talk.note("client", f"Got response {reply!r}")
        self.talk.messages.append({"cmd": command, "cmd_time": asked_s, "reply": reply, "reply_time": time.time()})
        if not reply.startswith(expected):
            raise MeterUnavailable(f"the director answered {command!r} with {reply!r}; the session is void")
        return reply

    def _check_offset(self) -> None:
        if self._offset_s is None:
            return
        offset_s = self._offset_s()
        self.talk.note("client", f"NTP: offset = {offset_s:.3f} s")
        if abs(offset_s) > CLOCK_LIMIT_S:
            raise MeterUnavailable(
                f"this machine's clock is {offset_s:+.3f} s from the time server's, more than {CLOCK_LIMIT_S} s; set "
                "it and begin again: the session is void."
            )

    def _check_clock(self) -> None:
        before_s = time.time()
        there_s = float(self._ask("time", ""))
        after_s = time.time()
        self._apart_s = max(self._apart_s, abs(there_s - before_s), abs(there_s - after_s))
        self.talk.note(
            "client", f"Clocks differ by {1e3 * (before_s - there_s):.3f} … {1e3 * (after_s - there_s):.3f} ms"
        )
        if self._apart_s > CLOCK_LIMIT_S:
            raise MeterUnavailable(
                f"the clocks of client and director differ by {self._apart_s:.3f} s, more than {CLOCK_LIMIT_S} s; set "
                "both by NTP and begin again: the session is void."
            )

    def write(
        self,
        folder: Path,
        card: SourceCard,
        ptd_messages: list[dict[str, Any]],
        ptd_log: Sequence[str],
        sources: Mapping[str, Path],
    ) -> None:
        """The records of both sides, each with the hashes of the files it answers for."""
        director = self._director
        power = folder / "power"
        _write_lines(power / "client.log", self.talk.log)
        _write_lines(power / "server.log", director.talk.log)
        _write_lines(power / "ptd_logs.txt", ptd_log)
        told = {
            "version": "1.0",
            "timezone": time.timezone,
            "modules": {name: name for name in sources},
            "sources": {name: sha1(path) for name, path in sorted(sources.items())},
            "uuid": {"client": self.uuid, "server": director.uuid},
            "session_name": director.session,
        }
        loads = [f"{place}/mlperf_log_{kind}.txt" for place in MODES.values() for kind in ("detail", "summary")]
        mine, theirs = ["power/client.log", *loads], ["power/ptd_logs.txt", "power/server.log"]
        theirs += [f"{place}/spl.txt" for place in MODES.values()]
        write_descriptor(
            power / "client.json",
            told | {"messages": self.talk.messages, "results": _hashes(folder, mine), "phases": self.talk.phases},
        )
        write_descriptor(
            power / "server.json",
            told
            | {
                "messages": director.talk.messages,
                "results": _hashes(folder, theirs),
                "phases": director.talk.phases,
                "ptd_messages": ptd_messages,
                "ptd_config": [dict(card.config)],
            },
        )


def sha1(path: Path) -> str:
    return hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()


def _hashes(folder: Path, names: Sequence[str]) -> dict[str, str]:
    return {name: sha1(folder / name) for name in names}


def _write_lines(path: Path, lines: Sequence[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
