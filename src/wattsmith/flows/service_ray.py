"""The nodes of a Ray cluster: one agent on each measures it and sets it as its jobs need; the service collects."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from wattsmith.engines.ray_agents import NodeAgents
from wattsmith.flows.client_telemetry import ClientTelemetry
from wattsmith.flows.service_nodes import NodeWatch
from wattsmith.flows.service_options import OnePost
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.service import ClientAbout, Report
from wattsmith.terms.work_schedule import WorkSchedule

EVERY_S = 1.0
TEND_S = 5.0  # a new node has its agent after so long
ANSWER_S = 2.0  # an agent that takes longer is left out for a while, so that it does not keep others waiting
LONGEST_PAUSE_S = 30.0
KEPT_REPORTS = 3600  # by an agent, while nobody collects them
MOST_AT_ONCE = 500
GIVE_BACK_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Had:
    """What the service has of an agent's reports: of this start of it, up to this number."""

    boot: str | None = None
    number: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What an agent answers."""

    boot: str | None  # names this start of it; None: it measures nothing
    about: ClientAbout | None  # None: the service has had it
    reports: Sequence[Report]
    trouble: str | None  # why it cannot measure or set its node


class NodeAgent:
    """Lives on a node, as an actor of Ray's: a report each second, of which the latest wait until they are fetched."""

    def __init__(self, node: str, *, meters: str) -> None:
        self._ahead_s: float | None = None  # the service's clock, of the time since this machine was started
        self._about: ClientAbout | None = None
        self._reports: deque[Report] = deque(maxlen=KEPT_REPORTS)
        self._reading = threading.Lock()
        self._failed: str | None = None
        self._watch: NodeWatch | None = None
        try:
            self._watch = NodeWatch(node, meters=meters, now_s=self._now_s, keep=self._keep, hello=self._hello)
        except WattsmithError as failed:  # its jobs run all the same
            self._failed = f"it is not measured: {failed}"

    def tell(self, service_now_s: float, had: Had, schedule: WorkSchedule | None) -> Told:
        """The reports since those that the service HAD. SCHEDULE, if any, is followed from now on."""
        self._ahead_s = service_now_s - time.monotonic()
        if schedule is not None and self._watch is not None:
            self._watch.accept(schedule)
        with self._reading:
            while had.boot is not None and self._reports and self._is_had(self._reports[0], had):
                self._reports.popleft()
            some = [self._reports[place] for place in range(min(len(self._reports), MOST_AT_ONCE))]
        trouble = self._failed if self._watch is None else self._watch.trouble
        boot = None if self._watch is None else self._watch.boot
        return Told(boot=boot, about=None if boot == had.boot else self._about, reports=some, trouble=trouble)

    def close(self) -> None:
        """Give every setting back."""
        if self._watch is not None:
            self._watch.close()

    @staticmethod
    def _is_had(report: Report, had: Had) -> bool:
        return report.boot == had.boot and report.number <= had.number

    def _now_s(self) -> float:
        # Schedules hold by the service's clock, and this machine's may be another.
        return time.time() if self._ahead_s is None else time.monotonic() + self._ahead_s

    def _keep(self, _node: str, report: Report) -> None:
        with self._reading:
            self._reports.append(report)

    def _hello(self, _node: str, telemetry: ClientTelemetry) -> None:
        self._about = telemetry.about


@dataclass(slots=True)
class _Known:
    """What the service knows of an agent."""

    had: Had = field(default_factory=Had)
    boot: str | None = None
    sent: tuple[str | None, int] | None = None  # boot of the agent and serial of the schedule that it was given last
    failures: int = 0
    ask_s: float = 0.0  # not before
    trouble: str | None = None


class ClusterWatch:
    """Sees to the agents of a cluster, in a thread of its own: nobody waits for them but that."""

    def __init__(
        self,
        *,
        address: str | None,
        owner: str,
        meters: str,
        now_s: Callable[[], float],
        keep: Callable[[Sequence[OnePost]], object],
        hello: Callable[[str, ClientAbout], None],
    ) -> None:
        self._agents = NodeAgents(f"node-{owner}", partial(NodeAgent, meters=meters), address=address)
        self._now_s = now_s
        self._keep = keep
        self._hello = hello
        self._schedules: dict[str, WorkSchedule] = {}  # the latest of each node
        self._known: dict[str, _Known] = {}
        self._tended_s = float("-inf")
        self._failed: str | None = None
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cluster", daemon=True)
        self._thread.start()

    def accept(self, schedule: WorkSchedule) -> None:
        """Have the node whose SCHEDULE this is follow it, as soon as its agent answers."""
        self._schedules[schedule.client] = schedule

    @property
    def trouble(self) -> str | None:
        """What keeps nodes from being measured; None: nothing."""
        silent = [f"{node}: {one.trouble}" for node, one in list(self._known.items()) if one.trouble is not None]
        return self._failed or ("; ".join(silent[:3]) if silent else None)

    def close(self) -> None:
        """End the agents: nobody would tell them when to change a setting, so all are given back."""
        self._over.set()
        self._thread.join()
        try:
            self._agents.call_all("close", timeout_s=GIVE_BACK_S)
            self._agents.end()
        except WattsmithError as failed:  # a cluster that is gone; leases put settings back by themselves
            self._failed = str(failed)
        self._agents.close()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self._once()
                self._failed = None
            except WattsmithError as failed:  # a database or a cluster that is away; agents keep what they have seen
                self._failed = str(failed)

    def _once(self) -> None:
        if time.monotonic() - self._tended_s >= TEND_S:
            living = self._agents.tend()
            self._known = {node: self._known.get(node, _Known()) for node in living}
            self._tended_s = time.monotonic()
        due = {node: one for node, one in self._known.items() if time.monotonic() >= one.ask_s}
        now_s = self._now_s()
        given = {node: self._to_send(node, one) for node, one in due.items()}
        answers = self._agents.call_each(
            "tell", {node: (now_s, one.had, given[node]) for node, one in due.items()}, timeout_s=ANSWER_S
        )
        told = {node: answer for node, answer in answers.items() if isinstance(answer, Told)}
        for node, answer in answers.items():
            self._heard(due[node], answer, given[node])
        for node, answer in told.items():
            if answer.about is not None:
                self._hello(node, answer.about)
        posts = [OnePost(client=node, reports=answer.reports) for node, answer in told.items() if answer.reports]
        if posts:
            self._keep(posts)
        for post in posts:  # once they are safe
            last = post.reports[-1]
            due[post.client].had = Had(boot=last.boot, number=last.number)

    def _to_send(self, node: str, known: _Known) -> WorkSchedule | None:
        """The node's schedule, unless this start of its agent was given it."""
        latest = self._schedules.get(node)
        return None if latest is None or known.sent == (known.boot, latest.serial) else latest

    def _heard(self, known: _Known, answer: Told | WattsmithError, given: WorkSchedule | None) -> None:
        if isinstance(answer, Told):
            known.failures, known.trouble, known.boot = 0, answer.trouble, answer.boot
            if given is not None:
                known.sent = (answer.boot, given.serial)
            return
        pause_s = min(EVERY_S * 2.0**known.failures, LONGEST_PAUSE_S)
        known.failures, known.ask_s = known.failures + 1, time.monotonic() + pause_s
        known.trouble = str(answer)
