"""One agent on each node of a Ray cluster: something of the caller's own that lives there and can be asked."""

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

from wattsmith.engines.ray_cluster import NAMESPACE, connect, ray_nodes
from wattsmith.terms.errors import BadTerm, NoSuch, WattsmithError
from wattsmith.terms.service import check_name

ANSWER_S = 5.0


class AgentLost(WattsmithError):
    """An agent does not answer; `tend` starts it again where its node still lives."""


class NodeAgents:
    """Agents called NAME. Each is what MAKE(name of its node) gives, made there, and outlives this process.

    MAKE is found by its module and name on every node; with functools.partial it can carry more along.
    """

    def __init__(self, name: str, make: Callable[[str], Any], *, address: str | None = None) -> None:
        check_name("agent", name)
        self._name = name
        self._make = make
        self._ray, self._ours = connect(address)
        # A process that dies is started again by Ray, on its node; MAKE is called anew then.
        self._actor = self._ray.remote(num_cpus=0, max_restarts=-1, max_task_retries=0, max_concurrency=4)(_Agent)
        self._agents: dict[str, Any] = {}  # by node

    def tend(self) -> tuple[str, ...]:
        """See to it that each node that lives has its agent; the nodes. Returns without waiting for them to begin.

        Raises AgentLost while the cluster does not answer.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        try:
            nodes = ray_nodes(self._ray)
        except (self._ray.exceptions.RayError, ConnectionError) as away:
            raise AgentLost(f"the cluster does not tell its nodes: {away}") from away
        living = {node.pool.name: node.id for node in nodes if node.alive and node.pool is not None}
        agents = {}
        for node, node_id in living.items():
            agents[node] = self._actor.options(
                name=f"agent {self._name} {node_id}",
                namespace=NAMESPACE,
                lifetime="detached",
                get_if_exists=True,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            ).remote(self._make, node)
        self._agents = agents
        return tuple(living)

    def call(self, node: str, method: str, *args: Any, timeout_s: float = ANSWER_S) -> Any:
        """What METHOD of the agent on NODE answers. Raises what it raises; AgentLost where it does not answer."""
        return self._answer(node, self._ask(node, method, args), timeout_s)

    def call_all(self, method: str, *args: Any, timeout_s: float = ANSWER_S) -> dict[str, Any]:
        """The same of all agents at once, by node; an answer may be the WattsmithError that stands for it."""
        return self.call_each(method, dict.fromkeys(self._agents, args), timeout_s=timeout_s)

    def call_each(
        self, method: str, args: Mapping[str, tuple[Any, ...]], *, timeout_s: float = ANSWER_S
    ) -> dict[str, Any]:
        """The same of the agents on the nodes in ARGS, each with its own; nodes without an agent are left out."""
        asked = {node: self._ask(node, method, mine) for node, mine in args.items() if node in self._agents}
        if asked:
            self._ray.wait(list(asked.values()), num_returns=len(asked), timeout=timeout_s)
        answers: dict[str, Any] = {}
        for node, question in asked.items():
            try:
                answers[node] = self._answer(node, question, 0.0)
            except WattsmithError as failed:
                answers[node] = failed
            except self._ray.exceptions.RayTaskError as failed:
                answers[node] = AgentLost(f"the agent on {node} failed: {failed.cause!r:.300}")
        return answers

    def end(self) -> None:
        """End all agents, also those that another process has started."""
        self.tend()
        for agent in self._agents.values():
            with contextlib.suppress(self._ray.exceptions.RayError, ValueError):
                self._ray.kill(agent)
        self._agents = {}

    def close(self) -> None:
        """Let go. Agents go on."""
        if self._ours:
            self._ray.shutdown()

    def _ask(self, node: str, method: str, args: tuple[Any, ...]) -> Any:
        if method.startswith("_"):
            raise BadTerm(f"{method!r} of an agent is its own; ask for something without '_' in front")
        if node not in self._agents:
            raise NoSuch(f"there is no agent on {node!r}; there are on: {', '.join(self._agents) or 'none'}")
        return self._agents[node].call.remote(method, args)

    def _answer(self, node: str, question: Any, timeout_s: float) -> Any:
        errors = self._ray.exceptions
        try:
            return self._ray.get(question, timeout=timeout_s)
        except errors.RayTaskError as raised:
            if isinstance(raised.cause, WattsmithError):
                raise raised.cause from raised
            raise
        except errors.GetTimeoutError as silent:
            raise AgentLost(f"the agent on {node} did not answer within {timeout_s:g} s") from silent
        except errors.RayError as gone:
            raise AgentLost(f"the agent on {node} is gone: {' '.join(str(gone).split())[:300]}") from gone


class _Agent:
    """The actor around what MAKE gives."""

    def __init__(self, make: Callable[[str], Any], node: str) -> None:
        self._held = make(node)

    def call(self, method: str, args: tuple[Any, ...]) -> Any:
        return getattr(self._held, method)(*args)
