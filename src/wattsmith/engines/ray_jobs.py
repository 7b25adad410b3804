"""Jobs on a Ray cluster: Ray places them; each has an actor of its own, which outlives the service and runs it.

The service keeps a ticket per attempt in HOME/ray: that it asked for it, so that it never does so twice, and, once it
has ended, all that is left of it: its actor is let go then, and its devices with it.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from wattsmith.engines.attempt_folder import (
    STREAMS,
    age_s,
    check_files,
    read_log,
    read_result,
    read_started,
    read_status,
    this_process,
    write_json,
    write_result,
    write_status,
)
from wattsmith.engines.processes import ProcessEngine
from wattsmith.engines.ray_cluster import A_BIT, CPU, NAMESPACE, RayNode, connect, ray_nodes
from wattsmith.terms.errors import BadInput, Conflict, NotWritten, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import AttemptOrder, AttemptStatus, JobResult, Stage
from wattsmith.terms.schedule import PoolNode
from wattsmith.terms.service import check_name

BEGIN_S = 20.0  # an actor that was asked for, and that nobody can find after so long, will not come
ANSWER_S = 1.0  # for what is asked of an actor once
QUEUED_S = 0.05  # for a look, so that none holds up the others: what comes later is seen at the next one
STOP_S = 5.0  # an actor that has not begun so long after it was to stop is taken back
KEPT_BYTES = 64 << 20  # of each stream of an attempt that has ended
PAGE_BYTES = 4 << 20
HOME_PREFIX = "wattsmith-attempt-"
LEFT_S = 10.0  # for nodes to say whether they have what is left of an attempt
HOME_KEPT_S = 86_400.0  # a result that nobody has fetched is kept for so long where it is


@dataclass(slots=True)
class _Known:
    """What this process knows of an attempt that has not ended."""

    actor: Any
    status: AttemptStatus | None = None  # as it was told last
    question: Any = None  # not answered yet
    asked_s: float = 0.0


class RayJobEngine:
    """Attempts as detached actors of the cluster at ADDRESS; RUNNER as for processes, with each node's own Python.

    OWNER tells its attempts from those that others run on the same cluster under the same names. DRESS adds to a node
    what Ray does not know of it.
    """

    def __init__(
        self,
        home: Path,
        runner: Sequence[str],
        *,
        address: str | None = None,
        owner: str = "wattsmith",
        dress: Callable[[PoolNode], PoolNode] = lambda node: node,
    ) -> None:
        check_name("owner", owner)
        self._tickets = Path(home).resolve() / "ray"
        self._runner = tuple(runner)
        self._owner = owner
        self._dress = dress
        self._ray, self._ours = connect(address)
        self._actor = self._ray.remote(_Attempt)
        self._known: dict[str, _Known] = {}
        self._nodes: list[RayNode] = []
        self._asking = threading.Lock()

    def nodes(self) -> tuple[PoolNode, ...]:
        return tuple(self._dress(node.pool) for node in self._look_at_nodes() if node.alive and node.pool is not None)

    def start(self, order: AttemptOrder) -> None:
        check_files(order.files)
        ticket = self._ticket(order.attempt)
        try:
            ticket.mkdir(mode=0o700, parents=True, exist_ok=True)
            with (ticket / "asked").open("x") as asked:
                asked.write(" ".join(node.id for node in self._look_at_nodes()))  # names the cluster
        except FileExistsError:
            return
        except OSError as refused:
            raise NotWritten(f"{ticket} cannot be written: {refused.strerror}") from refused
        try:
            actor = self._actor.options(**self._options(order)).remote(order, self._runner, self._name(order.attempt))
        except ValueError:
            return  # there is one of that name
        except self._ray.exceptions.RayError as failed:
            (ticket / "asked").unlink(missing_ok=True)
            raise NotWritten(f"Ray did not take attempt {order.attempt}: {failed}") from failed
        if (ticket / "lost").exists():
            self._ray.kill(actor)  # it took so long that it was given up meanwhile
        self._known[order.attempt] = _Known(actor)

    def look(self, attempt: str) -> AttemptStatus:
        ticket = self._ticket(attempt)
        if (over := self._over(ticket)) is not None:
            return over
        known = self._known.get(attempt) or self._find(attempt)
        if known is None:
            if not (ticket / "asked").exists():
                return AttemptStatus(stage=Stage.UNKNOWN)
            if age_s(ticket / "asked") < BEGIN_S:
                return AttemptStatus(stage=Stage.STARTING)
            return self._gone(attempt, AttemptStatus(stage=Stage.LOST, why="the actor that ran it is gone"))
        with self._asking:
            return self._ask(attempt, known)

    def stop(self, attempt: str) -> None:
        ticket = self._ticket(attempt)
        known = self._known.get(attempt) or self._find(attempt)
        if known is None or self._over(ticket) is not None:
            return
        with contextlib.suppress(OSError):
            (ticket / "stop").touch(exist_ok=False)
        with contextlib.suppress(self._ray.exceptions.RayError):
            known.actor.stop.remote()

    def log(self, attempt: str, *, stream: str = "stdout", offset: int = 0, limit: int = 1 << 16) -> bytes:
        ticket = self._ticket(attempt)
        kept = read_log(ticket, stream, offset, limit)  # which also refuses what makes no sense
        known = None if self._over(ticket) else self._known.get(attempt) or self._find(attempt)
        if known is None:
            return kept
        try:
            asked = known.actor.log.remote(stream, offset, limit)
            return bytes(self._ray.get(asked, timeout=ANSWER_S))
        except self._ray.exceptions.RayError:
            return b""

    def forget(self, attempt: str) -> None:
        stage = self.look(attempt).stage
        if stage in (Stage.STARTING, Stage.RUNNING):
            raise Conflict(f"attempt {attempt} is {stage}: stop it before it is forgotten")
        shutil.rmtree(self._ticket(attempt), ignore_errors=True)

    def close(self) -> None:
        if self._ours:
            self._ray.shutdown()

    def _name(self, attempt: str) -> str:
        return f"attempt {self._owner} {attempt}"

    def _ticket(self, attempt: str) -> Path:
        check_name("attempt", attempt)
        return self._tickets / attempt

    def _over(self, ticket: Path) -> AttemptStatus | None:
        """How it ended, where that is known."""
        if (result := read_result(ticket)) is not None:
            status = read_status(ticket)
            return replace(status, stage=Stage.ENDED, result=result, steps=result.steps, energy_j=result.energy_j)
        return read_status(ticket) if (ticket / "lost").exists() else None

    def _options(self, order: AttemptOrder) -> dict[str, Any]:
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        cards = 0 if order.kind == CPU else len(order.devices)
        nodes = [node for node in self._look_at_nodes() if node.alive and node.pool is not None]
        alike = [node for node in nodes if node.pool is not None and node.pool.kind == order.kind]
        here = next((node for node in nodes if node.pool is not None and node.pool.name == order.node), None)
        # One kind may go by Ray's name on one node and by ours on another: who asked for both would get neither.
        kind = next((node.kind_resource for node in (here, *alike) if node is not None and node in alike), None)
        return {
            "name": self._name(order.attempt),
            "namespace": NAMESPACE,
            "lifetime": "detached",
            "max_restarts": 0,  # whether it runs again is the service's to say
            "num_gpus": cards,
            "num_cpus": order.cpus,
            "resources": {kind: A_BIT} if kind is not None and cards else {},
            "scheduling_strategy": "DEFAULT" if here is None else NodeAffinitySchedulingStrategy(here.id, soft=True),
        }

    def _look_at_nodes(self) -> list[RayNode]:
        # That the head does not answer does not mean that nodes are gone.
        with contextlib.suppress(self._ray.exceptions.RayError, ConnectionError):
            self._nodes = ray_nodes(self._ray)
        return self._nodes

    def _find(self, attempt: str) -> _Known | None:
        try:
            actor = self._ray.get_actor(self._name(attempt), namespace=NAMESPACE)
        except ValueError:
            return None
        return self._known.setdefault(attempt, _Known(actor))

    def _ask(self, attempt: str, known: _Known) -> AttemptStatus:
        errors = self._ray.exceptions
        patience_s = 0.0
        try:
            if known.question is None:
                known.question, known.asked_s, patience_s = known.actor.look.remote(), time.monotonic(), QUEUED_S
            if not self._ray.wait([known.question], timeout=patience_s)[0]:
                return self._queued(attempt, known)
            question, known.question = known.question, None
            status: AttemptStatus = self._ray.get(question)
        except errors.ActorUnavailableError:
            return known.status or AttemptStatus(stage=Stage.STARTING)  # it may answer again
        except (errors.RayActorError, errors.ActorUnschedulableError) as gone:
            before = known.status or AttemptStatus(stage=Stage.LOST)
            why = "the actor that ran it is gone: " + " ".join(str(gone).split())[:500]
            return self._gone(attempt, replace(before, stage=Stage.LOST, why=why))
        placed = known.status is None or known.status.node is None
        status = known.status = replace(status, node=self._name_of_node(status.node))
        if placed and status.node is not None:
            with contextlib.suppress(OSError):  # only needed where its actor dies behind its end
                write_status(self._ticket(attempt), replace(status, result=None))
        if status.stage is Stage.ENDED and status.result is not None:
            self._keep(attempt, known.actor, status, status.result)
        elif status.stage is Stage.LOST:
            self._fetch_logs(self._ticket(attempt), known.actor)
            return self._lost(attempt, status)
        return status

    def _queued(self, attempt: str, known: _Known) -> AttemptStatus:
        """It has not answered: either it waits for room, or it is slow just now."""
        ticket = self._ticket(attempt)
        waited_s = time.monotonic() - known.asked_s
        if known.status is None and waited_s > STOP_S and age_s(ticket / "stop") > STOP_S:
            result = JobResult(exit_code=None, duration_s=0.0, why="it was stopped before it began")
            status = AttemptStatus(stage=Stage.ENDED, result=result)
            self._keep(attempt, known.actor, status, result)
            return status
        return known.status or AttemptStatus(stage=Stage.STARTING)

    def _name_of_node(self, node_id: str | None) -> str | None:
        if not any(node.id == node_id for node in self._nodes):
            self._look_at_nodes()
        names = {node.id: node.pool.name for node in self._nodes if node.pool is not None}
        return None if node_id is None else names.get(node_id, node_id)

    def _keep(self, attempt: str, actor: Any, status: AttemptStatus, result: JobResult) -> None:
        """Take over what is left of it, and let its actor go."""
        ticket = self._ticket(attempt)
        try:
            ticket.mkdir(mode=0o700, parents=True, exist_ok=True)
            if status.node is not None:
                self._fetch_logs(ticket, actor)
            write_status(ticket, replace(status, result=None))
            write_result(ticket, result)
        except OSError:
            return  # a full disk: its actor keeps it until the next look
        self._let_go(attempt, actor)

    def _gone(self, attempt: str, status: AttemptStatus) -> AttemptStatus:
        """Its actor is gone. Its command may have ended before: then its node still has the result."""
        ticket = self._ticket(attempt)
        found = self._left_behind(attempt)
        if found is None:
            return self._lost(attempt, status)
        left, result, logs = found
        ended = replace(left, node=read_status(ticket).node)
        try:
            for stream, printed in logs.items():
                (ticket / stream).write_bytes(printed)
            write_status(ticket, replace(ended, result=None))
            write_result(ticket, result)
        except OSError as refused:
            raise NotWritten(f"{ticket} cannot be written: {refused.strerror}") from refused
        self._known.pop(attempt, None)
        with contextlib.suppress(self._ray.exceptions.RayError):
            for node in [one for one in self._nodes if one.alive]:
                self._on(node, _clear_left, self._name(attempt))  # nobody waits for it
        return ended

    def _left_behind(self, attempt: str) -> "_Left | None":
        """What the node has on which it ran; all are asked where the whole cluster was started again."""
        ticket = self._ticket(attempt)
        nodes, ran_on = self._look_at_nodes(), read_status(ticket).node
        asked = set((ticket / "asked").read_text().split()) if (ticket / "asked").exists() else set()
        there = [node for node in nodes if node.alive and node.pool is not None]
        if ran_on is not None and asked & {node.id for node in nodes}:
            there = [node for node in there if node.pool is not None and node.pool.name == ran_on]
        try:
            questions = [self._on(node, _left_behind, self._name(attempt), attempt) for node in there]
            answered = self._ray.wait(questions, num_returns=len(questions), timeout=LEFT_S)[0] if questions else []
            return next((one for one in map(self._ray.get, answered) if one is not None), None)
        except self._ray.exceptions.RayError:
            return None

    def _on(self, node: RayNode, function: Callable[..., Any], *words: str) -> Any:
        """FUNCTION called on NODE; what asks for its answer."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        there = NodeAffinitySchedulingStrategy(node.id, soft=False)
        return self._ray.remote(function).options(num_cpus=0, scheduling_strategy=there).remote(*words)

    def _lost(self, attempt: str, status: AttemptStatus) -> AttemptStatus:
        ticket = self._ticket(attempt)
        try:
            ticket.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_status(ticket, status)
            (ticket / "lost").touch()
        except OSError as refused:
            raise NotWritten(f"{ticket} cannot be written: {refused.strerror}") from refused
        known = self._known.get(attempt)
        if known is not None:
            self._let_go(attempt, known.actor)
        return status

    def _let_go(self, attempt: str, actor: Any) -> None:
        with contextlib.suppress(self._ray.exceptions.RayError):
            self._ray.get(actor.clear.remote(), timeout=ANSWER_S)
        with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
            self._ray.kill(actor)
        self._known.pop(attempt, None)

    def _fetch_logs(self, ticket: Path, actor: Any) -> None:
        for stream in STREAMS:
            new = ticket / f".{stream}.new"
            with new.open("wb") as file, contextlib.suppress(self._ray.exceptions.RayError):
                while page := self._ray.get(actor.log.remote(stream, file.tell(), PAGE_BYTES), timeout=10 * ANSWER_S):
                    file.write(page)
                    if file.tell() >= KEPT_BYTES:
                        file.write(f"\n[what it printed after {file.tell()} bytes was not kept]\n".encode())
                        break
            new.replace(ticket / stream)


class _Attempt:
    """The actor of an attempt: on its node, it has it run as a process, which ends when this one does."""

    def __init__(self, order: AttemptOrder, runner: Sequence[str], name: str) -> None:
        import ray

        self._attempt = order.attempt
        self._home = _new_home(Path(tempfile.gettempdir()), name)
        self._refused: JobResult | None = None
        self._node = ray.get_runtime_context().get_node_id()
        self._engine = ProcessEngine(self._home, (), (sys.executable, *runner[1:]), leash=True)
        try:
            devices = tuple(int(device) for device in ray.get_gpu_ids())
            self._engine.start(replace(order, node=self._node, devices=devices))
        except (WattsmithError, ValueError, OSError) as refused:
            # As an exception it would make the attempt lost, to be tried again for ever.
            self._refused = JobResult(exit_code=None, duration_s=0.0, why=f"its node could not start it: {refused}")

    def look(self) -> AttemptStatus:
        if self._refused is not None:
            return AttemptStatus(stage=Stage.ENDED, node=self._node, result=self._refused)
        status = self._engine.look(self._attempt)
        return status if status.node is not None else replace(status, node=self._node)

    def log(self, stream: str, offset: int, limit: int) -> bytes:
        return self._engine.log(self._attempt, stream=stream, offset=offset, limit=limit)

    def stop(self) -> None:
        self._engine.stop(self._attempt)

    def clear(self) -> None:
        shutil.rmtree(self._home, ignore_errors=True)


def _new_home(temporary: Path, name: str) -> Path:
    """A folder for the attempt called NAME; those of processes that were killed are removed on the way."""
    for home in temporary.glob(f"{HOME_PREFIX}*"):
        with contextlib.suppress(OSError, BadInput):
            owner = read_started(home / "owner")
            over = [*home.glob("attempts/*/ended.json"), *home.glob("attempts/*/result.json")]
            left = bool(over) and age_s(home / "owner") < HOME_KEPT_S
            if owner is not None and not owner.runs and not left and home.stat().st_uid == os.getuid():
                shutil.rmtree(home, ignore_errors=True)
    home = Path(tempfile.mkdtemp(prefix=HOME_PREFIX, dir=temporary))
    (home / "name").write_text(name)
    write_json(home / "owner", as_plain(this_process()))
    return home


_Left = tuple[AttemptStatus, JobResult, dict[str, bytes]]


def _left_behind(name: str, attempt: str) -> _Left | None:
    """On a node: how the attempt called NAME stood when its actor died, its result and what it printed; None: none."""
    for home in _homes_of(name):
        with contextlib.suppress(OSError, WattsmithError):
            status = ProcessEngine(home, (), ()).look(attempt)
            if status.result is not None:
                folder = home / "attempts" / attempt
                return status, status.result, {stream: read_log(folder, stream, 0, KEPT_BYTES) for stream in STREAMS}
    return None


def _clear_left(name: str) -> None:
    """On a node: what is left of the attempt called NAME is not needed any more."""
    for home in _homes_of(name):
        shutil.rmtree(home, ignore_errors=True)


def _homes_of(name: str) -> list[Path]:
    """Folders of the attempt called NAME, and of this user, whose actors have died."""
    found = []
    for home in Path(tempfile.gettempdir()).glob(f"{HOME_PREFIX}*"):
        with contextlib.suppress(OSError, BadInput):
            owner = read_started(home / "owner")
            mine = home.stat().st_uid == os.getuid() and (home / "name").read_text() == name
            if mine and owner is not None and not owner.runs:
                found.append(home)
    return found
