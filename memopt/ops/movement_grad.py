"""Gradients of data movement that are more than movement: `GatherGrad`, `SliceGrad`, `PadGrad`.

Holds true: each spreads dY over zeros of the shape in its attribute `shape`; where several elements of dY come from one
element of the forward's input, they are added up in the order of dY.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.elementwise_infer import FLOAT
from memopt.ops.movement_common import (
    Array,
    StridedCopy,
    data_type,
    int_attr,
    ints_attr,
    norm_axis,
    present,
    strided_call,
)
from memopt.ops.movement_copy import slice_ranges
from memopt.ops.movement_join import PAD_DIMS, PAD_MODES, pad_pairs
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.strides import row_strides
from memopt.types import TensorType

__all__ = ["OPS"]

_SHAPE = {"shape": Attr("ints", required=True)}


def _source(types: Types, attrs: Attrs) -> TensorType:
    """The type of the forward's input."""
    grad = data_type(types)
    if grad.dtype not in FLOAT:
        raise TypeInferenceError(f"dY is {grad}; want a float dtype")
    return grad.with_shape(ints_attr(attrs, "shape") or ())


def _need_shape(grad: TensorType, shape: Sequence[int]) -> None:
    if grad.shape != tuple(shape):
        raise TypeInferenceError(f"dY is {grad}, but the forward's result has the shape {list(shape)}")


# -- Gather -----------------------------------------------------------------------------------------------------------


def _infer_gather(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, indices = _source(types, attrs), data_type(types, 1)
    if indices.dtype not in ("int32", "int64"):
        raise TypeInferenceError(f"indices are {indices}; want int32 or int64")
    axis = norm_axis(int_attr(attrs, "axis"), source.rank)
    _need_shape(data_type(types), (*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :]))
    return [source]


def _gather_sizes(source: TensorType, attrs: Attrs) -> tuple[int, int, int]:
    axis = norm_axis(int_attr(attrs, "axis"), source.rank)
    return math.prod(source.shape[:axis]), source.shape[axis], math.prod(source.shape[axis + 1 :])


def _gather_grad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    grad, indices = present(arrays), present(arrays, 1).reshape(-1)
    outer, dim, inner = _gather_sizes(outputs[0], attrs)
    found = np.zeros((outer, dim, inner), np.float64)
    grad = grad.reshape(outer, indices.size, inner)
    for i, index in enumerate(indices):
        found[:, index] += grad[:, i]
    return [found.reshape(outputs[0].shape).astype(grad.dtype)]


def _gather_kernel(query: KernelQuery) -> KernelCall | None:
    grad, indices, source = data_type(query.inputs), data_type(query.inputs, 1), data_type(query.outputs)
    if grad.dtype == "float16" or grad.dtype != source.dtype:
        return None
    outer, dim, inner = _gather_sizes(source, query.attrs)
    arrays = (
        ArrayArg("out", 0, (outer, dim, inner), grad.dtype),
        ArrayArg("in", 0, (outer, indices.num_elements, inner), grad.dtype),
        ArrayArg("in", 1, (indices.num_elements,), indices.dtype),
    )
    return KernelCall("movement_grad.gather_grad", arrays)


# -- Slice ------------------------------------------------------------------------------------------------------------


def _infer_slice(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = _source(types, attrs)
    _need_shape(data_type(types), [len(taken) for taken in slice_ranges(source, attrs)])
    return [source]


def _slice_grad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    found = np.zeros(outputs[0].shape, outputs[0].dtype)
    ranges = slice_ranges(outputs[0], attrs)
    found[np.ix_(*(np.array(taken, np.int64) for taken in ranges))] = present(arrays)
    return [found]


def _slice_kernel(query: KernelQuery) -> KernelCall | None:
    grad, source = data_type(query.inputs), data_type(query.outputs)
    ranges, strides = slice_ranges(source, query.attrs), row_strides(source.shape)
    writes = tuple(taken.step * step for taken, step in zip(ranges, strides, strict=True))
    start = sum(taken.start * step for taken, step in zip(ranges, strides, strict=True)) if grad.num_elements else 0
    call = strided_call(grad, source, StridedCopy(grad.shape, writes, row_strides(grad.shape), out_at=start))
    return None if call is None else KernelCall("movement_grad.slice_grad", call.arrays, call.scalars)


# -- Pad --------------------------------------------------------------------------------------------------------------


def _infer_pad(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = _source(types, attrs)
    pairs = pad_pairs(source, attrs)
    _need_shape(data_type(types), [dim + sum(pair) for dim, pair in zip(source.shape, pairs, strict=True)])
    return [source]


def _pad_grad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    """dY added up at the positions that Pad itself puts there: those of a padded tensor of positions."""
    grad, source = present(arrays), outputs[0]
    found = np.zeros(source.num_elements + 1, np.float64)
    positions = np.arange(source.num_elements).reshape(source.shape)
    mode = str(attrs["mode"])
    for axis, (before, after) in enumerate(pad_pairs(source, attrs)):
        frame = [(0, 0)] * source.rank
        frame[axis] = (max(before, 0), max(after, 0))
        if mode == "constant":
            positions = np.pad(positions, frame, constant_values=source.num_elements)
        else:
            positions = np.pad(positions, frame, mode="edge" if mode == "edge" else "reflect")
        positions = np.take(positions, np.arange(max(-before, 0), positions.shape[axis] - max(-after, 0)), axis=axis)
    np.add.at(found, positions.reshape(-1), grad.reshape(-1))
    return [found[:-1].reshape(source.shape).astype(grad.dtype)]


def _pad_kernel(query: KernelQuery) -> KernelCall | None:
    """As Pad's: neighbouring axes that are not padded are folded into one."""
    grad, source = data_type(query.inputs), data_type(query.outputs)
    axes: list[tuple[int, int, int]] = []
    for dim, (before, after) in zip(source.shape, pad_pairs(source, query.attrs), strict=True):
        if axes and before == after == 0 and axes[-1][1:] == (0, 0):
            axes[-1] = (axes[-1][0] * dim, 0, 0)
        else:
            axes.append((dim, before, after))
    if len(axes) > PAD_DIMS or grad.dtype == "float16" or grad.dtype != source.dtype:
        return None
    axes = [(1, 0, 0)] * (PAD_DIMS - len(axes)) + axes
    dims = tuple(dim for dim, _, _ in axes)
    padded = tuple(dim + before + after for dim, before, after in axes)
    arrays = (ArrayArg("out", 0, dims, grad.dtype), ArrayArg("in", 0, padded, grad.dtype))
    mode = PAD_MODES.index(str(query.attrs["mode"]))
    return KernelCall("movement_grad.pad_grad", arrays, (*(before for _, before, _ in axes), mode))


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "GatherGrad",
        inputs=(Input("dY"), Input("indices")),
        outputs=(Output("dX"),),
        infer=_infer_gather,
        reference=_gather_grad,
        attrs={**_SHAPE, "axis": Attr("int", 0)},
        kernel=_gather_kernel,
    ),
    OpSpec(
        "SliceGrad",
        inputs=(Input("dY"),),
        outputs=(Output("dX"),),
        infer=_infer_slice,
        reference=_slice_grad,
        attrs={
            **_SHAPE,
            "starts": Attr("ints", required=True),
            "ends": Attr("ints", required=True),
            "axes": Attr("ints"),
            "steps": Attr("ints"),
        },
        kernel=_slice_kernel,
    ),
    OpSpec(
        "PadGrad",
        inputs=(Input("dY"),),
        outputs=(Output("dX"),),
        infer=_infer_pad,
        reference=_pad_grad,
        attrs={**_SHAPE, "pads": Attr("ints", required=True), "mode": Attr("str", "constant")},
        kernel=_pad_kernel,
    ),
)
