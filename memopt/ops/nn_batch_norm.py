"""Ops: batch normalisation and its gradient.

Holds true: statistics are accumulated in float64 whatever the data are, and a channel is read whole before it is
written. In training the statistics of the batch can be had as outputs (`saved_mean`, `saved_var`, as in ONNX before
opset 14) and so spare the gradient a pass over X; without them it takes the same numbers from X again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

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
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Types,
)
from memopt.types import TensorType

__all__ = ["OPS"]


def _infer_batch_norm(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 0, "X")
    need_float("X", data)
    if data.rank < 2:
        raise TypeInferenceError(f"X is {data}; want (N, C, spatial...)")
    for index, name in enumerate(("scale", "B", "input_mean", "input_var"), start=1):
        vector = present(types, index, name)
        need_float(name, vector)
        need_channels(name, vector, data.shape[1])
    if not attrs["training_mode"] and num_outputs > 1:
        raise TypeInferenceError(f"training_mode = 0 has the one output Y, {num_outputs} were asked for")
    if attrs["training_mode"] and data.num_elements == 0:
        raise TypeInferenceError(f"X is {data}: training_mode = 1 needs data to take statistics of")
    mean, var = present(types, 3, "input_mean"), present(types, 4, "input_var")
    return [data, mean, var, mean, var][:num_outputs]


def _statistics(x: Array) -> tuple[Array, Array]:
    """Mean and (biased) variance of each channel of (N, C, spatial...), of shape (1, C, 1...)."""
    axes = (0, *range(2, x.ndim))
    mean = x.mean(axis=axes, keepdims=True)
    return mean, np.asarray(np.square(x - mean).mean(axis=axes, keepdims=True))


def _reference_batch_norm(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    data = arrays[0]
    assert data is not None
    x = data.astype(np.float64)
    scale, bias, mean, var = (along_channels(vector, data.ndim) for vector in arrays[1:5])
    if not attrs["training_mode"]:
        return [((x - mean) / np.sqrt(var + real(attrs, "epsilon")) * scale + bias).astype(data.dtype)]
    batch_mean, batch_var = _statistics(x)
    y = (x - batch_mean) / np.sqrt(batch_var + real(attrs, "epsilon")) * scale + bias
    keep = real(attrs, "momentum")
    moved = [mean * keep + batch_mean[0] * (1 - keep), var * keep + batch_var[0] * (1 - keep)]
    results = [y, *moved, batch_mean, batch_var]
    return [r.astype(t.dtype).reshape(t.shape) for r, t in zip(results, outputs, strict=False)]


def _image_shape(query: KernelQuery, data: TensorType) -> tuple[int, int, int]:
    """The data as (outer, channels, inner)."""
    outer, channels, inner = data.shape[0], data.shape[1], math.prod(data.shape[2:])
    return (outer * inner, channels, 1) if query.layout == "NHWC" and data.rank == 4 else (outer, channels, inner)


def _kernel_batch_norm(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.inputs[0], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    shape = _image_shape(query, data)
    vectors = tuple(ArrayArg("in", i, shape[1:2], dtype) for i in range(1, 5))
    arrays = (ArrayArg("in", 0, shape, dtype), *vectors)
    out = ArrayArg("out", 0, shape, dtype)
    if not query.attrs["training_mode"]:
        return KernelCall("nn.batch_norm", (out, *arrays), (real(query.attrs, "epsilon"),))
    there = [len(query.outputs) > i and query.outputs[i] is not None for i in range(1, 5)]
    if there[0] != there[1] or there[2] != there[3]:
        return None
    # An absent statistic is never written; an input stands in for it.
    stats = tuple(ArrayArg("out", i, shape[1:2], dtype) if there[i - 1] else vectors[1 + i % 2] for i in range(1, 5))
    scalars = (real(query.attrs, "epsilon"), real(query.attrs, "momentum"), int(there[0]), int(there[2]))
    return KernelCall("nn.batch_norm_train", (out, *stats, *arrays), scalars)


# -- the gradient -----------------------------------------------------------------------------------------------------


def _infer_grad(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, data, scale = present(types, 0, "dY"), present(types, 1, "X"), present(types, 2, "scale")
    need_float("X", data)
    need_float("scale", scale)
    if grad != data or data.rank < 2:
        raise TypeInferenceError(f"dY is {grad} and X is {data}; want the same type (N, C, spatial...)")
    given = [types[i] if len(types) > i else None for i in (3, 4)]
    for name, vector in zip(("scale", "mean", "var"), (scale, *given), strict=True):
        need_channels(name, vector, data.shape[1])
    if (given[0] is None) != (given[1] is None):
        raise TypeInferenceError("mean and var come together; one of them is missing")
    if not attrs["training_mode"] and given[0] is None:
        raise TypeInferenceError("training_mode = 0 needs mean and var, the statistics that were used")
    return [data, scale, scale]


def _reference_grad(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    grad, data = arrays[0], arrays[1]
    assert grad is not None
    assert data is not None
    dy, x, scale = grad.astype(np.float64), data.astype(np.float64), along_channels(arrays[2], data.ndim)
    if len(arrays) > 3 and arrays[3] is not None:
        mean, var = along_channels(arrays[3], data.ndim), along_channels(arrays[4], data.ndim)
    else:
        mean, var = (np.asarray(s.astype(outputs[1].dtype), np.float64) for s in _statistics(x))
    axes = (0, *range(2, data.ndim))
    factor = 1 / np.sqrt(var + real(attrs, "epsilon"))
    normal = (x - mean) * factor
    bias_grad = dy.sum(axis=axes, keepdims=True)
    scale_grad = (dy * normal).sum(axis=axes, keepdims=True)
    if attrs["training_mode"]:
        count = max(data.size // data.shape[1], 1)
        dy = dy - bias_grad / count - normal * (scale_grad / count)
    results = (dy * scale * factor, scale_grad, bias_grad)
    return [r.astype(t.dtype).reshape(t.shape) for r, t in zip(results, outputs, strict=True)]


def _kernel_grad(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.inputs[1], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    shape = _image_shape(query, data)
    has_stats = len(query.inputs) > 3 and query.inputs[3] is not None
    outs = (ArrayArg("out", 0, shape, dtype), *(ArrayArg("out", i, shape[1:2], dtype) for i in (1, 2)))
    images = tuple(ArrayArg("in", i, shape, dtype) for i in (0, 1))
    vectors = tuple(ArrayArg("in", i if has_stats else 2, shape[1:2], dtype) for i in (2, 3, 4))
    scalars = (real(query.attrs, "epsilon"), int(bool(query.attrs["training_mode"])), int(has_stats))
    return KernelCall("nn_grad.batch_norm", (*outs, *images, *vectors), scalars)


def _gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    """In training from X and the batch's statistics, which are saved or taken again; else an affine map's gradient."""
    data, scale, _, mean, var = node.inputs
    training = node.attrs["training_mode"]
    if training:
        saved = node.outputs[3:5] if len(node.outputs) == 5 else ()
        mean, var = saved if saved and None not in saved else (None, None)
    attrs = {"epsilon": node.attrs["epsilon"], "training_mode": training}
    grads = builder.op("BatchNormalizationGrad", grad, data, scale, mean, var, **attrs)
    return [*grads, None, None]


def _batch_norm_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """In inference only: training makes statistics of the whole batch."""
    return None if attrs["training_mode"] else (True, *(False for _ in inputs[1:]))


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="BatchNormalization",
        inputs=(Input("X"), Input("scale"), Input("B"), Input("input_mean"), Input("input_var")),
        outputs=(
            Output("Y"),
            Output("running_mean", optional=True),
            Output("running_var", optional=True),
            Output("saved_mean", optional=True),
            Output("saved_var", optional=True),
        ),
        infer=_infer_batch_norm,
        reference=_reference_batch_norm,
        attrs={"epsilon": Attr("float", EPSILON), "momentum": Attr("float", 0.9), "training_mode": Attr("int", 0)},
        inplace=(InplacePair(0, 0),),
        updates={1: 3, 2: 4},
        kernel=_kernel_batch_norm,
        items=_batch_norm_items,
        layouts=("NHWC",),
        gradient=of_first_output(_gradient, needs_inputs=(0, 1, 3, 4), needs_outputs=(3, 4)),
    ),
    OpSpec(
        name="BatchNormalizationGrad",
        inputs=(
            Input("dY"),
            Input("X"),
            Input("scale"),
            Input("mean", optional=True),
            Input("var", optional=True),
        ),
        outputs=(Output("dX"), Output("dScale"), Output("dB")),
        infer=_infer_grad,
        reference=_reference_grad,
        attrs={"epsilon": Attr("float", EPSILON), "training_mode": Attr("int", 1)},
        inplace=(InplacePair(0, 0), InplacePair(0, 1)),
        kernel=_kernel_grad,
        layouts=("NHWC",),
        layout_inputs=(0, 1),
    ),
)
