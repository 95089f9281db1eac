"""Ops: convolution; those of `conv_transpose`, `conv_grad`, `conv_fused` and `conv_norm` belong to the family.

Holds true: all have one meaning for any number of spatial axes (`reference`), and kernels for one and two of them in
float32 and float64. `workspace` and `kernel` derive from one `Blocks`, so the scratch that is planned is the scratch
that is used.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops import conv_fused, conv_grad, conv_norm, conv_transpose
from memopt.ops.conv_common import CONV_ATTRS, Blocks, cut_blocks, geometry, groups, is_direct, window_over
from memopt.ops.items import along
from memopt.ops.nn_common import (
    Array,
    Arrays,
    Window,
    flat,
    gemm_routine,
    kernel_dtype,
    make_window,
    need_channels,
    need_float,
    need_same_dtype,
    present,
    taps,
    wide,
)
from memopt.ops.spec import ArrayArg, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Routine, Types
from memopt.types import TensorType, itemsize

__all__ = ["OPS"]


def _window(types: Types, attrs: Attrs) -> Window:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    return window_over(data.shape[2:], weights.shape[2:], attrs)


def _infer_conv(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    need_float("X", data)
    need_same_dtype(types, ("X", "W", "B"))
    if data.rank < 3 or weights.rank != data.rank:
        raise TypeInferenceError(f"X is {data} and W is {weights}; want (N, C, spatial...) and (M, C/group, kernel...)")
    group = groups(attrs)
    channels, maps = data.shape[1], weights.shape[0]
    if group < 1 or maps % group or channels != weights.shape[1] * group:
        raise TypeInferenceError(f"group = {group} does not fit {channels} channels of X and W {weights}")
    need_channels("B", types[2] if len(types) > 2 else None, maps)
    return [data.with_shape((data.shape[0], maps, *_window(types, attrs).out))]


def _reference_conv(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """im2col and a matrix product; float16 is computed in float32."""
    data, weights = arrays[0], arrays[1]
    bias = arrays[2] if len(arrays) > 2 else None
    assert data is not None
    assert weights is not None
    dtype, data, weights = data.dtype, wide(data), wide(weights)
    group = groups(attrs)
    window = make_window(data.shape[2:], weights.shape[2:], attrs)
    batch, channels, maps = data.shape[0], data.shape[1], weights.shape[0]
    columns = np.empty((batch, channels, window.num_taps, *window.out), data.dtype)
    for number, seen in taps(data, window, 0.0):
        columns[:, :, number] = seen
    rows = channels // group * window.num_taps
    columns = columns.reshape(batch, group, rows, window.num_positions)
    out = np.matmul(weights.reshape(group, maps // group, rows), columns).reshape(outputs[0].shape)
    if bias is not None:
        out += wide(bias).reshape(-1, *(1,) * len(window.out))
    return [out.astype(dtype, copy=False)]


def _query_blocks(query: KernelQuery) -> Blocks | None:
    """The cut of im2col for this query, or None where the kernel needs no scratch or there is none."""
    data, weights = query.inputs[0], query.inputs[1]
    dtype = kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    window = _window(query.inputs, query.attrs)
    if window.plain or is_direct(weights.shape[0], groups(query.attrs)):
        return None
    return cut_blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype))


def _workspace_conv(query: KernelQuery) -> int:
    blocks, data = _query_blocks(query), query.inputs[0]
    return 0 if blocks is None or data is None else blocks.elements * itemsize(data.dtype)


def _kernel_conv(query: KernelQuery) -> KernelCall | None:
    data, weights = query.inputs[0], query.inputs[1]
    dtype = kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    group = groups(query.attrs)
    window, blocks = _window(query.inputs, query.attrs), _query_blocks(query)
    has_bias = len(query.inputs) > 2 and query.inputs[2] is not None
    bias = 2 if has_bias else 1
    arrays = [flat("out", 0, query.outputs[0]), flat("in", 0, data), flat("in", 1, weights)]
    arrays.append(flat("in", bias, query.inputs[bias]))
    sizes = (data.shape[0], data.shape[1], weights.shape[0], group, int(has_bias))
    layout = "_nhwc" if query.layout == "NHWC" and data.rank == 4 else ""
    routine = Routine(gemm_routine(dtype))
    if is_direct(weights.shape[0], group):
        return KernelCall(f"conv.conv_direct{layout}", tuple(arrays), (*sizes, *geometry(window)))
    if blocks is None:
        return KernelCall(f"conv.conv_pointwise{layout}", tuple(arrays), (routine, *sizes, window.num_positions))
    arrays.append(ArrayArg("scratch", 0, (blocks.elements,), dtype))
    cut = (blocks.channels, blocks.columns)
    return KernelCall(f"conv.conv_gemm{layout}", tuple(arrays), (routine, *sizes, *geometry(window), *cut))


OPS: tuple[OpSpec, ...] = (
    *conv_grad.OPS,
    *conv_transpose.OPS,
    *conv_fused.OPS,
    *conv_norm.OPS,
    OpSpec(
        name="Conv",
        inputs=(Input("X"), Input("W"), Input("B", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_conv,
        reference=_reference_conv,
        attrs=CONV_ATTRS,
        workspace=_workspace_conv,
        kernel=_kernel_conv,
        items=along(0),
        layouts=("NHWC",),
        gradient=conv_grad.CONV_GRADIENT,
    ),
)
