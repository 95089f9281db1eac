"""Ops: reductions, `Softmax`, `LogSoftmax`, `ArgMax` and `CumSum`, by their ONNX names.

`axes` (default: all) is an attribute. Sums, means, products and norms accumulate in float64 (integers: in 64 bits)
and are rounded once. Over an axis of no elements a sum is 0 and a product 1; a maximum, a minimum or a mean is a
`TypeInferenceError`. The integer mean is truncated towards zero. Softmax has opset-13 semantics: one axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from memopt.errors import TypeInferenceError
from memopt.ops import reduction_grad, reduction_loss
from memopt.ops.elementwise_infer import ANY, FLOAT, NUMBER, present
from memopt.ops.movement_common import copy_numbers, in_storage
from memopt.ops.reduction_rules import GRADIENTS
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    ChooseKernel,
    Infer,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Reference,
    Types,
)
from memopt.strides import Strides
from memopt.types import TensorType

__all__ = ["OPS"]

Array = NDArray[Any]

#: op -> (kernel, dtypes, whether it is undefined over no elements)
_REDUCTIONS: dict[str, tuple[str, Sequence[str], bool]] = {
    "ReduceSum": ("reduce_sum", NUMBER, False),
    "ReduceMean": ("reduce_mean", NUMBER, True),
    "ReduceMax": ("reduce_max", ANY, True),
    "ReduceMin": ("reduce_min", ANY, True),
    "ReduceProd": ("reduce_prod", NUMBER, False),
    "ReduceSumSquare": ("reduce_sum_square", NUMBER, False),
    "ReduceL1": ("reduce_l1", NUMBER, False),
    "ReduceL2": ("reduce_l2", NUMBER, False),
}


def _axis(type: TensorType, axis: int) -> int:
    """`axis` counted from the front, or `TypeInferenceError`."""
    if not -type.rank <= axis < type.rank:
        raise TypeInferenceError(f"axis {axis} is out of range for {type}: want {-type.rank} to {type.rank - 1}")
    return axis % type.rank


def _data(types: Types, dtypes: Sequence[str]) -> TensorType:
    data = present(types)[0]
    if data.dtype not in dtypes:
        raise TypeInferenceError(f"dtype {data.dtype} is not one of {', '.join(dtypes)}")
    return data


def _reduced_axes(data: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """The reduced axes, sorted; no axes mean all, unless `noop_with_empty_axes`."""
    given = cast("tuple[int, ...]", attrs.get("axes", ()))
    if not given:
        return () if attrs["noop_with_empty_axes"] else tuple(range(data.rank))
    axes = sorted(_axis(data, axis) for axis in given)
    if len(set(axes)) < len(axes):
        raise TypeInferenceError(f"axes {list(given)} name a dimension of {data} twice")
    return tuple(axes)


def _reduced_shape(data: TensorType, axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    kept = (1 if dim in axes else extent for dim, extent in enumerate(data.shape))
    return tuple(kept) if keepdims else tuple(n for dim, n in enumerate(data.shape) if dim not in axes)


def _infer_reduction(dtypes: Sequence[str], needs_elements: bool) -> Infer:
    def infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
        data = _data(types, dtypes)
        axes = _reduced_axes(data, attrs)
        empty = [axis for axis in axes if data.shape[axis] == 0]
        if needs_elements and empty:
            raise TypeInferenceError(f"there is no result over no elements: axis {empty[0]} of {data} is empty")
        return [data.with_shape(_reduced_shape(data, axes, bool(attrs["keepdims"])))]

    return infer


#: Of an axis or several that run on from each other: whether they are reduced, how long they are, their step.
_Group = tuple[bool, int, int]


def _walk(shape: Sequence[int], axes: Sequence[int], steps: Strides) -> tuple[int, ...] | None:
    """The extents (o, a, m, b, i) of data, of which a and b are reduced, and the steps of the first four; None where
    more than two would be reduced, or what is innermost is not contiguous.

    Loops may run in the order of storage instead of the axes' if the axes that are kept have one order in both.
    """
    dims = [dim for dim, extent in enumerate(shape) if extent != 1]
    for order in (dims, sorted(dims, key=lambda dim: -steps[dim])):
        kept = [dim for dim in order if dim not in axes]
        found = _fold([(dim in axes, shape[dim], steps[dim]) for dim in order]) if kept == sorted(kept) else None
        if found is not None:
            return found
    return None


def _fold(dims: Sequence[_Group]) -> tuple[int, ...] | None:
    """The extents and steps of `_walk` for axes in this order."""
    groups: list[_Group] = [(False, 1, 0)]
    for reduced, extent, step in dims:
        last = groups[-1]
        if last[0] != reduced:
            groups.append((reduced, extent, step))
        elif last[1] == 1:
            groups[-1] = (reduced, extent, step)
        elif last[2] == step * extent:
            groups[-1] = (reduced, last[1] * extent, step)
        else:
            groups += [(not reduced, 1, 0), (reduced, extent, step)]
    if groups[-1][0]:
        groups.append((False, 1, 0))
    while len(groups) < 5:  # of three, the first is the outermost; one alone is the innermost
        middle = len(groups) // 2
        groups[middle:middle] = [(False, 1, 0)] * 2
    innermost = groups[-1] if groups[-1][1] != 1 else groups[-2]
    if len(groups) > 5 or (innermost[1] != 1 and innermost[2] != 1):
        return None
    return (*(extent for _, extent, _ in groups), *(step for _, _, step in groups[:4]))


def _operands(query: KernelQuery) -> tuple[TensorType, TensorType, tuple[ArrayArg, ArrayArg]] | None:
    """Input, output and both as flat arrays; None where there is no kernel for their dtypes."""
    data, output = query.inputs[0], query.outputs[0]
    if data is None or output is None or "float16" in (data.dtype, output.dtype):
        return None
    out = ArrayArg("out", 0, (output.num_elements,), output.dtype)
    return data, output, (out, ArrayArg("in", 0, in_storage(query)[0].shape, data.dtype))


def _reduction_kernel(function: str) -> ChooseKernel:
    def kernel(query: KernelQuery) -> KernelCall | None:
        operands = _operands(query)
        if operands is None:
            return None
        data, _, arrays = operands
        walk = _walk(data.shape, _reduced_axes(data, query.attrs), in_storage(query)[1])
        return None if walk is None else KernelCall(f"reduction.{function}", arrays, walk)

    return kernel


def _wide(x: Array) -> Array:
    return x.astype({"f": np.float64, "u": np.uint64}.get(x.dtype.kind, np.int64))


def _mean(x: Array, axes: tuple[int, ...]) -> Array:
    total = np.sum(_wide(x), axis=axes, keepdims=True)
    count = math.prod(x.shape[axis] for axis in axes)
    if x.dtype.kind == "f":
        return np.asarray(total / count)
    size = np.abs(total) // total.dtype.type(count)
    return np.asarray(np.where(total < 0, np.negative(size), size))


_MEANINGS: dict[str, Callable[[Array, tuple[int, ...]], Array]] = {
    "ReduceSum": lambda x, axes: np.sum(_wide(x), axis=axes, keepdims=True),
    "ReduceMean": _mean,
    "ReduceMax": lambda x, axes: np.max(x, axis=axes, keepdims=True),
    "ReduceMin": lambda x, axes: np.min(x, axis=axes, keepdims=True),
    "ReduceProd": lambda x, axes: np.prod(_wide(x), axis=axes, keepdims=True),
    "ReduceSumSquare": lambda x, axes: np.sum(_wide(x) * _wide(x), axis=axes, keepdims=True),
    "ReduceL1": lambda x, axes: np.sum(np.abs(_wide(x)), axis=axes, keepdims=True),
    "ReduceL2": lambda x, axes: np.sqrt(np.sum(_wide(x) * _wide(x), axis=axes, keepdims=True).astype(np.float64)),
}


def _reduction_reference(name: str) -> Reference:
    def reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
        x = np.asarray(arrays[0])
        axes = _reduced_axes(TensorType.of(x.shape, x.dtype), attrs)
        with np.errstate(all="ignore"):
            result = np.array(_MEANINGS[name](x, axes)).astype(outputs[0].dtype)
        return [result.reshape(outputs[0].shape)]

    return reference


def _reduction(name: str) -> OpSpec:
    function, dtypes, needs_elements = _REDUCTIONS[name]
    return OpSpec(
        name=name,
        inputs=(Input("data"),),
        outputs=(Output("reduced"),),
        infer=_infer_reduction(dtypes, needs_elements),
        reference=_reduction_reference(name),
        attrs={"axes": Attr("ints"), "keepdims": Attr("int", 1), "noop_with_empty_axes": Attr("int", 0)},
        kernel=_reduction_kernel(function),
        strided=(0,),
        gradient=GRADIENTS[name],
    )


# -- along one axis ---------------------------------------------------------------------------------------------------


def _along(attrs: Attrs, data: TensorType) -> int:
    return _axis(data, cast(int, attrs["axis"]))


def _infer_along(dtypes: Sequence[str]) -> Infer:
    """The type of the input, once its axis is checked."""

    def infer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
        data = _data(types, dtypes)
        _along(attrs, data)
        return [data]

    return infer


def _infer_argmax(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = _data(types, NUMBER)
    axis = _along(attrs, data)
    if data.shape[axis] == 0:
        raise TypeInferenceError(f"there is no maximum of no elements: axis {axis} of {data} is empty")
    return [TensorType(_reduced_shape(data, (axis,), bool(attrs["keepdims"])), "int64")]


def _along_kernel(function: str, *flags: str) -> ChooseKernel:
    """The kernel on (outer, axis, inner), with the named int attributes as further scalars.

    Strided data go to one that brings them to the output first.
    """

    def kernel(query: KernelQuery) -> KernelCall | None:
        operands = _operands(query)
        if operands is None:
            return None
        data, _, arrays = operands
        axis = _along(query.attrs, data)
        extents = (math.prod(data.shape[:axis]), data.shape[axis], math.prod(data.shape[axis + 1 :]))
        scalars = (*extents, *(cast(int, query.attrs[name]) for name in flags))
        if query.stride_of(0) is None:
            return KernelCall(f"reduction.{function}", arrays, scalars)
        walk = copy_numbers(query)
        return None if walk is None else KernelCall(f"reduction.{function}_strided", arrays, (*scalars, *walk))

    return kernel


def _softmax_reference(log: bool) -> Reference:
    def reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
        x = np.asarray(arrays[0]).astype(np.float64)
        axis = cast(int, attrs["axis"])
        if x.size == 0:
            return [np.zeros(outputs[0].shape, outputs[0].dtype)]
        with np.errstate(all="ignore"):
            shifted = x - np.max(x, axis=axis, keepdims=True)
            total = np.sum(np.exp(shifted), axis=axis, keepdims=True)
            result = shifted - np.log(total) if log else np.exp(shifted) / total
            return [result.astype(outputs[0].dtype)]

    return reference


def _argmax_reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    x = np.asarray(arrays[0])
    axis = cast(int, attrs["axis"])
    if attrs["select_last_index"]:
        index = x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis)
    else:
        index = np.argmax(x, axis=axis)
    return [np.array(index, np.int64).reshape(outputs[0].shape)]


def _cumsum_reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    axis = cast(int, attrs["axis"])
    x = np.moveaxis(_wide(np.asarray(arrays[0])), axis, 0)
    if attrs["reverse"]:
        x = x[::-1]
    with np.errstate(all="ignore"):
        total = np.cumsum(x, axis=0)
        if attrs["exclusive"]:
            total = np.concatenate([np.zeros_like(total[:1]), total[:-1]])
        if attrs["reverse"]:
            total = total[::-1]
        return [np.ascontiguousarray(np.moveaxis(total, 0, axis)).astype(outputs[0].dtype)]


def _along_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Unless it goes along axis 0 itself."""
    data = inputs[0]
    return (True,) if data is not None and data.rank and cast(int, attrs["axis"]) % data.rank else None


def _softmax(name: str, function: str) -> OpSpec:
    return OpSpec(
        name=name,
        inputs=(Input("input"),),
        outputs=(Output("output"),),
        infer=_infer_along(FLOAT),
        reference=_softmax_reference(log=name == "LogSoftmax"),
        attrs={"axis": Attr("int", -1)},
        inplace=(InplacePair(0, 0),),
        kernel=_along_kernel(function),
        strided=(0,),
        items=_along_items,
        gradient=GRADIENTS[name],
    )


_ARGMAX = OpSpec(
    name="ArgMax",
    inputs=(Input("data"),),
    outputs=(Output("reduced"),),
    infer=_infer_argmax,
    reference=_argmax_reference,
    attrs={"axis": Attr("int", 0), "keepdims": Attr("int", 1), "select_last_index": Attr("int", 0)},
    kernel=_along_kernel("argmax", "select_last_index"),
)

_CUMSUM = OpSpec(
    name="CumSum",
    inputs=(Input("x"),),
    outputs=(Output("y"),),
    infer=_infer_along(NUMBER),
    reference=_cumsum_reference,
    attrs={"axis": Attr("int", required=True), "exclusive": Attr("int", 0), "reverse": Attr("int", 0)},
    kernel=_along_kernel("cumsum", "exclusive", "reverse"),
    gradient=GRADIENTS["CumSum"],
)

OPS: tuple[OpSpec, ...] = (
    *(_reduction(name) for name in _REDUCTIONS),
    _softmax("Softmax", "softmax"),
    _softmax("LogSoftmax", "log_softmax"),
    _ARGMAX,
    _CUMSUM,
    *reduction_grad.OPS,
    *reduction_loss.OPS,
)
