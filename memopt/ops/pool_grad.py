"""Ops: the gradients of pooling.

Holds true: the gradient of a maximum goes to the first element of the window that has it (a NaN before all), as in
PyTorch; it reads X, not Y. That of an average reads dY alone. There are kernels for one and two spatial axes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.items import along
from memopt.ops.nn_common import (
    Array,
    Arrays,
    flat,
    image_sizes,
    kernel_dtype,
    need_float,
    of_first_output,
    present,
    taps,
    wide,
)
from memopt.ops.pool_common import POOL_ATTRS, counts, ends, max_with_indices, need_images, pool_window
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.types import TensorType

__all__ = [
    "AVERAGE_POOL_GRADIENT",
    "GLOBAL_AVERAGE_GRADIENT",
    "GLOBAL_MAX_GRADIENT",
    "MAX_POOL_GRADIENT",
    "OPS",
]


def _need_gradient(grad: TensorType, data: TensorType, attrs: Attrs) -> None:
    """Raise unless `grad` is the type of the pool of `data`."""
    need_float("dY", grad)
    need_images(data)
    out = (*data.shape[:2], *pool_window(data, attrs).out)
    if grad != data.with_shape(out):
        raise TypeInferenceError(f"dY is {grad}; the pool of {data} is {data.with_shape(out)}")


def _infer_max(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = present(types, 1, "X")
    _need_gradient(present(types, 0, "dY"), data, attrs)
    return [data]


def _reference_max(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    grad, data = arrays[0], arrays[1]
    assert grad is not None
    assert data is not None
    where = max_with_indices(data, pool_window(outputs[0], attrs), {"storage_order": 0})[1]
    total = np.zeros(data.size, wide(data).dtype)
    np.add.at(total, where.reshape(-1), grad.reshape(-1))
    return [total.reshape(data.shape).astype(data.dtype)]


def _pool_sizes(data: TensorType, attrs: Attrs) -> tuple[int, ...]:
    """Planes, then the geometry of the window over them."""
    pairs = image_sizes(pool_window(data, attrs))
    return (data.shape[0] * data.shape[1], *(size for pair in pairs for size in pair))


def _kernel_max(query: KernelQuery) -> KernelCall | None:
    data = query.inputs[1]
    if kernel_dtype(query) is None or data is None or data.rank > 4:
        return None
    arrays = (flat("out", 0, query.outputs[0]), flat("in", 0, query.inputs[0]), flat("in", 1, data))
    return KernelCall("pool_grad.max_pool", arrays, _pool_sizes(data, query.attrs))


def _data_type(types: Types, attrs: Attrs) -> TensorType:
    """The type of X, by the shape that the attribute says."""
    return present(types, 0, "dY").with_shape(cast("tuple[int, ...]", attrs["input_shape"]))


def _infer_average(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    data = _data_type(types, attrs)
    _need_gradient(present(types, 0, "dY"), data, attrs)
    return [data]


def _reference_average(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    grad, data = arrays[0], outputs[0]
    assert grad is not None
    window = pool_window(data, attrs)
    share = grad / counts(window, bool(attrs["count_include_pad"]))
    places = np.arange(1, math.prod(window.sizes) + 1).reshape(window.sizes)
    total = np.zeros((*data.shape[:2], places.size + 1))
    for _, place in taps(places, window, 0):  # 0 is in the pads
        total[:, :, place] += share
    return [np.ascontiguousarray(total[:, :, 1:].reshape(data.shape), data.dtype)]


def _kernel_average(query: KernelQuery) -> KernelCall | None:
    data = query.outputs[0]
    if kernel_dtype(query) is None or data is None or data.rank > 4:
        return None
    arrays = (flat("out", 0, data), flat("in", 0, query.inputs[0]))
    after = ends(pool_window(data, query.attrs))
    scalars = (*_pool_sizes(data, query.attrs), int(bool(query.attrs["count_include_pad"])), *after)
    return KernelCall("pool_grad.average_pool", arrays, scalars)


def _infer_global(types: Types, attrs: Attrs, num_outputs: int) -> Sequence[TensorType]:
    grad, data = present(types, 0, "dY"), _data_type(types, attrs)
    need_float("dY", grad)
    need_images(data)
    if grad.shape != (*data.shape[:2], *(1,) * (data.rank - 2)):
        raise TypeInferenceError(f"dY is {grad}; want one number for each channel of {data}")
    return [data]


def _reference_global(arrays: Arrays, attrs: Attrs, outputs: Sequence[TensorType]) -> Sequence[Array]:
    grad, data = arrays[0], outputs[0]
    assert grad is not None
    share = grad / np.float64(math.prod(data.shape[2:]))
    return [np.broadcast_to(share, data.shape).astype(data.dtype)]


def _kernel_global(query: KernelQuery) -> KernelCall | None:
    data, dtype = query.outputs[0], kernel_dtype(query)
    if dtype is None or data is None:
        return None
    planes = data.shape[0] * data.shape[1]
    shape = (planes, math.prod(data.shape[2:]))
    return KernelCall(
        "pool_grad.global_average", (ArrayArg("out", 0, shape, dtype), ArrayArg("in", 0, (planes,), dtype))
    )


# -- the rules --------------------------------------------------------------------------------------------------------


def _max_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    attrs = {name: value for name, value in node.attrs.items() if name in POOL_ATTRS}
    return [builder.op("MaxPoolGrad", grad, node.inputs[0], **attrs)]


def _global_max_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    data = node.inputs[0]
    return [builder.op("MaxPoolGrad", grad, data, kernel_shape=data.shape[2:])]


def _average_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    return [builder.op("AveragePoolGrad", grad, input_shape=node.inputs[0].shape, **node.attrs)]


def _global_average_gradient(builder: Any, node: Any, grad: Any) -> Sequence[Any]:
    return [builder.op("GlobalAveragePoolGrad", grad, input_shape=node.inputs[0].shape)]


MAX_POOL_GRADIENT = of_first_output(_max_gradient, needs_inputs=(0,))
GLOBAL_MAX_GRADIENT = of_first_output(_global_max_gradient, needs_inputs=(0,))
AVERAGE_POOL_GRADIENT = of_first_output(_average_gradient)
GLOBAL_AVERAGE_GRADIENT = of_first_output(_global_average_gradient)

_INPUT_SHAPE = Attr("ints", required=True)

OPS: tuple[OpSpec, ...] = (
    OpSpec(
        name="MaxPoolGrad",
        inputs=(Input("dY"), Input("X")),
        outputs=(Output("dX"),),
        infer=_infer_max,
        reference=_reference_max,
        attrs=POOL_ATTRS,
        kernel=_kernel_max,
        items=along(0, 1),
    ),
    OpSpec(
        name="AveragePoolGrad",
        inputs=(Input("dY"),),
        outputs=(Output("dX"),),
        infer=_infer_average,
        reference=_reference_average,
        attrs={**POOL_ATTRS, "count_include_pad": Attr("int", 0), "input_shape": _INPUT_SHAPE},
        kernel=_kernel_average,
    ),
    OpSpec(
        name="GlobalAveragePoolGrad",
        inputs=(Input("dY"),),
        outputs=(Output("dX"),),
        infer=_infer_global,
        reference=_reference_global,
        attrs={"input_shape": _INPUT_SHAPE},
        kernel=_kernel_global,
    ),
)
