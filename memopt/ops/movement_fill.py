"""Ops that make data from attributes and shapes: Constant, ConstantOfShape, Shape, Size.

Holds true: none reads a byte of an input, so a reader of a shape keeps nobody alive. A frontend folds these when it
loads; they stand in a graph for data that is small (Constant) or cheaper to make than to keep (ConstantOfShape).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from memopt.errors import OptionError, TypeInferenceError
from memopt.ops.movement_common import Array, bits_of, data_type, float_attr, int_attr, ints_attr, present, stand_in
from memopt.ops.spec import ArrayArg, Attr, Attrs, Input, KernelCall, KernelQuery, OpSpec, Output, Types
from memopt.types import TensorType, as_dtype

__all__ = ["OPS"]


def _result(attrs: Attrs) -> TensorType:
    """The type that the attributes `shape` and `dtype` name."""
    shape = ints_attr(attrs, "shape") or ()
    if any(dim < 0 for dim in shape):
        raise TypeInferenceError(f"shape {shape} has a negative dimension")
    try:
        return TensorType(shape, as_dtype(str(attrs.get("dtype", "float32"))))
    except OptionError as error:
        raise TypeInferenceError(str(error)) from None


def _infer_fill(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    return [_result(attrs)]


def _fill(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.full(outputs[0].shape, float_attr(attrs, "value"), outputs[0].dtype)]


def _fill_call(result: TensorType, value: float) -> KernelCall:
    array = ArrayArg("out", 0, (result.num_elements,), stand_in(result.dtype, signed=True))
    return KernelCall("movement.fill", (array,), (bits_of(value, result.dtype),))


def _fill_kernel(query: KernelQuery) -> KernelCall | None:
    return _fill_call(data_type(query.outputs), float_attr(query.attrs, "value"))


def _numbers(attrs: Attrs) -> tuple[float, ...] | tuple[int, ...]:
    value, ints = attrs.get("value"), attrs.get("value_ints")
    if (value is None) == (ints is None):
        raise TypeInferenceError("want one of the attributes value (floats) and value_ints (ints)")
    found = value if ints is None else ints
    assert isinstance(found, tuple)
    return found  # type: ignore[return-value]  # the kinds of the two attributes


def _infer_constant(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    result, numbers = _result(attrs), _numbers(attrs)
    if len(numbers) not in (1, result.num_elements):
        raise TypeInferenceError(
            f"{len(numbers)} numbers do not fill {result}: want {result.num_elements}, or one for all"
        )
    return [result]


def _constant(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    numbers = np.asarray(_numbers(attrs)).astype(outputs[0].dtype)
    return [
        np.array(numbers if numbers.size != 1 else np.broadcast_to(numbers, outputs[0].num_elements)).reshape(
            outputs[0].shape
        )
    ]


def _constant_kernel(query: KernelQuery) -> KernelCall | None:
    """One number for all is a fill; several are copied by a host call."""
    numbers = _numbers(query.attrs)
    return _fill_call(data_type(query.outputs), numbers[0]) if len(numbers) == 1 else None


def _infer_shape(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    return [TensorType((len(_dims(data_type(types), attrs)),), "int64")]


def _dims(source: TensorType, attrs: Attrs) -> tuple[int, ...]:
    return source.shape[int_attr(attrs, "start") : int_attr(attrs, "end", source.rank)]


def _shape(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.array(_dims(TensorType.of(present(arrays).shape), attrs), np.int64)]


def _infer_size(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    return [TensorType((), "int64")]


def _size(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.array(math.prod(present(arrays).shape), np.int64)]


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "ConstantOfShape",
        inputs=(),
        outputs=(Output("output"),),
        infer=_infer_fill,
        reference=_fill,
        attrs={"shape": Attr("ints", required=True), "value": Attr("float", 0.0), "dtype": Attr("str", "float32")},
        kernel=_fill_kernel,
    ),
    OpSpec(
        "Constant",
        inputs=(),
        outputs=(Output("output"),),
        infer=_infer_constant,
        reference=_constant,
        attrs={
            "value": Attr("floats"),
            "value_ints": Attr("ints"),
            "shape": Attr("ints", ()),
            "dtype": Attr("str", "float32"),
        },
        kernel=_constant_kernel,
    ),
    OpSpec(
        "Shape",
        inputs=(Input("data", reads="shape"),),
        outputs=(Output("shape"),),
        infer=_infer_shape,
        reference=_shape,
        attrs={"start": Attr("int", 0), "end": Attr("int")},
    ),
    OpSpec(
        "Size",
        inputs=(Input("data", reads="shape"),),
        outputs=(Output("size"),),
        infer=_infer_size,
        reference=_size,
    ),
)
