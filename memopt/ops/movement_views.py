"""Ops whose output is the input's bytes under another shape: Identity, Reshape, Flatten, Squeeze, Unsqueeze.

Holds true: each is a view at offset 0 and may run in place; where it is neither, its kernel is one flat copy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from memopt.errors import TypeInferenceError
from memopt.ops.movement_common import Array, copy_call, data_type, int_attr, ints_attr, norm_axes, norm_axis, present
from memopt.ops.spec import ANY_LAYOUT, Attr, Attrs, Infer, InplacePair, Input, OpSpec, Output, Types, View
from memopt.strides import Strided, Strides, reshaped
from memopt.types import TensorType

__all__ = ["OPS"]


def _reference(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [present(arrays).reshape(outputs[0].shape).copy()]


def _identity(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    return [data_type(types)]


def _reshape(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    wanted = ints_attr(attrs, "shape") or ()
    allow_zero = bool(int_attr(attrs, "allowzero"))
    shape: list[int] = []
    for axis, dim in enumerate(wanted):
        if dim == 0 and not allow_zero:
            if axis >= source.rank:
                raise TypeInferenceError(f"shape {wanted} copies dimension {axis}, but {source} has only {source.rank}")
            dim = source.shape[axis]
        if dim < -1:
            raise TypeInferenceError(f"shape {wanted} has the dimension {dim}; want -1, 0 or more")
        shape.append(dim)
    if shape.count(-1) > 1 or (-1 in shape and allow_zero and 0 in wanted):
        raise TypeInferenceError(f"shape {wanted} leaves more than one dimension open")
    if -1 in shape:
        rest = math.prod(dim for dim in shape if dim != -1)
        if rest == 0 or source.num_elements % rest:
            raise TypeInferenceError(
                f"{source} cannot be reshaped to {wanted}: {source.num_elements} elements, {rest} known"
            )
        shape[shape.index(-1)] = source.num_elements // rest
    if math.prod(shape) != source.num_elements:
        raise TypeInferenceError(
            f"{source} cannot be reshaped to {wanted}: {source.num_elements} elements, {math.prod(shape)} wanted"
        )
    return [source.with_shape(shape)]


def _flatten(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    axis = norm_axis(int_attr(attrs, "axis", 1), source.rank, past_end=True)
    return [source.with_shape((math.prod(source.shape[:axis]), math.prod(source.shape[axis:])))]


def _squeeze(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    wanted = ints_attr(attrs, "axes")
    if wanted is None:
        return [source.with_shape([dim for dim in source.shape if dim != 1])]
    axes = norm_axes(wanted, source.rank)
    for axis in axes:
        if source.shape[axis] != 1:
            raise TypeInferenceError(f"axis {axis} of {source} is not of length 1")
    return [source.with_shape([dim for axis, dim in enumerate(source.shape) if axis not in axes])]


def _unsqueeze(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    wanted = ints_attr(attrs, "axes") or ()
    rank = source.rank + len(wanted)
    axes = norm_axes(wanted, rank)
    rest = iter(source.shape)
    return [source.with_shape([1 if axis in axes else next(rest) for axis in range(rank)])]


def _strides(types: Types, outputs: Types, attrs: Attrs, output: int, strides: Strides) -> Strided | None:
    """The same elements under another shape, where the input's strides allow it."""
    found = reshaped(data_type(types).shape, strides, data_type(outputs).shape)
    return None if found is None else Strided(0, found)


def _view(name: str, infer: Infer, attrs: dict[str, Attr], layouts: tuple[str, ...] = ()) -> OpSpec:
    return OpSpec(
        name,
        inputs=(Input("data"),),
        outputs=(Output("output"),),
        infer=infer,
        reference=_reference,
        attrs=attrs,
        views=(View(0, 0, strides=_strides),),
        inplace=(InplacePair(0, 0),),
        kernel=copy_call,
        strided=(0,),
        layouts=layouts,
    )


OPS: tuple[OpSpec, ...] = (
    _view("Identity", _identity, {}, (ANY_LAYOUT,)),
    _view("Reshape", _reshape, {"shape": Attr("ints", required=True), "allowzero": Attr("int", 0)}),
    _view("Flatten", _flatten, {"axis": Attr("int", 1)}),
    _view("Squeeze", _squeeze, {"axes": Attr("ints")}),
    _view("Unsqueeze", _unsqueeze, {"axes": Attr("ints", required=True)}),
)
