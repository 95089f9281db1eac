"""Names and order in an ONNX graph.

Holds true of `ordered_nodes`: every value is defined once and before it is read; of `value_names`: the result depends
on the graph alone, names that memopt takes are kept, and no two values get the same one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable

from onnx import GraphProto, NodeProto

from memopt.errors import LoadError
from memopt.frontends.problems import shown

__all__ = ["clean", "label", "ordered_nodes", "value_names"]

_REFUSED = set('%,(){}"')


def label(node: NodeProto, index: int) -> str:
    """A name for `node`, number `index`, in messages: its own, its first output's, or its number."""
    return node.name or next((name for name in node.output if name), f"node {index}")


def clean(name: str) -> str:
    """`name` with what memopt refuses in names replaced by `_`."""
    return "".join("_" if c.isspace() or not c.isprintable() or c in _REFUSED else c for c in name)


def _all_names(graph: GraphProto) -> Iterable[str]:
    for value in graph.input:
        yield value.name
    for tensor in graph.initializer:
        yield tensor.name
    for node in graph.node:
        yield from node.output


def value_names(graph: GraphProto) -> dict[str, str]:
    """ONNX value name -> name in our graph: the same, but for characters that memopt refuses."""
    originals = [name for name in dict.fromkeys(_all_names(graph)) if name]
    names = {name: name for name in originals if clean(name) == name}
    taken = set(names)
    for name in originals:
        if name in names:
            continue
        stem, count = clean(name), 1
        fresh = stem
        while fresh in taken:
            count += 1
            fresh = f"{stem}.{count}"
        names[name] = fresh
        taken.add(fresh)
    return names


def _definitions(graph: GraphProto, source: str) -> dict[str, int | None]:
    """Value name -> the index of the node that defines it (None: an input or an initializer)."""
    defined: dict[str, int | None] = {}
    for kind, names in (
        ("input", [value.name for value in graph.input]),
        ("initializer", [tensor.name for tensor in graph.initializer]),
    ):
        twice = next((name for i, name in enumerate(names) if name in names[:i]), None) if _has_twins(names) else None
        if twice is not None:
            raise LoadError(f"{source} lists the {kind} {shown(twice)!r} twice")
        if "" in names:
            raise LoadError(f"{source} has an {kind} without a name")
        defined.update((name, None) for name in names)
    for index, node in enumerate(graph.node):
        for name in node.output:
            if name and name in defined:
                raise LoadError(
                    f"{source} defines {shown(name)!r} twice, the second time by node {shown(label(node, index))}"
                )
            if name:
                defined[name] = index
    return defined


def _has_twins(names: list[str]) -> bool:
    return len(set(names)) != len(names)


def ordered_nodes(graph: GraphProto, source: str) -> list[NodeProto]:
    """The nodes, each after those whose outputs it reads; in the order of the file where that is such an order.

    Raises `LoadError` if a name is defined twice or never, or if nodes depend on each other in a circle.
    """
    defined = _definitions(graph, source)
    nodes = list(graph.node)
    waits: list[set[int]] = []
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        before: set[int] = set()
        for name in node.input:
            if name and name not in defined:
                where = shown(label(node, index))
                raise LoadError(
                    f"{source}: node {where} ({shown(node.op_type)}) reads {shown(name)!r}, which nothing defines"
                )
            maker = defined[name] if name else None
            if maker is not None:
                before.add(maker)
        waits.append(before)
        for maker in before:
            readers[maker].append(index)
    for value in graph.output:
        if value.name not in defined:
            raise LoadError(f"{source}: its output {shown(value.name)!r} is defined by nothing")
    return [nodes[index] for index in _order(waits, readers, nodes, source)]


def _order(waits: list[set[int]], readers: list[list[int]], nodes: list[NodeProto], source: str) -> list[int]:
    """Kahn's algorithm, the first in the file first."""
    left = [len(before) for before in waits]
    ready = [index for index, count in enumerate(left) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            left[reader] -= 1
            if left[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = [shown(label(nodes[i], i)) for i in range(len(nodes)) if left[i]][:5]
        raise LoadError(
            f"{source}: {len(nodes) - len(order)} nodes wait for each other in a circle, among them {', '.join(stuck)}"
        )
    return order
