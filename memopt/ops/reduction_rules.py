"""Gradient rules of the reductions, Softmax, LogSoftmax and CumSum."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

from memopt.ops.gradients import only_first, reshape_to
from memopt.ops.spec import GradientRule

__all__ = ["GRADIENTS"]


def _axes(node: Any) -> tuple[int, ...]:
    """The reduced axes, counted from the front."""
    rank = len(node.inputs[0].shape)
    given = cast("tuple[int, ...]", node.attrs.get("axes", ()))
    if not given:
        return () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))
    return tuple(sorted(axis % rank for axis in given))


def _kept(builder: Any, node: Any, value: Any) -> Any:
    """`value`, of the result's shape, such that it broadcasts over the reduced axes."""
    axes = _axes(node)
    if axes == tuple(range(len(axes))):
        return value
    return reshape_to(builder, value, [1 if i in axes else n for i, n in enumerate(node.inputs[0].shape)])


def _expand(builder: Any, node: Any, value: Any) -> Any:
    kept, shape = _kept(builder, node, value), node.inputs[0].shape
    return kept if kept.shape == shape else builder.op("Expand", kept, shape=shape)


def _sum(builder: Any, node: Any, grad: Any) -> Any:
    return _expand(builder, node, grad)


def _mean(builder: Any, node: Any, grad: Any) -> Any:
    count = math.prod(node.inputs[0].shape[axis] for axis in _axes(node))
    return _expand(builder, node, builder.op("Scale", grad, factor=1 / max(count, 1)))


def _sum_square(builder: Any, node: Any, grad: Any) -> Any:
    return builder.op("Mul", node.inputs[0], _kept(builder, node, builder.op("Scale", grad, factor=2.0)))


def _l1(builder: Any, node: Any, grad: Any) -> Any:
    return builder.op("AbsGrad", _kept(builder, node, grad), node.inputs[0])


def _l2(builder: Any, node: Any, grad: Any) -> Any:
    share = builder.op("DivOrZero", grad, node.outputs[0])
    return builder.op("Mul", node.inputs[0], _kept(builder, node, share))


def _extremum(builder: Any, node: Any, grad: Any) -> Any:
    """Shared evenly between the elements that are the extremum (PyTorch's amax)."""
    x = node.inputs[0]
    hits = builder.op("Equal", x, _kept(builder, node, node.outputs[0]))
    ones = builder.op("Cast", hits, to=x.dtype)
    axes = _axes(node)
    count = builder.op("ReduceSum", ones, axes=axes, keepdims=1) if axes else ones
    return builder.op("Mul", ones, builder.op("DivOrZero", _kept(builder, node, grad), count))


def _product(builder: Any, node: Any, grad: Any) -> Any:
    """The product of the others, right where elements are 0 too."""
    x, axes = node.inputs[0], _axes(node)
    if not axes:
        return grad
    zero = builder.op("Equal", x, builder.op("ConstantOfShape", shape=(), dtype=x.dtype))
    one = builder.op("ConstantOfShape", shape=(), value=1.0, dtype=x.dtype)
    rest = builder.op("ReduceProd", builder.op("Where", zero, one, x), axes=axes, keepdims=1)
    count = builder.op("ReduceSum", builder.op("Cast", zero, to=x.dtype), axes=axes, keepdims=1)
    return builder.op("ReduceProdGrad", _kept(builder, node, grad), rest, count, x)


def _along(op: str) -> GradientRule:
    """`op(dY, Y)` along the node's axis."""
    return GradientRule(only_first(lambda b, n, d: b.op(op, d, n.outputs[0], axis=n.attrs["axis"])), needs_outputs=(0,))


def _cumsum(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    options = {name: node.attrs[name] for name in ("axis", "exclusive")}
    return [builder.op("CumSum", grads[0], reverse=1 - node.attrs["reverse"], **options)]


GRADIENTS: dict[str, GradientRule] = {
    "ReduceSum": GradientRule(only_first(_sum)),
    "ReduceMean": GradientRule(only_first(_mean)),
    "ReduceMax": GradientRule(only_first(_extremum), needs_inputs=(0,), needs_outputs=(0,)),
    "ReduceMin": GradientRule(only_first(_extremum), needs_inputs=(0,), needs_outputs=(0,)),
    "ReduceProd": GradientRule(only_first(_product), needs_inputs=(0,)),
    "ReduceSumSquare": GradientRule(only_first(_sum_square), needs_inputs=(0,)),
    "ReduceL1": GradientRule(only_first(_l1), needs_inputs=(0,)),
    "ReduceL2": GradientRule(only_first(_l2), needs_inputs=(0,), needs_outputs=(0,)),
    "Softmax": _along("SoftmaxGrad"),
    "LogSoftmax": _along("LogSoftmaxGrad"),
    "CumSum": GradientRule(_cumsum),
}
