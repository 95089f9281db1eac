"""Ops: pooling.

Holds true: padding is never a maximum, and is counted in an average only with `count_include_pad`; a window of an
average never counts positions beyond the pads (`ceil_mode`). A maximum over a NaN is NaN. There are kernels for one
and two spatial axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import (
    WINDOW_ATTRS,
    Array,
    Arrays,
    Window,
    flat,
    image_sizes,
    kernel_dtype,
    make_window,
    need_float,
    present,
    taps,
    wide,
)
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.types import TensorType

__all__ = ["OPS"]

_POOL_ATTRS = {**WINDOW_ATTRS, "ceil_mode": Attr("int", 0), "kernel_shape": Attr("ints", required=True)}


def _window(data: TensorType, attrs: Attrs) -> Window:
    """The pool's window; each of its positions must see data, since the maximum of padding alone is nothing."""
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    for axis in range(len(window.out)):
        if not _seen(window, axis, 0, window.sizes[axis]).all():
            raise TypeInferenceError(
                f"pads = {window.begin + window.end}: with kernel_shape = {window.kernel} and dilations = "
                f"{window.dilations}, a window would see only padding on spatial axis {axis}"
            )
    return window


def _seen(window: Window, axis: int, low: int, high: int) -> Array:
    """For each output position of `axis`: how many taps lie in [low, high)."""
    starts = np.arange(window.out[axis]) * window.strides[axis] - window.begin[axis]
    places = starts[:, None] + np.arange(window.kernel[axis]) * window.dilations[axis]
    return np.asarray(((places >= low) & (places < high)).sum(axis=1))


def _need_images(data: TensorType) -> None:
    if data.rank < 3:
        raise TypeInferenceError(f"X is {data}; want (N, C, spatial...)")


def _infer_max_pool(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    _need_images(data)
    if data.dtype == "bool":
        raise TypeInferenceError(f"X is {data}; want numbers")
    out = data.with_shape((*data.shape[:2], *_window(data, attrs).out))
    return [out, out.with_dtype("int64")][:num_outputs]


def _infer_average_pool(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    _need_images(data)
    need_float("X", data)
    return [data.with_shape((*data.shape[:2], *_window(data, attrs).out))]


def _infer_global(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    _need_images(data)
    need_float("X", data)
    if math.prod(data.shape[2:]) == 0:
        raise TypeInferenceError(f"X is {data}, which has no positions to pool")
    return [data.with_shape((*data.shape[:2], *(1,) * (data.rank - 2)))]


def _lowest(dtype: np.dtype[Any]) -> float | int:
    return -np.inf if dtype.kind == "f" else int(np.iinfo(dtype).min)


def _reference_max_pool(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    if len(outputs) > 1:
        return _max_with_indices(data, window, attrs)
    best = np.full(outputs[0].shape, _lowest(data.dtype), data.dtype)
    for _, seen in taps(data, window, _lowest(data.dtype)):
        np.maximum(best, seen, out=best)
    return [best]


def _max_with_indices(data: Array, window: Window, attrs: Attrs) -> Sequence[Array]:
    """The maxima and where in the flattened data they are: the first one in row-major order of the window."""
    order: Literal["C", "F"] = "F" if attrs["storage_order"] == 1 else "C"
    places = np.arange(math.prod(window.sizes), dtype=np.int64).reshape(window.sizes, order=order)
    shape = (*data.shape[:2], *window.out)
    best, where = np.full(shape, _lowest(data.dtype), data.dtype), np.full(shape, -1, np.int64)
    numbers = [np.array(place) for _, place in taps(places, window, -1)]
    for (_, seen), place in zip(taps(data, window, _lowest(data.dtype)), numbers, strict=True):
        better = (place >= 0) & ((where < 0) | (seen > best) | (np.isnan(seen) & ~np.isnan(best)))
        best = np.where(better, seen, best)
        where = np.where(better, place, where)
    planes = np.arange(shape[0] * shape[1], dtype=np.int64).reshape(*shape[:2], *(1,) * len(window.out))
    return [best, where + planes * math.prod(window.sizes)]


def _counts(window: Window, include_pad: bool) -> Array:
    """How many positions each window averages over, of shape `window.out`."""
    counts = np.ones(window.out)
    for axis, size in enumerate(window.sizes):
        low, high = (-window.begin[axis], size + window.end[axis]) if include_pad else (0, size)
        along = _seen(window, axis, low, high)
        counts *= along.reshape(-1, *(1,) * (len(window.sizes) - axis - 1))
    return counts


def _reference_average_pool(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    window = make_window(data.shape[2:], cast("tuple[int, ...]", attrs["kernel_shape"]), attrs)
    total = np.zeros(outputs[0].shape, np.float64)
    for _, seen in taps(data, window, 0.0):
        total += seen
    return [(total / _counts(window, bool(attrs["count_include_pad"]))).astype(data.dtype)]


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
    window = _window(data, query.attrs)
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
    window = _window(data, query.attrs)
    include = int(bool(query.attrs["count_include_pad"]))
    ends = window.end if len(window.end) == 2 else (0, *window.end)
    return _pool_call("pool.average_pool", query, include, *ends)


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


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="MaxPool",
        inputs=(Input("X"),),
        outputs=(Output("Y"), Output("Indices", optional=True)),
        infer=_infer_max_pool,
        reference=_reference_max_pool,
        attrs={**_POOL_ATTRS, "storage_order": Attr("int", 0)},
        kernel=_kernel_max_pool,
        layouts=("NHWC",),
    ),
    OpSpec(
        name="AveragePool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_average_pool,
        reference=_reference_average_pool,
        attrs={**_POOL_ATTRS, "count_include_pad": Attr("int", 0)},
        kernel=_kernel_average_pool,
        layouts=("NHWC",),
    ),
    OpSpec(
        name="GlobalAveragePool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_global,
        reference=_reference_global_average,
        kernel=_kernel_global_average,
        layouts=("NHWC",),
    ),
    OpSpec(
        name="GlobalMaxPool",
        inputs=(Input("X"),),
        outputs=(Output("Y"),),
        infer=_infer_global,
        reference=_reference_global_max,
        kernel=_kernel_global_max,
        layouts=("NHWC",),
    ),
)
