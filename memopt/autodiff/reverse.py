"""`grad`: reverse mode on the graph.

Holds true:
1. Only nodes on a path from `wrt` to `loss` are differentiated; what a rule makes for inputs that are not on one is
removed again.   2. Gradient nodes are appended in the reverse order of the forward nodes, on their devices; so when a
node's turn comes, all contributions to the gradients of its outputs have been summed.   3. Of one node's gradients,
those of feeds and parameters come first: what only they read dies before the next gradient is made.   4. A second
contribution is added to the first at once (`Sum`), so that no more than two are live for one value.   5. Either all
gradients are made, or the graph is as it was.

Linear in nodes and uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from memopt.autodiff.saved import check_reads
from memopt.errors import GradientError, OptionError, TypeInferenceError, VerifyError
from memopt.ir import Graph, GraphBuilder, Node, Tensor, Value, as_value

__all__ = ["GradientBuilder", "grad"]


class GradientBuilder(GraphBuilder):
    """The builder that gradient rules are given: it appends to an existing graph.

    Nodes and values without a name of their own are named after `stem`. `wants(i)` tells a rule whether the gradient of
    the node's input number i will be used: a rule may leave the others out (what it makes in vain is removed).
    """

    def __init__(self, graph: Graph, stem: str = "gradient") -> None:
        super().__init__(graph.name)
        self.graph = graph
        self.stem = stem
        self.wanted: frozenset[int] = frozenset()

    def wants(self, index: int) -> bool:
        """Whether the gradient of the node's input number `index` will be used."""
        return index in self.wanted

    def op(self, op: str, *inputs: Value | None, name: str | None = None, **options: Any) -> Any:
        """As `GraphBuilder.op`, with a name after `stem`."""
        return super().op(op, *inputs, name=name or self.graph.fresh_name(self.stem), **options)


def grad(
    graph: Graph,
    loss: Value | Tensor | str,
    wrt: Sequence[Value | Tensor | str],
    *,
    stop_gradient: Iterable[Value | Tensor | str] = (),
) -> list[Value]:
    """Extend `graph` with the nodes that compute d loss / d w for each w in `wrt`; returns their values, of w's type.

    loss            a value of one element and a float dtype
    wrt             values of float dtypes, by themselves, by a handle (what it means now) or by name
    stop_gradient   values that count as constants: no gradient flows through them to what they were computed from; so
                    do those that were made under `GraphBuilder.no_grad`, unless they are in `wrt`

    The gradient of w is named `<w>.grad`. Where nothing leads from w to the loss, it is zeros. Two gradients may be one
    value (those of a and b in a + b). The outputs of the graph stay as they are. Raises `OptionError` for arguments
    that do not fit, `GradientError` for an op that has no gradient, for a path through an update (such as SGD), and for
    a gradient that needs a value which an update has overwritten (or, in strict graphs, an in-place method); the graph
    is then unchanged.
    """
    target = _float_value(graph, loss, "loss")
    if target.type.num_elements != 1:
        raise OptionError(
            f"the loss %{target.name} is {target.type}, not one number: reduce it first, with ReduceMean or ReduceSum"
        )
    sources = [_float_value(graph, value, "wrt") for value in wrt]
    stopped = {_resolve(graph, value, "stop_gradient") for value in stop_gradient}
    for value in sources:
        if value in stopped:
            raise OptionError(f"%{value.name} is in wrt and in stop_gradient: take it out of one")
    stopped |= {graph.value(name) for name in graph.inplace.stopped if graph.has_value(name)}
    path = _Path(graph, target, sources, stopped)
    path.check()
    num_nodes = len(graph.nodes)
    try:
        found = _Reverse(graph, path).run(target, sources)
        if graph.inplace.strict:
            check_reads(graph, graph.nodes[num_nodes:])
    except (GradientError, TypeInferenceError, VerifyError):
        for node in reversed(graph.nodes[num_nodes:]):
            graph.remove_node(node)
        raise
    return found


def _resolve(graph: Graph, value: Value | Tensor | str, what: str) -> Value:
    found = graph.value(value) if isinstance(value, str) else as_value(value)
    if not isinstance(found, Value) or not graph.has_value(found.name) or graph.value(found.name) is not found:
        raise OptionError(f"{what}: {found!r} is not a value of graph {graph.name!r}")
    return found


def _float_value(graph: Graph, value: Value | Tensor | str, what: str) -> Value:
    found = _resolve(graph, value, what)
    if not _is_float(found):
        raise OptionError(f"{what}: %{found.name} is {found.type}; only values of float dtypes have gradients")
    return found


def _is_float(value: Value) -> bool:
    return value.dtype.startswith("float")


class _Path:
    """The values and nodes between `sources` and `target`.

    values   those that depend on a source and that the target depends on      nodes   those that lead from one to
    another
    """

    def __init__(self, graph: Graph, target: Value, sources: Sequence[Value], stopped: set[Value]) -> None:
        depends = set(sources)
        for node in graph.nodes:
            if any(value in depends for _, value in node.data_inputs):
                depends.update(v for _, v in node.real_outputs if _is_float(v) and v not in stopped)
        reaches = {target}
        nodes: list[Node] = []
        for node in reversed(graph.nodes):
            if any(v in reaches and v in depends for _, v in node.real_outputs):
                inputs = [value for _, value in node.data_inputs if value in depends]
                reaches.update(inputs)
                if inputs:
                    nodes.append(node)
        self.values = depends & reaches
        self.nodes = nodes  # the last first

    def wanted(self, node: Node) -> frozenset[int]:
        """The inputs of `node` that are on the path."""
        return frozenset(index for index, value in node.data_inputs if value in self.values)

    def check(self) -> None:
        """Raise `GradientError` for the first node that cannot be differentiated."""
        for node in reversed(self.nodes):
            for index, value in node.real_outputs:
                if value in self.values and index in node.spec.updates:
                    raise GradientError(
                        f"the loss depends on %{value.name}, by which node {node.name} ({node.op}) updates a variable: "
                        "there is no gradient through an update. Compute the loss from the old value, or pass "
                        f"stop_gradient=[{value.name!r}]"
                    )
            if node.spec.gradient is None:
                names = ", ".join(repr(v.name) for _, v in node.real_outputs if v in self.values)
                raise GradientError(
                    f"op {node.op} (node {node.name}) has no gradient, but lies between wrt and the loss. To treat its "
                    f"result as a constant, pass stop_gradient=[{names}]; otherwise write it with ops that have one"
                )


class _Reverse:
    """One reverse walk: the gradients found so far, and the nodes that make them."""

    def __init__(self, graph: Graph, path: _Path) -> None:
        self.graph = graph
        self.path = path
        self.builder = GradientBuilder(graph)
        self.grads: dict[Value, Value] = {}
        self.order = list(graph.nodes)  # what is appended, in the order in which it shall run
        self.pending: dict[Value, int] = {}  # path nodes that still contribute to a value's gradient
        for node in path.nodes:
            for value in self._sources_of(node):
                self.pending[value] = self.pending.get(value, 0) + 1
        self.updated = {
            node.inputs[source]: node
            for node in graph.nodes
            for output, source in node.spec.updates.items()
            if output < len(node.outputs) and node.outputs[output] is not None
        }

    def run(self, target: Value, sources: Sequence[Value]) -> list[Value]:
        if target in self.path.values:
            self.builder.device = None if target.producer is None else target.producer.device
            self.grads[target] = self._constant(target, 1.0)
        for node in self.path.nodes:
            self._differentiate(node)
        for value in sources:
            if value not in self.grads:
                self.builder.device = None
                self.grads[value] = self._constant(value, 0.0)
        self.graph.reorder(self.order)
        return [self.grads[value] for value in sources]

    def _sources_of(self, node: Node) -> list[Value]:
        """The values on the path that `node` reads, each once."""
        return list(dict.fromkeys(v for _, v in node.data_inputs if v in self.path.values))

    def _constant(self, like: Value, number: float) -> Value:
        name = self.graph.fresh_name(f"{like.name}.grad")
        made: Value = self.builder.op("ConstantOfShape", name=name, shape=like.shape, value=number, dtype=like.dtype)
        self.order.append(self.graph.nodes[-1])
        return made

    def _differentiate(self, node: Node) -> None:
        first = len(self.graph.nodes)
        parts = self._parts(node)
        self._drop_unused(first, {part for found in parts.values() for part in found})
        self._check_reads(first, node)
        made = self.graph.nodes[first:]
        fresh = {value for one in made for _, value in one.real_outputs}
        leaves = [value for value in self._sources_of(node) if value.producer is None]
        early = _makers({part for value in leaves for part in parts.get(value, [])}, made)
        self.order += [one for one in made if one in early]
        for value in leaves:
            self._add(value, parts.get(value, []), fresh)
        self.order += [one for one in made if one not in early]
        for value in self._sources_of(node):
            if value.producer is not None:
                self._add(value, parts.get(value, []), fresh)

    def _parts(self, node: Node) -> dict[Value, list[Value]]:
        """What `node` contributes to the gradients of the values on the path that it reads; appends the nodes of its
        rule.
        """
        outputs = [None if v is None or v not in self.path.values else self.grads.get(v) for v in node.outputs]
        if all(value is None for value in outputs):
            return {}
        self.builder.device, self.builder.wanted = node.device, self.path.wanted(node)
        self.builder.stem = f"{node.name}.backward"
        rule = node.spec.gradient
        assert rule is not None  # _Path.check
        results = rule.build(self.builder, node, outputs)
        if len(results) != len(node.inputs):
            count = len(node.inputs)
            raise VerifyError(f"the gradient rule of {node.op} made {len(results)} gradients for {count} inputs")
        parts: dict[Value, list[Value]] = {}
        for index, (value, part) in enumerate(zip(node.inputs, results, strict=True)):
            if value is None or part is None or index not in self.builder.wanted:
                continue
            if part.type != value.type:
                made = f"{part.type} for its input {index}, which is {value.type}"
                raise VerifyError(f"the gradient rule of {node.op} made {made}")
            parts.setdefault(value, []).append(part)
        return parts

    def _add(self, value: Value, parts: list[Value], fresh: set[Value]) -> None:
        """Add `parts` to the gradient of `value`; `fresh` ones get a name that says whose gradient they are."""
        self.pending[value] -= 1
        before = self.grads.get(value)
        terms = [*([] if before is None else [before]), *parts]
        final = f"{value.name}.grad"
        last = self.pending[value] == 0
        for part in parts:
            if part in fresh:
                fresh.discard(part)
                name = final if last and len(terms) == 1 else f"{final}.part"
                self.graph.rename_value(part, self.graph.fresh_value_name(name))
        if len(terms) > 1 and parts:
            self.builder.stem = final if last else f"{final}.part"
            self.grads[value] = self.builder.op("Sum", *terms)
            self.order.append(self.graph.nodes[-1])
        elif terms:
            self.grads[value] = terms[0]

    def _drop_unused(self, first: int, kept: set[Value]) -> None:
        """Remove the nodes from number `first` on whose results nobody reads and that make no value of `kept`."""
        for node in reversed(self.graph.nodes[first:]):
            if not any(value in kept or value.uses for _, value in node.real_outputs):
                self.graph.remove_node(node)

    def _check_reads(self, first: int, node: Node) -> None:
        """Raise `GradientError` if a node from number `first` on reads the bytes of a value that was updated before."""
        for made in self.graph.nodes[first:]:
            for _, value in made.data_inputs:
                if value in self.updated:
                    by = self.updated[value]
                    raise GradientError(
                        f"the gradient of node {node.name} ({node.op}) reads %{value.name}, which node {by.name} "
                        f"({by.op}) has updated: take the gradients before you add the update"
                    )


def _makers(values: set[Value], nodes: Sequence[Node]) -> set[Node]:
    """Those of `nodes` from whose results `values` are computed."""
    found: set[Node] = set()
    for node in reversed(nodes):
        if any(value in values for _, value in node.real_outputs):
            found.add(node)
            values = values | {value for value in node.inputs if value is not None}
    return found
