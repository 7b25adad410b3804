"""An engine of jobs that runs nothing: attempts stand where they are put. For trying what is built on an engine."""

import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from wattsmith.terms.errors import BadInput, BadTerm, Conflict
from wattsmith.terms.jobs import AttemptOrder, AttemptStatus, JobResult, Stage
from wattsmith.terms.schedule import PoolNode
from wattsmith.terms.service import check_name

STOPPED = 143  # what a command ends with that was told to
_LIVE = (Stage.STARTING, Stage.RUNNING)


class SimulatedJobEngine:
    """Keeps the promises of a JobEngine on machines that are not there. All results say that they are simulated.

    It stands for the machines too: who throws the service away and makes another gives that the same engine.
    """

    def __init__(self, nodes: Iterable[PoolNode]) -> None:
        self._nodes = {node.name: node for node in nodes}
        self._lost: set[str] = set()
        self._status: dict[str, AttemptStatus] = {}
        self._told_to_stop: set[str] = set()
        self._lock = threading.RLock()
        self.orders: dict[str, AttemptOrder] = {}  # that were begun, in order
        self.refusal: str | None = None  # what `start` says; None: it starts

    # What every engine does

    def nodes(self) -> tuple[PoolNode, ...]:
        with self._lock:
            return tuple(node for name, node in self._nodes.items() if name not in self._lost)

    def start(self, order: AttemptOrder) -> None:
        check_name("attempt", order.attempt)
        with self._lock:
            if order.attempt in self._status:
                return
            if self.refusal is not None:
                raise BadInput(self.refusal)
            self.orders[order.attempt] = order
            self._status[order.attempt] = AttemptStatus(
                stage=Stage.STARTING, node=order.node, devices=order.devices or None
            )
            if order.node in self._lost:
                self.lose(order.attempt, f"its node {order.node} is gone")

    def look(self, attempt: str) -> AttemptStatus:
        check_name("attempt", attempt)
        with self._lock:
            return self._status.get(attempt, AttemptStatus(stage=Stage.UNKNOWN))

    def stop(self, attempt: str) -> None:
        with self._lock:
            if self.look(attempt).stage in _LIVE:
                self._told_to_stop.add(attempt)

    def log(self, attempt: str, *, stream: str = "stdout", offset: int = 0, limit: int = 1 << 16) -> bytes:
        if stream not in ("stdout", "stderr"):
            raise BadTerm(f"a job prints to stdout and stderr, not to {stream!r:.80}")
        printed = f"{attempt} was simulated\n".encode() if attempt in self._status and stream == "stdout" else b""
        return printed[offset : offset + limit]

    def forget(self, attempt: str) -> None:
        with self._lock:
            if self.look(attempt).stage in _LIVE:
                raise Conflict(f"{attempt} is {self.look(attempt).stage}: stop it before it is forgotten")
            self._status.pop(attempt, None)

    def close(self) -> None:
        """Nothing is held."""

    # What happens there

    @property
    def live(self) -> list[str]:
        """Attempts that have begun and not ended."""
        return [attempt for attempt, status in self._status.items() if status.stage in _LIVE]

    def run(self, attempt: str, **seen: Any) -> None:
        """It is at work; SEEN are fields of its status, such as `steps` and `power_w`."""
        with self._lock:
            if self.look(attempt).stage in _LIVE:
                self._status[attempt] = replace(
                    self._status[attempt],
                    stage=Stage.RUNNING,
                    simulated=True,
                    **({"steps": None, "power_w": None} | seen),
                )

    def end(self, attempt: str, exit_code: int = 0, why: str | None = None, **took: Any) -> None:
        """Its command has ended; TOOK are fields of its result, such as `steps` and `step_s`."""
        with self._lock:
            if self.look(attempt).stage in _LIVE:
                result = JobResult(
                    **({"exit_code": exit_code, "duration_s": 1.0, "simulated": True, "why": why} | took)
                )
                self._status[attempt] = replace(self._status[attempt], stage=Stage.ENDED, result=result)

    def obey(self) -> None:
        """All that were told to stop do so."""
        with self._lock:
            for attempt in sorted(self._told_to_stop):
                self.end(attempt, STOPPED, "it was stopped")
            self._told_to_stop.clear()

    def lose(self, attempt: str, why: str = "where it ran has gone") -> None:
        """It goes without a word."""
        with self._lock:
            if self.look(attempt).stage in _LIVE:
                self._status[attempt] = replace(self._status[attempt], stage=Stage.LOST, why=why)

    def lose_node(self, name: str) -> None:
        """The machine is gone, and with it what ran there."""
        with self._lock:
            self._lost.add(name)
            for attempt in [one for one in self.live if self._status[one].node == name]:
                self.lose(attempt, f"its node {name} is gone")

    def bring_back(self, name: str) -> None:
        with self._lock:
            self._lost.discard(name)
