"""Ops: the gradients of layer and instance normalisation and of LRN; the rules of these and of dropout.

Holds true: each reads dY, X and the scale, and takes the statistics from X again: they cost a pass over a row, which
is in the cache. Dropout's gradient is dropout of dY with the same seed: it draws the same numbers, so no mask is kept.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.nn_common import (
    EPSILON,
    Array,
    Arrays,
    along_channels,
    kernel_dtype,
    need_channels,
    need_float,
    of_first_output,
    present,
    real,
)
from memopt.ops.spec import ArrayArg, Attr, Attrs, InplacePair, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.types import TensorType

__all__ = [
    "DROPOUT_GRADIENT",
    "INSTANCE_NORM_GRADIENT",
    "LAYER_NORM_GRADIENT",
    "LRN_ATTRS",
    "LRN_GRADIENT",
    "OPS",
    "lrn_base",
    "lrn_sums",
]


def _operands(types: Types) -> TensorType:
    """The type of X, once dY is known to have it."""
    grad, data = present(types, 0, "dY"), present(types, 1, "X")
    need_float("X", data)
    if grad != data:
        raise TypeInferenceError(f"dY is {grad} and X is {data}; want the same type")
    return data


def _normalised_gradient(slope: Array, x: Array, axes: tuple[int, ...], epsilon: float) -> tuple[Array, Array]:
    """The gradient of (x - mean) / sqrt(var + epsilon), whose own gradient is `slope`; and that normalised x."""
    centred = x - x.mean(axis=axes, keepdims=True)
    inverse = 1 / np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + epsilon)
    normal = centred * inverse
    mean, along = slope.mean(axis=axes, keepdims=True), (slope * normal).mean(axis=axes, keepdims=True)
    return (slope - mean - normal * along) * inverse, normal


def _sum_to(array: Array, shape: tuple[int, ...]) -> Array:
    """The sum of `array` over the axes along which an array of `shape` was broadcast to it."""
    extra = array.ndim - len(shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(shape) if n == 1))
    return np.asarray(array.sum(axis=axes, keepdims=True).reshape(shape))


# -- LayerNormalization -----------------------------------------------------------------------------------------------


def _infer_layer(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, scale = _operands(types), present(types, 2, "Scale")
    if scale.dtype != data.dtype:
        raise TypeInferenceError(f"Scale is {scale}, but X is {data}; want one dtype")
    axis = cast(int, attrs["axis"])
    if not -data.rank <= axis < data.rank:
        raise TypeInferenceError(f"axis = {axis} is not an axis of X {data}")
    tail = data.shape[data.rank - scale.rank :] if scale.rank <= data.rank else ()
    if len(tail) != scale.rank or any(a not in (1, b) for a, b in zip(scale.shape, tail, strict=True)):
        raise TypeInferenceError(f"Scale is {scale}, which does not broadcast to X {data}")
    return [data, scale, scale][:num_outputs]


def _reference_layer(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    dy, x, scale = (np.asarray(a, np.float64) for a in arrays[:3])
    if x.size == 0:
        return [np.zeros(t.shape, t.dtype) for t in outputs]
    axes = tuple(range(cast(int, attrs["axis"]) % x.ndim, x.ndim))
    dx, normal = _normalised_gradient(dy * scale, x, axes, real(attrs, "epsilon"))
    results = (dx, _sum_to(dy * normal, scale.shape), _sum_to(dy, scale.shape))
    return [r.astype(t.dtype) for r, t in zip(results, outputs, strict=False)]


def _layer_rows(query: KernelQuery) -> tuple[int, int] | None:
    """The data as (rows, inner), or None where there is no kernel."""
    data, scale, dtype = query.inputs[1], query.inputs[2], kernel_dtype(query)
    if dtype is None or data is None or scale is None:
        return None
    inner = math.prod(data.shape[cast(int, query.attrs["axis"]) % data.rank :])
    if scale.num_elements != inner or 16 * inner > query.scratch_bytes:
        return None
    return data.num_elements // inner, inner


def _workspace_layer(query: KernelQuery) -> int:
    shape = _layer_rows(query)
    return 0 if shape is None else 16 * shape[1]


def _kernel_layer(query: KernelQuery) -> KernelCall | None:
    shape, dtype = _layer_rows(query), kernel_dtype(query)
    if shape is None or dtype is None or query.outputs[1] is None:
        return None
    has_bias = len(query.outputs) > 2 and query.outputs[2] is not None
    row = shape[1:]
    arrays = (
        ArrayArg("out", 0, shape, dtype),
        ArrayArg("out", 1, row, dtype),
        ArrayArg("out", 2 if has_bias else 1, row, dtype),
        ArrayArg("in", 0, shape, dtype),
        ArrayArg("in", 1, shape, dtype),
        ArrayArg("in", 2, row, dtype),
        ArrayArg("scratch", 0, (2, *row), "float64"),
    )
    return KernelCall("nn_grad.layer_norm", arrays, (real(query.attrs, "epsilon"), int(has_bias)))


def _layer_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    data, scale = node.inputs[0], node.inputs[1]
    bias = node.inputs[2] if len(node.inputs) > 2 else None
    attrs = {name: node.attrs[name] for name in ("axis", "epsilon")}
    joint = bias is not None and bias.shape == scale.shape
    grads = builder.op("LayerNormalizationGrad", grad, data, scale, outputs=3 if joint else 2, **attrs)
    if bias is None or joint:
        return [*grads, None][: len(node.inputs)]
    extra = len(data.shape) - len(bias.shape)
    axes = (*range(extra), *(extra + i for i, n in enumerate(bias.shape) if n == 1 and data.shape[extra + i] != 1))
    total = builder.op("ReduceSum", grad, axes=axes, keepdims=1) if axes else grad
    return [*grads, total if total.shape == bias.shape else builder.op("Reshape", total, shape=bias.shape)]


# -- InstanceNormalization --------------------------------------------------------------------------------------------


def _infer_instance(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data, scale = _operands(types), present(types, 2, "scale")
    if data.rank < 3 or math.prod(data.shape[2:]) == 0:
        raise TypeInferenceError(f"X is {data}; want (N, C, spatial...) with at least one position")
    need_channels("scale", scale, data.shape[1])
    return [data, scale, scale]


def _reference_instance(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    dy, x = (np.asarray(a, np.float64) for a in arrays[:2])
    slope = dy * along_channels(arrays[2], x.ndim)
    dx, normal = _normalised_gradient(slope, x, tuple(range(2, x.ndim)), real(attrs, "epsilon"))
    others = (0, *range(2, x.ndim))
    results = (dx, (dy * normal).sum(axis=others), dy.sum(axis=others))
    return [r.astype(t.dtype) for r, t in zip(results, outputs, strict=True)]


def _kernel_instance(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    shape = (*data.shape[:2], math.prod(data.shape[2:]))
    outs = (ArrayArg("out", 0, shape, dtype), *(ArrayArg("out", i, shape[1:2], dtype) for i in (1, 2)))
    images = tuple(ArrayArg("in", i, shape, dtype) for i in (0, 1))
    arrays = (*outs, *images, ArrayArg("in", 2, shape[1:2], dtype))
    return KernelCall("nn_grad.instance_norm", arrays, (real(query.attrs, "epsilon"),))


def _instance_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    data, scale = node.inputs[0], node.inputs[1]
    return list(builder.op("InstanceNormalizationGrad", grad, data, scale, epsilon=node.attrs["epsilon"]))


# -- LRN --------------------------------------------------------------------------------------------------------------

LRN_ATTRS = {
    "alpha": Attr("float", 1e-4),
    "beta": Attr("float", 0.75),
    "bias": Attr("float", 1.0),
    "size": Attr("int", required=True),
}


def lrn_sums(x: Array, before: int, after: int) -> Array:
    """For each channel the sum over the channels from `before` ahead of it to `after` behind it."""
    channels, total = x.shape[1], np.zeros_like(x)
    for shift in range(-before, after + 1):
        low, high = max(0, -shift), min(channels, channels - shift)
        if low < high:
            total[:, low:high] += x[:, low + shift : high + shift]
    return total


def lrn_base(x: Array, attrs: Attrs) -> Array:
    """bias + alpha / size * the sum of squares over the `size` channels around each."""
    size = cast(int, attrs["size"])
    return real(attrs, "bias") + real(attrs, "alpha") / size * lrn_sums(np.square(x), (size - 1) // 2, size // 2)


def _infer_lrn(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = _operands(types)
    if data.rank < 2 or cast(int, attrs["size"]) < 1:
        raise TypeInferenceError(f"X is {data}, size = {attrs['size']}; want (N, C, spatial...) and 1 or more channels")
    return [data]


def _reference_lrn(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    dy, x = (np.asarray(a, np.float64) for a in arrays[:2])
    base, size, beta = lrn_base(x, attrs), cast(int, attrs["size"]), real(attrs, "beta")
    shared = lrn_sums(dy * x * base ** (-beta - 1), size // 2, (size - 1) // 2)  # of the windows that hold a channel
    dx = dy * base**-beta - 2 * real(attrs, "alpha") * beta / size * x * shared
    return [dx.astype(outputs[0].dtype)]


def _lrn_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    return [builder.op("LRNGrad", grad, node.inputs[0], **node.attrs)]


# -- Dropout ----------------------------------------------------------------------------------------------------------


def _dropout_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    return [builder.op("Dropout", grad, **node.attrs) if node.attrs["training"] else grad]


LAYER_NORM_GRADIENT = of_first_output(_layer_gradient, needs_inputs=(0, 1))
INSTANCE_NORM_GRADIENT = of_first_output(_instance_gradient, needs_inputs=(0, 1))
LRN_GRADIENT = of_first_output(_lrn_gradient, needs_inputs=(0,))
DROPOUT_GRADIENT = of_first_output(_dropout_gradient)

_OVER_EITHER = (InplacePair(0, 0), InplacePair(0, 1))

OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="LayerNormalizationGrad",
        inputs=(Input("dY"), Input("X"), Input("Scale")),
        outputs=(Output("dX"), Output("dScale"), Output("dB", optional=True)),
        infer=_infer_layer,
        reference=_reference_layer,
        attrs={"axis": Attr("int", -1), "epsilon": Attr("float", EPSILON)},
        inplace=_OVER_EITHER,
        workspace=_workspace_layer,
        kernel=_kernel_layer,
    ),
    OpSpec(
        name="InstanceNormalizationGrad",
        inputs=(Input("dY"), Input("X"), Input("scale")),
        outputs=(Output("dX"), Output("dScale"), Output("dB")),
        infer=_infer_instance,
        reference=_reference_instance,
        attrs={"epsilon": Attr("float", EPSILON)},
        inplace=_OVER_EITHER,
        kernel=_kernel_instance,
    ),
    OpSpec(
        name="LRNGrad",
        inputs=(Input("dY"), Input("X")),
        outputs=(Output("dX"),),
        infer=_infer_lrn,
        reference=_reference_lrn,
        attrs=LRN_ATTRS,
        inplace=_OVER_EITHER,
    ),
)
