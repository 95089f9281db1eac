"""Ops that are one strided copy: Transpose, Slice, Expand, Tile, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from memopt.errors import TypeInferenceError
from memopt.ops.items import along
from memopt.ops.movement_common import (
    Array,
    StridedCopy,
    copy_call,
    data_type,
    in_storage,
    int_attr,
    ints_attr,
    norm_axes,
    present,
    strided_call,
)
from memopt.ops.spec import Attr, Attrs, InplacePair, Input, KernelCall, KernelQuery, OpSpec, Output, Types, View
from memopt.strides import Strided, Strides, row_strides
from memopt.types import TensorType, itemsize

__all__ = ["OPS", "run_offset", "slice_ranges"]


# -- Transpose ----------------------------------------------------------------------------------------------------


def _perm(source: TensorType, attrs: Attrs) -> tuple[int, ...]:
    perm = ints_attr(attrs, "perm")
    if perm is None:
        return tuple(reversed(range(source.rank)))
    if sorted(norm_axes(perm, source.rank)) != list(range(source.rank)):
        raise TypeInferenceError(f"perm {perm} is not an order of the {source.rank} axes of {source}")
    return norm_axes(perm, source.rank)


def _infer_transpose(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    return [source.with_shape([source.shape[axis] for axis in _perm(source, attrs)])]


def _transpose(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    perm = _perm(TensorType.of(present(arrays).shape), attrs)
    return [present(arrays).transpose(perm).copy()]


def _moves_nothing(types: Types, outputs: Types, attrs: Attrs) -> bool:
    """Whether the axes longer than 1 keep their order (or there is nothing to move)."""
    source = data_type(types)
    order = [axis for axis in _perm(source, attrs) if source.shape[axis] != 1]
    return order == sorted(order) or source.num_elements == 0


def _transpose_refusal(types: Types, outputs: Types, attrs: Attrs) -> str | None:
    return None if _moves_nothing(types, outputs, attrs) else "the transpose moves elements"


def _transpose_offset(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    return 0 if _moves_nothing(types, outputs, attrs) else None


def _transpose_strides(types: Types, outputs: Types, attrs: Attrs, output: int, strides: Strides) -> Strided:
    return Strided(0, tuple(strides[axis] for axis in _perm(data_type(types), attrs)))


def _transpose_kernel(query: KernelQuery) -> KernelCall | None:
    result = data_type(query.outputs)
    if _moves_nothing(query.inputs, query.outputs, query.attrs):
        return copy_call(query)
    storage, strides = in_storage(query)
    reads = _transpose_strides(query.inputs, query.outputs, query.attrs, 0, strides).strides
    return strided_call(storage, result, StridedCopy(result.shape, row_strides(result.shape), reads))


# -- Slice --------------------------------------------------------------------------------------------------------


def slice_ranges(source: TensorType, attrs: Attrs) -> list[range]:
    """The indices that a Slice takes of each axis, by ONNX's clamping rules (those of Python)."""
    starts, ends = ints_attr(attrs, "starts") or (), ints_attr(attrs, "ends") or ()
    axes = ints_attr(attrs, "axes")
    steps = ints_attr(attrs, "steps") or (1,) * len(starts)
    axes = norm_axes(tuple(range(len(starts))) if axes is None else axes, source.rank)
    if not len(starts) == len(ends) == len(axes) == len(steps):
        raise TypeInferenceError(f"starts {starts}, ends {ends}, axes {axes} and steps {steps} differ in length")
    ranges = [range(dim) for dim in source.shape]
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        if step == 0:
            raise TypeInferenceError(f"the step of axis {axis} is 0")
        ranges[axis] = range(source.shape[axis])[start:end:step]
    return ranges


def _infer_slice(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source = data_type(types)
    return [source.with_shape([len(taken) for taken in slice_ranges(source, attrs)])]


def _slice(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array = present(arrays)
    for axis, taken in enumerate(slice_ranges(TensorType.of(array.shape), attrs)):
        array = np.take(array, np.arange(taken.start, taken.stop, taken.step), axis=axis)
    return [array.copy()]


def run_offset(shape: Sequence[int], ranges: Sequence[range]) -> int | None:
    """Where, in elements, the block that `ranges` take of a tensor of `shape` starts, if it is one contiguous run."""
    if any(len(taken) == 0 for taken in ranges):
        return 0
    whole = True
    for dim, taken in zip(reversed(shape), reversed(ranges), strict=True):
        if len(taken) == 1:
            whole = whole and dim == 1
        elif not whole or taken.step != 1:
            return None
        else:
            whole = len(taken) == dim
    return sum(taken.start * step for taken, step in zip(ranges, row_strides(shape), strict=True))


def _slice_offset(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    source = data_type(types)
    offset = run_offset(source.shape, slice_ranges(source, attrs))
    return None if offset is None else offset * itemsize(source.dtype)


def _slice_refusal(types: Types, outputs: Types, attrs: Attrs) -> str | None:
    return None if _slice_offset(types, outputs, attrs, 0) == 0 else "the slice moves elements"


def _slice_strides(types: Types, outputs: Types, attrs: Attrs, output: int, strides: Strides) -> Strided | None:
    """A slice that goes backwards has none: strides are 0 or more."""
    ranges = slice_ranges(data_type(types), attrs)
    if any(taken.step < 0 and len(taken) > 1 for taken in ranges) or not data_type(outputs).num_elements:
        return None
    first = sum(taken.start * step for taken, step in zip(ranges, strides, strict=True))
    steps = (taken.step * step if len(taken) > 1 else 0 for taken, step in zip(ranges, strides, strict=True))
    return Strided(first, tuple(steps))


def _slice_kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    ranges = slice_ranges(source, query.attrs)
    if result.shape == source.shape and all(taken.step > 0 for taken in ranges):
        return copy_call(query)
    storage, strides = in_storage(query)
    start = sum(taken.start * step for taken, step in zip(ranges, strides, strict=True)) if result.num_elements else 0
    reads = tuple(taken.step * step for taken, step in zip(ranges, strides, strict=True))
    return strided_call(storage, result, StridedCopy(result.shape, row_strides(result.shape), reads, in_at=start))


# -- Expand and Tile ----------------------------------------------------------------------------------------------


def _infer_expand(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, wanted = data_type(types), ints_attr(attrs, "shape") or ()
    if any(dim < 0 for dim in wanted):
        raise TypeInferenceError(f"shape {wanted} has a negative dimension")
    rank = max(source.rank, len(wanted))
    have = (1,) * (rank - source.rank) + source.shape
    want = (1,) * (rank - len(wanted)) + wanted
    shape = []
    for a, b in zip(have, want, strict=True):
        if a != b and 1 not in (a, b):
            raise TypeInferenceError(f"{source} does not broadcast to {wanted}: {a} against {b}")
        shape.append(b if a == 1 else a)
    return [source.with_shape(shape)]


def _expand(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.broadcast_to(present(arrays), outputs[0].shape).copy()]


def _same_elements(types: Types, outputs: Types, attrs: Attrs) -> str | None:
    same = data_type(types).num_elements == data_type(outputs).num_elements
    return None if same else "the output repeats elements"


def _repeat_offset(types: Types, outputs: Types, attrs: Attrs, output: int) -> int | None:
    return 0 if _same_elements(types, outputs, attrs) is None else None


def _expand_strides(types: Types, outputs: Types, attrs: Attrs, output: int, strides: Strides) -> Strided:
    source, new = data_type(types), data_type(outputs).rank - data_type(types).rank
    return Strided(0, (0,) * new + tuple(0 if dim == 1 else s for dim, s in zip(source.shape, strides, strict=True)))


def _expand_kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    if source.num_elements == result.num_elements:
        return copy_call(query)
    storage, strides = in_storage(query)
    reads = _expand_strides(query.inputs, query.outputs, query.attrs, 0, strides).strides
    return strided_call(storage, result, StridedCopy(result.shape, row_strides(result.shape), reads))


def _infer_tile(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, repeats = data_type(types), ints_attr(attrs, "repeats") or ()
    if len(repeats) != source.rank or any(count < 0 for count in repeats):
        raise TypeInferenceError(f"repeats {repeats} do not fit {source}: want {source.rank} numbers of 0 or more")
    return [source.with_shape([dim * count for dim, count in zip(source.shape, repeats, strict=True)])]


def _tile(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    return [np.tile(present(arrays), ints_attr(attrs, "repeats") or ()).copy()]


def _tile_kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    if source.num_elements == result.num_elements:
        return copy_call(query)
    dims: list[int] = []
    reads: list[int] = []
    for dim, step, count in zip(
        source.shape, row_strides(source.shape), ints_attr(query.attrs, "repeats") or (), strict=True
    ):
        dims += [count, dim]
        reads += [0, step]
    return strided_call(source, result, StridedCopy(tuple(dims), row_strides(dims), tuple(reads)))


# -- DepthToSpace and SpaceToDepth ----------------------------------------------------------------------------------


def _is_depth_first(attrs: Attrs) -> bool:
    """Whether the block is the outer part of the channels (mode DCR) and not the inner one (CRD)."""
    mode = attrs.get("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise TypeInferenceError(f"mode {mode!r} is not DCR or CRD")
    return mode == "DCR"


def _blocks(source: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """DepthToSpace as a reshape to six axes and an order of them."""
    block = int_attr(attrs, "blocksize")
    if source.rank != 4 or block < 1 or source.shape[1] % (block * block):
        raise TypeInferenceError(
            f"{source} does not split into blocks of {block}: want (N, C, H, W) with C divisible by {block}²"
        )
    n, c, h, w = source.shape
    if not _is_depth_first(attrs):
        return (n, c // block**2, block, block, h, w), (0, 1, 4, 2, 5, 3)
    return (n, block, block, c // block**2, h, w), (0, 3, 4, 1, 5, 2)


def _infer_depth_to_space(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, block = data_type(types), int_attr(attrs, "blocksize")
    _blocks(source, attrs)
    n, c, h, w = source.shape
    return [source.with_shape((n, c // block**2, h * block, w * block))]


def _patches(source: TensorType, attrs: Attrs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """SpaceToDepth as a reshape to six axes and an order of them."""
    block = int_attr(attrs, "blocksize")
    if source.rank != 4 or block < 1 or source.shape[2] % block or source.shape[3] % block:
        raise TypeInferenceError(
            f"{source} does not split into blocks of {block}: want (N, C, H, W), both divisible by {block}"
        )
    n, c, h, w = source.shape
    order = (0, 3, 5, 1, 2, 4) if _is_depth_first(attrs) else (0, 1, 3, 5, 2, 4)
    return (n, c, h // block, block, w // block, block), order


def _infer_space_to_depth(types: Types, attrs: Attrs, num_outputs: int) -> list[TensorType]:
    source, block = data_type(types), int_attr(attrs, "blocksize")
    _patches(source, attrs)
    n, c, h, w = source.shape
    return [source.with_shape((n, c * block**2, h // block, w // block))]


def _depth_to_space(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array = present(arrays)
    shape, perm = _blocks(TensorType.of(array.shape), attrs)
    return [array.reshape(shape).transpose(perm).reshape(outputs[0].shape).copy()]


def _space_to_depth(arrays: Sequence[Array | None], attrs: Attrs, outputs: Sequence[TensorType]) -> list[Array]:
    array = present(arrays)
    shape, perm = _patches(TensorType.of(array.shape), attrs)
    return [array.reshape(shape).transpose(perm).reshape(outputs[0].shape).copy()]


def _shuffle_kernel(query: KernelQuery) -> KernelCall | None:
    source, result = data_type(query.inputs), data_type(query.outputs)
    deeper = result.shape[1:2] > source.shape[1:2]
    split, perm = (_patches if deeper else _blocks)(source, query.attrs)
    strides = row_strides(split)
    dims = tuple(split[axis] for axis in perm)
    reads = tuple(strides[axis] for axis in perm)
    return strided_call(source, result, StridedCopy(dims, row_strides(dims), reads))


def _transpose_items(inputs: Types, outputs: Types, attrs: Attrs) -> tuple[bool, ...] | None:
    """If axis 0 stays where it is."""
    perm = _perm(data_type(inputs), attrs)
    return (True,) if perm and perm[0] == 0 else None


OPS: tuple[OpSpec, ...] = (
    OpSpec(
        "Transpose",
        inputs=(Input("data"),),
        outputs=(Output("transposed"),),
        infer=_infer_transpose,
        reference=_transpose,
        attrs={"perm": Attr("ints")},
        views=(View(0, 0, _transpose_offset, _transpose_strides),),
        inplace=(InplacePair(0, 0, _transpose_refusal),),
        kernel=_transpose_kernel,
        items=_transpose_items,
        strided=(0,),
    ),
    OpSpec(
        "Slice",
        inputs=(Input("data"),),
        outputs=(Output("output"),),
        infer=_infer_slice,
        reference=_slice,
        attrs={
            "starts": Attr("ints", required=True),
            "ends": Attr("ints", required=True),
            "axes": Attr("ints"),
            "steps": Attr("ints"),
        },
        views=(View(0, 0, _slice_offset, _slice_strides),),
        inplace=(InplacePair(0, 0, _slice_refusal),),
        kernel=_slice_kernel,
        strided=(0,),
    ),
    OpSpec(
        "Expand",
        inputs=(Input("input"),),
        outputs=(Output("output"),),
        infer=_infer_expand,
        reference=_expand,
        attrs={"shape": Attr("ints", required=True)},
        views=(View(0, 0, _repeat_offset, _expand_strides),),
        inplace=(InplacePair(0, 0, _same_elements),),
        kernel=_expand_kernel,
        strided=(0,),
    ),
    OpSpec(
        "Tile",
        inputs=(Input("input"),),
        outputs=(Output("output"),),
        infer=_infer_tile,
        reference=_tile,
        attrs={"repeats": Attr("ints", required=True)},
        views=(View(0, 0, _repeat_offset),),
        inplace=(InplacePair(0, 0, _same_elements),),
        kernel=_tile_kernel,
    ),
    OpSpec(
        "DepthToSpace",
        inputs=(Input("input"),),
        outputs=(Output("output"),),
        infer=_infer_depth_to_space,
        reference=_depth_to_space,
        attrs={"blocksize": Attr("int", required=True), "mode": Attr("str", "DCR")},
        kernel=_shuffle_kernel,
        items=along(0),
    ),
    OpSpec(
        "SpaceToDepth",
        inputs=(Input("input"),),
        outputs=(Output("output"),),
        infer=_infer_space_to_depth,
        reference=_space_to_depth,
        attrs={"blocksize": Attr("int", required=True), "mode": Attr("str", "DCR")},
        kernel=_shuffle_kernel,
        items=along(0),
    ),
)
