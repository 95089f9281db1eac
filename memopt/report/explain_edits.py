"""Small edits of a copy of a graph, for moves that are measured by planning the edited graph.

Each takes the graph as it was given and names, since a plan's graph is a copy; each returns None where the edit cannot
be made.
"""

from __future__ import annotations

from memopt.ir import Graph, Node, Value

__all__ = ["delayed", "later_reader_first", "moved_node", "recomputed", "without_output"]


def without_output(graph: Graph, name: str) -> Graph | None:
    """The graph without that output."""
    twin = graph.copy()
    twin.set_outputs(value for value in twin.outputs if value.name != name)
    return twin if len(twin.outputs) < len(graph.outputs) else None


def moved_node(graph: Graph, name: str, device: str) -> Graph | None:
    """The graph with node `name` on `device`."""
    if not graph.has_node(name):
        return None
    twin = graph.copy()
    twin.node(name).device = device
    return twin


def later_reader_first(graph: Graph, late: str, early: str) -> Graph | None:
    """The graph with node `late`, and what it needs, before node `early`; None if `late` needs `early`."""
    if not graph.has_node(late) or not graph.has_node(early):
        return None
    twin = graph.copy()
    steps, target = twin.steps(), twin.node(early)
    needed: dict[Node, None] = {}
    stack = [twin.node(late)]
    while stack:
        node = stack.pop()
        if node in needed or steps[node] < steps[target]:
            continue
        if node is target:
            return None
        needed[node] = None
        stack += [v.producer for v in node.inputs if v is not None and v.producer is not None] + node.controls
    first = sorted(needed, key=lambda node: steps[node])
    at = steps[target]
    rest = [node for node in twin.nodes[at:] if node not in needed]
    twin.reorder([*twin.nodes[:at], *first, *rest])
    return twin


def delayed(graph: Graph, name: str, reader: str) -> Graph | None:
    """The graph with node `name` just before node `reader`."""
    if not graph.has_node(name) or not graph.has_node(reader):
        return None
    twin = graph.copy()
    node = twin.node(name)
    order = [other for other in twin.nodes if other is not node]
    order.insert(order.index(twin.node(reader)), node)
    if order == twin.nodes:
        return None
    twin.reorder(order)
    return twin


def recomputed(graph: Graph, name: str, reader: str) -> Graph | None:
    """The graph in which node `reader`, and those after it, read a second copy of value `name`, made just before."""
    if not graph.has_value(name) or not graph.has_node(reader):
        return None
    twin = graph.copy()
    value, before = twin.value(name), twin.node(reader)
    maker, steps = value.producer, twin.steps()
    if maker is None or value in twin.outputs:
        return None
    names = [None if v is None else twin.fresh_value_name(f"{v.name}.again") for v in maker.outputs]
    again = twin.add_node(maker.op, maker.inputs, names, maker.attrs, device=maker.device)
    order = [node for node in twin.nodes if node is not again]
    order.insert(steps[before], again)
    twin.reorder(order)
    new = again.outputs[value.index]
    if new is not None:
        _read_instead(value, new, steps, steps[before])
    return twin


def _read_instead(old: Value, new: Value, steps: dict[Node, int], first: int) -> None:
    """Let the readers of `old` from step `first` on read `new`."""
    for use in list(old.uses):
        if steps.get(use.node, -1) < first:
            continue
        inputs = list(use.node.inputs)
        inputs[use.index] = new
        use.node.inputs = tuple(inputs)
        old.uses.remove(use)
        new.uses.append(use)
