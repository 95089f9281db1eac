"""Ops: transposed convolution.

Holds true: it is the gradient of a convolution with respect to its input; so its own gradients are a convolution and
`ConvGradWeight`, and its kernel (one and two spatial axes, float32 and float64, NCHW) spreads the blocks of that
convolution's im2col matrix. `workspace` and `kernel` derive from one `Blocks`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.conv_common import CONV_ATTRS, Blocks, bias_gradient, cut_blocks, geometry, groups
from memopt.ops.items import along
from memopt.ops.nn_common import (
    Array,
    Arrays,
    Window,
    explicit_pads,
    flat,
    gemm_routine,
    kernel_dtype,
    need_channels,
    need_float,
    need_same_dtype,
    of_first_output,
    per_axis,
    present,
    wide,
)
from memopt.ops.spec import (
    DEFAULT_LAYOUT,
    ArrayArg,
    Attr,
    Attrs,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Routine,
    Scalar,
    Types,
)
from memopt.types import TensorType, itemsize

__all__ = ["OPS"]


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
    group = groups(attrs)
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
    group, batch, sizes = groups(attrs), data.shape[0], data.shape[2:]
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


def _cut(query: KernelQuery) -> tuple[Window, Blocks] | None:
    """The convolution that is turned round, and the cut of its im2col matrix; None where there is no kernel."""
    data, weights, dtype = query.inputs[0], query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4 or query.layout != DEFAULT_LAYOUT:
        return None
    spread, sizes = _spread(query.inputs, query.attrs), data.shape[2:]
    ends = (0,) * len(sizes)  # what follows the data matters to the size of the result only, which is known
    window = Window(spread.out, weights.shape[2:], spread.strides, spread.dilations, spread.begin, ends, sizes)
    return window, cut_blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype), (1, 1))


def _workspace(query: KernelQuery) -> int:
    found, data = _cut(query), query.inputs[0]
    return 0 if found is None or data is None else found[1].elements * itemsize(data.dtype)


def _kernel(query: KernelQuery) -> KernelCall | None:
    found, result = _cut(query), query.outputs[0]
    data, weights = query.inputs[0], query.inputs[1]
    if found is None or data is None or weights is None or result is None:
        return None
    window, blocks = found
    bias = 2 if len(query.inputs) > 2 and query.inputs[2] is not None else 1
    arrays = [flat("out", 0, result), flat("in", 0, data), flat("in", 1, weights), flat("in", bias, query.inputs[bias])]
    arrays.append(ArrayArg("scratch", 0, (blocks.elements,), data.dtype))
    scalars: list[Scalar] = [Routine(gemm_routine(data.dtype)), data.shape[0], data.shape[1], result.shape[1]]
    scalars += [groups(query.attrs), int(bias == 2), *geometry(window), blocks.channels, blocks.columns]
    return KernelCall("conv_transpose.spread_gemm", tuple(arrays), tuple(scalars))


def _gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    """dX is a convolution of dY with W; dW is that of a convolution's weights, with X and dY in each other's place."""
    data, weights = node.inputs[0], node.inputs[1]
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    spread = _spread(node.input_types, node.attrs)
    rank, spans = len(spread.out), []
    for axis in range(rank):
        last = (data.shape[axis + 2] - 1) * spread.strides[axis]
        spans.append(last + (weights.shape[axis + 2] - 1) * spread.dilations[axis] + 1)
    seen = tuple(min(size, span - b) for size, span, b in zip(spread.out, spans, spread.begin, strict=True))
    image = grad
    if seen != spread.out:  # output padding that no tap reaches
        image = builder.op("Slice", grad, starts=(0,) * rank, ends=seen, axes=tuple(range(2, rank + 2)))
    end = tuple(span - b - size for size, span, b in zip(seen, spans, spread.begin, strict=True))
    attrs = {
        "strides": spread.strides,
        "dilations": spread.dilations,
        "pads": (*spread.begin, *end),
        "group": groups(node.attrs),
    }
    return [
        builder.op("Conv", image, weights, **attrs),
        builder.op("ConvGradWeight", data, image, kernel_shape=weights.shape[2:], **attrs),
        bias_gradient(builder, grad) if has_bias else None,
    ][: len(node.inputs)]


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="ConvTranspose",
        inputs=(Input("X"), Input("W"), Input("B", optional=True)),
        outputs=(Output("Y"),),
        infer=_infer_transpose,
        reference=_reference_transpose,
        attrs={**CONV_ATTRS, "output_padding": Attr("ints"), "output_shape": Attr("ints")},
        workspace=_workspace,
        kernel=_kernel,
        items=along(0),
        gradient=of_first_output(_gradient, needs_inputs=(0, 1)),
    ),
)
