"""This machine as a node of the pool: measured like any client, and set as its jobs need it, under leases."""

import threading
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from wattsmith.flows.client_telemetry import ClientTelemetry
from wattsmith.flows.following import Follower
from wattsmith.schedule.deciding import PoolState
from wattsmith.schedule.documents import schedules_of
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.schedule import Objective, Plan, PoolNode, Stretch
from wattsmith.terms.service import Report
from wattsmith.terms.work_schedule import DeviceIdentity, WorkSchedule

EVERY_S = 1.0
HOLDS_S = 600.0  # a schedule of a node; it is made anew long before


def schedule_of(state: PoolState, node: str, now_s: float, serial: int) -> WorkSchedule | None:
    """How the devices of NODE are to be set for the jobs that run there; None: none runs."""
    ones = [one for one in state.running.values() if one.node == node]
    if not ones or node not in state.nodes:
        return None
    until_s = now_s + HOLDS_S
    stretches = tuple(
        Stretch(
            job=one.job.name,
            node=node,
            devices=one.devices,
            from_s=min(one.since_s, now_s),
            until_s=until_s,  # a job that takes longer than predicted keeps its setting
            point=one.point,
            steps=one.steps_left,
        )
        for one in ones
    )
    plan = Plan(
        objective=Objective.ENERGY,
        stretches=stretches,
        begin_s=now_s,
        end_s=until_s,
        energy_j=sum(one.energy_j for one in stretches),
        emitted_g=None,
        cost=None,
        peak_w=sum(one.power_w for one in stretches),
        budget_w=None,
        guard_w=0.0,
        bound=None,
        value=0.0,
        method="dispatcher",
    )
    made = schedules_of(plan, [one.job for one in ones], [state.nodes[node]], serial=serial)
    return replace(made[0], valid_until_s=until_s) if made else None


def nothing_to_do(node: PoolNode, now_s: float) -> WorkSchedule:
    """The schedule of a node without jobs: its settings go back to what they were."""
    devices = tuple(DeviceIdentity(device=f"gpu:{place}", name=node.kind) for place in range(node.count))
    return WorkSchedule(
        client=node.name,
        issued_s=now_s,
        valid_from_s=now_s,
        valid_until_s=now_s + HOLDS_S,
        serial=0,
        devices=devices,
        works=(),
    )


class NodeWatch:
    """Reports of this machine every second, and its work schedule carried out."""

    def __init__(
        self,
        name: str,
        *,
        meters: str,
        now_s: Callable[[], float],
        keep: Callable[[str, Report], object],
        hello: Callable[[str, ClientTelemetry], None],
    ) -> None:
        self.name = name
        self.boot = uuid.uuid4().hex
        self.trouble: str | None = None  # what went wrong in the last second
        self._now_s = now_s
        self._keep = keep
        self._telemetry = ClientTelemetry(meters=meters)
        self._follower = Follower()
        self._schedule: WorkSchedule | None = None
        self._over = threading.Event()
        self._number = 0
        hello(name, self._telemetry)
        self._thread = threading.Thread(target=self._watch, name=f"node {name}", daemon=True)
        self._thread.start()

    def accept(self, schedule: WorkSchedule) -> None:
        """Follow SCHEDULE from the next second on; one of another node is passed over."""
        if schedule.client == self.name:
            self._schedule = schedule

    def close(self) -> None:
        """Stop watching, and give every setting back."""
        self._over.set()
        self._thread.join()
        with suppress(WattsmithError):
            self._follower.close()
        self._telemetry.close()

    def _watch(self) -> None:
        while not self._over.wait(EVERY_S):
            try:
                self.trouble = self._followed()
                self._once()
            except WattsmithError as failed:  # such as a database that is away; the next second may be better
                self.trouble = str(failed)

    def _followed(self) -> str | None:
        """Follow the schedule that has come; why not, if it cannot be: the machine is looked at all the same."""
        given, self._schedule = self._schedule, None
        try:
            if given is not None:
                self._follower.accept(given, self._now_s())
        except WattsmithError as refused:
            return f"schedule {given.serial if given else None} of {self.name} is not followed: {refused}"
        return None

    def _once(self) -> None:
        now_s = self._now_s()
        tick = self._follower.tick(now_s)
        look = self._telemetry.look()
        self._number += 1
        self._keep(
            self.name,
            Report(
                boot=self.boot,
                number=self._number,
                time_s=now_s,
                domains=look.domains,
                serial=tick.serial,
                refused=tuple(f"{knob}: {why}" for knob, why in tick.refused.items()),
            ),
        )
