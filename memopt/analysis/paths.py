"""What a storage map needs to hold under every order: control edges where shared bytes have none.

Under another order than the listed one, a node that writes bytes must still come after everything that reads, or wrote,
what was there. Holds true after `order_tenants`: whenever value b takes bytes that held another content a, a path of
data and control edges leads from the node that made a, and from each data reader of a, to the node that makes b (what
came before a follows by induction). Edges that are added point forwards in the listed order, which stays one of the
orders. Bit sets of ancestors: O(nodes² / 64) words at worst.

That is what *storage* asks for. Buffers that packing puts at one place one after the other are another matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from memopt.analysis.alias import Aliases, analyze_aliases
from memopt.errors import OptionError
from memopt.ir import Buffer, Graph, Node, Value

__all__ = ["AddedEdge", "ExecutionOrder", "WantedEdge", "add_edges", "check_order", "order_tenants"]

#: Under which orders a pass's shares must hold: the listed one, or any that respects data and control edges.
ExecutionOrder = Literal["listed", "any"]


class AddedEdge(NamedTuple):
    """`before` must run before `node` (at `step`), which writes `output` over bytes of `old`."""

    before: Node
    node: Node
    step: int
    output: Value
    old: Value

    @property
    def text(self) -> str:
        does = "makes" if self.old.producer is self.before else "reads"
        why = f"{self.before.name} {does} %{self.old.name}, whose bytes %{self.output.name} takes"
        return f"control edge {self.before.name} -> {self.node.name}: {why}"


class WantedEdge(NamedTuple):
    """`before` must run before `node`; if `early`, before its transfers too, which wait for control edges only."""

    before: Node
    node: Node
    why: str
    early: bool = False


def add_edges(graph: Graph, wanted: Iterable[WantedEdge]) -> list[WantedEdge]:
    """Of these edges, which point forwards, add those that no path stands for; returns them."""
    steps = graph.steps()
    into: dict[Node, list[WantedEdge]] = {}
    for edge in wanted:
        into.setdefault(edge.node, []).append(edge)
    ancestors = _Ancestors(steps)
    added: list[WantedEdge] = []
    for node in graph.nodes:
        ancestors.enter(node)
        for edge in sorted(into.get(node, ()), key=lambda one: (-steps[one.before], not one.early)):
            if edge.early:
                there = any(c is edge.before or ancestors.precedes(edge.before, c) for c in node.controls)
            else:
                there = ancestors.precedes(edge.before, node)
            if not there:
                node.controls.append(edge.before)
                ancestors.wait(node, edge.before)
                added.append(edge)
    return added


def check_order(order: str) -> None:
    """Raise `OptionError` for an order that there is not."""
    if order not in ("listed", "any"):
        raise OptionError(f"order={order!r} is not one of 'listed', 'any'")


def order_tenants(graph: Graph) -> list[AddedEdge]:
    """Add the control edges that `graph.storage` needs under every order; returns those that were not there."""
    return list(_Sweep(graph).run())


class _Piece(NamedTuple):
    """Bytes `[low, high)` of a buffer and the values that they hold, all of the same content there."""

    low: int
    high: int
    values: tuple[Value, ...]


class _Ancestors:
    """Who must run before each node that was entered, in the listed order, as bits by step."""

    def __init__(self, steps: dict[Node, int]) -> None:
        self._steps = steps
        self._before: dict[Node, int] = {}

    def enter(self, node: Node) -> None:
        """Take up `node`, with the edges that it has."""
        self._before[node] = 0
        for source in node.inputs:
            if source is not None and source.producer is not None:
                self.wait(node, source.producer)
        for other in node.controls:
            self.wait(node, other)

    def wait(self, node: Node, other: Node) -> None:
        """From now on, `other` comes before `node`."""
        self._before[node] |= self._before[other] | 1 << self._steps[other]

    def precedes(self, other: Node, node: Node) -> bool:
        return bool(self._before[node] >> self._steps[other] & 1)


class _Sweep:
    """One walk over the nodes as listed: who must have run before each, and what the bytes hold by then."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._aliases: Aliases = analyze_aliases(graph)
        self._steps = graph.steps()
        self._ancestors = _Ancestors(self._steps)
        self._held: dict[Buffer, list[_Piece]] = {}

    def run(self) -> Iterator[AddedEdge]:
        for value in (*self._graph.inputs, *self._graph.params):
            self._write(value)
        for step, node in enumerate(self._graph.nodes):
            self._ancestors.enter(node)
            for _, output in node.real_outputs:
                for old in self._write(output):
                    for before in self._missing(node, old):
                        node.controls.append(before)
                        yield AddedEdge(before, node, step, output, old)

    def _missing(self, node: Node, old: Value) -> Iterator[Node]:
        """Those that read or made `old` and from which no path leads to `node`, the latest first."""
        needed = {use.node for use in old.data_uses} | ({old.producer} if old.producer is not None else set())
        for other in sorted(needed - {node}, key=lambda one: -self._steps[one]):
            if self._steps[other] < self._steps[node] and not self._ancestors.precedes(other, node):
                self._ancestors.wait(node, other)
                yield other

    def _write(self, value: Value) -> list[Value]:
        """Put `value` where it is stored; returns the values of another content that were there."""
        variable = self._graph.storage.variable(value)
        low, high = variable.offset, variable.offset + self._graph.storage.extent_bytes(value)
        gone: dict[Value, None] = {}
        pieces: list[_Piece] = []
        at = low
        for piece in self._held.get(variable.buffer, ()):
            a, b = max(piece.low, low), min(piece.high, high)
            if a >= b:
                pieces.append(piece)
                continue
            pieces += [piece._replace(high=a)] if piece.low < a else []
            pieces += [_Piece(at, a, (value,))] if at < a else []
            same = self._is_there(value, a, b) and all(self._agree(value, other) for other in piece.values)
            gone.update({} if same else dict.fromkeys(piece.values))
            pieces.append(_Piece(a, b, (*piece.values, value) if same else (value,)))
            pieces += [piece._replace(low=b)] if b < piece.high else []
            at = b
        if at < high:
            pieces.append(_Piece(at, high, (value,)))
        self._held[variable.buffer] = sorted(pieces, key=lambda piece: piece.low)
        return list(gone)

    def _is_there(self, value: Value, low: int, high: int) -> bool:
        """Whether the node that makes `value` reads these bytes of it where they are: a view, or an input of a join."""
        storage = self._graph.storage
        for _, source in () if value.producer is None else value.producer.data_inputs:
            variable = storage.variable(source)
            covers = variable.offset <= low and high <= variable.offset + storage.extent_bytes(source)
            if variable.buffer is storage.buffer(value) and covers and self._agree(value, source):
                return True
        return False

    def _agree(self, a: Value, b: Value) -> bool:
        storage = self._graph.storage
        return self._aliases.agree(a, b, storage.variable(b).offset - storage.variable(a).offset)
