"""What a graph checks before it changes: arity, types, the data of parameters, and orders of nodes.

Holds true: a check changes nothing; it returns, or raises with what does not fit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError, VerifyError
from memopt.ir.value import Node, Value
from memopt.ops import get_op
from memopt.types import TensorType

__all__ = ["check_arity", "check_order", "checked_data", "infer_types"]


def check_arity(op: str, inputs: Sequence[Value | None], outputs: Sequence[object | None]) -> None:
    """Raise `TypeInferenceError` unless `op` takes so many inputs and makes so many outputs."""
    spec = get_op(op)
    most = spec.max_inputs
    if len(inputs) < spec.min_inputs or (most is not None and len(inputs) > most):
        want = f"{spec.min_inputs}" if most == spec.min_inputs else f"{spec.min_inputs} to {most or 'any number of'}"
        raise TypeInferenceError(f"{op} takes {want} inputs, not {len(inputs)}")
    for i, value in enumerate(inputs):
        if value is None and not spec.input_slot(i).optional:
            raise TypeInferenceError(f"{op} needs its input {i} ({spec.input_slot(i).name})")
    most = spec.max_outputs
    if len(outputs) < spec.min_outputs or (most is not None and len(outputs) > most):
        raise TypeInferenceError(
            f"{op} has {spec.min_outputs} to {most or 'any number of'} outputs, not {len(outputs)}"
        )


def infer_types(node: Node, num_outputs: int) -> Sequence[TensorType]:
    """The types of the first `num_outputs` outputs of `node`; `TypeInferenceError` names the node and its inputs."""
    try:
        types = node.spec.infer(node.input_types, node.attrs, num_outputs)
    except TypeInferenceError as error:
        shown = ", ".join("-" if v is None else repr(v) for v in node.inputs)
        raise TypeInferenceError(f"node {node.name} ({node.op}): {error} [inputs: {shown}]") from None
    if len(types) < num_outputs:
        raise TypeInferenceError(f"node {node.name} ({node.op}) has {len(types)} outputs, {num_outputs} were asked for")
    return types


def checked_data(name: str, type: TensorType, data: NDArray[Any]) -> NDArray[Any]:
    """`data` of parameter `name`, contiguous; `TypeInferenceError` where it is not of `type`."""
    if tuple(data.shape) != type.shape or data.dtype.name != type.dtype:
        raise TypeInferenceError(f"parameter %{name} is {type}, its data is {data.dtype.name}{list(data.shape)}")
    return np.ascontiguousarray(data).reshape(type.shape)


def check_order(nodes: Sequence[Node], instead: Mapping[Node, Node] | None = None) -> None:
    """Raise `VerifyError` unless data and control edges point forwards in this order.

    `instead`: node -> the node of the order that stands for it.
    """
    stands = instead or {}
    step = {node: i for i, node in enumerate(nodes)}
    for node in nodes:
        before = [v.producer for v in node.inputs if v is not None and v.producer is not None]
        for other in (*before, *node.controls):
            if step[stands.get(other, other)] >= step[node]:
                raise VerifyError(f"order puts node {node.name} before {other.name}, which it needs")
