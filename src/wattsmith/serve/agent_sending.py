"""What an agent says to its service and hears from it: reports that wait on disk, and a work schedule that is new."""

import contextlib
import math
import random
import threading
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattsmith.flows.following import is_later
from wattsmith.flows.planning import read_schedule, write_schedule
from wattsmith.serve.agent_clock import ServerClock
from wattsmith.serve.agent_spool import Batch, Spool
from wattsmith.serve.client import NotKnown, Server, ServerAway, TooLarge
from wattsmith.terms.errors import BadInput, NoSuch, NotAllowed, NotWritten, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.service import ClientAbout
from wattsmith.terms.work_schedule import WorkSchedule

MOST_AT_ONCE = 500  # reports
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 30.0
ANSWERS_WITHIN_S = 10.0
REFUSED_PAUSE_S = 30.0  # before a token that was refused, or another service, is tried again


class ScheduleFolder:
    """The work schedule that was received last, kept on disk for when the agent starts anew."""

    def __init__(self, path: Path, client: str, tell: Callable[[str], None] = lambda _: None) -> None:
        self._path = path
        self._client = client
        self.latest: WorkSchedule | None = None
        try:
            kept = read_schedule(path) if path.exists() else None
        except BadInput as damaged:
            tell(f"the work schedule that was kept cannot be read, and is fetched anew: {damaged}")
            kept = None
        if kept is not None and kept.client == client:
            self.latest = kept

    @property
    def serial(self) -> int | None:
        return None if self.latest is None else self.latest.serial

    def is_over(self, now_s: float | None) -> bool:
        """Whether the last one holds no longer; NOW_S by the service's clock, None: nobody knows."""
        return self.latest is not None and now_s is not None and self.latest.valid_until_s <= now_s

    def take(self, schedule: WorkSchedule, now_s: float | None = None) -> None:
        """Keep SCHEDULE. Raises BadInput for one of another client, or one that is older than the last."""
        if schedule.client != self._client:
            raise BadInput(f"a work schedule for {schedule.client!r:.80} was sent to {self._client}")
        if self.latest is not None and not is_later(schedule, self.latest, -math.inf if now_s is None else now_s):
            raise BadInput(f"work schedule {schedule.serial} is not later than {self.serial}, which is there already")
        fresh = self._path.with_name(f"{self._path.name}.new")
        with contextlib.suppress(OSError, NotWritten):  # it is followed all the same, by this process
            write_schedule(schedule, fresh)
            fresh.replace(self._path)
        self.latest = schedule


@dataclass(slots=True)
class Sender:
    """Sends what waits, as often as the service lets it. One thread calls `step`."""

    name: str
    about: ClientAbout
    server: Server
    spool: Spool
    clock: ServerClock
    schedules: ScheduleFolder
    tell: Callable[[str], None] = lambda _: None
    renew_token: Callable[[], str] | None = None  # reads it once more: it may have been replaced
    chance: random.Random = field(default_factory=random.Random)
    came: "deque[WorkSchedule]" = field(default_factory=deque)  # schedules for whoever carries them out
    accepted: int = 0
    duplicates: int = 0
    refused: int = 0  # reports that the service will not have
    _greeted: bool = False
    _most: int = MOST_AT_ONCE
    _failures: int = 0
    _said: str | None = None
    _passed_over: tuple[int, bool] | None = None  # serial that was not taken, and whether the last one was over then

    def step(self) -> float | None:
        """Say what there is to say, once. Gives how long to wait before more is said; None: nothing waits."""
        try:
            if not self._greeted:
                self._greet()
            more = self._send()
        except ServerAway as away:
            return self._away(str(away), away.wait_s)
        except (NotKnown, NotAllowed) as refused:
            with contextlib.suppress(WattsmithError):
                self.server.token = self.renew_token() if self.renew_token is not None else self.server.token
            return self._away(str(refused), REFUSED_PAUSE_S)
        except (NoSuch, BadInput) as odd:
            return self._away(f"this service is not understood: {odd}", REFUSED_PAUSE_S)
        except WattsmithError as failed:
            return self._away(str(failed), None)
        if self._said is not None:
            self.tell(f"the service at {self.server.url} answers again")
        self._failures, self._said = 0, None
        return 0.0 if more else None

    def _away(self, why: str, wait_s: float | None) -> float:
        if self._said != why:
            self.tell(f"{str(why).rstrip('.')}. Reports are kept until it answers.")
            self._said = why
        pause_s = min(FIRST_PAUSE_S * 2**self._failures, LONGEST_PAUSE_S) * self.chance.uniform(0.5, 1.0)
        self._failures = min(self._failures + 1, 20)
        return pause_s if wait_s is None else max(wait_s, 0.1) * self.chance.uniform(1.0, 1.2)

    def _greet(self) -> None:
        try:
            told = self._heard("POST", "/hello", as_plain(self.about))
        except NoSuch:
            told = {}  # a service that knows no greeting may know the rest
        self._greeted = True
        if note := told.get("note"):
            self.tell(str(note))
        self._fetch(told.get("serial"))

    def _send(self) -> bool:
        """Whether more waits."""
        batch = self.spool.waiting(self._most)
        if not batch.reports:
            self.spool.acknowledge(batch)  # lines that are no reports
            return False
        try:
            told = self._heard("POST", "/telemetry", {"reports": batch.reports})
        except TooLarge as large:
            self._fewer(batch, large)
            return True
        except BadInput as refused:
            self._fewer(batch, refused, at_once=1)
            return True
        kept, again = told.get("accepted"), told.get("duplicates", 0)
        if not isinstance(kept, int) or not isinstance(again, int) or kept + again < len(batch.reports):
            raise ServerAway(
                f"{self.server.url} did not say that it has all {len(batch.reports)} reports: {told!r:.200}"
            )
        self.spool.acknowledge(batch)
        self.accepted += kept
        self.duplicates += again
        full = len(batch.reports) >= self._most
        self._most = min(2 * self._most, MOST_AT_ONCE)
        self._fetch(told.get("serial"))
        return full

    def _fewer(self, batch: Batch, why: BadInput, at_once: int | None = None) -> None:
        """Find out which report it is that the service will not have; the others are not lost with it."""
        if len(batch.reports) > 1:
            self._most = at_once or max(1, len(batch.reports) // 2)
            return
        self.refused += 1
        number = batch.reports[0].get("number")
        self.tell(f"the service will not have report {number}, which is dropped: {why}")
        self.spool.acknowledge(batch)

    def _fetch(self, serial: Any) -> None:
        """Fetch the work schedule, where the service has another than we."""
        held, now_s = self.schedules.serial, self.clock.now_s()
        over = self.schedules.is_over(now_s)
        if not isinstance(serial, int) or serial == held or (serial, over) == self._passed_over:
            return
        if held is not None and serial < held and not over:
            self.tell(f"the service has work schedule {serial}, older than {held}, which is kept")
            self._passed_over = (serial, over)
            return
        tag = {} if held is None else {"If-None-Match": f'"{held}"'}
        try:
            answer = self.server.ask(
                "GET", f"/clients/{self.name}/schedule", headers=tag, fine=(304,), within_s=ANSWERS_WITHIN_S
            )
            if answer.status == 304:
                return
            schedule = parse_fact(WorkSchedule, answer.body, "work schedule")
            self.schedules.take(schedule, now_s)
        except (NoSuch, BadInput) as odd:
            self.tell(f"work schedule {serial} is not followed: {odd}")
            self._passed_over = (serial, over)
            return
        self.came.append(schedule)

    def _heard(self, method: str, what: str, body: Any) -> Mapping[str, Any]:
        answer = self.server.ask(method, f"/clients/{self.name}{what}", body, within_s=ANSWERS_WITHIN_S)
        if not isinstance(answer.body, dict):
            raise ServerAway(f"{self.server.url} answers, but not as a service of Wattsmith does")
        told = answer.body.get("server_time_s")
        if isinstance(told, int | float):
            self.clock.hear(float(told), answer.sent_s, answer.received_s)
        return answer.body

    def flush(self, until_s: float, clock_s: Callable[[], float]) -> bool:
        """Send what waits until CLOCK_S says UNTIL_S; whether all is sent. For the end of an agent."""
        pause = threading.Event()
        while True:
            wait_s = self.step()
            if wait_s is None:
                return True
            if clock_s() + wait_s >= until_s:
                return False
            pause.wait(wait_s)
