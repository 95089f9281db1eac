"""Writing into a tensor: `SliceAssign` (a tensor with some elements replaced) and `Assign` (a parameter's new value).

Holds true: `SliceAssign` may be computed over `data`, never over `value` or a view of `data` (it reads them while it
writes); of `data` it keeps what the slice does not take. `Assign` is an update: its output is in the variable of
`variable` by definition.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memopt.errors import TypeInferenceError
from memopt.ops.gradients import zeros
from memopt.ops.movement_common import Array, StridedCopy, data_type, flat_copy, present, strided_call
from memopt.ops.movement_copy import slice_ranges
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    GradientRule,
    InplacePair,
    Input,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Types,
)
from memopt.strides import row_strides
from memopt.types import TensorType

__all__ = ["OPS"]


# -- SliceAssign ------------------------------------------------------------------------------------------------------


def _infer_slice_assign(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    data, value = data_type(types), data_type(types, 1)
    wanted = data.with_shape([len(taken) for taken in slice_ranges(data, attrs)])
    if value != wanted:
        raise TypeInferenceError(f"the slice of {data} is {wanted}, the value for it {value}")
    return [data]


def _slice_assign(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    result = present(arrays).copy()
    index = []
    for taken in slice_ranges(outputs[0], attrs):
        stop = taken.stop if taken.stop >= 0 else None
        index.append(slice(taken.start, stop, taken.step) if len(taken) else slice(0, 0))
    result[tuple(index)] = present(arrays, 1)
    return [result]


def _slice_assign_kernel(query: KernelQuery) -> KernelCall | None:
    data, value, result = data_type(query.inputs), data_type(query.inputs, 1), data_type(query.outputs)
    ranges, strides = slice_ranges(result, query.attrs), row_strides(result.shape)
    writes = tuple(taken.step * step for taken, step in zip(ranges, strides, strict=True))
    start = sum(taken.start * step for taken, step in zip(ranges, strides, strict=True)) if value.num_elements else 0
    copy = strided_call(value, result, StridedCopy(value.shape, writes, row_strides(value.shape), out_at=start))
    if copy is None:
        return None
    out, source = copy.arrays
    arrays = (out, ArrayArg("in", 0, (data.num_elements,), out.dtype), ArrayArg("in", 1, source.shape, source.dtype))
    return KernelCall("movement_assign.slice_assign", arrays, copy.scalars)


def _slice_assign_gradient(builder: Any, node: Any, grads: Sequence[Any]) -> Sequence[Any]:
    """What was overwritten gets no gradient; the value gets that of its slice."""
    grad, value = grads[0], node.inputs[1]
    options = {name: node.attrs[name] for name in ("starts", "ends", "axes", "steps") if name in node.attrs}
    kept = builder.op("SliceAssign", grad, zeros(builder, value.type), **options) if builder.wants(0) else None
    return [kept, builder.op("Slice", grad, **options) if builder.wants(1) else None]


# -- Assign -----------------------------------------------------------------------------------------------------------


def _infer_assign(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    variable, value = data_type(types), data_type(types, 1)
    if value != variable:
        raise TypeInferenceError(f"the variable is {variable}, its new value {value}")
    return [variable]


def _assign(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [present(arrays, 1).copy()]


def _assign_kernel(query: KernelQuery) -> KernelCall:
    out, source = flat_copy(data_type(query.inputs, 1)).arrays
    return KernelCall("movement.copy", (out, ArrayArg("in", 1, source.shape, source.dtype)))


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "SliceAssign",
        inputs=(Input("data"), Input("value")),
        outputs=(Output("output"),),
        infer=_infer_slice_assign,
        reference=_slice_assign,
        attrs={
            "starts": Attr("ints", required=True),
            "ends": Attr("ints", required=True),
            "axes": Attr("ints"),
            "steps": Attr("ints"),
        },
        inplace=(InplacePair(0, 0),),
        kernel=_slice_assign_kernel,
        gradient=GradientRule(_slice_assign_gradient),
    ),
    OpSpec(
        "Assign",
        inputs=(Input("variable"), Input("value")),
        outputs=(Output("variable"),),
        infer=_infer_assign,
        reference=_assign,
        inplace=(InplacePair(0, 0),),
        updates={0: 0},
        kernel=_assign_kernel,
    ),
)
