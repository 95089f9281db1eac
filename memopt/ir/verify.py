"""The verifier: every rule that a graph obeys, checked from scratch.

1. Names of values and of nodes are unique.   2. A value is defined before it is read, once.   3. Arity, attributes and
types are what the op infers.   4. `value.uses` is exact.   5. Control edges point backwards.   6. Every value is bound
to one variable, every variable to one buffer, nothing is left over.   7. An update's output is bound to its input's
variable, and nobody reads the old value's bytes after the update.   8. Outputs belong to the graph.   9. A variable in
strides holds one value, which is a view and steps through its source's bytes just so, or is written there: then no two
elements share bytes.

Whether values that share bytes are ever live together is not a rule of the graph but of the plan: `memopt.validate`.
"""

from __future__ import annotations

from memopt.errors import TypeInferenceError, VerifyError
from memopt.ir.graph import Graph
from memopt.ir.stepped import lies_as_view
from memopt.ir.storage import Storage, Variable
from memopt.ir.value import Node, Use, Value
from memopt.strides import canonical, meet_themselves

__all__ = ["verify"]


def verify(graph: Graph) -> None:
    """Raise `VerifyError` if `graph` breaks a rule; the message names the node and the value."""
    steps = graph.steps()
    if len(steps) != len(graph.nodes):
        raise VerifyError(f"graph {graph.name!r} lists a node twice")
    try:
        _check_definitions(graph)
        for node in graph.nodes:
            _check_types(node)
            _check_controls(node, steps)
        _check_uses(graph)
        _check_storage(graph)
        _check_updates(graph, steps)
    except VerifyError as error:
        error.add_note(f"in graph {graph.name!r}")
        raise


def _check_definitions(graph: Graph) -> None:
    seen: dict[str, Value] = {}
    names: set[str] = set()
    for value in (*graph.inputs, *graph.params):
        if value.producer is not None:
            raise VerifyError(f"feed or parameter %{value.name} has a producer, {value.producer.name}")
        _define(seen, value)
    for node in graph.nodes:
        if node.name in names:
            raise VerifyError(f"there are two nodes named {node.name!r}")
        names.add(node.name)
        _check_node_values(node, seen)
    for value in graph.outputs:
        if seen.get(value.name) is not value:
            raise VerifyError(f"output %{value.name} is not a value of the graph")
    params = {value.name for value in graph.params}
    for name in graph.param_devices:
        if name not in params:
            raise VerifyError(f"param_devices names %{name}, which is not a parameter")


def _check_node_values(node: Node, seen: dict[str, Value]) -> None:
    """The node's inputs are defined already; its outputs are its own, and new."""
    for source in node.inputs:
        if source is not None and seen.get(source.name) is not source:
            raise VerifyError(f"node {node.name} ({node.op}) reads %{source.name} before it is defined")
    for index, value in node.real_outputs:
        if value.producer is not node or value.index != index:
            raise VerifyError(f"%{value.name} is not output {index} of node {node.name}, which claims it")
        _define(seen, value)


def _define(seen: dict[str, Value], value: Value) -> None:
    if value.name in seen:
        raise VerifyError(f"%{value.name} is defined twice")
    seen[value.name] = value


def _check_types(node: Node) -> None:
    try:
        types = node.spec.infer(node.input_types, node.spec.complete_attrs(node.attrs), len(node.outputs))
    except TypeInferenceError as error:
        raise VerifyError(f"node {node.name} ({node.op}): {error}") from None
    for index, value in node.real_outputs:
        if value.type != types[index]:
            raise VerifyError(f"%{value.name} is {value.type}, but node {node.name} ({node.op}) makes {types[index]}")


def _check_controls(node: Node, steps: dict[Node, int]) -> None:
    for before in node.controls:
        if steps.get(before, len(steps)) >= steps[node]:
            raise VerifyError(f"control edge {before.name} -> {node.name} does not point forwards")


def _check_uses(graph: Graph) -> None:
    found: dict[Value, list[Use]] = {value: [] for value in graph.values}
    for node in graph.nodes:
        for index, source in enumerate(node.inputs):
            if source is not None:
                found[source].append(Use(node, index))
    for value, uses in found.items():
        if len(uses) != len(value.uses) or set(uses) != set(value.uses):
            raise VerifyError(f"the uses of %{value.name} are out of date")


def _check_storage(graph: Graph) -> None:
    storage = graph.storage
    for value in graph.values:
        if value not in storage:
            raise VerifyError(f"%{value.name} is bound to no variable")
    if len(storage.values) != len(graph.values):
        known = set(graph.values)
        stray = next(value for value in storage.values if value not in known)
        raise VerifyError(f"storage binds %{stray.name}, which is not in the graph")
    for variable in storage.variables:
        if not storage.values_of(variable):
            raise VerifyError(f"variable {variable.name} has no value")
        if variable not in storage.variables_of(variable.buffer):
            raise VerifyError(f"variable {variable.name} is not listed by its buffer {variable.buffer.name}")
        if variable.offset < 0:
            raise VerifyError(f"variable {variable.name} has the offset {variable.offset}")
        if variable.strides is not None:
            _check_strides(storage, variable)


def _check_strides(storage: Storage, variable: Variable) -> None:
    """The one value of `variable` lies in its source's storage as its op says, or no two of its elements meet."""
    value, *others = storage.values_of(variable)
    strides = variable.strides or ()
    if others or canonical(value.shape, strides if len(strides) == len(value.shape) else None) != variable.strides:
        raise VerifyError(
            f"variable {variable.name} lies in strides {list(strides)}, which are not those of one value of type "
            f"{value.type}"
        )
    if not lies_as_view(storage, value) and meet_themselves(value.shape, strides):
        raise VerifyError(
            f"variable {variable.name} lies at byte {variable.offset} of buffer {variable.buffer.name} in strides "
            f"{list(strides)}, but %{value.name} is no such view of a value that is stored there, and elements overlap"
        )


def _check_updates(graph: Graph, steps: dict[Node, int]) -> None:
    for node in graph.nodes:
        for output, source in node.spec.updates.items():
            new = node.outputs[output] if output < len(node.outputs) else None
            old = node.inputs[source] if source < len(node.inputs) else None
            if old is None or new is None:  # without its output the node does not update (BatchNormalization inference)
                continue
            if graph.storage.variable(new) is not graph.storage.variable(old):
                raise VerifyError(
                    f"node {node.name} ({node.op}) updates %{old.name}, but %{new.name} has another variable"
                )
            if old in graph.outputs:
                raise VerifyError(
                    f"%{old.name} is an output, but node {node.name} ({node.op}) overwrites it; fetch %{new.name}"
                )
            for use in old.data_uses:
                if steps[use.node] > steps[node]:
                    raise VerifyError(
                        f"node {use.node.name} ({use.node.op}) reads %{old.name} "
                        f"after node {node.name} ({node.op}) updated it; "
                        f"read %{new.name}, or move the reader before the update"
                    )
