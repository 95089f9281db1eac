"""Which nodes come before which in *every* order that respects data and control edges (the listed one is one of them).

A query walks backwards from one node and stops at the step of the earliest node asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from memopt.ir import Graph, Node

__all__ = ["Order"]


class Order:
    """The partial order of a graph's nodes."""

    def __init__(self, graph: Graph) -> None:
        self._steps = graph.steps()

    def not_before(self, others: Iterable[Node], node: Node) -> Node | None:
        """The first of `others` from which no path leads to `node`, or None if all of them must precede it."""
        wanted = [other for other in dict.fromkeys(others) if other is not node]
        if not wanted:
            return None
        earliest = min(self._steps[other] for other in wanted)
        seen: set[Node] = set()
        stack = [node]
        while stack:
            for before in _needs(stack.pop()):
                if before not in seen and self._steps[before] >= earliest:
                    seen.add(before)
                    stack.append(before)
        return next((other for other in wanted if other not in seen), None)


def _needs(node: Node) -> Iterator[Node]:
    for value in node.inputs:
        if value is not None and value.producer is not None:
            yield value.producer
    yield from node.controls
