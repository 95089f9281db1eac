"""What gradient rules are made of: sums over broadcast axes, zeros, reshapes.

Holds true: shapes are attributes of the nodes that are made, so none of them reads a forward value for its shape.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from memopt.ops.spec import GradientRule
from memopt.types import TensorType

__all__ = ["NO_GRADIENT", "Build", "only_first", "reshape_to", "sum_axes", "sum_to", "zeros"]

#: `build(builder, node, output_grads) -> one gradient per input`.
Build = Callable[[Any, Any, Sequence[Any]], Sequence[Any]]


def _nothing(builder: Any, node: Any, output_grads: Sequence[Any]) -> Sequence[Any]:
    return [None] * len(node.inputs)


#: The rule of ops that are constant wherever they have a derivative (Floor, Sign).
NO_GRADIENT = GradientRule(_nothing)


def only_first(gradient: Callable[[Any, Any, Any], Any]) -> Build:
    """The rule of an op of one output whose input 0 alone has a gradient: `gradient(builder, node, dY)`."""

    def build(builder: Any, node: Any, output_grads: Sequence[Any]) -> Sequence[Any]:
        return [gradient(builder, node, output_grads[0]), *[None] * (len(node.inputs) - 1)]

    return build


def zeros(builder: Any, type: TensorType) -> Any:
    """A tensor of zeros."""
    return builder.op("ConstantOfShape", shape=type.shape, dtype=type.dtype)


def reshape_to(builder: Any, value: Any, shape: Sequence[int]) -> Any:
    """`value` under another shape; itself if it has that shape."""
    if value.shape == tuple(shape):
        return value
    return builder.op("Reshape", value, shape=tuple(shape), allowzero=1)


def sum_axes(builder: Any, value: Any, axes: Sequence[int], *, keepdims: bool) -> Any:
    """`value` summed over `axes`, in as many nodes as keep each to two runs of neighbouring axes (what the kernel can
    do).
    """
    runs: list[list[int]] = []
    for axis in sorted(axes):
        between = value.shape[runs[-1][-1] + 1 : axis] if runs else ()
        if runs and math.prod(between) == 1:
            runs[-1].append(axis)
        else:
            runs.append([axis])
    summed = value
    while runs:  # the inner runs first: they shrink the tensor most cheaply
        chosen = tuple(axis for run in runs[-2:] for axis in run)
        del runs[-2:]
        summed = builder.op("ReduceSum", summed, axes=chosen, keepdims=1 if keepdims or runs else 0)
    if not keepdims and len(summed.shape) > len(value.shape) - len(set(axes)):
        summed = reshape_to(builder, summed, [n for axis, n in enumerate(value.shape) if axis not in axes])
    return summed


def sum_to(builder: Any, value: Any, shape: Sequence[int]) -> Any:
    """The adjoint of broadcasting from `shape`: `value` summed over the axes along which `shape` was repeated."""
    shape = tuple(shape)
    if value.shape == shape:
        return value
    missing = len(value.shape) - len(shape)
    padded = (1,) * missing + shape
    axes = [axis for axis, (have, want) in enumerate(zip(value.shape, padded, strict=True)) if have != want]
    if not axes:
        return reshape_to(builder, value, shape)
    if axes == list(range(missing)):
        return sum_axes(builder, value, axes, keepdims=False)
    return reshape_to(builder, sum_axes(builder, value, axes, keepdims=True), shape)
