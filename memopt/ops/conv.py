"""Ops: convolution and its transpose.

Holds true: both have one meaning for any number of spatial axes (`reference`); `Conv` has kernels for one and two of
them in float32 and float64, `ConvTranspose` is a host call. `workspace` and `kernel` derive from one `_Blocks`, so the
scratch that is planned is the scratch that is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import (
    WINDOW_ATTRS,
    Array,
    Arrays,
    Window,
    explicit_pads,
    flat,
    gemm_routine,
    image_sizes,
    kernel_dtype,
    make_window,
    need_channels,
    need_float,
    need_same_dtype,
    per_axis,
    present,
    taps,
    wide,
)
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Routine, Types
from memopt.types import TensorType, itemsize

__all__ = ["OPS"]

#: Output channels in a group below which a matrix product has too few rows to pay for im2col.
_FEW_CHANNELS = 4


def _window(types: Types, attrs: Attrs) -> Window:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    return make_window(data.shape[2:], weights.shape[2:], attrs)


def _infer_conv(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    need_float("X", data)
    need_same_dtype(types, ("X", "W", "B"))
    if data.rank < 3 or weights.rank != data.rank:
        raise TypeInferenceError(f"X is {data} and W is {weights}; want (N, C, spatial...) and (M, C/group, kernel...)")
    group = cast(int, attrs["group"])
    channels, maps = data.shape[1], weights.shape[0]
    if group < 1 or maps % group or channels != weights.shape[1] * group:
        raise TypeInferenceError(f"group = {group} does not fit {channels} channels of X and W {weights}")
    if attrs.get("kernel_shape", weights.shape[2:]) != weights.shape[2:]:
        raise TypeInferenceError(f"kernel_shape = {attrs['kernel_shape']} but W is {weights}")
    need_channels("B", types[2] if len(types) > 2 else None, maps)
    return [data.with_shape((data.shape[0], maps, *_window(types, attrs).out))]


def _reference_conv(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """im2col and a matrix product; float16 is computed in float32."""
    data, weights = arrays[0], arrays[1]
    bias = arrays[2] if len(arrays) > 2 else None
    assert data is not None
    assert weights is not None
    dtype, data, weights = data.dtype, wide(data), wide(weights)
    group = cast(int, attrs["group"])
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


@dataclass(frozen=True, slots=True)
class _Blocks:
    """How im2col is cut: `channels` input channels and `columns` output positions at a time; `elements` of scratch."""

    channels: int
    columns: int
    elements: int


def _blocks(window: Window, channels: int, limit: int) -> _Blocks:
    """The cut that moves the fewest elements in at most `limit` elements of scratch (or the least that works).

    Each block of positions reads the weights (per map: channels * taps) once more; each block of channels reads and
    writes the outputs (per map: positions) once more.
    """
    num_taps, positions = window.num_taps, window.num_positions
    width = window.out[-1]
    best, best_cost = _Blocks(1, 1, num_taps), None
    for parts in range(1, min(channels, 64) + 1):
        size = -(-channels // parts)
        most = min(limit // (size * num_taps), positions)
        if most < 1:
            continue
        columns = most if most == positions or most < width else most // width * width
        cost = channels * num_taps * -(-positions // columns) + 2 * positions * (-(-channels // size))
        if best_cost is None or cost < best_cost:
            best, best_cost = _Blocks(size, columns, size * num_taps * columns), cost
    if best_cost is None:
        size = max(limit // num_taps, 1)
        best = _Blocks(size, 1, size * num_taps)
    return best


def _is_direct(weights: TensorType, group: int) -> bool:
    """Whether the groups are too small for matrix products: depthwise convolution and the like."""
    return group > 1 and weights.shape[0] // group < _FEW_CHANNELS


def _query_blocks(query: KernelQuery) -> _Blocks | None:
    """The cut of im2col for this query, or None where the kernel needs no scratch or there is none."""
    data, weights = query.inputs[0], query.inputs[1]
    dtype = kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    window = _window(query.inputs, query.attrs)
    if window.plain or _is_direct(weights, cast(int, query.attrs["group"])):
        return None
    return _blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype))


def _workspace_conv(query: KernelQuery) -> int:
    blocks, data = _query_blocks(query), query.inputs[0]
    return 0 if blocks is None or data is None else blocks.elements * itemsize(data.dtype)


def _kernel_conv(query: KernelQuery) -> KernelCall | None:
    data, weights = query.inputs[0], query.inputs[1]
    dtype = kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    group = cast(int, query.attrs["group"])
    window, blocks = _window(query.inputs, query.attrs), _query_blocks(query)
    has_bias = len(query.inputs) > 2 and query.inputs[2] is not None
    bias = 2 if has_bias else 1
    arrays = [flat("out", 0, query.outputs[0]), flat("in", 0, data), flat("in", 1, weights)]
    arrays.append(flat("in", bias, query.inputs[bias]))
    sizes = (data.shape[0], data.shape[1], weights.shape[0], group, int(has_bias))
    layout = "_nhwc" if query.layout == "NHWC" and data.rank == 4 else ""
    routine = Routine(gemm_routine(dtype))
    if _is_direct(weights, group):
        return KernelCall(f"conv.conv_direct{layout}", tuple(arrays), (*sizes, *_geometry(window)))
    if blocks is None:
        return KernelCall(f"conv.conv_pointwise{layout}", tuple(arrays), (routine, *sizes, window.num_positions))
    arrays.append(ArrayArg("scratch", 0, (blocks.elements,), dtype))
    cut = (blocks.channels, blocks.columns)
    return KernelCall(f"conv.conv_gemm{layout}", tuple(arrays), (routine, *sizes, *_geometry(window), *cut))


def _geometry(window: Window) -> tuple[int, ...]:
    """h, w, kh, kw, sh, sw, dh, dw, top, left, oh, ow."""
    return tuple(size for pair in image_sizes(window) for size in pair)


# -- ConvTranspose ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Spread:
    """How a transposed convolution spreads each position: `full` sizes, of which `out` are kept from `begin` on."""

    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    full: tuple[int, ...]
    begin: tuple[int, ...]
    out: tuple[int, ...]


def _spread(types: Types, attrs: Attrs) -> _Spread:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    sizes, kernel, rank = data.shape[2:], weights.shape[2:], data.rank - 2
    strides, dilations = per_axis(attrs, "strides", rank), per_axis(attrs, "dilations", rank)
    spans = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    extra = cast("tuple[int, ...]", attrs.get("output_padding", (0,) * rank))
    if len(extra) != rank or any(e < 0 for e in extra):
        raise TypeInferenceError(f"output_padding = {extra} does not fit: want {rank} integers of 0 or more")
    full = tuple((n - 1) * s + span + e for n, s, span, e in zip(sizes, strides, spans, extra, strict=True))
    mode, wanted = attrs["auto_pad"], cast("tuple[int, ...] | None", attrs.get("output_shape"))
    if wanted is None and mode in ("SAME_UPPER", "SAME_LOWER"):
        wanted = tuple(n * s for n, s in zip(sizes, strides, strict=True))
    if wanted is None:
        begin, end = explicit_pads(attrs, rank)
        out = tuple(f - b - e for f, b, e in zip(full, begin, end, strict=True))
    else:
        if len(wanted) != rank or any(w > f for w, f in zip(wanted, full, strict=True)):
            raise TypeInferenceError(f"output_shape = {wanted} does not fit: there are at most {full} positions")
        total = [f - w for f, w in zip(full, wanted, strict=True)]
        begin, out = tuple(t // 2 if mode == "SAME_UPPER" else t - t // 2 for t in total), wanted
    if any(size < 1 for size in (*out, *sizes)):
        raise TypeInferenceError(f"X is {data} and pads = {attrs.get('pads')}: the output would be empty, {list(out)}")
    return _Spread(strides, dilations, full, begin, out)


def _infer_transpose(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, weights = present(types, 0, "X"), present(types, 1, "W")
    need_float("X", data)
    need_same_dtype(types, ("X", "W", "B"))
    if data.rank < 3 or weights.rank != data.rank:
        raise TypeInferenceError(f"X is {data} and W is {weights}; want (N, C, spatial...) and (C, M/group, kernel...)")
    group = cast(int, attrs["group"])
    if group < 1 or data.shape[1] % group or data.shape[1] != weights.shape[0]:
        raise TypeInferenceError(f"group = {group} does not fit {data.shape[1]} channels of X and W {weights}")
    if attrs.get("kernel_shape", weights.shape[2:]) != weights.shape[2:]:
        raise TypeInferenceError(f"kernel_shape = {attrs['kernel_shape']} but W is {weights}")
    maps = weights.shape[1] * group
    need_channels("B", types[2] if len(types) > 2 else None, maps)
    return [data.with_shape((data.shape[0], maps, *_spread(types, attrs).out))]


def _reference_transpose(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """A matrix product, then the sum of what each tap spreads; float16 is computed in float32."""
    data, weights = arrays[0], arrays[1]
    bias = arrays[2] if len(arrays) > 2 else None
    assert data is not None
    assert weights is not None
    types = (TensorType.of(data.shape, data.dtype), TensorType.of(weights.shape, weights.dtype))
    spread, dtype, data, weights = _spread(types, attrs), data.dtype, wide(data), wide(weights)
    group, batch, sizes = cast(int, attrs["group"]), data.shape[0], data.shape[2:]
    in_group, maps = weights.shape[0] // group, weights.shape[1] * group
    matrix = weights.reshape(group, in_group, -1).transpose(0, 2, 1)
    columns = np.matmul(matrix, data.reshape(batch, group, in_group, -1))
    columns = columns.reshape(batch, maps, *weights.shape[2:], *sizes)
    full = np.zeros((batch, maps, *spread.full), data.dtype)
    for tap in np.ndindex(*weights.shape[2:]):
        places = [
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, spread.dilations, sizes, spread.strides, strict=True)
        ]
        full[(slice(None), slice(None), *places)] += columns[(slice(None), slice(None), *tap)]
    kept = [slice(b, b + size) for b, size in zip(spread.begin, spread.out, strict=True)]
    out = full[(slice(None), slice(None), *kept)]
    if bias is not None:
        out = out + wide(bias).reshape(-1, *(1,) * len(sizes))
    return [np.array(out, dtype, order="C")]


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="Conv",
        inputs=(Input("X"), Input("W"), Input("B", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_conv,
        reference=_reference_conv,
        attrs={**WINDOW_ATTRS, "group": Attr("int", 1), "kernel_shape": Attr("ints")},
        workspace=_workspace_conv,
        kernel=_kernel_conv,
        layouts=("NHWC",),
    ),
    OpSpec(
        name="ConvTranspose",
        inputs=(Input("X"), Input("W"), Input("B", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_transpose,
        reference=_reference_transpose,
        attrs={
            **WINDOW_ATTRS,
            "group": Attr("int", 1),
            "kernel_shape": Attr("ints"),
            "output_padding": Attr("ints"),
            "output_shape": Attr("ints"),
        },
    ),
)
