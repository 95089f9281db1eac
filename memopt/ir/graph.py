"""The graph: SSA nodes in a valid order, feeds, parameters, outputs, and the storage map.

Holds true after every public method: names of values are unique, and so are names of nodes; a node's inputs are
defined before it; uses are exact; every value is bound in `storage`; an update's output is bound to its input's
variable. Methods check everything, then change. `memopt.ir.verify` re-checks it all from scratch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import OptionError, TypeInferenceError, VerifyError
from memopt.ir.checks import check_arity, check_order, checked_data, infer_types
from memopt.ir.inplace import InplaceNotes
from memopt.ir.names import nearest_names
from memopt.ir.storage import Storage
from memopt.ir.value import Node, Use, Value
from memopt.ops import Attrs, get_op
from memopt.types import TensorType

if TYPE_CHECKING:
    import networkx

__all__ = ["Graph"]


class Graph:
    """A mutable tensor graph, equal by identity.

    inputs   the feeds, in order          params   values whose data the graph carries (weights, constants, state)
    outputs  what a run returns           nodes    in execution order
    storage  value -> variable -> buffer  donated  names of feeds whose bytes the plan may overwrite
    excluded names of values that passes must leave alone
    inplace  in-place methods that were written, and what gradients stop at (`memopt.ir.InplaceNotes`)
    param_devices  parameter name -> the device that it lives on, where that is not the machine's default
    """

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.params: list[Value] = []
        self.outputs: list[Value] = []
        self.nodes: list[Node] = []
        self.storage = Storage()
        self.donated: set[str] = set()
        self.excluded: set[str] = set()
        self.param_devices: dict[str, str] = {}
        self._data: dict[str, NDArray[Any]] = {}
        self._values: dict[str, Value] = {}
        self._nodes: dict[str, Node] = {}
        self.inplace = InplaceNotes()
        self._taken: dict[str, int] = {}  # stem -> c: stem, stem.2, ..., stem.c all name a value or a node
        self._taken_values: dict[str, int] = {}  # the same of values alone

    # -- reading ------------------------------------------------------------------------------------------------

    @property
    def values(self) -> tuple[Value, ...]:
        """Every value: feeds, parameters, then node outputs in the order of their definition."""
        defined = (value for node in self.nodes for value in node.outputs if value is not None)
        return (*self.inputs, *self.params, *defined)

    def value(self, name: str) -> Value:
        """The value of that name (with or without the leading `%`)."""
        try:
            return self._values[name.removeprefix("%")]
        except KeyError:
            raise OptionError(f"graph {self.name!r} has no value {name!r}{nearest_names(self, name)}") from None

    def node(self, name: str) -> Node:
        """The node of that name."""
        try:
            return self._nodes[name]
        except KeyError:
            raise OptionError(f"graph {self.name!r} has no node {name!r}") from None

    def has_value(self, name: str) -> bool:
        return name in self._values

    def has_node(self, name: str) -> bool:
        return name in self._nodes

    def param_data(self, value: Value | str) -> NDArray[Any] | None:
        """The data of a parameter (not to be written), or None where it has none yet."""
        return self._data.get(value if isinstance(value, str) else value.name)

    def steps(self) -> dict[Node, int]:
        """node -> its 0-based position."""
        return {node: step for step, node in enumerate(self.nodes)}

    def is_pinned(self, value: Value) -> bool:
        """Whether the value's bytes are not ours to overwrite: an undonated feed, a parameter, or an output."""
        if value.producer is None:
            return value.name not in self.donated or value in self.outputs
        return value in self.outputs

    def to_networkx(self) -> networkx.DiGraph[Node]:
        """The nodes with data and control edges, as a `networkx.DiGraph` (for users and graph algorithms)."""
        import networkx as nx

        graph: networkx.DiGraph[Node] = nx.DiGraph(name=self.name)
        graph.add_nodes_from(self.nodes)
        for node in self.nodes:
            for value in node.inputs:
                if value is not None and value.producer is not None:
                    graph.add_edge(value.producer, node)
            graph.add_edges_from((before, node) for before in node.controls)
        return graph

    # -- building -----------------------------------------------------------------------------------------------

    def add_input(self, name: str, type: TensorType, *, donated: bool = False) -> Value:
        """Add a feed. `donated=True` lets the plan overwrite its bytes."""
        value = self._define(Value(name, type))
        self.inputs.append(value)
        if donated:
            self.donated.add(name)
        return value

    def add_param(
        self, name: str, type: TensorType, data: NDArray[Any] | None = None, *, device: str | None = None
    ) -> Value:
        """Add a value whose data the graph carries; `data` may be set later, but before a run.

        `device` is where it lives (None: on the machine's default device).
        """
        if data is not None:
            data = checked_data(name, type, data)
        value = self._define(Value(name, type))
        self.params.append(value)
        if data is not None:
            self._data[name] = data
        if device is not None:
            self.param_devices[name] = device
        return value

    def set_param(self, name: str, data: Any, *, copy: bool = True) -> None:
        """Set the data of parameter `name`; shape and dtype must fit.

        `copy=False` keeps the caller's array, which must then never be written again.
        """
        value = self.value(name)
        if value not in self.params:
            raise OptionError(f"%{name} is not a parameter of graph {self.name!r}")
        array = np.array(data) if copy else np.asarray(data)
        self._data[value.name] = checked_data(value.name, value.type, array)

    def add_node(
        self,
        op: str,
        inputs: Sequence[Value | None],
        outputs: Sequence[str | None],
        attrs: Attrs | None = None,
        *,
        name: str | None = None,
        device: str | None = None,
    ) -> Node:
        """Append a node. `outputs` names the results (None: this optional output is absent); their types are inferred.

        Raises `UnsupportedOpError`, `TypeInferenceError` or `VerifyError`; then nothing was changed.
        """
        spec = get_op(op)
        name = name or self.fresh_name(next((out for out in outputs if out), op.lower()))
        if name in self._nodes:
            raise VerifyError(f"there are two nodes named {name!r}")
        check_arity(op, inputs, outputs)
        self._check_inputs(name, op, inputs)
        try:
            node = Node(name, op, inputs, spec.complete_attrs(attrs or {}), device)
        except TypeInferenceError as error:
            shown = ", ".join("-" if v is None else repr(v) for v in inputs)
            raise TypeInferenceError(f"node {name} ({op}): {error} [inputs: {shown}]") from None
        types = infer_types(node, len(outputs))
        self._check_new_names([out for out in outputs if out is not None])
        node.outputs = tuple(
            None if out is None else self._define(Value(out, type, node, i), self._updated(node, i))
            for i, (out, type) in enumerate(zip(outputs, types, strict=False))
        )
        self._connect(node)
        self.nodes.append(node)
        return node

    def set_outputs(self, outputs: Iterable[Value]) -> None:
        """Set what a run returns; a value that is named twice is returned once."""
        values = list(dict.fromkeys(outputs))
        for value in values:
            if self._values.get(value.name) is not value:
                raise VerifyError(f"output %{value.name} is not a value of graph {self.name!r}")
        self.outputs = values

    def fresh_name(self, stem: str) -> str:
        """`stem`, or `stem.2`, … : a name that no value and no node has."""
        count = self._taken.get(stem, 0) + 1
        while (name := _numbered(stem, count)) in self._values or name in self._nodes:
            count += 1
        self._taken[stem] = count - 1
        return name

    def fresh_value_name(self, stem: str) -> str:
        """`stem`, or `stem.2`, … : a name that no value has (a node may)."""
        count = self._taken_values.get(stem, 0) + 1
        while (name := _numbered(stem, count)) in self._values:
            count += 1
        self._taken_values[stem] = count - 1
        return name

    # -- editing ------------------------------------------------------------------------------------------------

    def rename_value(self, value: Value, name: str) -> None:
        """Give a node's output another name, and its variable too if that bore the old one."""
        if value.producer is None:
            raise VerifyError(f"%{value.name} is a feed or a parameter: runs know it by its name")
        if name == value.name:
            return
        self._check_new_names([name])
        del self._values[value.name]
        self._release(value.name)
        self._values[name] = value
        old, value.name = value.name, name
        self.storage.relabel(value, old)

    def reorder(self, nodes: Sequence[Node]) -> None:
        """Set another execution order: a permutation that respects data and control edges."""
        if len(nodes) != len(self.nodes) or set(nodes) != set(self.nodes):
            raise VerifyError(f"an order of graph {self.name!r} must be a permutation of its {len(self.nodes)} nodes")
        check_order(nodes)
        self.nodes = list(nodes)

    def remove_node(self, node: Node) -> None:
        """Remove a node whose outputs nobody reads."""
        for _, value in node.real_outputs:
            if value.uses or value in self.outputs:
                raise VerifyError(f"node {node.name} cannot be removed: its output %{value.name} is read")
        self._forget(node)
        for other in self.nodes:
            if node in other.controls:
                other.controls.remove(node)
        self.nodes.remove(node)

    def replace_nodes(
        self, nodes: Sequence[Node], op: str, inputs: Sequence[Value | None], attrs: Attrs, *, step: int
    ) -> Node:
        """One node of `op` for all of `nodes`: it makes the outputs of the last of them, which stay the same values.

        It has the last one's name and device, and every control edge that leads to or from one of `nodes`. It stands
        before the node that is at `step` now. What the others make leaves the graph. Raises `TypeInferenceError` or
        `VerifyError`; then nothing was changed.
        """
        last, gone = nodes[-1], dict.fromkeys(nodes)
        for value in (value for node in nodes[:-1] for _, value in node.real_outputs):
            if value in self.outputs or any(use.node not in gone for use in value.uses):
                raise VerifyError(f"%{value.name} is read by others than the nodes that are to be replaced")
        check_arity(op, inputs, last.outputs)
        self._check_inputs(last.name, op, inputs)
        new = Node(last.name, op, inputs, get_op(op).complete_attrs(attrs), last.device)
        types = infer_types(new, len(last.outputs))
        for index, value in last.real_outputs:
            if value.type != types[index]:
                raise VerifyError(f"%{value.name} is {value.type}, but {op} makes {types[index]}")
        new.controls = [*dict.fromkeys(c for node in nodes for c in node.controls if c not in gone)]
        order = [node for node in self.nodes[:step] if node not in gone]
        order += [new, *(node for node in self.nodes[step:] if node not in gone)]
        check_order(order, dict.fromkeys(nodes, new))
        new.outputs, last.outputs = last.outputs, ()
        for _, value in new.real_outputs:
            value.producer = new
        for node in nodes:
            self._forget(node)
        self._connect(new)
        for node in order:
            if not gone.keys().isdisjoint(node.controls):
                node.controls = [*dict.fromkeys(new if c in gone else c for c in node.controls)]
        self.nodes = order
        return new

    def replace_uses(self, old: Value, new: Value) -> None:
        """Let every reader of `old` (nodes and outputs) read `new` instead; both have the same type."""
        if old.type != new.type:
            raise VerifyError(f"%{new.name} ({new.type}) cannot stand for %{old.name} ({old.type})")
        for use in old.uses:
            inputs = list(use.node.inputs)
            inputs[use.index] = new
            use.node.inputs = tuple(inputs)
            new.uses.append(use)
        old.uses.clear()
        self.outputs = [new if value is old else value for value in self.outputs]

    def copy(self) -> Graph:
        """A deep copy that shares parameter data (arrays are never written in place)."""
        twin = Graph(self.name)
        values: dict[Value, Value] = {}
        for value in self.inputs:
            values[value] = twin.add_input(value.name, value.type, donated=value.name in self.donated)
        for value in self.params:
            device = self.param_devices.get(value.name)
            values[value] = twin.add_param(value.name, value.type, self._data.get(value.name), device=device)
        nodes: dict[Node, Node] = {}
        for node in self.nodes:
            nodes[node] = twin.add_node(
                node.op,
                [None if v is None else values[v] for v in node.inputs],
                [None if v is None else v.name for v in node.outputs],
                node.attrs,
                name=node.name,
                device=node.device,
            )
            values.update((old, new) for old, new in zip(node.outputs, nodes[node].outputs, strict=True) if old and new)
            nodes[node].controls = [nodes[before] for before in node.controls]
        twin.set_outputs(values[value] for value in self.outputs)
        twin.excluded = set(self.excluded)
        twin.storage = self.storage.copy(values)
        twin.inplace = self.inplace.copy()
        return twin

    def __str__(self) -> str:
        from memopt.ir.text import print_graph

        return print_graph(self)

    def __repr__(self) -> str:
        return (
            f"<Graph {self.name!r}: {len(self.nodes)} nodes, {len(self.inputs)} feeds, {len(self.params)} parameters>"
        )

    # -- bookkeeping, and checks ------------------------------------------------------------------------------------

    def _connect(self, node: Node) -> None:
        """`node` is known by its name, and its inputs know that it reads them."""
        for index, value in enumerate(node.inputs):
            if value is not None:
                value.uses.append(Use(node, index))
        self._nodes[node.name] = node

    def _forget(self, node: Node) -> None:
        """The inverse of `_connect`; and the node's outputs leave the graph."""
        for index, source in enumerate(node.inputs):
            if source is not None:
                source.uses.remove(Use(node, index))
        for _, value in node.real_outputs:
            self.storage.forget(value)
            del self._values[value.name]
            self._release(value.name)
        del self._nodes[node.name]
        self._release(node.name)

    def _check_inputs(self, name: str, op: str, inputs: Sequence[Value | None]) -> None:
        for value in inputs:
            if value is not None and self._values.get(value.name) is not value:
                raise VerifyError(
                    f"node {name} ({op}) reads %{value.name}, which is not a value of graph {self.name!r}"
                )

    def _define(self, value: Value, updated: Value | None = None) -> Value:
        self._check_new_names([value.name])
        self._values[value.name] = value
        self.storage.define(value, None if updated is None else self.storage.variable(updated))
        return value

    def _release(self, name: str) -> None:
        """`name` names nothing any more: `fresh_name` may give it again."""
        stem, _, number = name.rpartition(".")
        for taken in (self._taken, self._taken_values):
            taken.pop(name, None)
            if number.isdecimal() and stem in taken:
                taken[stem] = min(taken[stem], max(int(number) - 1, 0))

    @staticmethod
    def _updated(node: Node, output: int) -> Value | None:
        index = node.spec.updates.get(output)
        return None if index is None else node.inputs[index]

    def _check_new_names(self, names: Sequence[str]) -> None:
        for i, name in enumerate(names):
            if not name or any(c.isspace() or c in '%,(){}"' for c in name):
                raise VerifyError(f'{name!r} is not a value name: it is empty, or has white space or one of %,(){{}}"')
            if name in self._values or name in names[:i]:
                raise VerifyError(f"graph {self.name!r} defines %{name} twice")


def _numbered(stem: str, count: int) -> str:
    return stem if count == 1 else f"{stem}.{count}"
