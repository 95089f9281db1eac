"""Ops that join, cut, frame or pick: Concat, Split, Pad, Gather.

Holds true: Concat and Split see their operands as (outer, row) matrices, so that one kernel serves every axis and rank.
A kernel is compiled for a number of arrays; to keep variants few the last operand is repeated up to one of a few
numbers, and the kernel stops where the rows are full. A Split is a view where its axis is the outermost longer than 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.movement_common import (
    Array,
    bits_of,
    data_type,
    float_attr,
    int_attr,
    ints_attr,
    norm_axis,
    present,
    stand_in,
)
from memopt.ops.movement_copy import run_offset
from memopt.ops.movement_walks import strided_concat, strided_gather, strided_split
from memopt.ops.spec import (
    ArrayArg,
    Attr,
    Attrs,
    InplacePair,
    Input,
    Join,
    KernelCall,
    KernelQuery,
    OpSpec,
    Output,
    Scalar,
    Types,
    View,
)
from memopt.strides import Strided, Strides
from memopt.types import TensorType, itemsize

__all__ = ["OPS"]

#: Concat and Split have kernels for these numbers of parts.
_PART_COUNTS = (4, 16, 32, 64)
#: Axes of the pad kernel.
PAD_DIMS = 5
PAD_MODES = ("constant", "reflect", "edge")


# -- Concat and Split -----------------------------------------------------------------------------------------------


def _infer_concat(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    parts = [data_type(types, i) for i in range(len(types))]
    first = parts[0]
    axis = norm_axis(int_attr(attrs, "axis"), first.rank)
    for part in parts[1:]:
        fits = part.rank == first.rank and part.dtype == first.dtype
        if not fits or any(a != b for i, (a, b) in enumerate(zip(part.shape, first.shape, strict=True)) if i != axis):
            raise TypeInferenceError(f"{part} does not join with {first} along axis {axis}")
    total = sum(part.shape[axis] for part in parts)
    return [first.with_shape((*first.shape[:axis], total, *first.shape[axis + 1 :]))]


def _concat(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.concatenate([present(arrays, i) for i in range(len(arrays))], axis=int_attr(attrs, "axis"))]


def _matrix(role: str, index: int, part: TensorType, axis: int) -> ArrayArg:
    shape = (math.prod(part.shape[:axis]), math.prod(part.shape[axis:]))
    return ArrayArg("in" if role == "in" else "out", index, shape, stand_in(part.dtype))


def _matrices(role: str, parts: Types, axis: int) -> list[ArrayArg] | None:
    """The parts as matrices, the last repeated up to a number for which there is a kernel; None for too many."""
    count = next((count for count in _PART_COUNTS if count >= len(parts)), None)
    if count is None:
        return None
    arrays = [_matrix(role, i, data_type(parts, i), axis) for i in range(len(parts))]
    return arrays + [arrays[-1]] * (count - len(parts))


def _concat_kernel(query: KernelQuery) -> KernelCall | None:
    result = data_type(query.outputs)
    axis = norm_axis(int_attr(query.attrs, "axis"), result.rank)
    if any(strides is not None for strides in query.strides):
        return strided_concat(query, axis)
    parts = _matrices("in", query.inputs, axis)
    return None if parts is None else KernelCall("movement.concat", (_matrix("out", 0, result, axis), *parts))


def _concat_refusal(types: Types, outputs: Types, attrs: Attrs) -> str | None:
    return None if len(types) == 1 else "it joins several inputs"


def _concat_offset(types: Types, outputs: Types, attrs: Attrs, index: int) -> int | None:
    """Where input `index` starts in the result, if the axis is the outermost longer than 1."""
    result = data_type(outputs)
    axis = norm_axis(int_attr(attrs, "axis"), result.rank)
    if any(dim != 1 for dim in result.shape[:axis]) and data_type(types, index).num_elements:
        return None if data_type(types, index).shape != result.shape else 0
    return sum(data_type(types, i).nbytes for i in range(index))


def _concat_strides(types: Types, outputs: Types, attrs: Attrs, index: int, strides: Strides) -> Strided:
    axis = norm_axis(int_attr(attrs, "axis"), data_type(outputs).rank)
    return Strided(sum(data_type(types, i).shape[axis] for i in range(index)) * strides[axis], strides)


def _only_offset(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    """A Concat of one input is a view of it."""
    return 0 if len(types) == 1 else None


def _parts(source: TensorType, attrs: Attrs, count: int) -> tuple[int, tuple[int, ...]]:
    """The axis of a Split, and the length of each part."""
    axis = norm_axis(int_attr(attrs, "axis"), source.rank)
    dim, split = source.shape[axis], ints_attr(attrs, "split")
    if split is None:
        wanted = int_attr(attrs, "num_outputs", count)
        if wanted != count or count < 1:
            raise TypeInferenceError(f"num_outputs is {wanted}, the node has {count} outputs")
        size = -(-dim // count)
        split = (*[size] * (count - 1), dim - size * (count - 1))
    if len(split) != count or any(size < 0 for size in split) or sum(split) != dim:
        raise TypeInferenceError(f"split {split} does not cut axis {axis} of {source} into {count} parts")
    return axis, split


def _infer_split(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    axis, split = _parts(source, attrs, num_outputs)
    return [source.with_shape((*source.shape[:axis], size, *source.shape[axis + 1 :])) for size in split]


def _split(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array = present(arrays)
    axis, split = _parts(TensorType.of(array.shape), attrs, len(outputs))
    return [part.copy() for part in np.split(array, np.cumsum(split)[:-1], axis=axis)]


def _split_offset(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    source = data_type(types)
    axis, split = _parts(source, attrs, len(outputs))
    ranges = [range(dim) for dim in source.shape]
    ranges[axis] = range(sum(split[:output]), sum(split[: output + 1]))
    offset = run_offset(source.shape, ranges)
    return None if offset is None else offset * itemsize(source.dtype)


def _split_strides(types: Types, outputs: Types, attrs: Attrs, output: int, strides: Strides) -> Strided:
    axis, split = _parts(data_type(types), attrs, len(outputs))
    return Strided(sum(split[:output]) * strides[axis], strides)


def _split_kernel(query: KernelQuery) -> KernelCall | None:
    source = data_type(query.inputs)
    axis = norm_axis(int_attr(query.attrs, "axis"), source.rank)
    if any(part is None for part in query.outputs):
        return None
    if query.stride_of(0) is not None:
        return strided_split(query, axis)
    parts = _matrices("out", query.outputs, axis)
    return None if parts is None else KernelCall("movement.split", (*parts, _matrix("in", 0, source, axis)))


# -- Pad --------------------------------------------------------------------------------------------------------------


def pad_pairs(source: TensorType, attrs: Attrs) -> list[tuple[int, int]]:
    """(before, after) of each axis; negative numbers crop."""
    pads = ints_attr(attrs, "pads") or ()
    mode = attrs.get("mode", "constant")
    if mode not in PAD_MODES:
        raise TypeInferenceError(f"mode {mode!r} is not one of {', '.join(PAD_MODES)}")
    if len(pads) != 2 * source.rank:
        raise TypeInferenceError(f"pads {pads} do not fit {source}: want {2 * source.rank} numbers")
    pairs = list(zip(pads[: source.rank], pads[source.rank :], strict=True))
    for dim, (before, after) in zip(source.shape, pairs, strict=True):
        if dim + before + after < 0:
            raise TypeInferenceError(f"pads {pads} cut more than {source} has")
        if mode != "constant" and dim + before + after > 0 and max(before, after) > 0:
            least = max(before, after) + 1 if mode == "reflect" else 1
            if dim < least:
                raise TypeInferenceError(f"mode {mode} cannot pad {before} and {after} to an axis of length {dim}")
    return pairs


def _infer_pad(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    pairs = pad_pairs(source, attrs)
    return [source.with_shape([dim + sum(pair) for dim, pair in zip(source.shape, pairs, strict=True)])]


def _pad(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array = present(arrays)
    pairs = pad_pairs(TensorType.of(array.shape), attrs)
    grow = [(max(before, 0), max(after, 0)) for before, after in pairs]
    mode = attrs.get("mode", "constant")
    if mode == "constant":
        array = np.pad(array, grow, constant_values=np.asarray(float_attr(attrs, "value")).astype(array.dtype))
    else:
        array = np.pad(array, grow, mode="edge" if mode == "edge" else "reflect")
    for axis, (before, after) in enumerate(pairs):
        array = np.take(array, np.arange(max(-before, 0), array.shape[axis] - max(-after, 0)), axis=axis)
    return [array.copy()]


def _pad_kernel(query: KernelQuery) -> KernelCall | None:
    """Neighbouring axes that are not padded are folded into one; an inner run that is not padded moves in one piece."""
    source = data_type(query.inputs)
    axes: list[tuple[int, int, int]] = []
    for dim, (before, after) in zip(source.shape, pad_pairs(source, query.attrs), strict=True):
        if axes and before == after == 0 and axes[-1][1:] == (0, 0):
            axes[-1] = (axes[-1][0] * dim, 0, 0)
        else:
            axes.append((dim, before, after))
    if len(axes) > PAD_DIMS:
        return None
    axes = [(1, 0, 0)] * (PAD_DIMS - len(axes)) + axes
    dtype = stand_in(source.dtype, signed=True)
    dims = tuple(dim for dim, _, _ in axes)
    out_dims = tuple(dim + before + after for dim, before, after in axes)
    mode = PAD_MODES.index(str(query.attrs.get("mode", "constant")))
    scalars: list[Scalar] = [before for _, before, _ in axes]
    scalars += [mode, bits_of(float_attr(query.attrs, "value"), source.dtype)]
    return KernelCall(
        "movement.pad", (ArrayArg("out", 0, out_dims, dtype), ArrayArg("in", 0, dims, dtype)), tuple(scalars)
    )


# -- Gather -----------------------------------------------------------------------------------------------------------


def _infer_gather(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, indices = data_type(types), data_type(types, 1)
    if indices.dtype not in ("int32", "int64"):
        raise TypeInferenceError(f"indices are {indices}; want int32 or int64")
    axis = norm_axis(int_attr(attrs, "axis"), source.rank)
    return [source.with_shape((*source.shape[:axis], *indices.shape, *source.shape[axis + 1 :]))]


def _gather(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array, indices = present(arrays), present(arrays, 1)
    return [np.array(np.take(array, indices, axis=int_attr(attrs, "axis")))]


def _gather_kernel(query: KernelQuery) -> KernelCall | None:
    source, indices = data_type(query.inputs), data_type(query.inputs, 1)
    axis = norm_axis(int_attr(query.attrs, "axis"), source.rank)
    if query.stride_of(0) is not None:
        return strided_gather(query, axis)
    outer, inner = math.prod(source.shape[:axis]), math.prod(source.shape[axis + 1 :])
    dtype, count = stand_in(source.dtype), indices.num_elements
    arrays = (
        ArrayArg("out", 0, (outer, count, inner), dtype),
        ArrayArg("in", 0, (outer, source.shape[axis], inner), dtype),
        ArrayArg("in", 1, (count,), indices.dtype),
    )
    return KernelCall("movement.gather", arrays)


def _items_beside_axis(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Unless the op's axis is 0."""
    result = data_type(outputs)
    return tuple(True for _ in inputs) if norm_axis(int_attr(attrs, "axis"), result.rank) else None


def _pad_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """Unless axis 0 is padded."""
    pairs = pad_pairs(data_type(inputs), attrs)
    return (True,) if pairs and pairs[0] == (0, 0) else None


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "Concat",
        inputs=(Input("inputs", variadic=True),),
        outputs=(Output("concat_result"),),
        infer=_infer_concat,
        reference=_concat,
        attrs={"axis": Attr("int", required=True)},
        views=(View(0, 0, _only_offset),),
        joins=(Join(0, _concat_offset, _concat_strides),),
        inplace=(InplacePair(0, 0, _concat_refusal),),
        kernel=_concat_kernel,
        strided=(-1,),
        items=_items_beside_axis,
    ),
    OpSpec(
        "Split",
        inputs=(Input("input"),),
        outputs=(Output("outputs", variadic=True),),
        infer=_infer_split,
        reference=_split,
        attrs={"axis": Attr("int", 0), "split": Attr("ints"), "num_outputs": Attr("int")},
        views=(View(-1, 0, _split_offset, _split_strides),),
        kernel=_split_kernel,
        strided=(0,),
    ),
    OpSpec(
        "Pad",
        inputs=(Input("data"),),
        outputs=(Output("output"),),
        infer=_infer_pad,
        reference=_pad,
        attrs={"pads": Attr("ints", required=True), "mode": Attr("str", "constant"), "value": Attr("float", 0.0)},
        kernel=_pad_kernel,
        items=_pad_items,
    ),
    OpSpec(
        "Gather",
        inputs=(Input("data"), Input("indices")),
        outputs=(Output("output"),),
        infer=_infer_gather,
        reference=_gather,
        attrs={"axis": Attr("int", 0)},
        kernel=_gather_kernel,
        strided=(0,),
    ),
)
