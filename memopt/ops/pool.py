"""Ops: pooling; those of `pool_grad` belong to the family.

Holds true: padding is never a maximum, and is counted in an average only with `count_include_pad`; a window of an
average never counts positions beyond the pads (`ceil_mode`). A maximum over a NaN is NaN. There are kernels for one
and two spatial axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops import pool_grad
from memopt.ops.items import along
from memopt.ops.nn_common import (
    Array,
    Arrays,
    flat,
    image_sizes,
    kernel_dtype,
    make_window,
    need_float,
    present,
    taps,
    wide,
)
from memopt.ops.pool_common import POOL_ATTRS, counts, ends, lowest, max_with_indices, need_images, pool_window
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.types import TensorType

__all__ = ["OPS"]


def _infer_max_pool(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    need_images(data)
    if data.dtype == "bool":
        raise TypeInferenceError(f"X is {data}; want numbers")
    out = data.with_shape((*data.shape[:2], *pool_window(data, attrs).out))
    return [out, out.with_dtype("int64")][:num_outputs]


def _infer_average_pool(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    need_images(data)
    need_float("X", data)
    return [data.with_shape((*data.shape[:2], *pool_window(data, attrs).out))]


def _infer_global(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    need_images(data)
    need_float("X", data)
    if math.prod(data.shape[2:]) == 0:
        raise TypeInferenceError(f"X is {data}, which has no positions to pool")
    return [data.with_shape((*data.shape[:2], *(1,) * (data.rank - 2)))]


def _reference_max_pool(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    if len(outputs) > 1:
        return max_with_indices(data, window, attrs)
    best = np.full(outputs[0].shape, lowest(data.dtype), data.dtype)
    for _, seen in taps(data, window, lowest(data.dtype)):
        np.maximum(best, seen, out=best)
    return [best]


def _reference_average_pool(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    total = np.zeros(outputs[0].shape, np.float64)
    for _, seen in taps(data, window, 0.0):
        total += seen
    return [(total / counts(window, bool(attrs["count_include_pad"]))).astype(data.dtype)]


def _reference_global_average(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    axes = tuple(range(2, data.ndim))
    return [data.mean(axis=axes, keepdims=True, dtype=np.float64).astype(data.dtype)]


def _reference_global_max(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    return [wide(data).max(axis=tuple(range(2, data.ndim)), keepdims=True).astype(data.dtype)]


def _pool_call(kernel: str, query: KernelQuery, *options: int) -> KernelCall | None:
    """A call of a kernel over (planes, height, width), or over (batch, height, width, channels) in NHWC."""
    data, out = query.inputs[0], query.outputs[0]
    if kernel_dtype(query) is None or data is None or data.rank > 4 or len(query.outputs) > 1:
        return None
    window = pool_window(data, query.attrs)
    sizes = tuple(size for pair in image_sizes(window) for size in pair)
    arrays = (flat("out", 0, out), flat("in", 0, data))
    if query.layout == "NHWC" and data.rank == 4:
        return KernelCall(f"{kernel}_nhwc", arrays, (data.shape[0], data.shape[1], *sizes, *options))
    return KernelCall(kernel, arrays, (data.shape[0] * data.shape[1], *sizes, *options))


def _kernel_max_pool(query: KernelQuery) -> KernelCall | None:
    return _pool_call("pool.max_pool", query)


def _kernel_average_pool(query: KernelQuery) -> KernelCall | None:
    data = query.inputs[0]
    if data is None or data.rank > 4:
        return None
    window = pool_window(data, query.attrs)
    include = int(bool(query.attrs["count_include_pad"]))
    return _pool_call("pool.average_pool", query, include, *ends(window))


def _global_call(kernel: str, query: KernelQuery) -> KernelCall | None:
    """A call over (batch, channels, positions), or (batch, positions, channels)."""
    data = query.inputs[0]
    dtype = kernel_dtype(query)
    if dtype is None or data is None:
        return None
    batch, channels, positions = data.shape[0], data.shape[1], math.prod(data.shape[2:])
    if query.layout == "NHWC" and data.rank == 4:
        to, source = (
            ArrayArg("out", 0, (batch, channels), dtype),
            ArrayArg("in", 0, (batch, positions, channels), dtype),
        )
        return KernelCall(f"{kernel}_nhwc", (to, source))
    planes = batch * channels
    return KernelCall(kernel, (ArrayArg("out", 0, (planes,), dtype), ArrayArg("in", 0, (planes, positions), dtype)))


def _kernel_global_average(query: KernelQuery) -> KernelCall | None:
    return _global_call("pool.global_average", query)


def _kernel_global_max(query: KernelQuery) -> KernelCall | None:
    return _global_call("pool.global_max", query)


def _max_pool_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Indices count through the whole batch."""
    return None if len(outputs) > 1 and outputs[1] is not None else (True,)


OPS: tuple[OpSpec, ...] = (
    *pool_grad.OPS,
    OpSpec(
        name="MaxPool",
        inputs=(Input("X"),),
        outputs=(Output("Y"), Output("Indices", optional=True)),
        infer=_infer_max_pool,
        reference=_reference_max_pool,
        attrs={**POOL_ATTRS, "storage_order": Attr("int", 0)},
        kernel=_kernel_max_pool,
        items=_max_pool_items,
        layouts=("NHWC",),
        gradient=pool_grad.MAX_POOL_GRADIENT,
    ),
    OpSpec(
        name="AveragePool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_average_pool,
        reference=_reference_average_pool,
        attrs={**POOL_ATTRS, "count_include_pad": Attr("int", 0)},
        kernel=_kernel_average_pool,
        items=along(0),
        layouts=("NHWC",),
        gradient=pool_grad.AVERAGE_POOL_GRADIENT,
    ),
    OpSpec(
        name="GlobalAveragePool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_global,
        reference=_reference_global_average,
        kernel=_kernel_global_average,
        items=along(0),
        layouts=("NHWC",),
        gradient=pool_grad.GLOBAL_AVERAGE_GRADIENT,
    ),
    OpSpec(
        name="GlobalMaxPool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_global,
        reference=_reference_global_max,
        kernel=_kernel_global_max,
        items=along(0),
        layouts=("NHWC",),
        gradient=pool_grad.GLOBAL_MAX_GRADIENT,
    ),
)
