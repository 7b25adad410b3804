"""The cheapest way to cut a graph in two: maximum flow by Dinic's method, on whole numbers."""

from collections import deque
from collections.abc import Hashable

ENDLESS = 1 << 62


class Network:
    """Nodes by any name, edges with capacities."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []  # of each node: numbers of its edges
        self._to: list[int] = []
        self._left: list[int] = []  # capacity that is left; an edge and the one back are neighbours

    def edge(self, start: Hashable, end: Hashable, capacity: int) -> None:
        """Cutting START from END costs CAPACITY; ENDLESS: it must not be done."""
        for node, other, left in ((start, end, capacity), (end, start, 0)):
            self._edges[self._at(node)].append(len(self._to))
            self._to.append(self._at(other))
            self._left.append(left)

    def _at(self, node: Hashable) -> int:
        if node not in self._number:
            self._number[node] = len(self._number)
            self._edges.append([])
        return self._number[node]

    def cut(self, source: Hashable, sink: Hashable) -> tuple[int, set[Hashable]]:
        """What the cheapest cut costs, and the nodes on the side of SOURCE; of equally cheap ones the most of them."""
        start, end = self._at(source), self._at(sink)
        cost = 0
        while (levels := self._levels(start, end)) is not None:
            tried = [0] * len(self._edges)
            while pushed := self._push(start, end, levels, tried):
                cost += pushed
        beyond = self._reaching(end)
        return cost, {node for node, at in self._number.items() if at not in beyond}

    def _levels(self, start: int, end: int) -> list[int] | None:
        levels = [-1] * len(self._edges)
        levels[start] = 0
        queue = deque([start])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                if self._left[edge] > 0 and levels[self._to[edge]] < 0:
                    levels[self._to[edge]] = levels[node] + 1
                    queue.append(self._to[edge])
        return levels if levels[end] >= 0 else None

    def _push(self, start: int, end: int, levels: list[int], tried: list[int]) -> int:
        """Send as much as goes along one path of the levels; 0: there is none any more.

        TRIED: of each node, how many of its edges are known to lead nowhere.
        """
        path: list[int] = []
        node = start
        while node != end:
            if tried[node] == len(self._edges[node]):
                if not path:
                    return 0
                node = self._to[path.pop() ^ 1]
                tried[node] += 1
                continue
            edge = self._edges[node][tried[node]]
            if self._left[edge] > 0 and levels[self._to[edge]] == levels[node] + 1:
                path.append(edge)
                node = self._to[edge]
            else:
                tried[node] += 1
        amount = min(self._left[edge] for edge in path)
        for edge in path:
            self._left[edge] -= amount
            self._left[edge ^ 1] += amount
        return amount

    def _reaching(self, end: int) -> set[int]:
        """Nodes from which END can still be reached."""
        found, queue = {end}, deque([end])
        while queue:
            node = queue.popleft()
            for edge in self._edges[node]:
                if self._left[edge ^ 1] > 0 and self._to[edge] not in found:
                    found.add(self._to[edge])
                    queue.append(self._to[edge])
        return found
