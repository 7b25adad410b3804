"""The agent of a client device: it reports every second, fetches its work schedule and carries it out."""

import contextlib
import re
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from wattsmith.flows.client_telemetry import ClientTelemetry, Look, Progress
from wattsmith.flows.following import Follower, Means, Seen, Tick
from wattsmith.serve.agent_clock import ServerClock, since_boot_s
from wattsmith.serve.agent_sending import ScheduleFolder, Sender
from wattsmith.serve.agent_spool import MOST_BYTES, Spool
from wattsmith.serve.client import Server
from wattsmith.terms.control import Value
from wattsmith.terms.errors import BadInput, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.service import NAME, Report
from wattsmith.terms.work import Setting

FLUSH_S = 3.0  # for the last reports, when the agent ends
FAULT_PAUSE_S = 30.0
FASTEST_S, SLOWEST_S = 0.1, 3600.0
SETTINGS = {"power_limit": "power_limit_w", "clock": "clock_hz", "memory_clock": "memory_clock_hz"}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions:
    """What an agent is told when it starts."""

    name: str
    url: str
    token: Callable[[], str]  # read anew when it was refused
    state: Path  # its reports, its schedule
    every_s: float = 1.0
    meters: str = "auto"
    progress: Path | None = None  # a program adds a line to it each step
    socket: Path | None = None  # of the control daemon; None: settings are made by this process
    control_state: Path | None = None  # where journals of leases lie; None: the usual folder
    spool_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        if not NAME.fullmatch(self.name):
            raise BadInput(f"the name of a client has letters, digits, '.', '_' and '-', got {self.name!r:.80}")
        if not FASTEST_S <= self.every_s <= SLOWEST_S:
            raise BadInput(f"--every must be from {FASTEST_S:g} s to {SLOWEST_S:g} s, got {self.every_s:g} s")


class Agent:
    """One agent. `tick` looks, reports and sets; `sender.step` talks; `run` does both until it is told to stop."""

    def __init__(
        self,
        options: AgentOptions,
        *,
        tell: Callable[[str], None] = lambda _: None,
        clock_s: Callable[[], float] = since_boot_s,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self.options = options
        self._tell = tell
        self._clock_s = clock_s
        self._wall_s = wall_s
        self.boot = uuid.uuid4().hex
        self._number = 0
        self.spool = Spool(options.state / "reports", most_bytes=options.spool_bytes, tell=tell)
        try:
            progress = None if options.progress is None else Progress(options.progress)
            self._telemetry = ClientTelemetry(meters=options.meters, progress=progress)
        except BaseException:
            self.spool.close()
            raise
        self.clock = ServerClock(options.state / "server_clock.json", now_s=clock_s)
        self.schedules = ScheduleFolder(options.state / "schedule.json", options.name, tell)
        self.server = Server(options.url, options.token(), patience_s=0.0, clock_s=clock_s)
        self.sender = Sender(
            name=options.name,
            about=self._telemetry.about,
            server=self.server,
            spool=self.spool,
            clock=self.clock,
            schedules=self.schedules,
            tell=tell,
            renew_token=options.token,
        )
        self._seen: dict[str, Seen] = {}
        self._steps: tuple[float, float] | None = None  # when they last grew, and how many there were
        self._said: frozenset[str] = frozenset()
        means = Means(socket=options.socket, state=options.control_state, shared=True)
        self.follower = Follower(means, look=lambda: self._seen)
        if self.schedules.latest is not None:
            self.sender.came.append(self.schedules.latest)

    # Looking, reporting and setting

    def tick(self) -> Report:
        """Look, do what the work schedule says, and keep a report of both."""
        look = self._telemetry.look()
        self._seen = self._as_seen(look)
        tick = self._carried_out()
        self._number += 1
        valid = tick is not None and tick.state == "valid"
        report = Report(
            boot=self.boot,
            number=self._number,
            time_s=self._wall_s(),
            domains=look.domains,
            steps=look.steps,
            serial=tick.serial if tick is not None and valid else None,
            in_force={} if tick is None else settings_of(tick.in_force),
            refused=() if tick is None else tuple(f"{knob}: {why}" for knob, why in tick.refused.items()),
        )
        self.spool.append(as_plain(report))
        return report

    def _carried_out(self) -> Tick | None:
        """What the schedule has us do, by the service's clock; None: its time was never heard, so nothing is done."""
        now_s = self.clock.now_s()
        if now_s is None:
            return None
        while self.sender.came:
            schedule = self.sender.came.popleft()
            try:
                self.follower.accept(schedule, now_s)
                self._tell(f"work schedule {schedule.serial} is followed")
            except BadInput as refused:
                self._tell(str(refused))
        try:
            tick = self.follower.tick(now_s)
        except WattsmithError as failed:  # a machine that cannot be set is still looked at
            self._tell(str(failed))
            return None
        news = frozenset((*tick.notes, *(f"{knob}: {why}" for knob, why in tick.refused.items())))
        for one in sorted(news - self._said):
            self._tell(one)
        self._said = news
        return tick

    def _as_seen(self, look: Look) -> dict[str, Seen]:
        """What drift is judged by. Steps are those of one program, which runs on every GPU that there is."""
        step_s = self._step_s(look.steps)
        return {
            domain: Seen(
                power_w=one.power_w,
                step_s=step_s if domain.startswith("gpu:") else None,
                temperature_c=one.temperature_c,
            )
            for domain, one in look.domains.items()
        }

    def _step_s(self, steps: float | None) -> float | None:
        now_s = self._clock_s()
        if steps is None:
            return None
        before = self._steps
        if before is None or steps < before[1]:
            self._steps = (now_s, steps)
            return None
        if steps == before[1]:
            return None
        self._steps = (now_s, steps)
        return (now_s - before[0]) / (steps - before[1])

    # Running

    def run(self, stop: threading.Event) -> None:
        """Until STOP is set; then the last reports are sent and everything is given back."""
        woken = threading.Event()
        sending = threading.Thread(target=self._keep_sending, args=(stop, woken), name="sender", daemon=True)
        sending.start()
        due_s = self._clock_s()
        try:
            while not stop.is_set():
                self.tick()
                woken.set()
                due_s = max(due_s + self.options.every_s, self._clock_s() - self.options.every_s)
                stop.wait(max(0.0, due_s - self._clock_s()))
        finally:
            stop.set()
            woken.set()
            self._end(sending)

    def _keep_sending(self, stop: threading.Event, woken: threading.Event) -> None:
        while not stop.is_set():
            woken.clear()
            try:
                wait_s = self.sender.step()
            except Exception as ours:  # noqa: BLE001 - a door: an agent that stops to send is worse than what went wrong
                self._tell(f"sending failed, which is a fault of ours, and is tried again: {ours!r}")
                wait_s = FAULT_PAUSE_S
            if wait_s is None:
                woken.wait()  # for the next report
            elif wait_s > 0:
                stop.wait(wait_s)

    def _end(self, sending: threading.Thread) -> None:
        """Settings first: they must come back whatever the service does."""
        try:
            self.follower.close()
        except WattsmithError as kept:
            self._tell(str(kept))
        with contextlib.suppress(WattsmithError):
            self.tick_last()
        sending.join(FLUSH_S)
        if sending.is_alive() or not self.sender.flush(self._clock_s() + FLUSH_S, self._clock_s):
            self._tell("the last reports are kept, and are sent when the agent starts again")
        self.close()

    def tick_last(self) -> None:
        """A last report, with everything given back."""
        look = self._telemetry.look()
        self._number += 1
        report = Report(
            boot=self.boot, number=self._number, time_s=self._wall_s(), domains=look.domains, steps=look.steps
        )
        self.spool.append(as_plain(report))

    def close(self) -> None:
        """Let go of everything. What was not sent stays on disk."""
        with contextlib.suppress(WattsmithError):
            self.follower.close()
        self._telemetry.close()
        self.server.close()
        self.spool.close()


def settings_of(values: Mapping[str, Value]) -> dict[str, Setting]:
    """By device the setting that VALUES of its knobs amount to; a knob that no setting has is left out."""
    found: dict[str, dict[str, Any]] = {}
    for knob, value in values.items():
        device, _, kind = knob.partition("/")
        name = SETTINGS.get(kind)
        number = value[1] if isinstance(value, tuple) else value
        if name is not None and isinstance(number, int | float) and number > 0:
            found.setdefault(device, {})[name] = float(number)
    return {device: Setting(**named) for device, named in found.items()}


def usual_name(host: str) -> str:
    """HOST as the name of a client."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", host).lstrip("._-")[:100] or "client"
