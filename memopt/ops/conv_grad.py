"""Ops: the gradients of convolution with respect to its data and its weights.

Holds true: each reads the gradient of Y and the *other* operand, and knows the shape of what it makes from an
attribute. Sums are taken in one fixed order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.conv_common import (
    CONV_ATTRS,
    Blocks,
    bias_gradient,
    cut_blocks,
    geometry,
    groups,
    is_direct,
    window_over,
)
from memopt.ops.nn_common import (
    Array,
    Arrays,
    Window,
    flat,
    gemm_routine,
    kernel_dtype,
    need_float,
    need_same_dtype,
    of_first_output,
    present,
    taps,
    wide,
)
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Routine,
    Types,
)
from memopt.types import TensorType, itemsize

__all__ = ["CONV_GRADIENT", "OPS"]


def _ints(attrs: Attrs, name: str) -> tuple[int, ...]:
    return cast("tuple[int, ...]", attrs[name])


def _need_gradient(grad: TensorType, data: TensorType, weights: tuple[int, ...], attrs: Attrs) -> None:
    """Raise unless `grad` is the type of the convolution of `data` with `weights`."""
    need_float("dY", grad)
    group = groups(attrs)
    if data.rank < 3 or len(weights) != data.rank or grad.rank != data.rank:
        raise TypeInferenceError(f"dY is {grad}, X is {data}, W has shape {list(weights)}; want images of one rank")
    if group < 1 or weights[0] % group or data.shape[1] != weights[1] * group:
        raise TypeInferenceError(f"group = {group} does not fit {data.shape[1]} channels of X and W {list(weights)}")
    out = (data.shape[0], weights[0], *window_over(data.shape[2:], weights[2:], attrs).out)
    if grad.shape != out:
        raise TypeInferenceError(f"dY is {grad}; a convolution of {data} with W {list(weights)} has shape {list(out)}")


# -- with respect to the data -----------------------------------------------------------------------------------------


def _infer_input(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, weights = present(types, 0, "dY"), present(types, 1, "W")
    need_same_dtype(types, ("dY", "W"))
    data = grad.with_shape(_ints(attrs, "input_shape"))
    _need_gradient(grad, data, weights.shape, attrs)
    return [data]


def _reference_input(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """A matrix product, then the sum of what each tap spreads; float16 is computed in float32."""
    grad, weights = arrays[0], arrays[1]
    assert grad is not None
    assert weights is not None
    dtype, grad, weights = grad.dtype, wide(grad), wide(weights)
    data, group, batch = outputs[0], groups(attrs), grad.shape[0]
    window = window_over(data.shape[2:], weights.shape[2:], attrs)
    matrix = weights.reshape(group, weights.shape[0] // group, -1).transpose(0, 2, 1)
    columns = np.matmul(matrix, grad.reshape(batch, group, -1, window.num_positions))
    columns = columns.reshape(*data.shape[:2], window.num_taps, *window.out)
    places = np.arange(1, int(np.prod(window.sizes)) + 1).reshape(window.sizes)
    spread = np.zeros((*data.shape[:2], places.size + 1), grad.dtype)
    for number, place in taps(places, window, 0):  # 0 is in the pads
        spread[:, :, place] += columns[:, :, number]
    return [np.ascontiguousarray(spread[:, :, 1:].reshape(data.shape), dtype)]


def _input_window(query: KernelQuery) -> tuple[str, TensorType, TensorType, Window] | None:
    """The kernel's dtype, the types of dX and W, and the window; None where there is no kernel."""
    data, weights, dtype = query.outputs[0], query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    return dtype, data, weights, window_over(data.shape[2:], weights.shape[2:], query.attrs)


def _input_blocks(query: KernelQuery) -> Blocks | None:
    found = _input_window(query)
    if found is None or found[3].plain or is_direct(found[2].shape[0], groups(query.attrs)):
        return None
    dtype, _, weights, window = found
    return cut_blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype), (1, 1))


def _kernel_input(query: KernelQuery) -> KernelCall | None:
    found, blocks = _input_window(query), _input_blocks(query)
    if found is None:
        return None
    dtype, data, weights, window = found
    group = groups(query.attrs)
    arrays = (flat("out", 0, data), flat("in", 0, query.inputs[0]), flat("in", 1, weights))
    sizes = (data.shape[0], data.shape[1], weights.shape[0], group)
    routine = Routine(gemm_routine(dtype))
    if is_direct(weights.shape[0], group):
        return KernelCall("conv_grad.input_direct", arrays, (*sizes, *geometry(window)))
    if blocks is None:
        return KernelCall("conv_grad.input_pointwise", arrays, (routine, *sizes, window.num_positions))
    scratch = ArrayArg("scratch", 0, (blocks.elements,), dtype)
    cut = (blocks.channels, blocks.columns)
    return KernelCall("conv_grad.input_gemm", (*arrays, scratch), (routine, *sizes, *geometry(window), *cut))


# -- with respect to the weights --------------------------------------------------------------------------------------


def _weight_shape(grad: TensorType, data: TensorType, attrs: Attrs) -> tuple[int, ...]:
    group = max(groups(attrs), 1)
    return (grad.shape[1], data.shape[1] // group, *_ints(attrs, "kernel_shape"))


def _infer_weight(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, data = present(types, 0, "dY"), present(types, 1, "X")
    need_same_dtype(types, ("dY", "X"))
    if data.rank < 3 or grad.rank != data.rank:
        raise TypeInferenceError(f"dY is {grad} and X is {data}; want images (N, C, spatial...) of one rank")
    weights = _weight_shape(grad, data, attrs)
    _need_gradient(grad, data, weights, attrs)
    return [data.with_shape(weights)]


def _reference_weight(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    """For each tap, the product of dY with what the tap saw; float16 is computed in float32."""
    grad, data = arrays[0], arrays[1]
    assert grad is not None
    assert data is not None
    dtype, grad, data, weights = grad.dtype, wide(grad), wide(data), outputs[0]
    group, batch = groups(attrs), grad.shape[0]
    window = window_over(data.shape[2:], weights.shape[2:], attrs)
    slopes = grad.reshape(batch, group, -1, window.num_positions)
    total = np.zeros((group, weights.shape[0] // group, weights.shape[1], window.num_taps), grad.dtype)
    for number, seen in taps(data, window, 0.0):
        columns = seen.reshape(batch, group, weights.shape[1], window.num_positions)
        total[..., number] = np.matmul(slopes, columns.swapaxes(2, 3)).sum(axis=0)
    return [total.reshape(weights.shape).astype(dtype)]


def _weight_window(query: KernelQuery) -> tuple[str, TensorType, TensorType, Window] | None:
    """The kernel's dtype, the types of X and dW, and the window; None where there is no kernel."""
    data, weights, dtype = query.inputs[1], query.outputs[0], kernel_dtype(query)
    if dtype is None or data is None or weights is None or data.rank > 4:
        return None
    return dtype, data, weights, window_over(data.shape[2:], weights.shape[2:], query.attrs)


def _weight_blocks(query: KernelQuery) -> Blocks | None:
    found = _weight_window(query)
    if found is None or found[3].plain or is_direct(found[2].shape[0], groups(query.attrs)):
        return None
    dtype, _, weights, window = found
    return cut_blocks(window, weights.shape[1], query.scratch_bytes // itemsize(dtype), (2, 1))


def _kernel_weight(query: KernelQuery) -> KernelCall | None:
    found, blocks = _weight_window(query), _weight_blocks(query)
    if found is None:
        return None
    dtype, data, weights, window = found
    group = groups(query.attrs)
    arrays = (flat("out", 0, weights), flat("in", 0, query.inputs[0]), flat("in", 1, data))
    sizes = (data.shape[0], data.shape[1], weights.shape[0], group)
    routine = Routine(gemm_routine(dtype))
    if is_direct(weights.shape[0], group):
        return KernelCall("conv_grad.weight_direct", arrays, (*sizes, *geometry(window)))
    if blocks is None:
        return KernelCall("conv_grad.weight_pointwise", arrays, (routine, *sizes, window.num_positions))
    scratch = ArrayArg("scratch", 0, (blocks.elements,), dtype)
    cut = (blocks.channels, blocks.columns)
    return KernelCall("conv_grad.weight_gemm", (*arrays, scratch), (routine, *sizes, *geometry(window), *cut))


def _scratch(cut: Any) -> Any:
    """`workspace` of an op whose blocks `cut(query)` gives."""

    def workspace(query: KernelQuery) -> int:
        blocks: Blocks | None = cut(query)
        dtype = kernel_dtype(query)
        return 0 if blocks is None or dtype is None else blocks.elements * itemsize(dtype)

    return workspace


# -- the rule ---------------------------------------------------------------------------------------------------------


def _gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    """dX from W, dW from X, and dB from neither: one node each, so that an unwanted one can be dropped."""
    data, weights = node.inputs[0], node.inputs[1]
    has_bias = len(node.inputs) > 2 and node.inputs[2] is not None
    attrs = {name: value for name, value in node.attrs.items() if name != "kernel_shape"}
    return [
        builder.op("ConvGradInput", grad, weights, input_shape=data.shape, **attrs),
        builder.op("ConvGradWeight", grad, data, kernel_shape=weights.shape[2:], **attrs),
        bias_gradient(builder, grad) if has_bias else None,
    ][: len(node.inputs)]


CONV_GRADIENT = of_first_output(_gradient, needs_inputs=(0, 1))

OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="ConvGradInput",
        inputs=(Input("dY"), Input("W")),
        outputs=(Output("dX"),),
        infer=_infer_input,
        reference=_reference_input,
        attrs={**CONV_ATTRS, "input_shape": Attr("ints", required=True)},
        workspace=_scratch(_input_blocks),
        kernel=_kernel_input,
    ),
    OpSpec(
        name="ConvGradWeight",
        inputs=(Input("dY"), Input("X")),
        outputs=(Output("dW"),),
        infer=_infer_weight,
        reference=_reference_weight,
        attrs={**CONV_ATTRS, "kernel_shape": Attr("ints", required=True)},
        workspace=_scratch(_weight_blocks),
        kernel=_kernel_weight,
    ),
)
