"""The minimum cut that the layout pass needs: Dinic's algorithm on a small network of whole numbers.

networkx has one too, and is what tests hold this against; on the graph of a ResNet it takes ten times as long.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from itertools import pairwise


def source_side(capacities: Mapping[tuple[int, int], int | None], source: int, sink: int) -> set[int]:
    """The source's side of the minimum cut, the largest where there are several.

    A capacity of None is without limit; no path may run from source to sink along such edges alone.
    """
    return Residual(capacities, source, sink).source_side()


class Residual:
    """What is left of each edge's capacity while flow is added, its reverse included."""

    def __init__(self, capacities: Mapping[tuple[int, int], int | None], source: int, sink: int) -> None:
        without_limit = 1 + sum(c for c in capacities.values() if c is not None)
        self.source, self.sink = source, sink
        self.left: dict[int, dict[int, int]] = {source: {}, sink: {}}
        for (a, b), capacity in capacities.items():
            ahead, back = self.left.setdefault(a, {}), self.left.setdefault(b, {})
            ahead[b] = ahead.get(b, 0) + (without_limit if capacity is None else capacity)
            back.setdefault(a, 0)

    def source_side(self) -> set[int]:
        while (level := self.distances()).get(self.sink) is not None:
            self.block(level)
        reaches = {self.sink}
        todo = [self.sink]
        while todo:
            b = todo.pop()
            for a in self.left[b]:
                if a not in reaches and self.left[a][b] > 0:
                    reaches.add(a)
                    todo.append(a)
        return self.left.keys() - reaches

    def distances(self) -> dict[int, int]:
        """Edges from the source to each node that flow can still reach."""
        level = {self.source: 0}
        todo = deque([self.source])
        while todo:
            a = todo.popleft()
            for b, left in self.left[a].items():
                if left > 0 and b not in level:
                    level[b] = level[a] + 1
                    todo.append(b)
        return level

    def block(self, level: dict[int, int]) -> None:
        """Adds flow along shortest paths until none is left.  What leads nowhere loses its level."""
        untried = {a: list(self.left[a]) for a in level}
        path = [self.source]
        while path:
            a = path[-1]
            if a == self.sink:
                path = self.augmented(path)
                continue
            choices, ahead = untried[a], level[a] + 1
            while choices and not (level.get(choices[-1]) == ahead and self.left[a][choices[-1]] > 0):
                choices.pop()
            if choices:
                path.append(choices[-1])
            else:
                path.pop()
                level[a] = -1

    def augmented(self, path: list[int]) -> list[int]:
        """Sends what fits along a path, and gives the part of it before the first edge that this uses up."""
        edges = list(pairwise(path))
        flow = min(self.left[a][b] for a, b in edges)
        for a, b in edges:
            self.left[a][b] -= flow
            self.left[b][a] += flow
        return path[: 1 + next(i for i, (a, b) in enumerate(edges) if not self.left[a][b])]
