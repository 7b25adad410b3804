"""The state of a pool as things happen: one event after another is thought about, and what follows is done in order."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from wattsmith.schedule.deciding import PoolState, decide, empty_pool
from wattsmith.schedule.resuming import set_aside, with_free, with_node, without_node
from wattsmith.terms.dispatch import Action, BudgetChanged, Event, PauseJob
from wattsmith.terms.schedule import PoolNode

FORGET_NODE_S = 86_400.0  # a node that has been lost for so long will not come back under this name


class PoolTurns:
    """A pool's state. DO carries out an action; IS_OPEN says whether something of a job runs still."""

    def __init__(
        self, *, now_s: Callable[[], float], do: Callable[[Action], None], is_open: Callable[[str], bool]
    ) -> None:
        self.state: PoolState = empty_pool({})
        self._now_s = now_s
        self._do = do
        self._is_open = is_open
        self._leaving: dict[str, tuple[str, tuple[int, ...]]] = {}  # by job that makes room: what it has not left yet
        self._missing: dict[str, float] = {}  # nodes that the engine does not see, and since when
        self._todo: deque[Event | Action] = deque()
        self._doing = False

    def happens(self, kind: Callable[..., Event], **what: Any) -> None:
        """An event of KIND happens now. What is to be done about it is done before the next one is thought about."""
        # The clock of the machine may be set back.
        self._todo.append(kind(time_s=max(self._now_s(), self.state.time_s), **what))
        if self._doing:
            return
        self._doing = True
        try:
            while self._todo:
                one = self._todo.popleft()
                if isinstance(one, Event):
                    self._decide(one)
                else:
                    self._do(one)
        finally:
            self._doing = False

    def _decide(self, event: Event) -> None:
        # A job that makes room has lost its devices to the state machine at once, and really only when it has ended.
        free = dict(self.state.free)
        for node, devices in self._leaving.values():
            free[node] = tuple(place for place in free.get(node, ()) if place not in devices)
        before = self.state.running
        self.state, actions = decide(
            replace(self.state, free={name: places for name, places in free.items() if places}), event
        )
        for action in actions:
            if isinstance(action, PauseJob) and self._is_open(action.job):
                self._leaving.setdefault(action.job, (before[action.job].node, before[action.job].devices))
        self._todo.extendleft(reversed(actions))

    def left(self, job_id: str) -> None:
        """Nothing of the job runs any more: if it made room, others can have it now, or the job itself."""
        if job_id in self._leaving:
            self.state = with_free(self.state, self._leaving.pop(job_id)[0])
            self.happens(BudgetChanged, budget_w=self.state.budget_w)

    def from_the_start(self, job_id: str) -> None:
        """A running job has all its steps to do."""
        if job_id in self.state.running:
            one = self.state.running[job_id]
            fresh = replace(one, steps_left=one.job.steps)
            self.state = replace(self.state, running={**self.state.running, job_id: fresh})

    def seen(self, there: Iterable[PoolNode]) -> list[str]:
        """These nodes are THERE; the names of those that have come, gone or changed."""
        nodes, changed = {node.name: node for node in there}, []
        for name, node in nodes.items():
            self._missing.pop(name, None)
            if name in self.state.lost or self.state.nodes.get(name) != node:
                self.state = with_node(self.state, node)
                self.happens(BudgetChanged, budget_w=self.state.budget_w)
                changed.append(name)
        for name in set(self.state.nodes) - set(nodes):
            since_s = self._missing.setdefault(name, self._now_s())
            if name not in self.state.lost:
                # It gets no more work. Whether its jobs are lost the engine tells of each.
                self.state = set_aside(self.state, name)
                changed.append(name)
            elif self._now_s() - since_s > FORGET_NODE_S and all(
                one.node != name for one in self.state.running.values()
            ):
                self.state = without_node(self.state, name)
                self._missing.pop(name)
        return changed
