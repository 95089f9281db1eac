"""The gradients of one op: by its rule, on the references; by central differences; by PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from memopt.ir import Graph, GraphBuilder
from memopt.ops import get_op
from memopt.runtime.reference import run_reference
from tests.nn_harness import make_query

Array = np.ndarray


def gradient_graph(
    op: str, arrays: Sequence[Array | None], attrs: Mapping[str, Any] | None = None, *, outputs: int = 1
) -> tuple[Graph, list[str | None]]:
    """A graph of one node and of what its rule adds, and the names of its gradients; all operands and dY are feeds."""
    builder = GraphBuilder("gradient")
    inputs = [None if a is None else builder.input(f"x{i}", a.shape, a.dtype) for i, a in enumerate(arrays)]
    results = builder.op(op, *inputs, outputs=outputs, **(attrs or {}))
    first = results[0] if outputs > 1 else results
    slope = builder.input("dy", first.shape, first.dtype)
    rule = get_op(op).gradient
    assert rule is not None
    grads = list(rule.build(builder, first.producer, [slope] + [None] * (outputs - 1)))
    assert len(grads) == len(arrays)
    for value, grad in zip(inputs, grads, strict=True):
        assert grad is None or (value is not None and grad.type == value.type)
    _check_needs(first.producer, {slope}, rule)
    builder.output(first, *[grad for grad in grads if grad is not None])
    return builder.build(), [None if grad is None else grad.name for grad in grads]


def _check_needs(node: Any, slopes: set[Any], rule: Any) -> None:
    """Only values that the rule declares are read by the nodes that it added."""
    declared = {node.inputs[i] for i in rule.needs_inputs if i < len(node.inputs)}
    declared |= {node.outputs[i] for i in rule.needs_outputs if i < len(node.outputs)}
    for value in (*node.inputs, *node.outputs):
        if value is not None and any(use.node is not node for use in value.data_uses):
            assert value in declared, f"{value} is read, and not declared"


def by_rule(
    op: str, arrays: Sequence[Array | None], slope: Array, attrs: Mapping[str, Any] | None = None, *, outputs: int = 1
) -> list[Array | None]:
    """The gradients of sum(slope * first output), one for each input, computed by the references."""
    graph, names = gradient_graph(op, arrays, attrs, outputs=outputs)
    feeds = {f"x{i}": a for i, a in enumerate(arrays) if a is not None} | {"dy": slope}
    found, _ = run_reference(graph, feeds)
    return [None if name is None else found[name] for name in names]


def by_differences(function: Callable[[list[Array]], Array], arrays: Sequence[Array], slope: Array) -> list[Array]:
    """Central differences of sum(slope * function(arrays)), in float64."""
    step = 1e-5
    results = []
    for index, array in enumerate(arrays):
        grad = np.zeros(array.shape)
        for place in np.ndindex(*array.shape):
            values = []
            for sign in (1, -1):
                moved = [a.copy() for a in arrays]
                moved[index][place] += sign * step
                values.append(float((slope * function(moved)).sum()))
            grad[place] = (values[0] - values[1]) / (2 * step)
        results.append(grad)
    return results


def op_differences(
    op: str, arrays: Sequence[Array], slope: Array, attrs: Mapping[str, Any] | None = None, *, outputs: int = 1
) -> list[Array]:
    """As `by_differences`, of the op's own reference."""

    def function(moved: list[Array]) -> Array:
        query = make_query(op, moved, attrs, outputs=outputs)
        return np.asarray(get_op(op).reference(moved, query.attrs, query.outputs)[0])

    return by_differences(function, arrays, slope)


def by_torch(function: Callable[..., Any], arrays: Sequence[Array], slope: Array) -> list[Array]:
    """PyTorch's gradients of sum(slope * function(*arrays))."""
    import torch

    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    (function(*tensors) * torch.tensor(slope)).sum().backward()
    return [tensor.grad.numpy() for tensor in tensors]
